"""How a savepoint that was not taken here enters the coordinator's record, under a number of this pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import assert_never

from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId
from dagster_ckpt.core.model import CheckpointKind, CheckpointMetadata
from dagster_ckpt.core.paths import savepoint_key
from dagster_ckpt.core.properties import properties_for
from dagster_ckpt.core.record import CompletedRecord, CoordinatorRecord, TriggerRecord
from dagster_ckpt.core.restore_point import SnapshotLocation, same_place
from dagster_ckpt.core.statistics import CheckpointStatistics, CheckpointStatus, StageStatistics
from dagster_ckpt.errors import CheckpointError, Corrupt, InvalidRequest, Unavailable
from dagster_ckpt.operations.catalog import FoundSnapshot, find_snapshot
from dagster_ckpt.operations.deployment import Deployment, ProgressCallback, silent
from dagster_ckpt.operations.export import CopyChanges, export_snapshot, random_suffix
from dagster_ckpt.operations.records import RecordChange, change_record
from dagster_ckpt.operations.verify import verify_snapshot
from dagster_ckpt.ports import HistoryRow

__all__ = [
    "ImportMode",
    "Imported",
    "import_snapshot",
    "register_or_remove",
    "register_savepoint",
    "reserve_id",
]


class ImportMode(StrEnum):
    """Where the files of an imported snapshot are afterwards."""

    COPY = "copy"
    """In this deployment's savepoint folder; the original is no longer needed."""
    REFERENCE = "reference"
    """Where they are: it must stay there, and only a savepoint can be referred to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A savepoint the coordinator now knows."""

    pipeline: PipelineId
    checkpoint_id: CheckpointId
    location: SnapshotLocation
    bytes: int

    @property
    def key(self) -> str:
        """What ``restore_from`` takes."""
        return savepoint_key(self.checkpoint_id)


def import_snapshot(
    deployment: Deployment,
    uri: str,
    *,
    mode: ImportMode = ImportMode.COPY,
    target: str = "",
    name: str | None = None,
    note: str | None = None,
    labels: Mapping[str, str] | None = None,
    suffix: Callable[[], str] = random_suffix,
    progress: ProgressCallback = silent,
) -> Imported:
    """Make a snapshot from elsewhere a savepoint of this deployment; every file is verified on the way.

    It keeps its number where this pipeline has not used it for anything else; a copy gets a new one otherwise.
    Raises InvalidRequest when the store knows it already, or it cannot be referred to; NotFound, Corrupt, Unavailable.
    """
    if "/" not in uri:
        raise InvalidRequest(f"{uri!r} is no place: give the path or URI of the snapshot's folder")
    found = find_snapshot(deployment, uri)
    if found.known is not None:
        raise InvalidRequest(f"{found.location.uri} is {found.key} of pipeline {found.pipeline!r} already")
    said = CopyChanges(name=name, note=note, labels=labels or {})
    match mode:
        case ImportMode.REFERENCE:
            return _refer(deployment, found, said, progress)
        case ImportMode.COPY:
            number = reserve_id(deployment, found.pipeline, found.stored.metadata)
            copied = export_snapshot(
                found.stored,
                deployment.savepoint_storage(target),
                changes=replace(said, checkpoint_id=number),
                suffix=suffix,
                progress=progress,
            )
            register_or_remove(
                deployment, copied.metadata, copied.location, copied.bytes, written=copied.keys
            )
            return _imported(copied.metadata, copied.location, copied.bytes)
    assert_never(mode)


def _imported(metadata: CheckpointMetadata, location: SnapshotLocation, size: int) -> Imported:
    return Imported(
        pipeline=PipelineId(metadata.pipeline),
        checkpoint_id=CheckpointId(metadata.checkpoint_id),
        location=location,
        bytes=size,
    )


def _refer(
    deployment: Deployment, found: FoundSnapshot, said: CopyChanges, progress: ProgressCallback
) -> Imported:
    metadata = found.stored.metadata
    if not metadata.kind.is_savepoint:
        raise InvalidRequest(
            f"{found.location.uri} is a checkpoint: its owner deletes it when a newer one takes its place. Copy it"
        )
    verified = verify_snapshot(found.stored, progress=progress)
    if not verified.is_intact:
        first = verified.problems[0]
        raise Corrupt(
            f"{found.location.uri} is not whole ({first.path} of stage {first.stage}: {first.message}): "
            "it was not imported"
        )
    number = CheckpointId(metadata.checkpoint_id)
    if reserve_id(deployment, found.pipeline, metadata) != number:
        raise InvalidRequest(
            f"number {number} of pipeline {found.pipeline!r} means another snapshot here: copy it, "
            "and the copy gets a number of its own"
        )
    changed = metadata.model_copy(
        update={
            "name": metadata.name if said.name is None else said.name,
            "note": metadata.note if said.note is None else said.note,
            "labels": {**metadata.labels, **said.labels},
        }
    )
    register_savepoint(deployment, changed, found.location, verified.bytes)
    return _imported(changed, found.location, verified.bytes)


# --- numbers --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Answer:
    number: CheckpointId = field(default=CheckpointId(1))


def reserve_id(
    deployment: Deployment, pipeline: PipelineId, like: CheckpointMetadata | None = None
) -> CheckpointId:
    """Take a number that this pipeline has never used for another snapshot; it is ours from here on.

    ``like``: the number that snapshot had where it was taken, if it is free here.
    """
    answer = _Answer()

    def change(record: CoordinatorRecord) -> RecordChange:
        answer.number = _number(deployment, record, like)
        following = max(record.next_id, answer.number + 1)
        return RecordChange(record=record.model_copy(update={"next_id": following}))

    change_record(deployment.store, pipeline, change)
    return answer.number


def _number(
    deployment: Deployment, record: CoordinatorRecord, like: CheckpointMetadata | None
) -> CheckpointId:
    if like is not None:
        number = CheckpointId(like.checkpoint_id)
        if number >= record.next_id or _is_the_very_one(deployment, record, like):
            return number
    return CheckpointId(record.next_id)


def _is_the_very_one(deployment: Deployment, record: CoordinatorRecord, metadata: CheckpointMetadata) -> bool:
    """True where this pipeline itself took the snapshot under that number, and does not know it any more."""
    number = CheckpointId(metadata.checkpoint_id)
    if record.completed_of(number) is not None or record.pending_of(number) is not None:
        return False
    rows = deployment.store.history(PipelineId(record.pipeline), limit=1, before=CheckpointId(number + 1))
    return bool(rows) and rows[0].checkpoint_id == number and rows[0].triggered_at == metadata.triggered_at


# --- the record -----------------------------------------------------------------------------------------------


def register_savepoint(
    deployment: Deployment, metadata: CheckpointMetadata, location: SnapshotLocation, size: int
) -> CoordinatorRecord:
    """Add a savepoint whose files are complete to the record and the history. Raises InvalidRequest if it is there."""

    def change(record: CoordinatorRecord) -> RecordChange:
        for known in (*record.completed, *record.savepoints):
            is_same = same_place(known.location.uri, location.uri)
            if is_same or known.checkpoint_id == metadata.checkpoint_id:
                raise InvalidRequest(
                    f"pipeline {record.pipeline!r} already has {known.known.key} at {known.location.uri}"
                )
        entry = _entry(record, metadata, location, size)
        return RecordChange(
            record=record.model_copy(
                update={
                    "savepoints": (*record.savepoints, entry),
                    "next_id": max(record.next_id, entry.checkpoint_id + 1),
                }
            ),
            history=(_history(record, metadata, location),),
        )

    return change_record(deployment.store, PipelineId(metadata.pipeline), change)


def register_or_remove(
    deployment: Deployment,
    metadata: CheckpointMetadata,
    location: SnapshotLocation,
    size: int,
    *,
    written: Sequence[str],
) -> None:
    """Register a savepoint; remove the files ``written`` for it where it certainly was not registered.

    After OutcomeUnknown, and when the process is interrupted, they stay: the record may name them.
    """
    try:
        register_savepoint(deployment, metadata, location, size)
    except (InvalidRequest, Corrupt, Unavailable):
        with suppress(CheckpointError):
            deployment.open_storage(location.base_uri).delete(written)
        raise


def _trigger(metadata: CheckpointMetadata) -> TriggerRecord:
    return TriggerRecord(periodic=False, name=metadata.name, labels=metadata.labels, note=metadata.note)


def _entry(
    record: CoordinatorRecord, metadata: CheckpointMetadata, location: SnapshotLocation, size: int
) -> CompletedRecord:
    return CompletedRecord(
        checkpoint_id=metadata.checkpoint_id,
        properties=properties_for(CheckpointKind.SAVEPOINT, CheckpointConfig()),
        location=location,
        epoch=record.epoch,
        run_id=metadata.run_id,
        triggered_at=metadata.triggered_at,
        completed_at=metadata.completed_at,
        trigger=_trigger(metadata),
        bytes_full=size,
        bytes_new=size,
    )


def _history(
    record: CoordinatorRecord, metadata: CheckpointMetadata, location: SnapshotLocation
) -> HistoryRow:
    numbers = CheckpointStatistics(
        checkpoint_id=metadata.checkpoint_id,
        kind=CheckpointKind.SAVEPOINT,
        status=CheckpointStatus.COMPLETED,
        trigger=_trigger(metadata),
        triggered_at=metadata.triggered_at,
        ended_at=metadata.completed_at,
        stages=tuple(
            StageStatistics(uid=s.uid, subtasks=s.parallelism, acknowledged=s.parallelism, metrics=s.metrics)
            for s in metadata.stages
        ),
        path=location.uri,
        run_id=metadata.run_id,
    )
    return HistoryRow(
        pipeline=PipelineId(metadata.pipeline),
        checkpoint_id=CheckpointId(metadata.checkpoint_id),
        epoch=CoordinatorEpoch(record.epoch),
        kind="savepoint",
        status=CheckpointStatus.COMPLETED.value,
        triggered_at=metadata.triggered_at,
        ended_at=metadata.completed_at,
        body=numbers.model_dump_json(),
    )
