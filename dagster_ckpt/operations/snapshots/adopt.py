"""A checkpoint directory that Spark wrote on its own becomes a savepoint of a pipeline.

The directory is only read. The pipeline's stage goes on after the last committed batch, with its state, its offsets and
its query id, when the job is started from the savepoint. ``adopt_stages`` is the general form: working directories of
stages, with what their sinks begin with.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from dagster_ckpt.core import paths
from dagster_ckpt.core.ids import BatchId, CheckpointId, PipelineId, StageUid
from dagster_ckpt.core.metadata_text import encode_metadata
from dagster_ckpt.core.model import (
    CheckpointKind,
    CheckpointMetadata,
    FileKind,
    SnapshotLabel,
    StageSnapshot,
    TableSnapshot,
)
from dagster_ckpt.core.paths import AlreadyExists, SnapshotLocation
from dagster_ckpt.errors import CheckpointError, Declined, InvalidRequest, NotFound, Unavailable
from dagster_ckpt.operations.deployment import Deployment, Meter, ProgressCallback, silent
from dagster_ckpt.operations.snapshots.export import free_savepoint_folder
from dagster_ckpt.operations.snapshots.registration import Imported, register_or_remove, reserve_id
from dagster_ckpt.ports import CheckpointStorage
from dagster_ckpt.runtime.record_store import RecordStore
from dagster_ckpt.spark.directories import PREPARED, StageDirectory
from dagster_ckpt.spark.snapshot.capture import CapturePlan, latest_committed_batch, plan_capture
from dagster_ckpt.spark.snapshot.state_files import planned
from dagster_ckpt.spark.snapshot.upload import StageUpload, UploadMode, upload_stage

ADOPTED_FROM = "dagster_ckpt/adopted_from"
_REPLANS = 5
"""How often a directory that its query is still changing is read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageToAdopt:
    """One stage, as its working directory would be at the cut."""

    uid: StageUid
    root: Path
    """Its working directory: ``query``, and what its sink has prepared."""
    origin: str
    """Where that comes from, for people."""
    input_positions: Mapping[StageUid, int] = field(default_factory=dict)
    """Per input that is a channel: where the snapshot's barrier is in it."""
    table: TableSnapshot | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedStage:
    """One directory, as it was taken over."""

    uid: StageUid
    directory: str
    batch_id: BatchId | None
    """None: the stage has run no batch."""
    query_id: str | None
    formats: Mapping[str, str]
    files: int
    bytes: int
    uncommitted_batch: BatchId | None
    """A batch that was begun and not committed: its input is read again, and a sink may have seen it already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """The savepoint that was made."""

    savepoint: Imported
    kind: CheckpointKind
    """A plain savepoint has to be named; one that ends a run is what the next begins with."""
    stages: tuple[AdoptedStage, ...]


def adopt_checkpoint(
    deployment: Deployment,
    *,
    pipeline: PipelineId,
    directories: Mapping[StageUid, Path],
    now: float,
    target: str = "",
    batch_id: BatchId | None = None,
    label: SnapshotLabel = SnapshotLabel(),
    progress: ProgressCallback = silent,
) -> Adoption:
    """Write a savepoint of ``pipeline`` from Spark's own checkpoint directories, one per stage.

    ``batch_id`` chooses another committed batch than the newest (one stage only). Raises NotFound when a directory is
    no checkpoint, InvalidRequest when nothing was committed in it, Declined when it cannot be read, Unavailable; then
    nothing is left behind.
    """
    if not directories:
        raise InvalidRequest("name at least one stage and its Spark checkpoint directory")
    if batch_id is not None and len(directories) > 1:
        raise InvalidRequest(
            "a batch can be chosen for one directory only: adopt several at their newest batch"
        )
    for directory in directories.values():
        _refuse_no_checkpoint(directory)
    with tempfile.TemporaryDirectory(prefix="dagster-ckpt-adopt-") as scratch:
        return adopt_stages(
            deployment,
            pipeline=pipeline,
            stages=[
                StageToAdopt(uid=uid, root=_as_stage(folder, Path(scratch) / uid), origin=str(folder))
                for uid, folder in directories.items()
            ],
            now=now,
            target=target,
            batch_id=batch_id,
            label=label,
            progress=progress,
        )


def adopt_stages(
    deployment: Deployment,
    *,
    pipeline: PipelineId,
    stages: Sequence[StageToAdopt],
    now: float,
    kind: CheckpointKind = CheckpointKind.SAVEPOINT,
    target: str = "",
    batch_id: BatchId | None = None,
    label: SnapshotLabel = SnapshotLabel(),
    progress: ProgressCallback = silent,
) -> Adoption:
    """Write a savepoint of ``pipeline`` from working directories of its stages, each at its newest committed batch.

    Raises Declined when one cannot be read, Unavailable; then nothing is left behind.
    """
    plans = {stage.uid: _plan(stage.root, batch_id) for stage in stages}
    storage = deployment.savepoint_storage(target)
    number = reserve_id(deployment, pipeline)
    taking = _Taking(
        storage=storage,
        pipeline=pipeline,
        number=number,
        kind=kind,
        folder=free_savepoint_folder(storage, pipeline),
        batch_id=batch_id,
    )
    origin = ", ".join(dict.fromkeys(stage.origin for stage in stages if stage.origin))
    said = replace(label, labels={**label.labels, ADOPTED_FROM: origin})
    try:
        taken = taking.upload_all(stages, plans, progress)
        metadata = taking.metadata(taken, now=now).model_copy(update=said.fields())
        checksum = taking.complete(metadata)
    except BaseException:
        with suppress(CheckpointError):
            storage.delete(taking.written)
        raise
    location = SnapshotLocation(base_uri=storage.base_uri, folder=taking.folder)
    size = sum(one.plan.bytes_full for one in taken)
    register_or_remove(
        deployment, metadata, location, size, metadata_checksum=checksum, written=taking.written, kind=kind
    )
    return Adoption(
        savepoint=Imported(pipeline=pipeline, checkpoint_id=number, location=location, bytes=size),
        kind=kind,
        stages=tuple(_adopted(one) for one in taken),
    )


def kind_of_beginning(deployment: Deployment, pipeline: PipelineId) -> CheckpointKind:
    """Return the kind of a savepoint that a pipeline's first run begins with unasked; one that has run is asked to."""
    record = RecordStore(deployment.store).record(pipeline)
    has_run = record is not None and record.epoch > 0
    return CheckpointKind.SAVEPOINT if has_run else CheckpointKind.SYNC_SAVEPOINT_SUSPEND


@dataclass(frozen=True, slots=True)
class _Taken:
    stage: StageToAdopt
    plan: CapturePlan
    upload: StageUpload


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taking:
    """A savepoint while it is being written; ``written`` is what to remove if it fails."""

    storage: CheckpointStorage
    pipeline: PipelineId
    number: CheckpointId
    kind: CheckpointKind
    folder: str
    batch_id: BatchId | None
    written: list[str] = field(default_factory=list)

    def upload_all(
        self,
        stages: Sequence[StageToAdopt],
        plans: Mapping[StageUid, CapturePlan],
        progress: ProgressCallback,
    ) -> list[_Taken]:
        """Copy every stage's files."""
        meter = Meter(sum(plan.bytes_full for plan in plans.values()), progress)
        taken = []
        for stage in stages:
            one = self._upload(stage, plans[stage.uid])
            self.written.extend(one.upload.written)
            meter.add(one.plan.bytes_full, stage.uid)
            taken.append(one)
        return taken

    def _upload(self, stage: StageToAdopt, plan: CapturePlan) -> _Taken:
        """Copy what the plan names; planned again when the query, still running, has removed a file meanwhile."""
        for remaining in reversed(range(_REPLANS)):
            try:
                upload = upload_stage(
                    files=plan.files,
                    stage_dir=stage.root,
                    storage=self.storage,
                    pipeline=self.pipeline,
                    uid=stage.uid,
                    checkpoint_id=self.number,
                    folder=self.folder,
                    mode=UploadMode.SELF_CONTAINED,
                )
            except Declined:
                if not remaining:
                    raise
                plan = _plan(stage.root, self.batch_id)
                continue
            return _Taken(stage, plan, upload)
        raise AssertionError("unreachable: the last try raises")

    def metadata(self, taken: Sequence[_Taken], *, now: float) -> CheckpointMetadata:
        """Return the savepoint's own metadata."""
        return CheckpointMetadata(
            pipeline=self.pipeline,
            checkpoint_id=self.number,
            kind=self.kind,
            epoch=1,
            triggered_at=now,
            completed_at=now,
            stages=tuple(_snapshot(one) for one in taken),
            edges=tuple((str(up), str(one.stage.uid)) for one in taken for up in one.stage.input_positions),
        )

    def complete(self, metadata: CheckpointMetadata) -> str:
        """Write ``_metadata``, from when on it is a savepoint; return the file's checksum."""
        key = paths.metadata(self.folder)
        made = self.storage.create(key, encode_metadata(metadata))
        if isinstance(made, AlreadyExists):
            raise Unavailable(f"{self.folder} appeared in {self.storage.base_uri} meanwhile: try again")
        self.written.append(key)
        return made.checksum


# --- reading Spark's directory --------------------------------------------------------------------------------


def _refuse_no_checkpoint(directory: Path) -> None:
    if not (directory / "metadata").is_file() or not (directory / "offsets").is_dir():
        raise NotFound(
            f"{directory} is no checkpoint directory of a Spark streaming query (it needs a file 'metadata' and a "
            "folder 'offsets'): give the query's checkpointLocation, as a local path"
        )
    if latest_committed_batch(directory) is None:
        raise InvalidRequest(f"the query of {directory} has committed no batch: there is nothing to adopt")


def _plan(root: Path, batch_id: BatchId | None) -> CapturePlan:
    """Plan the files of a query, and those that say what its sink has prepared."""
    plan = plan_capture(StageDirectory(root).query, batch_id)
    prepared = sorted(path.name for path in StageDirectory(root).prepared.glob("*.json"))
    more = (planned(root, f"{PREPARED}/{name}", FileKind.COMMITTABLE) for name in prepared)
    return replace(plan, files=(*plan.files, *more))


def _as_stage(directory: Path, root: Path) -> Path:
    """Return a stage's working directory in which the checkpoint directory is called ``query``."""
    root.mkdir(parents=True)
    StageDirectory(root).query.symlink_to(directory.absolute(), target_is_directory=True)
    return root


# --- what is said about it ------------------------------------------------------------------------------------

_STATE = frozenset({FileKind.STATE_SNAPSHOT, FileKind.STATE_DELTA, FileKind.STATE_SST})


def _snapshot(one: _Taken) -> StageSnapshot:
    plan = one.plan
    return StageSnapshot(
        uid=one.stage.uid,
        parallelism=plan.subtasks,
        manifest=one.upload.manifest,
        batch_id=plan.batch_id,
        query_id=plan.query_id,
        offsets=plan.offsets,
        watermark_ms=plan.watermark_ms,
        input_positions={str(uid): at for uid, at in one.stage.input_positions.items()},
        state_formats=plan.state_formats,
        table=one.stage.table,
        metrics=one.upload.metrics,
        stateless=not any(f.kind in _STATE for f in plan.files),
    )


def _adopted(one: _Taken) -> AdoptedStage:
    plan = one.plan
    following = None if plan.batch_id is None else BatchId(plan.batch_id + 1)
    offsets = StageDirectory(one.stage.root).query / "offsets"
    return AdoptedStage(
        uid=one.stage.uid,
        directory=one.stage.origin,
        batch_id=plan.batch_id,
        query_id=plan.query_id,
        formats=plan.state_formats,
        files=len(one.upload.entries),
        bytes=plan.bytes_full,
        uncommitted_batch=following
        if following is not None and (offsets / str(following)).exists()
        else None,
    )
