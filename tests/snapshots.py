"""Takes a stage's part of a snapshot without a coordinator, the way the stage runner does, and completes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagster_ckpt.core import paths
from dagster_ckpt.core.ids import BatchId, CheckpointId, PipelineId, StageUid
from dagster_ckpt.core.metadata_text import encode_metadata
from dagster_ckpt.core.model import CheckpointKind, CheckpointMetadata, FileEntry, StageSnapshot
from dagster_ckpt.ports import CheckpointStorage
from dagster_ckpt.spark.snapshot.capture import (
    CapturePlan,
    pin_files,
    plan_capture,
    release_pins,
    uploaded_already,
)
from dagster_ckpt.spark.snapshot.state_files import PlannedFile
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot, open_snapshot
from dagster_ckpt.spark.snapshot.upload import StageUpload, UploadMode, upload_stage


@dataclass(frozen=True)
class Part:
    """What was taken of a stage."""

    plan: CapturePlan
    upload: StageUpload
    snapshot: StageSnapshot


def folder_of(pipeline: PipelineId, number: int, mode: UploadMode) -> str:
    """Return where a checkpoint's files go; a savepoint's where all of them are its own."""
    base = paths.CheckpointPaths(pipeline)
    savepoint = mode is UploadMode.SELF_CONTAINED
    return base.savepoint(f"{number:06d}") if savepoint else base.checkpoint(CheckpointId(number))


def take_part(
    storage: CheckpointStorage,
    stage_dir: Path,
    number: int,
    *,
    pipeline: PipelineId,
    uid: StageUid,
    folder: str = "",
    batch: int | None = None,
    mode: UploadMode = UploadMode.INCREMENTAL,
    previous: Sequence[FileEntry] = (),
    inline_threshold: int = 1024,
    extra: Sequence[PlannedFile] = (),
    **fields: Any,
) -> Part:
    """Capture, pin, upload; ``fields`` are more of StageSnapshot's."""
    checkpoint = CheckpointId(number)
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
            pipeline=pipeline,
            uid=uid,
            checkpoint_id=checkpoint,
            folder=folder or folder_of(pipeline, number, mode),
            mode=mode,
            previous=previous,
            inline_threshold=inline_threshold,
        )
    finally:
        release_pins(stage_dir, checkpoint)
    return Part(plan, upload, snapshot_of(uid, plan, upload, **fields))


def snapshot_of(uid: StageUid, plan: CapturePlan, upload: StageUpload, **fields: Any) -> StageSnapshot:
    """Return what the stage acknowledges with."""
    return StageSnapshot(
        uid=uid,
        parallelism=plan.subtasks,
        manifest=upload.manifest,
        batch_id=plan.batch_id,
        query_id=plan.query_id,
        offsets=plan.offsets,
        watermark_ms=plan.watermark_ms,
        state_formats=plan.state_formats,
        metrics=upload.metrics,
        **fields,
    )


def complete(
    storage: CheckpointStorage,
    folder: str,
    number: int,
    *stages: StageSnapshot,
    pipeline: PipelineId,
    kind: CheckpointKind = CheckpointKind.CHECKPOINT,
    **fields: Any,
) -> StoredSnapshot:
    """Write ``_metadata``; ``fields`` are more of CheckpointMetadata's."""
    metadata = CheckpointMetadata(
        pipeline=pipeline,
        checkpoint_id=number,
        kind=kind,
        epoch=1,
        triggered_at=float(number),
        completed_at=number + 0.5,
        stages=stages,
        **fields,
    )
    storage.create(paths.metadata(folder), encode_metadata(metadata))
    return open_snapshot(storage, folder)
