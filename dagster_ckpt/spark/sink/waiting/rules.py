"""Rules on rows that wait: what they were staged for against what their sink is now.

The same: they go on. A column more, or a number that became a wider one: the table is changed first. Everything else is
refused before anything runs, with what was and what is, and the ways out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from dagster_ckpt.authoring.stages import StageDefinition
from dagster_ckpt.core.location import same_place
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.channel.schema import parsed_schema
from dagster_ckpt.spark.sink.committables import PreparedBatch, StagedAs
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
