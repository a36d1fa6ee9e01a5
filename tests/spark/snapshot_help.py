"""Takes a stage's part of a checkpoint and puts it back, the way the stage runner does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dagster_ckpt.core import paths
from dagster_ckpt.core.ids import BatchId, CheckpointId, PipelineId, StageUid
from dagster_ckpt.core.metadata_text import encode_metadata
from dagster_ckpt.core.model import CheckpointKind, CheckpointMetadata, FileEntry, StageSnapshot
from dagster_ckpt.ports import CheckpointStorage
from dagster_ckpt.spark.capture import CapturePlan, PlannedFile, plan_capture
from dagster_ckpt.spark.pins import pin_files, release_pins, uploaded_already
from dagster_ckpt.spark.snapshots import StoredSnapshot, open_snapshot
from dagster_ckpt.spark.upload import StageUpload, UploadMode, upload_stage

PIPELINE = PipelineId("sales")
UID = StageUid("totals")


@dataclass(frozen=True)
class Taken:
    """A checkpoint of one stage."""

    number: CheckpointId
    folder: str
    plan: CapturePlan
    upload: StageUpload
    snapshot: StageSnapshot
    stored: StoredSnapshot

    @property
    def batch(self) -> int:
        assert self.plan.batch_id is not None
        return self.plan.batch_id


def take(
    storage: CheckpointStorage,
    stage_dir: Path,
    number: int,
    *,
    batch: int | None = None,
    mode: UploadMode = UploadMode.INCREMENTAL,
    previous: Sequence[FileEntry] = (),
    inline_threshold: int = 1024,
    extra: Sequence[PlannedFile] = (),
) -> Taken:
    """Capture, pin, upload, write ``_metadata``."""
    checkpoint = CheckpointId(number)
    savepoint = mode is UploadMode.SELF_CONTAINED
    base = paths.CheckpointPaths(PIPELINE)
    folder = base.savepoint(f"{number:06d}") if savepoint else base.checkpoint(checkpoint)
    plan = plan_capture(stage_dir / "query", None if batch is None else BatchId(batch))
    files = pin_files(
        [*plan.files, *extra],
        stage_dir=stage_dir,
        checkpoint_id=checkpoint,
        uploaded=uploaded_already(previous),
    )
    try:
        upload = upload_stage(
            files=files,
            stage_dir=stage_dir,
            storage=storage,
            pipeline=PIPELINE,
            uid=UID,
            checkpoint_id=checkpoint,
            folder=folder,
            mode=mode,
            previous=previous,
            inline_threshold=inline_threshold,
            parallelism=4,
        )
    finally:
        release_pins(stage_dir, checkpoint)
    snapshot = StageSnapshot(
        uid=UID,
        parallelism=plan.subtasks,
        manifest=upload.manifest,
        batch_id=plan.batch_id,
        query_id=plan.query_id,
        offsets=plan.offsets,
        watermark_ms=plan.watermark_ms,
        state_formats=plan.state_formats,
        metrics=upload.metrics,
    )
    metadata = CheckpointMetadata(
        pipeline=PIPELINE,
        checkpoint_id=number,
        kind=CheckpointKind.SAVEPOINT if savepoint else CheckpointKind.CHECKPOINT,
        epoch=1,
        triggered_at=1.0,
        completed_at=2.0,
        stages=(snapshot,),
    )
    storage.create(paths.metadata(folder), encode_metadata(metadata))
    stored = open_snapshot(storage, folder)
    return Taken(checkpoint, folder, plan, upload, snapshot, stored)
