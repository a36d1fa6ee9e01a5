"""Registration of a savepoint from elsewhere in the record, under a number of this pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from dagster_ckpt.core.checkpoint.record import CompletedRecord, CoordinatorRecord, TriggerRecord
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics, CheckpointStatus, StageStatistics
from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.ids import CheckpointId, PipelineId, leaves_room
from dagster_ckpt.core.model import CheckpointKind, CheckpointMetadata, LabelChanges
from dagster_ckpt.core.paths import SnapshotLocation, same_place, savepoint_key
from dagster_ckpt.core.request import properties_for
from dagster_ckpt.errors import CheckpointError, Corrupt, InvalidRequest, Unavailable
from dagster_ckpt.operations.deployment import Deployment, ProgressCallback, change_record, silent
from dagster_ckpt.operations.snapshots.catalog import FoundSnapshot, find_snapshot
from dagster_ckpt.operations.snapshots.contents import verify_snapshot
from dagster_ckpt.operations.snapshots.export import CopyChanges, export_snapshot
from dagster_ckpt.ports import HistoryRow
from dagster_ckpt.runtime.record_store import RecordChange, RecordStore, history_row


class ImportMode(StrEnum):
    """Place of an imported snapshot's files: copied, or where they are."""

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
        """Key that ``restore_from`` takes."""
        return savepoint_key(self.checkpoint_id)


def import_snapshot(
    deployment: Deployment,
    uri: str,
    *,
    mode: ImportMode = ImportMode.COPY,
    target: str = "",
    label: LabelChanges = LabelChanges(),
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
    match mode:
        case ImportMode.REFERENCE:
            return _refer(deployment, found, label, progress)
        case ImportMode.COPY:
            copied = export_snapshot(
                found.stored,
                deployment.savepoint_storage(target),
                changes=CopyChanges(
                    numbered=lambda: reserve_id(deployment, found.pipeline, found.stored.metadata),
                    label=label,
                ),
                progress=progress,
            )
            register_or_remove(
                deployment,
                copied.metadata,
                copied.location,
                copied.bytes,
                metadata_checksum=copied.metadata_checksum,
                written=copied.keys,
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
    deployment: Deployment, found: FoundSnapshot, label: LabelChanges, progress: ProgressCallback
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
            f"number {number} of pipeline {found.pipeline!r} means another snapshot here, or is too high to count "
            "on from: copy it, and the copy gets a number of its own"
        )
    changed = metadata.model_copy(update=label.applied_to(metadata.label).fields())
    register_savepoint(
        deployment,
        changed,
        found.location,
        verified.bytes,
        metadata_checksum=found.stored.metadata_checksum,
    )
    return _imported(changed, found.location, verified.bytes)


# --- numbers --------------------------------------------------------------------------------------------------


def reserve_id(
    deployment: Deployment, pipeline: PipelineId, like: CheckpointMetadata | None = None
) -> CheckpointId:
    """Take a number that this pipeline has never used for another snapshot; it is ours from here on.

    ``like``: the number that snapshot had where it was taken, if it is free here.
    """

    def change(record: CoordinatorRecord) -> RecordChange[CheckpointId]:
        number = _number(deployment, record, like)
        following = max(record.next_id, number + 1)
        return RecordChange(answer=number, record=record.model_copy(update={"next_id": following}))

    return change_record(deployment.store, pipeline, change)


def _number(
    deployment: Deployment, record: CoordinatorRecord, like: CheckpointMetadata | None
) -> CheckpointId:
    if like is not None and leaves_room(like.checkpoint_id):
        number = CheckpointId(like.checkpoint_id)
        if number >= record.next_id or _is_the_very_one(deployment, record, like):
            return number
    return CheckpointId(record.next_id)


def _is_the_very_one(deployment: Deployment, record: CoordinatorRecord, metadata: CheckpointMetadata) -> bool:
    """True where this pipeline itself took the snapshot under that number, and does not know it any more."""
    number = CheckpointId(metadata.checkpoint_id)
    if record.completed_of(number) is not None or record.pending_of(number) is not None:
        return False
    row = RecordStore(deployment.store).row(PipelineId(record.pipeline), number)
    return row is not None and row.triggered_at == metadata.triggered_at


# --- the record -----------------------------------------------------------------------------------------------


def register_savepoint(
    deployment: Deployment,
    metadata: CheckpointMetadata,
    location: SnapshotLocation,
    size: int,
    *,
    metadata_checksum: str,
    kind: CheckpointKind = CheckpointKind.SAVEPOINT,
) -> None:
    """Add a savepoint whose files are complete to the record and the history. Raises InvalidRequest if it is there."""

    def change(record: CoordinatorRecord) -> RecordChange[None]:
        for known in (*record.completed, *record.savepoints):
            is_same = same_place(known.location.uri, location.uri)
            if is_same or known.checkpoint_id == metadata.checkpoint_id:
                raise InvalidRequest(
                    f"pipeline {record.pipeline!r} already has {known.known.key} at {known.location.uri}"
                )
        entry = _entry(record, metadata, location, size, metadata_checksum=metadata_checksum, kind=kind)
        return RecordChange(
            answer=None,
            record=record.model_copy(
                update={
                    "savepoints": (*record.savepoints, entry),
                    "next_id": max(record.next_id, entry.checkpoint_id + 1),
                }
            ),
            history=(_history(record, metadata, location, kind),),
        )

    change_record(deployment.store, PipelineId(metadata.pipeline), change)


def register_or_remove(
    deployment: Deployment,
    metadata: CheckpointMetadata,
    location: SnapshotLocation,
    size: int,
    *,
    metadata_checksum: str,
    written: Sequence[str],
    kind: CheckpointKind = CheckpointKind.SAVEPOINT,
) -> None:
    """Register a savepoint; remove the files ``written`` for it where it certainly was not registered.

    ``kind``: one that ends a run is what ``latest`` means from then on; what comes from elsewhere is a plain one.
    After OutcomeUnknown, and when the process is interrupted, they stay: the record may name them.
    """
    try:
        register_savepoint(
            deployment, metadata, location, size, metadata_checksum=metadata_checksum, kind=kind
        )
    except (InvalidRequest, Corrupt, Unavailable):
        with suppress(CheckpointError):
            deployment.open_storage(location.base_uri).delete(written)
        raise


def _entry(
    record: CoordinatorRecord,
    metadata: CheckpointMetadata,
    location: SnapshotLocation,
    size: int,
    *,
    metadata_checksum: str,
    kind: CheckpointKind,
) -> CompletedRecord:
    properties = properties_for(kind, CheckpointConfig())
    entry = CompletedRecord.of(
        metadata, location, properties, epoch=record.epoch, metadata_checksum=metadata_checksum
    )
    return entry.model_copy(update={"bytes_full": size, "bytes_new": size})


def _history(
    record: CoordinatorRecord, metadata: CheckpointMetadata, location: SnapshotLocation, kind: CheckpointKind
) -> HistoryRow:
    numbers = CheckpointStatistics(
        checkpoint_id=metadata.checkpoint_id,
        kind=kind,
        status=CheckpointStatus.COMPLETED,
        trigger=TriggerRecord.of(metadata),
        triggered_at=metadata.triggered_at,
        ended_at=metadata.completed_at,
        stages=tuple(
            StageStatistics(
                uid=s.uid,
                subtasks=s.parallelism,
                acknowledged=s.parallelism,
                metrics=s.metrics,
                finished=s.finished,
            )
            for s in metadata.stages
        ),
        path=location.uri,
        run_id=metadata.run_id,
    )
    return history_row(PipelineId(metadata.pipeline), record.epoch, numbers)
