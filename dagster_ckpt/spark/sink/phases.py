"""The phases of a sink within its stage: batches judged and prepared, cuts taken, committables published.

What the judge refuses belongs to no checkpoint yet, so nothing has to be taken back. Rows that pass are read once: they
are counted, and an example is looked for, only after one was refused.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dagster_ckpt.core.ids import BatchId, CheckpointId, CoordinatorEpoch, StageUid
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.core.model import FileKind, SetAside, TableSnapshot
from dagster_ckpt.errors import Declined, InvalidRequest
from dagster_ckpt.spark.channel.sink import run_only
from dagster_ckpt.spark.directories import SINK_FOLDER, StageDirectory
from dagster_ckpt.spark.java.plans import asked_of_bytes
from dagster_ckpt.spark.sink.accepts import RowRule
from dagster_ckpt.spark.sink.committables import (
    PreparedBatch,
    StagedAs,
    aside_notes,
    batches_between,
    committable_paths,
    is_prepared,
    prepared_batches,
    read_committables,
    write_committable,
)
from dagster_ckpt.spark.sink.port import AlreadyPublished, Joint, Published, Sink, in_one_step
from dagster_ckpt.spark.sink.positions import SEED
from dagster_ckpt.spark.sink.published import note_published, position_of
from dagster_ckpt.spark.snapshot.state_files import PlannedFile, planned

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MARK = "dagster_ckpt refuses a row"
"""Error that Spark raises for a row that breaks a rule; the judge says which one."""
_SHOWN = 60
"""Bytes that are shown of an example."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Judge:
    """The rules of one sink's rows."""

    place: str
    rules: tuple[RowRule, ...]

    @classmethod
    def of(cls, sink: Sink, frame: DataFrame) -> Judge:
        """Return the judge of a stage's rows. Raises InvalidRequest for columns that the sink cannot hold at all."""
        accepts, schema = sink.accepts, frame.schema.json()
        accepts.refuse_columns(sink.place, schema)
        return cls(sink.place, accepts.rules(schema))

    def carry_out(self, write: Callable[[DataFrame, BatchId], T], frame: DataFrame, batch_id: BatchId) -> T:
        """Return the result of ``write`` on a batch, in whose plan every row is judged.

        Raises InvalidRequest, saying column, values and the way out, where a row breaks a rule: then ``write`` failed.
        """
        try:
            return write(self.judged(frame), batch_id)
        except Exception as error:
            if not self.rules or MARK not in str(error):
                raise
            said = _sentence(self.place, self.rules, frame, batch_id)
            if not said:
                raise
        raise InvalidRequest(said)

    def judged(self, frame: DataFrame) -> DataFrame:
        """Return the rows, the reading of which fails at one that breaks a rule."""
        if not self.rules:
            return frame
        from pyspark.sql import functions

        refused_by = reduce(or_, (broken(frame, rule) for rule in self.rules))
        # Not `lit`: the first one of a process imports pandas.
        refused = functions.expr(f"raise_error('{MARK}')").cast("boolean")
        return frame.where(functions.when(refused_by, refused).otherwise(True))


def broken(frame: DataFrame, rule: RowRule) -> Column:
    """Return the rule as a column."""
    from pyspark.sql import functions

    if rule.quick is None:
        return functions.expr(rule.broken)
    question, wrong = rule.quick
    answer = asked_of_bytes(frame.sparkSession, question, functions.expr(rule.example))
    return answer if wrong else ~answer


def _sentence(place: str, rules: Sequence[RowRule], frame: DataFrame, batch_id: BatchId) -> str:
    """Return which rule a batch breaks, in how many rows, and with which value; empty: it breaks none."""
    counted = frame.selectExpr("count(*)", *(f"count_if({rule.broken})" for rule in rules)).first()
    total, *found = counted or (0,)
    rule, rows = next(((rule, rows) for rule, rows in zip(rules, found, strict=False) if rows), (None, 0))
    if rule is None:
        return ""
    example = _example(frame, rule)
    such = f", such as {example}" if example else ""
    return (
        f"column {rule.column!r} has {rule.what} in {rows:,} of the {total:,} rows of batch {batch_id}{such}, and "
        f"{place} cannot hold it. In the sink's function, {rule.way_out}: nothing of the batch is kept, and the next "
        "run begins with it again"
    )


def _example(frame: DataFrame, rule: RowRule) -> str:
    """Return a wrong value as people can read it, whatever is in it, cut short; empty: it is no value."""
    found = frame.where(rule.broken).selectExpr(f"{rule.example} AS value")
    is_text = found.schema["value"].dataType.typeName() in ("string", "varchar", "char", "binary")
    shown = "value" if is_text else "CAST(value AS STRING)"
    row = found.selectExpr(f"substr(CAST({shown} AS BINARY), 1, {_SHOWN + 1}) AS value").first()
    if row is None or row["value"] is None:
        return ""
    value = bytes(row["value"])
    text = "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode()
        for one in value[:_SHOWN].decode("utf-8", "backslashreplace")
    )
    return (f"'{text}'" if is_text else text) + (" …" if len(value) > _SHOWN else "")


@dataclass(frozen=True, slots=True)
class SinkPart:
    """A sink's part of a cut beside its query."""

    snapshot: TableSnapshot | None = None
    files: tuple[PlannedFile, ...] = ()
    """Committables, which the checkpoint must hold."""
    flush: Callable[[], None] = lambda: None
    """Waits until what they name survives; called before the acknowledgement, once the query's files are pinned."""


def preparing(
    sink: Sink, stage_dir: Path, judge: Judge | None = None, staged_as: StagedAs | None = None
) -> Callable[[DataFrame, int], None]:
    """Return the function for ``foreachBatch`` that prepares micro-batches and writes their committables.

    It raises InvalidRequest for a batch with rows that the sink cannot hold: nothing of it belongs to a checkpoint.
    ``judge``: of the stage's rows; None: each batch's columns are compared with the sink each time.
    ``staged_as``: what the rows are staged for, to be written down with them.
    """

    def prepare(batch: DataFrame, number: int) -> None:
        if is_prepared(stage_dir, number):  # the second try of a prepared batch stages nothing
            run_only(batch)
            return
        prepared = (judge or Judge.of(sink, batch)).carry_out(sink.prepare, batch, BatchId(number))
        if prepared.files or prepared.replaces:  # nothing has to be published for a batch without rows
            write_committable(stage_dir, prepared.model_copy(update={"staged_as": staged_as}))

    return prepare


def cut_of_sink(sink: Sink, stage_dir: Path, through: BatchId | None) -> SinkPart:
    """Return a sink's part of a checkpoint.

    No lock is needed: a publish that ends meanwhile only makes the cut name batches that are visible already, and a
    roll-back recognizes those. Raises Corrupt for a sink that was put back meanwhile; Declined for one that a newer
    checkpoint was published to already: a restore would take its rows for the cut's, and the next ones as shown.
    """
    position = position_of(sink, stage_dir)
    shown = position.through_batch if position is not None else None
    if shown is not None and shown > (-1 if through is None else through):
        raise Declined(
            f"{sink.place} shows rows behind the cut already: a newer checkpoint was published before this one was "
            "stored. Take it again"
        )
    numbers = batches_between(stage_dir, shown, through)
    batches = read_committables(stage_dir, numbers)
    names = (str(path.relative_to(stage_dir)) for path in committable_paths(stage_dir, numbers))
    return SinkPart(
        TableSnapshot(
            uri=sink.place,
            head=position.head if position is not None else None,
            prepared=numbers,
            sink=sink.kind,
            cannot_roll_back=sink.never_rolls_back,
            set_aside=_set_aside_between(stage_dir, shown, through),
        ),
        (
            *(planned(stage_dir, name, FileKind.COMMITTABLE) for name in names),
            *(_of_folder(name, path) for name, path in sink.only_here(batches).items()),
        ),
        flush=lambda: sink.flush(batches),
    )


def _set_aside_between(stage_dir: Path, after: int | None, through: BatchId | None) -> tuple[SetAside, ...]:
    return tuple(
        SetAside(batch_id=note.batch_id, rows=note.rows, file=note.file)
        for note in aside_notes(stage_dir)
        if (after is None or note.batch_id > after) and through is not None and note.batch_id <= through
    )


def waiting_in(stage_dir: Path, sink: Sink) -> list[PreparedBatch]:
    """Return the batches prepared in a stage's directory that its sink does not show. Raises Corrupt."""
    numbers = prepared_batches(stage_dir)
    if not numbers:
        return []
    position = sink.position()
    shown = position.through_batch if position is not None else None
    return read_committables(stage_dir, [number for number in numbers if shown is None or number > shown])


def begun_with(stage_dir: Path, sink: Sink) -> list[PreparedBatch]:
    """Return the batches that waited in the snapshot a fork has begun with; none once it has published its own."""
    position = sink.position()
    if position is None or position.head != SEED or position.through_batch is None:
        return []
    through = position.through_batch
    return read_committables(stage_dir, [one for one in prepared_batches(stage_dir) if one <= through])


def _of_folder(name: str, path: Path) -> PlannedFile:
    size = path.stat().st_size
    return PlannedFile(path=f"{SINK_FOLDER}/{name}", size=size, kind=FileKind.STAGED_ROWS, source=str(path))


def bring_back(sink: Sink, stage_dir: Path, later: Mapping[CheckpointId, CoordinatorEpoch]) -> None:
    """Give a sink what a restored checkpoint holds of its folder, which may have been lost with its machine.

    Where nothing of it is restored and ``later`` is not empty, it gets an empty folder: it hears of those all the same.
    """
    restored = StageDirectory(stage_dir).sink_folder
    if later:
        restored.mkdir(parents=True, exist_ok=True)
    if restored.is_dir():
        sink.bring_back(restored, later)
    forget_folder(stage_dir)


def forget_folder(stage_dir: Path) -> None:
    """Remove what a restored checkpoint holds of a sink's folder."""
    shutil.rmtree(StageDirectory(stage_dir).sink_folder, ignore_errors=True)


def in_groups(sinks: Iterable[tuple[StageUid, Sink]]) -> list[list[StageUid]]:
    """Return the sinks, those together whose rows change at one moment."""
    groups: list[tuple[Joint | None, list[StageUid]]] = []
    for uid, sink in sinks:
        joint = sink.joint
        group = next((uids for other, uids in groups if joint is not None and other == joint), None)
        if group is None:
            groups.append((joint, [uid]))
        else:
            group.append(uid)
    return [uids for _, uids in groups]


@dataclass(frozen=True, slots=True)
class Due:
    """A sink at a checkpoint's barrier."""

    sink: Sink
    stage_dir: Path
    through: BatchId | None
    """Last micro-batch before the barrier."""


def publish_prepared(parts: Sequence[Due], permit: CommitPermit) -> list[Published | None]:
    """Publish what is prepared and not visible of sinks that change together; None: nothing was to be done.

    Raises Corrupt for one put back; none of them has changed then.
    """
    waiting = [_waiting(part) for part in parts]

    def publish() -> list[Published | AlreadyPublished | None]:
        found = zip(parts, waiting, strict=True)
        return [part.sink.publish(batches, permit) if batches else None for part, batches in found]

    changed = [part.sink for part, batches in zip(parts, waiting, strict=True) if batches]
    published = in_one_step(changed, publish)
    for part, done in zip(parts, published, strict=True):
        # after the step, whose end decides; of one whose answer was lost nothing is noted yet
        told = done.position if isinstance(done, Published) else None
        note_published(part.stage_dir, part.sink.place, told or part.sink.position())
    return [done if isinstance(done, Published) else None for done in published]


def _waiting(part: Due) -> Sequence[PreparedBatch]:
    position = position_of(part.sink, part.stage_dir)
    shown = position.through_batch if position is not None else None
    return read_committables(part.stage_dir, batches_between(part.stage_dir, shown, part.through))
