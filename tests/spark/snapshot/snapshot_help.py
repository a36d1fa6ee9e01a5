"""Takes a stage's part of a checkpoint and puts it back, the way the stage runner does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dagster_ckpt.core.ids import CheckpointId, PipelineId, StageUid
from dagster_ckpt.core.model import CheckpointKind, FileEntry, StageSnapshot
from dagster_ckpt.ports import CheckpointStorage
from dagster_ckpt.spark.snapshot.capture import CapturePlan, PlannedFile
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot
from dagster_ckpt.spark.snapshot.upload import StageUpload, UploadMode
from tests.snapshots import complete, folder_of, take_part

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
    folder = folder_of(PIPELINE, number, mode)
    part = take_part(
        storage,
        stage_dir,
        number,
        pipeline=PIPELINE,
        uid=UID,
        batch=batch,
        mode=mode,
        previous=previous,
        inline_threshold=inline_threshold,
        extra=extra,
    )
    savepoint = mode is UploadMode.SELF_CONTAINED
    kind = CheckpointKind.SAVEPOINT if savepoint else CheckpointKind.CHECKPOINT
    stored = complete(storage, folder, number, part.snapshot, pipeline=PIPELINE, kind=kind)
    return Taken(CheckpointId(number), folder, part.plan, part.upload, part.snapshot, stored)
