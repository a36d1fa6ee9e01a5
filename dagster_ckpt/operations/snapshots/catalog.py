"""Listing snapshots, from the store or from the storage alone, and finding the one a person names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import assert_never

from dagster_ckpt.core import paths
from dagster_ckpt.core.checkpoint.record import CompletedRecord, CoordinatorRecord
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatus
from dagster_ckpt.core.ids import CheckpointId, PipelineId
from dagster_ckpt.core.model import CheckpointKind, CheckpointMetadata, Labeled
from dagster_ckpt.core.paths import SnapshotLocation, folder_of, location_of
from dagster_ckpt.core.request import RunStatus
from dagster_ckpt.core.restore.choice import FromSnapshot, latest_snapshot, snapshot_at
from dagster_ckpt.core.restore.facts import existing
from dagster_ckpt.core.restore_point import At, Key, Latest, Nothing, RestorePoint, restore_point
from dagster_ckpt.errors import CheckpointError, Corrupt, InvalidRequest, NotFound
from dagster_ckpt.operations.deployment import Deployment, load_record, only_pipeline
from dagster_ckpt.ports import CheckpointStorage, HistoryRow
from dagster_ckpt.runtime.record_store import RecordStore, parse_row
from dagster_ckpt.runtime.restore_facts import absolute, absolute_uri, facts_of
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot, open_snapshot

__all__ = [
    "FoundSnapshot",
    "PipelineSummary",
    "SnapshotStatus",
    "SnapshotSummary",
    "StoredFolder",
    "absolute",
    "absolute_uri",
    "find_snapshot",
    "list_history",
    "list_snapshots",
    "list_storage",
    "pipeline_summary",
    "snapshot_of_run",
    "snapshots_of",
]


class SnapshotStatus(StrEnum):
    """Status of a snapshot."""

    RETAINED = "retained"
    """Complete, restorable, and owned by the coordinator."""
    SAVEPOINT = "savepoint"
    """Complete, restorable, and owned by you."""
    IN_PROGRESS = "in_progress"
    FAILED = "failed"
    SUBSUMED = "subsumed"
    """A newer one took its place."""
    DISCARDED = "discarded"
    """Its files are gone."""
    COMPLETED = "completed"
    """It was completed, and the coordinator no longer knows it; its files may still be there."""

    @property
    def is_restorable(self) -> bool:
        """True where ``restore`` accepts its key."""
        return self in (SnapshotStatus.RETAINED, SnapshotStatus.SAVEPOINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSummary(Labeled):
    """One line of a list. Times are seconds since the Unix epoch, sizes bytes."""

    pipeline: PipelineId
    key: str
    checkpoint_id: CheckpointId
    kind: str
    status: SnapshotStatus
    uri: str
    triggered_at: float
    completed_at: float | None = None
    bytes_full: int = 0
    bytes_new: int = 0
    epoch: int = 0
    run_id: str = ""
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    message: str = ""
    """Why it failed."""
    kept_for: str = ""
    """``newest``, ``its hour``, ``its day``; of a savepoint ``you``; empty: it is not kept."""
    is_shown: bool = False
    """It is the newest that all tables show."""
    lost: str = ""
    """What it needs and is gone; empty: nobody has missed anything."""
    lost_since: float | None = None
    """When that was seen first."""

    @property
    def duration(self) -> float | None:
        """Seconds from trigger to the end."""
        return None if self.completed_at is None else self.completed_at - self.triggered_at


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSummary:
    """One pipeline of the store."""

    pipeline: PipelineId
    status: RunStatus
    epoch: int
    owner: str
    retained: int
    savepoints: int
    in_progress: int
    latest: str
    """Key of the newest restorable checkpoint; empty: none has completed."""
    latest_completed_at: float | None
    serving: str = ""
    """Pipeline whose tables readers of its name find; empty: its own."""


def pipeline_summary(deployment: Deployment, pipeline: PipelineId) -> PipelineSummary:
    """Return one pipeline of the store. Raises NotFound, Corrupt, Unavailable."""
    record = load_record(deployment.store, pipeline)
    newest = max(record.completed, key=lambda c: c.checkpoint_id, default=None)
    return PipelineSummary(
        pipeline=PipelineId(record.pipeline),
        status=record.status,
        epoch=record.epoch,
        owner=record.owner,
        retained=len(record.completed),
        savepoints=len(record.savepoints),
        in_progress=len(record.pending),
        latest=newest.known.key if newest else "",
        latest_completed_at=newest.completed_at if newest else None,
        serving="" if record.serving is None else record.serving.pipeline,
    )


# --- snapshots of one pipeline --------------------------------------------------------------------------------


def list_snapshots(deployment: Deployment, pipeline: PipelineId) -> tuple[SnapshotSummary, ...]:
    """Return the snapshots a pipeline can be restored from, newest first. Raises NotFound, Corrupt, Unavailable."""
    return snapshots_of(load_record(deployment.store, pipeline))


def snapshots_of(record: CoordinatorRecord) -> tuple[SnapshotSummary, ...]:
    """Return the same from a record that was read already."""
    pipeline = PipelineId(record.pipeline)
    found = [
        *(_summary(entry, pipeline, _status(entry)) for entry in record.completed),
        *(_summary(entry, pipeline, SnapshotStatus.SAVEPOINT) for entry in record.savepoints),
    ]
    unique = {
        one.checkpoint_id: replace(one, is_shown=one.checkpoint_id == record.shown_id)
        for one in reversed(found)
    }
    return tuple(sorted(unique.values(), key=lambda s: s.checkpoint_id, reverse=True))


def tables_that_stay(deployment: Deployment, record: CoordinatorRecord) -> tuple[str, ...]:
    """Return the sinks that no restore takes back, as the newest snapshot notes them, with why.

    None where that snapshot cannot be read.
    """
    newest = max((*record.completed, *record.savepoints), key=lambda one: one.checkpoint_id, default=None)
    if newest is None:
        return ()
    try:
        storage = deployment.open_storage(newest.location.base_uri)
        stages = open_snapshot(storage, newest.location.folder).metadata.stages
    except CheckpointError:
        return ()
    return tuple(
        f"sink {stage.uid} does not go back with a restore: {stage.table.cannot_roll_back}"
        for stage in stages
        if stage.table is not None and stage.table.cannot_roll_back
    )


def snapshot_of_run(deployment: Deployment, pipeline: PipelineId, run_id: str) -> SnapshotSummary | None:
    """Return the snapshot a run took, or that a running stream took because the run asked for it."""
    asked = {f"{what}-{run_id}" for what in ("savepoint", "stop", "checkpoint")}
    answers = load_record(deployment.store, pipeline).operations
    numbers = {answer.checkpoint_id for answer in answers if answer.request_id in asked}
    known = list_snapshots(deployment, pipeline)
    return next((s for s in known if s.run_id == run_id or s.checkpoint_id in numbers), None)


def list_history(
    deployment: Deployment, pipeline: PipelineId, *, limit: int | None = None
) -> tuple[SnapshotSummary, ...]:
    """Return every checkpoint there ever was, failed and discarded ones too, newest first."""
    known = {s.checkpoint_id: s for s in list_snapshots(deployment, pipeline)}
    rows = {row.checkpoint_id: row for row in RecordStore(deployment.store).history(pipeline)}
    numbers = sorted({*known, *rows}, reverse=True)[:limit]
    return tuple(known[n] if n in known else _from_history(rows[n]) for n in numbers)


def _status(entry: CompletedRecord) -> SnapshotStatus:
    """Return the status of what the pipeline goes on from: a savepoint stays its owner's where it was restored."""
    return SnapshotStatus.SAVEPOINT if entry.is_kept_for_its_owner else SnapshotStatus.RETAINED


def _summary(entry: CompletedRecord, pipeline: PipelineId, status: SnapshotStatus) -> SnapshotSummary:
    return SnapshotSummary(
        pipeline=pipeline,
        key=entry.known.key,
        checkpoint_id=CheckpointId(entry.checkpoint_id),
        kind=entry.known.kind.value,
        status=status,
        uri=entry.location.uri,
        triggered_at=entry.triggered_at,
        completed_at=entry.completed_at,
        bytes_full=entry.bytes_full,
        bytes_new=entry.bytes_new,
        epoch=entry.epoch,
        run_id=entry.run_id,
        kept_for="you" if status is SnapshotStatus.SAVEPOINT else entry.kept_for,
        lost=entry.lost,
        lost_since=entry.lost_since,
        **entry.trigger.label.fields(),
    )


def _from_history(row: HistoryRow) -> SnapshotSummary:
    numbers = parse_row(row)
    summary = SnapshotSummary(
        pipeline=row.pipeline,
        key=paths.snapshot_key(CheckpointKind(row.kind), row.checkpoint_id),
        checkpoint_id=row.checkpoint_id,
        kind=row.kind,
        status=SnapshotStatus(row.status),
        uri="",
        triggered_at=row.triggered_at,
        completed_at=row.ended_at,
        epoch=row.epoch,
    )
    if numbers is None:
        return summary
    return replace(
        summary,
        kind=numbers.kind.value,
        uri=numbers.path,
        bytes_full=numbers.bytes_full,
        bytes_new=numbers.bytes_new,
        run_id=numbers.run_id,
        message=numbers.failure_message,
        **numbers.trigger.label.fields(),
    )


# --- what the storage says by itself --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFolder:
    """A folder with a ``_metadata`` file: a complete snapshot, whether the store knows it or not."""

    uri: str
    metadata: CheckpointMetadata | None
    problem: str = ""
    """Why its metadata cannot be read."""
    metadata_checksum: str = ""
    """Of its ``_metadata`` file."""


def list_storage(storage: CheckpointStorage) -> tuple[StoredFolder, ...]:
    """Return every complete snapshot below a storage, read from the storage alone: for when the store is lost."""
    folders = sorted(
        stored.key.rpartition("/")[0]
        for stored in storage.list("")
        if stored.key.endswith(f"/{paths.METADATA_FILE}")
    )
    return tuple(_stored_folder(storage, folder) for folder in folders)


def _stored_folder(storage: CheckpointStorage, folder: str) -> StoredFolder:
    uri = f"{storage.base_uri}/{folder}"
    try:
        stored = open_snapshot(storage, folder)
        return StoredFolder(uri=uri, metadata=stored.metadata, metadata_checksum=stored.metadata_checksum)
    except (Corrupt, NotFound) as error:
        return StoredFolder(uri=uri, metadata=None, problem=str(error))


# --- finding one ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSnapshot:
    """The snapshot a person named."""

    stored: StoredSnapshot
    location: SnapshotLocation
    known: CompletedRecord | None
    """The coordinator's note of it; None: the store does not know it, or no longer."""

    @property
    def pipeline(self) -> PipelineId:
        """Pipeline that took it."""
        return PipelineId(self.stored.metadata.pipeline)

    @property
    def key(self) -> str:
        """Its key as people see it."""
        return paths.snapshot_key(self.stored.metadata.kind, self.stored.metadata.checkpoint_id)


def find_snapshot(
    deployment: Deployment, named: RestorePoint | str, pipeline: PipelineId | None = None
) -> FoundSnapshot:
    """Return the snapshot that is named: ``latest``, a key, a savepoint's folder name, or a path or URI.

    ``pipeline`` may be left out where the store has only one, and for a path or URI. Raises InvalidRequest for text
    that names nothing, NotFound saying what exists, Corrupt when it cannot be read, Unavailable.
    """
    point = absolute(restore_point(named), deployment.open_storage)
    match point:
        case At(uri) if not point.is_name:
            return _find_by_uri(deployment, uri)
        case Nothing():
            raise InvalidRequest("'none' names no snapshot: give a key such as 'chk-31', or a path or URI")
        case Latest() | Key() | At():
            record = load_record(deployment.store, pipeline or only_pipeline(deployment.store))
            return _open(deployment, record, _choose(deployment, record, point))
    assert_never(point)


def _choose(deployment: Deployment, record: CoordinatorRecord, point: Latest | Key | At) -> FromSnapshot:
    facts = facts_of(record)
    try:
        chosen = latest_snapshot(facts) if isinstance(point, Latest) else snapshot_at(point, facts)
    except NotFound as error:
        raise NotFound(f"{error}{_what_became_of(deployment, record, point)}") from error
    if chosen is None:
        known = (*facts.checkpoints, *facts.savepoints)
        raise NotFound(f"pipeline {record.pipeline!r} has nothing to restore. {existing(known)}")
    return chosen


def _what_became_of(deployment: Deployment, record: CoordinatorRecord, point: Latest | Key | At) -> str:
    if not isinstance(point, Key):
        return ""
    row = RecordStore(deployment.store).row(PipelineId(record.pipeline), point.checkpoint_id)
    if row is None:
        return ""
    match CheckpointStatus(row.status):
        case CheckpointStatus.IN_PROGRESS:
            what = f"is a {row.kind} in progress"
        case CheckpointStatus.COMPLETED:
            what = f"is a {row.kind}: {paths.snapshot_key(CheckpointKind(row.kind), row.checkpoint_id)}"
        case CheckpointStatus.FAILED:
            what = f"was a {row.kind} and failed"
        case CheckpointStatus.SUBSUMED | CheckpointStatus.DISCARDED:
            what = f"was a {row.kind} and is {row.status}: its files are not kept"
    return f". {point.checkpoint_id} {what}"


def _open(deployment: Deployment, record: CoordinatorRecord, chosen: FromSnapshot) -> FoundSnapshot:
    storage = deployment.open_storage(chosen.location.base_uri)
    digest = chosen.known.metadata_checksum if chosen.known is not None else ""
    stored = open_snapshot(storage, chosen.location.folder, recorded=digest)
    if chosen.known is not None and stored.metadata.checkpoint_id != chosen.known.checkpoint_id:
        raise Corrupt(
            f"{chosen.location.uri} should hold {chosen.known.key}, but its metadata is of snapshot "
            f"{stored.metadata.checkpoint_id}: use another snapshot"
        )
    recorded = (*record.completed, *record.savepoints)
    entry = next((entry for entry in recorded if entry.known == chosen.known), None)
    return FoundSnapshot(stored=stored, location=chosen.location, known=entry)


def _find_by_uri(deployment: Deployment, uri: str) -> FoundSnapshot:
    for record in _records(deployment):
        chosen = snapshot_at(At(uri), facts_of(record))
        if chosen.known is not None:
            return _open(deployment, record, chosen)
    given = folder_of(uri)
    opened = open_snapshot(deployment.open_storage(given.base_uri), given.folder)
    location = location_of(uri, opened.metadata)
    storage = deployment.open_storage(location.base_uri)
    stored = replace(opened, storage=storage, folder=location.folder)
    return FoundSnapshot(stored=stored, location=location, known=None)


def _records(deployment: Deployment) -> Iterable[CoordinatorRecord]:
    """Yield the records that can be read: one that is damaged must not hide a snapshot given by its place."""
    for pipeline in deployment.store.pipelines():
        try:
            yield load_record(deployment.store, pipeline)
        except CheckpointError:
            continue
