"""Repair of a coordinator store that was lost or put back: its records are built again from the storage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from dagster_ckpt.core import paths
from dagster_ckpt.core.checkpoint.record import CompletedRecord, CoordinatorRecord
from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.ids import PipelineId, leaves_room
from dagster_ckpt.core.model import CheckpointMetadata
from dagster_ckpt.core.paths import SnapshotLocation, location_of
from dagster_ckpt.core.request import RunStatus, properties_for
from dagster_ckpt.errors import CheckpointError, InvalidRequest
from dagster_ckpt.operations.deployment import Deployment, change_record
from dagster_ckpt.operations.snapshots.catalog import list_storage
from dagster_ckpt.runtime.record_store import RecordChange


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundOutside:
    """Everything of one pipeline that is not in the coordinator store."""

    snapshots: tuple[tuple[CheckpointMetadata, SnapshotLocation], ...]
    """Complete ones that can be read, oldest first."""
    checksums: Mapping[str, str]
    """Checksum of ``_metadata`` by the snapshot's URI."""
    highest_id: int
    """Highest checkpoint id in use, also of one that is not complete; 0: none."""

    @property
    def newest(self) -> CheckpointMetadata | None:
        """Newest snapshot."""
        return self.snapshots[-1][0] if self.snapshots else None


def find_outside(deployment: Deployment) -> dict[PipelineId, FoundOutside]:
    """Return the traces of every pipeline below the deployment's storage and savepoint folder."""
    found: dict[PipelineId, list[tuple[CheckpointMetadata, SnapshotLocation]]] = {}
    checksums: dict[str, str] = {}
    for metadata, location, checksum in _snapshots(deployment):
        found.setdefault(PipelineId(metadata.pipeline), []).append((metadata, location))
        checksums[location.uri] = checksum
    return {name: _outside(deployment, name, snapshots, checksums) for name, snapshots in found.items()}


def _snapshots(deployment: Deployment) -> Iterator[tuple[CheckpointMetadata, SnapshotLocation, str]]:
    storages = [deployment.storage]
    if deployment.savepoint_dir:
        with suppress(CheckpointError):
            storages.append(deployment.open_storage(deployment.savepoint_dir))
    for uri, folder in {f.uri: f for s in storages for f in list_storage(s)}.items():
        if folder.metadata is not None and leaves_room(
            max(folder.metadata.checkpoint_id, folder.metadata.epoch)
        ):
            with suppress(CheckpointError):  # a checkpoint beside its own place cannot be restored from there
                yield folder.metadata, location_of(uri, folder.metadata), folder.metadata_checksum


def _outside(
    deployment: Deployment,
    pipeline: PipelineId,
    snapshots: list[tuple[CheckpointMetadata, SnapshotLocation]],
    checksums: Mapping[str, str],
) -> FoundOutside:
    layout = paths.CheckpointPaths(pipeline)
    stored = (layout.number_of(found.key) for found in deployment.storage.list(pipeline))
    numbers = [metadata.checkpoint_id for metadata, _ in snapshots]
    ordered = sorted(snapshots, key=lambda found: found[0].checkpoint_id)
    return FoundOutside(
        snapshots=tuple(ordered),
        checksums=checksums,
        highest_id=max([*numbers, *(number for number in stored if number is not None)], default=0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """A record that knows again what the storage holds."""

    pipeline: PipelineId
    added: tuple[str, ...]
    """Keys of the snapshots it did not know."""
    next_id: int


def repair_store(deployment: Deployment, pipeline: PipelineId | None = None) -> tuple[Repaired, ...]:
    """Bring every record that is missing or behind the storage up to it; others are left as they are.

    The next run restores the newest snapshot, whatever its working directory holds. Raises InvalidRequest where a
    pipeline is named of which the storage holds nothing; Corrupt, Unavailable, OutcomeUnknown.
    """
    found = find_outside(deployment)
    if pipeline is not None and pipeline not in found:
        raise InvalidRequest(
            f"the storage {deployment.storage.base_uri} holds no readable snapshot of pipeline {pipeline!r}: there is "
            "nothing to build its record from. Bring the files or the database back from a backup"
        )
    chosen = found if pipeline is None else {pipeline: found[pipeline]}
    repaired = (_repair(deployment, name, outside) for name, outside in chosen.items())
    return tuple(one for one in repaired if one is not None)


def _repair(deployment: Deployment, pipeline: PipelineId, outside: FoundOutside) -> Repaired | None:
    def change(record: CoordinatorRecord) -> RecordChange[Repaired | None]:
        if record.epoch and outside.highest_id < record.next_id:
            return RecordChange(answer=None, record=None)
        changed, added = _rebuilt(record, outside)
        answer = Repaired(pipeline=pipeline, added=added, next_id=changed.next_id)
        return RecordChange(answer=answer, record=changed)

    return change_record(deployment.store, pipeline, change)


def _rebuilt(record: CoordinatorRecord, outside: FoundOutside) -> tuple[CoordinatorRecord, tuple[str, ...]]:
    known = {entry.checkpoint_id for entry in (*record.completed, *record.savepoints)}
    entries = [
        CompletedRecord.of(
            metadata,
            location,
            properties_for(metadata.kind, CheckpointConfig()),
            epoch=metadata.epoch,
            metadata_checksum=outside.checksums.get(location.uri, ""),
        )
        for metadata, location in outside.snapshots
        if metadata.checkpoint_id not in known
    ]
    completed = [*record.completed, *(entry for entry in entries if not entry.kind.is_savepoint)]
    savepoints = [*record.savepoints, *(entry for entry in entries if entry.kind.is_savepoint)]
    newest = outside.newest
    lineages = () if newest is None else (newest.lineage, *newest.lineages)
    others = tuple(one for one in lineages if one and one not in (record.lineage, *record.lineages))
    changed = record.model_copy(
        update={
            "lineages": (*others, *record.lineages),
            "is_rebuilt": True,
            "status": RunStatus.SUSPENDED,
            "working_directory": "",
            "clean": False,
            "pending": (),
            "line": None,
            "epoch": max(record.epoch, newest.epoch if newest is not None else 0),
            "next_id": max(record.next_id, outside.highest_id + 1),
            "completed": tuple(sorted(completed, key=lambda entry: entry.checkpoint_id)),
            "savepoints": tuple(sorted(savepoints, key=lambda entry: entry.checkpoint_id)),
            "latest_completed": max((entry.checkpoint_id for entry in completed), default=None),
        }
    )
    return changed, tuple(entry.known.key for entry in entries)
