"""Rows that wait for a checkpoint while their sink changes: compared with what it is now, before anything runs.

What they were staged for against what their sink is now. The same: they go on. A column more, or a number that became a
wider one: the table is changed first. Everything else is refused, with what was and what is, and the ways out. Without
it, rows that were staged for one table would be shown in another one: in wrong columns, partitions, or twice by a key.

Rows that cannot be shown can be set aside: files beside the tables, and a note why. A micro-batch that is set aside
counts as prepared, so its stage does not stage it again, and has nothing to publish. A restore of a checkpoint that was
taken before brings its rows back, as it does all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dagster_ckpt.authoring.stages import StageDefinition
from dagster_ckpt.core.ids import BatchId, CheckpointId, PipelineId, StageUid
from dagster_ckpt.core.model import Record, TableSnapshot
from dagster_ckpt.core.paths import same_place
from dagster_ckpt.errors import Corrupt, Fenced, InvalidRequest, OutcomeUnknown, Unavailable
from dagster_ckpt.spark.channel.schema import parsed_schema
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.files import flush_to_disk, replace_whole
from dagster_ckpt.spark.sink.committables import (
    AsideNote,
    PreparedBatch,
    StagedAs,
    committable_paths,
    encoded,
    read_record,
    write_aside_note,
)
from dagster_ckpt.spark.sink.port import Sink

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_FRACTIONS = ("float", "double")
_WIDER = {
    **{kind: _INTEGERS[place + 1 :] for place, kind in enumerate(_INTEGERS)},
    **{kind: _FRACTIONS[place + 1 :] for place, kind in enumerate(_FRACTIONS)},
}
"""Types that hold every value of a type, as the same number."""


class Verdict(Enum):
    """Verdict about rows that wait."""

    SAME = "same"
    """They go on."""
    CHANGES = "changes"
    """They go on, and the table is changed first."""
    REFUSED = "refused"
    """Nobody may show them but the sink that they were staged for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkNow:
    """A sink as it is defined now."""

    staged_as: StagedAs
    is_complete: bool
    rereads: bool
    """Staged rows are read back when they are published, into the columns of the newest ones."""
    row_schema: str = ""
    """Spark schema of the rows; empty: not known before the stage's function was called."""

    @classmethod
    def of(cls, stage: StageDefinition, sink: Sink, row_schema: str = "") -> SinkNow:
        """Return a stage's sink as it is now."""
        key = stage.table.key if stage.table is not None else ()
        return cls(
            staged_as=StagedAs(
                sink=sink.kind, key=tuple(sorted(key)), partition_by=sink.partition_by, place=sink.place
            ),
            is_complete=stage.output_mode == "complete",
            rereads=sink.rereads,
            row_schema=row_schema,
        )


@dataclass(frozen=True, slots=True)
class WaitingRule:
    """One thing that rows were staged for, and what it may be now."""

    fact: str
    was: Callable[[PreparedBatch], Any]
    """None: it was not written down."""
    now: Callable[[SinkNow], Any]
    """None: it is not known yet."""
    compare: Callable[[Any, Any, SinkNow], Verdict]
    said: Callable[[Any], str] = str
    is_of_table: bool = False
    """A table that goes back keeps it for the rows it shows, too: one of another is refused at the start."""


def _same(was: Any, now: Any, sink: SinkNow) -> Verdict:
    return Verdict.SAME if was == now else Verdict.REFUSED


def _compared_columns(was: str, now: str, sink: SinkNow) -> Verdict:
    """Compare by name, as Spark has it: a column that is gone from the rows has no value in those to come."""
    before, after = _types(was), _types(now)
    if before == after:
        return Verdict.SAME
    known, new = {name.lower() for name in before}, {name.lower() for name in after}
    if (known - new) and (new - known):  # perhaps renamed
        return Verdict.REFUSED
    if not sink.rereads and any(name not in after and name.lower() in new for name in before):
        return Verdict.REFUSED
    changed = [name for name, kind in before.items() if name in after and after[name] != kind]
    fits = sink.rereads and all(_widens(name, before[name], after[name], sink) for name in changed)
    return Verdict.REFUSED if changed and not fits else Verdict.CHANGES


def _widens(name: str, was: str, now: str, sink: SinkNow) -> bool:
    """Tell whether all values stay the same; a fraction may be another text, which keys are told apart by."""
    is_key = name in sink.staged_as.key
    return now in _WIDER.get(was, ()) and not (is_key and was in _FRACTIONS)


def _types(row_schema: str) -> dict[str, str]:
    schema: StructType = parsed_schema(row_schema)
    return {column.name: column.dataType.simpleString() for column in schema.fields}


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _spelt(row_schema: str) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in _types(row_schema).items())


def _of_staging(name: str) -> tuple[Callable[[PreparedBatch], Any], Callable[[SinkNow], Any]]:
    def was(batch: PreparedBatch) -> Any:
        return None if batch.staged_as is None else getattr(batch.staged_as, name)

    return was, lambda sink: getattr(sink.staged_as, name)


RULES = (
    WaitingRule("kind of target", *_of_staging("sink"), _same, lambda kind: kind or "parquet"),
    WaitingRule(
        "output mode",
        lambda batch: None if batch.staged_as is None else batch.replaces,
        lambda sink: sink.is_complete,
        _same,
        lambda is_complete: "complete" if is_complete else "append or update",
    ),
    WaitingRule("key", *_of_staging("key"), _same, _listed, is_of_table=True),
    WaitingRule("partition columns", *_of_staging("partition_by"), _same, _listed, is_of_table=True),
    WaitingRule(
        "columns",
        lambda batch: batch.row_schema,
        lambda sink: sink.row_schema or None,
        _compared_columns,
        _spelt,
    ),
)
"""In the order in which they are told."""


WAY_OUT_OF_FORK = (
    "take a savepoint of the idle origin, for which no rows wait, and fork from that; or give the fork's sink the "
    "definition that they were staged for"
)
"""What to do about rows that a fork would begin with and its sink cannot show."""


def refuse_changed_sink(
    uid: str, pipeline: str, batches: Sequence[PreparedBatch], now: SinkNow, way_out: str = ""
) -> None:
    """Raise InvalidRequest where rows that wait were staged for another sink than it is now.

    ``way_out``: what to do, where that is not to publish them or to set them aside.
    """
    for batch in batches:
        for rule, was, is_now in refused_facts(batch, now):
            raise InvalidRequest(
                f"sink {uid!r}: rows of batch {batch.batch_id} wait for a checkpoint, staged where its {rule.fact} "
                f"were ({was}), and now they are ({is_now}): {way_out or ways_out(uid, pipeline)}"
            )


def refuse_other_place(uid: str, pipeline: str, batches: Sequence[PreparedBatch], place: str) -> None:
    """Raise InvalidRequest where rows that are not found wait beside another table: the sink was given another one."""
    for batch in batches:
        there = "" if batch.staged_as is None else batch.staged_as.place
        if there and not same_place(there, place):
            raise InvalidRequest(
                f"sink {uid!r}: rows of batch {batch.batch_id} wait for a checkpoint beside {there}, and the sink "
                f"writes {place} now: {ways_out(uid, pipeline)}"
            )


def refuse_left_waiting(uid: str, snapshot: TableSnapshot) -> None:
    """Raise InvalidRequest where rows wait at the cut for a fork's sink that begins without the origin's."""
    if snapshot.prepared:
        raise InvalidRequest(
            f"sink {uid!r} is to begin without the rows of {snapshot.uri} (keep_rows_of), and rows wait there for a "
            "checkpoint, which it would miss: take a savepoint of the idle origin, for which no rows wait, and fork "
            "from that"
        )


def without_table(uid: str, pipeline: str) -> InvalidRequest:
    """Return the refusal of rows that wait for a table which their stage has no more: nobody would ever see them."""
    return InvalidRequest(
        f"stage {uid!r} has no table any more (a sink, or a quarantine), and rows wait that were staged for it: "
        f"{ways_out(uid, pipeline, code='OLD.py')}"
    )


def ways_out(uid: str, pipeline: str, code: str = "CODE.py") -> str:
    """Return the ways out for rows that cannot be shown as the sink is now."""
    return (
        f"publish them with the old definition (dagster-ckpt publish {pipeline} -f OLD.py) and change it then, or set "
        f"them aside (dagster-ckpt set-aside {pipeline} --sink {uid} -f {code} --yes)"
    )


def way_out_of_refusal(uid: str, pipeline: str) -> str:
    """Return the way out where the outside refuses rows that only it can judge (a CHECK, a foreign key)."""
    return (
        "Mend there what refuses them and run the pipeline again, or set these rows aside (dagster-ckpt set-aside "
        f"{pipeline} --sink {uid} -f CODE.py --yes)"
    )


def refused_facts(batch: PreparedBatch, now: SinkNow) -> Iterator[tuple[WaitingRule, str, str]]:
    """Yield the rules by which the sink of now is refused, each with what was and what is, as people are told."""
    for rule in RULES:
        was, is_now = rule.was(batch), rule.now(now)
        if was is None or is_now is None:
            continue
        if rule.compare(was, is_now, now) is Verdict.REFUSED:
            yield rule, rule.said(was), rule.said(is_now)


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
