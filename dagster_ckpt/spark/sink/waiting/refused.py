"""Note of a stage's directory: why its sink did not show a checkpoint, though everybody could be reached."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from dagster_ckpt.core.ids import BatchId, CheckpointId
from dagster_ckpt.core.model import Record
from dagster_ckpt.errors import Fenced, OutcomeUnknown, Unavailable
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.files import replace_whole
from dagster_ckpt.spark.sink.committables import encoded, read_record

_PASSES = (Unavailable, OutcomeUnknown, Fenced, OSError)
"""Errors that say nothing about the rows: the next try may succeed."""


class RefusedNote(Record):
    """``sink/refused.json``, removed by the next publish that succeeds."""

    format_version: Literal[1] = 1
    checkpoint_id: int
    through_batch: int | None
    """Last micro-batch of that checkpoint; None: it has none."""
    why: str


def note_refused(
    stage_dir: Path, checkpoint: CheckpointId, through: BatchId | None, error: Exception
) -> bool:
    """Write down that the outside refused a checkpoint's rows; False: it may take them at the next try."""
    if isinstance(error, _PASSES):
        return False
    path = StageDirectory(stage_dir).refused
    path.parent.mkdir(parents=True, exist_ok=True)
    note = RefusedNote(checkpoint_id=checkpoint, through_batch=through, why=" ".join(str(error).split()))
    replace_whole(path, encoded(note), durably=False)
    return True


def refused_in(stage_dir: Path) -> RefusedNote | None:
    """Return the note of a stage's directory. Raises Corrupt."""
    return read_record(RefusedNote, StageDirectory(stage_dir).refused)


def forget_refused(stage_dir: Path) -> None:
    """Remove the note: the sink shows the rows, or they were set aside."""
    StageDirectory(stage_dir).refused.unlink(missing_ok=True)
