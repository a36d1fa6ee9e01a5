"""Removal of what checkpoints that are over have left, and of savepoints; planned first, and decided again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dagster_ckpt.core import paths
from dagster_ckpt.core.checkpoint.line import is_ending_the_run
from dagster_ckpt.core.checkpoint.record import CleanupRecord, CompletedRecord, CoordinatorRecord
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatus
from dagster_ckpt.core.files.cleaning import Classified, Disposition, exclusive_keys, removal_order
from dagster_ckpt.core.ids import CheckpointId, PipelineId
from dagster_ckpt.core.paths import SnapshotLocation, StoredObject, same_place
from dagster_ckpt.core.restore.choice import newest_on_line
from dagster_ckpt.core.units import counted, size
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.operations.deployment import (
    Deployment,
    InUse,
    Meter,
    ProgressCallback,
    change_record,
    load_record,
    silent,
)
from dagster_ckpt.operations.snapshots.catalog import FoundSnapshot, find_snapshot
from dagster_ckpt.operations.snapshots.contents import files_of
from dagster_ckpt.operations.snapshots.facts import Gathered, gather, survey
from dagster_ckpt.ports import AuditRow, CheckpointStorage
from dagster_ckpt.runtime.record_store import NOBODY, Operator, RecordChange, RecordStore, with_status
from dagster_ckpt.runtime.restore_facts import facts_of
from dagster_ckpt.spark.snapshot.stored import open_snapshot

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
        meter.add(sum(sizes.get(key, 0) for key in some), some[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class DisposalPlan:
    """Plan of a disposal: what it removes."""

    pipeline: PipelineId
    key: str
    checkpoint_id: CheckpointId
    location: SnapshotLocation
    is_recorded: bool
    """The coordinator knows it; False: only its folder goes."""
    keys: tuple[str, ...]
    """In the order of their removal: data, file lists, metadata."""
    bytes: int
    unknown: tuple[str, ...]
    """Files in its folder that its lists do not name: they stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disposed:
    """Result of a removal."""

    key: str
    uri: str
    files: int
    bytes: int


def plan_disposal(deployment: Deployment, text: str, pipeline: PipelineId | None = None) -> DisposalPlan:
    """Plan the disposal of the savepoint that ``text`` names; nothing is changed.

    Raises InUse naming who still needs it, InvalidRequest for a checkpoint (its owner is the coordinator), NotFound,
    Corrupt when its file lists cannot be read (then its files cannot be named), Unavailable.
    """
    found = find_snapshot(deployment, text, pipeline)
    if not found.stored.metadata.kind.is_savepoint:
        raise InvalidRequest(
            f"{found.key} of pipeline {found.pipeline!r} is a checkpoint: the coordinator deletes it when newer ones "
            "take its place. Only savepoints are disposed of by hand"
        )
    _refuse_in_use(deployment, found)
    return _plan(deployment, found)


def _plan(deployment: Deployment, found: FoundSnapshot) -> DisposalPlan:
    stored = found.stored
    entries = [entry for stage in stored.metadata.stages for entry in stored.entries(stage)]
    named = exclusive_keys(stored.metadata, entries, folder=stored.folder)
    subtask_files = {o.key for o in files_of(stored).objects if o.key.startswith(f"{stored.folder}/")}
    keys = (*sorted(subtask_files - {*named}), *named)
    sizes = {o.key: o.size for o in stored.storage.list(stored.folder)}
    known = _owner_of(deployment, found)
    return DisposalPlan(
        pipeline=found.pipeline if known is None else PipelineId(known.pipeline),
        key=found.key,
        checkpoint_id=CheckpointId(stored.metadata.checkpoint_id),
        location=found.location,
        is_recorded=known is not None,
        keys=tuple(key for key in keys if key in sizes),
        bytes=sum(sizes.get(key, 0) for key in keys),
        unknown=tuple(sorted(set(sizes) - {*keys})),
    )


def _owner_of(deployment: Deployment, found: FoundSnapshot) -> CoordinatorRecord | None:
    for name in deployment.store.pipelines():
        record = load_record(deployment.store, name)
        if any(same_place(s.location.uri, found.location.uri) for s in record.savepoints):
            return record
    return None


# --- who needs it ---------------------------------------------------------------------------------------------


def _refuse_in_use(deployment: Deployment, found: FoundSnapshot) -> None:
    for name in deployment.store.pipelines():
        record = load_record(deployment.store, name)
        reason = next(_reasons(deployment, record, found), None)
        if reason is not None:
            raise InUse(f"{found.key} at {found.location.uri} is still needed: {reason}")


def _reasons(deployment: Deployment, record: CoordinatorRecord, found: FoundSnapshot) -> Iterator[str]:
    uri, pipeline = found.location.uri, record.pipeline
    newest = newest_on_line(facts_of(record))
    if _is_restored_from(record, uri) and newest is not None and same_place(newest.location.uri, uri):
        yield (
            f"pipeline {pipeline!r} was restored from it and has completed no checkpoint since; "
            "it is free when one has"
        )
    for entry in record.completed:
        if same_place(entry.location.uri, uri) and not entry.properties.unclaimed:
            yield (
                f"pipeline {pipeline!r} took it over when it was restored from it (claim_mode); "
                "it is free when the coordinator has let it go"
            )
    for entry in record.savepoints:
        if same_place(entry.location.uri, uri) and is_ending_the_run(record, entry):
            yield f"the run of pipeline {pipeline!r} ends with it; it is free when that has ended"
    if any(p.builds_on == found.stored.metadata.checkpoint_id for p in record.pending if _owns(record, uri)):
        yield f"a checkpoint of pipeline {pipeline!r} that is pending builds on it"
    yield from _built_on_by(deployment, record, found)


def _is_restored_from(record: CoordinatorRecord, uri: str) -> bool:
    base = record.line.base if record.line is not None else None
    is_base = base is not None and same_place(base.location.uri, uri)
    return is_base or any(same_place(entry.location.uri, uri) for entry in record.completed)


def _owns(record: CoordinatorRecord, uri: str) -> bool:
    return any(same_place(e.location.uri, uri) for e in (*record.completed, *record.savepoints))


def _built_on_by(deployment: Deployment, record: CoordinatorRecord, found: FoundSnapshot) -> Iterator[str]:
    """Yield the retained checkpoints that name a file of the savepoint's folder (claim_mode 'legacy')."""
    for entry in record.completed:
        if same_place(entry.location.uri, found.location.uri) or _is_savepoint(entry):
            continue
        storage = deployment.open_storage(entry.location.base_uri)
        files = files_of(open_snapshot(storage, entry.location.folder, recorded=entry.metadata_checksum))
        inside = f"{found.location.uri}/"
        if any(f"{files.base_uri}/{key}".startswith(inside) for key in files.keys):
            yield f"{entry.known.key} of pipeline {record.pipeline!r} uses its files"


def _is_savepoint(entry: CompletedRecord) -> bool:
    return entry.known.kind.is_savepoint


# --- removing -------------------------------------------------------------------------------------------------


def dispose_savepoint(
    deployment: Deployment,
    plan: DisposalPlan,
    *,
    progress: ProgressCallback = silent,
    operator: Operator = NOBODY,
    run_id: str = "",
) -> Disposed:
    """Carry out a plan: forget the savepoint, delete its files, note that they are gone, and who had it done.

    A call that stopped half-way is finished by repeating it with the savepoint's URI, or by the pipeline's next
    attempt. Raises InUse when somebody began to need it meanwhile, OutcomeUnknown, Unavailable.
    """
    if plan.is_recorded:
        change_record(deployment.store, plan.pipeline, lambda record: _forget(record, plan, operator, run_id))
    storage = deployment.open_storage(plan.location.base_uri)
    meter = Meter(plan.bytes, progress)
    sizes = {o.key: o.size for o in storage.list(plan.location.folder)}
    _delete(storage, plan.keys, sizes, meter)
    if plan.is_recorded:
        change_record(deployment.store, plan.pipeline, lambda record: _gone(deployment, record, plan))
    return Disposed(key=plan.key, uri=plan.location.uri, files=len(plan.keys), bytes=plan.bytes)


def _forget(
    record: CoordinatorRecord, plan: DisposalPlan, operator: Operator, run_id: str
) -> RecordChange[None]:
    newest = newest_on_line(facts_of(record))
    uri = plan.location.uri
    if newest is not None and same_place(newest.location.uri, uri) and _is_restored_from(record, uri):
        raise InUse(f"{plan.key} is needed: pipeline {record.pipeline!r} was just restored from it")
    mine = next((s for s in record.savepoints if same_place(s.location.uri, uri)), None)
    if mine is None:
        return RecordChange(answer=None, record=None)  # an earlier try got this far
    doomed = CleanupRecord(checkpoint_id=mine.checkpoint_id, location=mine.location, complete=True)
    return RecordChange(
        answer=None,
        record=record.model_copy(
            update={
                "savepoints": tuple(s for s in record.savepoints if s is not mine),
                "completed": tuple(c for c in record.completed if not same_place(c.location.uri, uri)),
                "cleanup": (*record.cleanup, doomed),
            }
        ),
        audit=[
            AuditRow(
                pipeline=plan.pipeline,
                at=time.time(),
                what="disposed",
                key=plan.key,
                uri=uri,
                who=operator.who,
                run_id=run_id,
                shown=operator.text or f"{counted(len(plan.keys), 'file')}, {size(plan.bytes)}",
            )
        ],
    )


def _gone(deployment: Deployment, record: CoordinatorRecord, plan: DisposalPlan) -> RecordChange[None]:
    left = tuple(
        c
        for c in record.cleanup
        if c.location is None or not (c.complete and same_place(c.location.uri, plan.location.uri))
    )
    row = RecordStore(deployment.store).row(plan.pipeline, plan.checkpoint_id)
    return RecordChange(
        answer=None,
        record=record.model_copy(update={"cleanup": left}),
        history=[] if row is None else [with_status(row, CheckpointStatus.DISCARDED)],
    )
