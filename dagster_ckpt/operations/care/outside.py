"""Traces of a pipeline in storage and savepoint folder, for people who ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from dagster_ckpt.core import paths
from dagster_ckpt.core.ids import PipelineId, leaves_room
from dagster_ckpt.core.location import SnapshotLocation, location_of
from dagster_ckpt.core.model import CheckpointMetadata
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.operations.deployment import Deployment
from dagster_ckpt.operations.snapshots.catalog import list_storage


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
