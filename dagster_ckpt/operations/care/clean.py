"""Removing what checkpoints that are over have left in storage. Planned first, decided again before anything goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dagster_ckpt.core import paths
from dagster_ckpt.core.files.cleaning import Classified, Disposition, removal_order
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.location import SnapshotLocation
from dagster_ckpt.core.paths import StoredObject
from dagster_ckpt.operations.deployment import Deployment, Meter, ProgressCallback, silent
from dagster_ckpt.operations.snapshots.facts import Gathered, gather, survey
from dagster_ckpt.ports import CheckpointStorage

_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftFolder:
    """A savepoint's folder that a failed savepoint left behind: it never became complete."""

    base_uri: str
    folder: str
    objects: tuple[StoredObject, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningPlan:
    """The verdict on everything a pipeline has in storage."""

    pipeline: PipelineId
    base_uri: str
    classified: tuple[Classified, ...]
    folders: tuple[LeftFolder, ...]
    unrecorded: tuple[SnapshotLocation, ...]
    """Complete checkpoints that the record does not know: their files stay."""
    obstacles: tuple[str, ...]
    """Why fewer files can be removed than there may be left over."""

    @property
    def removable(self) -> tuple[Classified, ...]:
        """Objects of checkpoint storage that go."""
        return tuple(c for c in self.classified if c.disposition is Disposition.REMOVE)

    @property
    def files(self) -> int:
        """Number of files to remove."""
        return len(self.removable) + sum(len(f.objects) for f in self.folders)

    @property
    def bytes(self) -> int:
        """Number of bytes to remove."""
        return sum(c.size for c in self.removable) + sum(o.size for f in self.folders for o in f.objects)

    def totals(self) -> dict[Disposition, tuple[int, int]]:
        """Return files and bytes of checkpoint storage by disposition."""
        files = Counter(c.disposition for c in self.classified)
        return {
            d: (files[d], sum(c.size for c in self.classified if c.disposition is d)) for d in Disposition
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """Result of a removal."""

    pipeline: PipelineId
    files: int
    bytes: int


def plan_cleaning(deployment: Deployment, pipeline: PipelineId) -> CleaningPlan:
    """Classify everything the pipeline has in storage; nothing is changed.

    Raises NotFound, Corrupt when a record of the store cannot be read (then nothing may be deleted), Unavailable.
    """
    gathered = gather(deployment, pipeline)
    listing = survey(deployment, gathered)
    return CleaningPlan(
        pipeline=pipeline,
        base_uri=deployment.storage.base_uri,
        classified=listing.classified,
        folders=tuple(_left_folders(deployment, gathered)),
        unrecorded=listing.unrecorded,
        obstacles=listing.obstacles,
    )


def _left_folders(deployment: Deployment, gathered: Gathered) -> list[LeftFolder]:
    needed = {location.uri for location in gathered.needed}
    found = []
    for location in gathered.failed_savepoints:
        if location.uri in needed:
            continue
        objects = tuple(deployment.open_storage(location.base_uri).list(location.folder))
        is_complete = any(o.key == paths.metadata(location.folder) for o in objects)
        if objects and not is_complete:
            found.append(LeftFolder(base_uri=location.base_uri, folder=location.folder, objects=objects))
    return found


def carry_out_cleaning(
    deployment: Deployment, plan: CleaningPlan, *, progress: ProgressCallback = silent
) -> Cleaned:
    """Remove what ``plan`` calls removable, if it still is: the store and the storage are read again first.

    Data goes before file lists, and those before metadata, so a removal that was interrupted can be taken up again.
    Raises as ``plan_cleaning`` does.
    """
    now = plan_cleaning(deployment, plan.pipeline)
    agreed = {c.key for c in plan.removable}
    doomed = {c.key: c.size for c in now.removable if c.key in agreed}
    folders = {(f.base_uri, f.folder) for f in plan.folders}
    left = [f for f in now.folders if (f.base_uri, f.folder) in folders]
    meter = Meter(sum(doomed.values()) + sum(o.size for f in left for o in f.objects), progress)
    _delete(deployment.storage, removal_order(doomed, plan.pipeline), doomed, meter)
    for folder in left:
        sizes = {o.key: o.size for o in folder.objects}
        _delete(deployment.open_storage(folder.base_uri), list(sizes), sizes, meter)
    return Cleaned(
        pipeline=plan.pipeline,
        files=len(doomed) + sum(len(f.objects) for f in left),
        bytes=sum(doomed.values()) + sum(o.size for f in left for o in f.objects),
    )


def _delete(storage: CheckpointStorage, keys: Sequence[str], sizes: dict[str, int], meter: Meter) -> None:
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        storage.delete(some)
        meter.add(sum(sizes[key] for key in some), some[-1])
