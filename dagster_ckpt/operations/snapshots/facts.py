"""Facts about every stored file of a pipeline: needed, of a checkpoint that is over, or in doubt.

The record is loaded before the storage is listed, so whatever starts meanwhile is not known to be over and stays. A
snapshot that is complete in storage keeps its files although the record has forgotten it: it can be restored by URI.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dagster_ckpt.core import paths
from dagster_ckpt.core.checkpoint.record import CompletedRecord, CoordinatorRecord, PendingRecord
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatus
from dagster_ckpt.core.files.cleaning import Classified, StorageFacts, classify
from dagster_ckpt.core.ids import CheckpointId, PipelineId
from dagster_ckpt.core.paths import SnapshotLocation, StoredObject, same_place
from dagster_ckpt.errors import Corrupt, NotFound
from dagster_ckpt.operations.deployment import Deployment, load_record
from dagster_ckpt.operations.snapshots.contents import files_of
from dagster_ckpt.ports import CheckpointStorage, HistoryRow
from dagster_ckpt.runtime.record_store import RecordStore, parse_row
from dagster_ckpt.spark.snapshot.stored import open_snapshot

_OVER = frozenset({CheckpointStatus.FAILED, CheckpointStatus.SUBSUMED, CheckpointStatus.DISCARDED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """Facts from the store, gathered before anything is listed."""

    pipeline: PipelineId
    record: CoordinatorRecord
    over: frozenset[CheckpointId]
    """Checkpoints that are over and that nobody can still be writing."""
    uncertain: frozenset[CheckpointId]
    """Checkpoints of which nothing may be deleted."""
    needed: tuple[SnapshotLocation, ...]
    """Every snapshot that some pipeline of this store can be restored from."""
    checksums: Mapping[str, str]
    """Recorded checksum of ``_metadata`` by the snapshot's URI, where one is recorded."""
    failed_savepoints: tuple[SnapshotLocation, ...]
    """Folders of savepoints that failed."""


def gather(deployment: Deployment, pipeline: PipelineId) -> Gathered:
    """Read the store. Raises NotFound, Unavailable, and Corrupt: with one unreadable record nothing may be deleted."""
    record = load_record(deployment.store, pipeline)
    rows = list(RecordStore(deployment.store).history(pipeline))
    others = [
        load_record(deployment.store, other) for other in deployment.store.pipelines() if other != pipeline
    ]
    uncertain = frozenset(CheckpointId(c.checkpoint_id) for c in record.cleanup if c.keep_files)
    return Gathered(
        pipeline=pipeline,
        record=record,
        over=frozenset(_over(record, rows)) - uncertain,
        uncertain=uncertain,
        needed=tuple(location for one in (record, *others) for location in _restorable(one)),
        checksums={e.location.uri: e.metadata_checksum for one in (record, *others) for e in entries_of(one)},
        failed_savepoints=tuple(_failed_savepoints(record, rows)),
    )


def _over(record: CoordinatorRecord, rows: Sequence[HistoryRow]) -> Iterator[CheckpointId]:
    alive = {
        *(c.checkpoint_id for c in (*record.completed, *record.savepoints)),
        *(p.checkpoint_id for p in record.pending),
        *(c.checkpoint_id for c in record.cleanup if c.writers),
    }
    # What was restored without being claimed, and everything older, belongs to whoever took it.
    foreign = record.highest_not_claimed or 0
    for row in rows:
        is_over = row.status in _OVER
        if is_over and row.checkpoint_id not in alive and row.checkpoint_id > foreign:
            yield row.checkpoint_id


def _restorable(record: CoordinatorRecord) -> Iterator[SnapshotLocation]:
    yield from (entry.location for entry in (*record.completed, *record.savepoints))
    if record.line is not None and record.line.base is not None:
        yield record.line.base.location
    yield from (built for p in record.pending if (built := _built_on(record, p)) is not None)


def _built_on(record: CoordinatorRecord, pending: PendingRecord) -> SnapshotLocation | None:
    """Return where the checkpoint lies whose shared files a pending one may be naming again."""
    if pending.builds_on is None or record.completed_of(pending.builds_on) is not None:
        return None
    going = next((c.location for c in record.cleanup if c.checkpoint_id == pending.builds_on), None)
    if going is not None or pending.location is None:
        return going
    folder = paths.CheckpointPaths(PipelineId(record.pipeline)).checkpoint(CheckpointId(pending.builds_on))
    return SnapshotLocation(base_uri=pending.location.base_uri, folder=folder)


def _failed_savepoints(record: CoordinatorRecord, rows: Sequence[HistoryRow]) -> Iterator[SnapshotLocation]:
    busy = {c.checkpoint_id for c in record.cleanup if c.writers or c.keep_files}
    for row in rows:
        if row.kind != "savepoint" or row.status != CheckpointStatus.FAILED or row.checkpoint_id in busy:
            continue
        numbers = parse_row(row)
        base, _, folder = (numbers.path if numbers else "").rpartition("/")
        if base and re.fullmatch(rf"savepoint-{re.escape(record.pipeline)}-[0-9A-Za-z]+", folder):
            yield SnapshotLocation(base_uri=base, folder=folder)


# --- with the storage -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Every stored object of a pipeline in checkpoint storage, with the verdict on it."""

    classified: tuple[Classified, ...]
    objects: dict[str, int]
    """Size by key."""
    unrecorded: tuple[SnapshotLocation, ...]
    """Complete checkpoints in storage that the record does not know."""
    obstacles: tuple[str, ...]
    """Why nothing can be said to be unused: a snapshot whose file lists cannot be read."""


@dataclass(slots=True)
class _Needed:
    keys: set[str] = field(default_factory=set)
    obstacles: list[str] = field(default_factory=list)


def survey(deployment: Deployment, gathered: Gathered) -> Listing:
    """List the pipeline's part of checkpoint storage and classify every object. Raises Unavailable."""
    found = list(deployment.storage.list(gathered.pipeline))
    here = deployment.storage
    over = gathered.over | frozenset(_forgotten(found, gathered))
    needed = _Needed()
    local = [location for location in gathered.needed if same_place(location.base_uri, here.base_uri)]
    for location in local:
        _add(needed, here, location.folder, recorded=gathered.checksums.get(location.uri, ""))
    unrecorded = tuple(_unrecorded(found, gathered.pipeline, over, here, local))
    for location in unrecorded:
        _add(needed, here, location.folder)
    facts = StorageFacts(
        pipeline=gathered.pipeline,
        referenced=needed.keys,
        over=over,
        uncertain=over | gathered.uncertain if needed.obstacles else gathered.uncertain,
    )
    return Listing(
        classified=tuple(classify(found, facts)),
        objects={stored.key: stored.size for stored in found},
        unrecorded=unrecorded,
        obstacles=tuple(needed.obstacles),
    )


def _add(needed: _Needed, storage: CheckpointStorage, folder: str, *, recorded: str = "") -> None:
    try:
        needed.keys |= files_of(open_snapshot(storage, folder, recorded=recorded)).keys
    except (Corrupt, NotFound) as error:
        needed.obstacles.append(f"{storage.base_uri}/{folder}: {error}")


def _forgotten(found: Sequence[StoredObject], gathered: Gathered) -> Iterator[CheckpointId]:
    """Yield the checkpoints of stored objects that are over, but whose rows have left the history."""
    number_of = paths.CheckpointPaths(gathered.pipeline).number_of
    for stored in found:
        number = number_of(stored.key)
        # What was restored without being claimed, and everything older, belongs to whoever took it.
        if number is None or number <= (gathered.record.highest_not_claimed or 0):
            continue
        if gathered.record.forgotten.holds(number) and number not in gathered.record.known_ids:
            yield number


def _unrecorded(
    found: Sequence[StoredObject],
    pipeline: PipelineId,
    over: frozenset[CheckpointId],
    storage: CheckpointStorage,
    local: Sequence[SnapshotLocation],
) -> Iterator[SnapshotLocation]:
    known = {location.folder for location in local}
    number_of = paths.CheckpointPaths(pipeline).number_of
    for stored in found:
        folder, _, name = stored.key.rpartition("/")
        if name != paths.METADATA_FILE or folder in known:
            continue
        if number_of(stored.key) not in over:
            yield SnapshotLocation(base_uri=storage.base_uri, folder=folder)


def entries_of(record: CoordinatorRecord) -> tuple[CompletedRecord, ...]:
    """Return retained checkpoints and savepoints, each once."""
    unique = {entry.location.uri: entry for entry in (*record.savepoints, *record.completed)}
    return tuple(unique.values())
