"""Rows that cannot be shown: a note why, and files beside the tables that they are written to.

A micro-batch that is set aside counts as prepared, so its stage does not stage it again, and has nothing to publish.
A restore of a checkpoint that was taken before brings its rows back, as it does all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from dagster_ckpt.core.ids import BatchId, CheckpointId, PipelineId, StageUid
from dagster_ckpt.core.model import Record
from dagster_ckpt.errors import Corrupt, Fenced, OutcomeUnknown, Unavailable
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.files import flush_to_disk, replace_whole
from dagster_ckpt.spark.sink.committables import (
    AsideNote,
    PreparedBatch,
    committable_paths,
    encoded,
    read_record,
    write_aside_note,
)
from dagster_ckpt.spark.sink.port import Sink

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


FOLDER = ".set_aside"
"""Below the folder of tables: readers of a table there do not look into it."""


def folder_of(table_dir: Path, pipeline: PipelineId, uid: StageUid) -> Path:
    """Return where a sink's rows are set aside."""
    return table_dir / FOLDER / pipeline / uid


def to_set_aside(waiting: Sequence[PreparedBatch], note: RefusedNote | None) -> list[PreparedBatch]:
    """Return the batches of the checkpoint that was refused; without a note all that wait."""
    through = None if note is None else note.through_batch
    return [batch for batch in waiting if through is None or batch.batch_id <= through]


def set_aside(sink: Sink, stage_dir: Path, batches: Sequence[PreparedBatch], folder: Path) -> list[AsideNote]:
    """Write the rows of these batches to a file each, and take them off what waits; repeating it finishes it.

    Rows that are gone have no file: nobody can show or write them any more.
    """
    notes = []
    for batch in batches:
        try:
            file = _written(sink, batch, folder)
        except Corrupt:
            file = ""
        note = AsideNote(batch_id=batch.batch_id, rows=sum(one.rows for one in batch.files), file=file)
        write_aside_note(stage_dir, note)
        for path in committable_paths(stage_dir, [batch.batch_id]):
            path.unlink(missing_ok=True)
        notes.append(note)
    return notes


def _written(sink: Sink, batch: PreparedBatch, folder: Path) -> str:
    import pyarrow.parquet as pq

    parts = iter(sink.waiting_rows([batch]))
    first = next(parts, None)
    if first is None:
        return ""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"attempt-{batch.epoch}-batch-{batch.batch_id}.parquet"
    begun = path.with_suffix(".inprogress")
    with pq.ParquetWriter(begun, first.schema) as writer:
        writer.write_table(first)
        for part in parts:
            writer.write_table(part.cast(first.schema))
    flush_to_disk(begun)
    begun.replace(path)
    flush_to_disk(folder)
    return str(path)
