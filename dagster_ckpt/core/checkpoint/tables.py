"""Tables as the record keeps them: what readers find, and orders to put rows of a quarantine through again.

An order stays in the record until a checkpoint that tables are shown has taken its rows: what is taken and not yet in
one is taken again, and a restore to before one brings rows back and no order.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

from pydantic import Field

from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.model import CheckpointMetadata, FileName, Record, TableSnapshot, Time
from dagster_ckpt.errors import InvalidRequest


class ShownTable(Record):
    """One table as the pointer has it."""

    uri: str
    """Where its rows are."""
    head: int | None = None
    """Checkpoint whose publish it shows, by the sink's own number; None: no rows of any."""

    def as_cut(self) -> TableSnapshot:
        """Return the shown table as a cut, by which sinks read and keep its rows."""
        return TableSnapshot(uri=self.uri, head=self.head)


class ShownTables(Record):
    """Tables of one moment: those whose rows are published with checkpoints, by the uid of their sink."""

    checkpoint_id: int | None = None
    """Newest checkpoint that every one of them shows; None: they show none, the pipeline began without state."""
    tables: dict[str, ShownTable] = Field(default_factory=dict)
    """Empty: no table waits for checkpoints."""


def tables_of(metadata: CheckpointMetadata) -> Iterator[tuple[str, TableSnapshot]]:
    """Yield all tables with rows that belong to a checkpoint, by uid."""
    yield from ((stage.uid, stage.table) for stage in metadata.stages if stage.table is not None)
    yield from metadata.left_tables.items()


def rows_at(metadata: CheckpointMetadata) -> dict[str, TableSnapshot]:
    """Return these tables as they are once they show all that belongs to it."""
    number = metadata.number_at_sinks
    return {
        uid: TableSnapshot(uri=table.uri, head=number if table.prepared else table.head, sink=table.sink)
        for uid, table in tables_of(metadata)
    }


LeftTables = Mapping[str, TableSnapshot]
"""Tables of stages that have none now, by uid, as ``CheckpointMetadata`` has them."""


class Moved(NamedTuple):
    """The pointer has moved, or what it points at was told for the first time."""

    before: ShownTables | None
    after: ShownTables


class ServedTable(Record):
    """One table that readers find in place of the named pipeline's own."""

    name: str = ""
    """What its target is named by: a folder, a URI, ``db.orders``; empty: the sink's default, and derived tables."""
    place: str
    """Where that was when it was swapped in: readers are refused where their code leads to another place."""


class ServingRecord(Record):
    """Outcome of the latest swap."""

    pipeline: FileName
    """Its tables are found …"""
    table_dir: str
    """… below this folder, where their names are relative."""
    tables: dict[str, ServedTable] = Field(default_factory=dict)
    """By uid."""
    since: Time
    before: FileName
    """Pipeline that served until then: the way back."""
    before_table_dir: str = ""
    before_tables: dict[str, ServedTable] = Field(default_factory=dict)
    """Empty where the named pipeline itself served."""

    def back(self, name: str, now: float) -> ServingRecord | None:
        """Return the serving record after a swap back; None: the named pipeline serves itself, as if never swapped."""
        if self.before == name:
            return None
        return ServingRecord(
            pipeline=self.before,
            table_dir=self.before_table_dir,
            tables=self.before_tables,
            since=now,
            before=self.pipeline,
            before_table_dir=self.table_dir,
            before_tables=self.tables,
        )


CHOSEN_BY: dict[str, type] = {"condition": str, "id": str, "stage": str, "batch": int, "tries": int}
"""Columns of a quarantine that rows are chosen by."""
LATE = "late"
"""Condition of the rows that a watermark drops, as counts and the quarantine name it."""
COLUMNS = "columns"
"""Struct of a quarantine with the columns of the stage, and first part of the names of others that it has had."""
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_ONE = re.compile(r"\s*(\w+)\s*(=|<>|<=|>=|<|>)\s*('(?:[^']|'')*'|-?[0-9]{1,18}\b)\s*")
_AND = re.compile(r"AND\b", re.IGNORECASE)


def is_struct(name: str) -> bool:
    """Tell whether a column of a quarantine is such a struct."""
    return re.fullmatch(rf"{COLUMNS}(_\d+)?", name) is not None


def id_since(moment: float) -> str:
    """Return the least id of rows that came into a quarantine at a moment or after it: an id begins with the time."""
    return f"{int(moment * 1_000_000):016X}"


class RequeueRecord(Record):
    """Order for one stage's quarantine."""

    order_id: str
    stage: FileName
    where: str = ""
    """Which rows, as ``conditions_in`` reads it; empty: all."""
    asked_at: float
    """Seconds since the Unix epoch."""


def conditions_in(where: str) -> list[tuple[str, str, str | int]]:
    """Return the comparisons of ``condition = 'amount > 0' AND tries < 3``. Raises InvalidRequest for anything else.

    So small a language means the same to whoever counts the rows and to Spark, which takes them.
    """
    found: list[tuple[str, str, str | int]] = []
    at = 0
    while where.strip():
        one = _ONE.match(where, at)
        if one is None:
            raise _refused(where, f"{where[at:].strip() or 'its end'!r} is none")
        column, sign, literal = one.groups()
        value: str | int = literal[1:-1].replace("''", "'") if literal.startswith("'") else int(literal)
        if column not in CHOSEN_BY or not isinstance(value, CHOSEN_BY[column]):
            kinds = {str: "a text in single quotes", int: "a whole number"}
            why = (
                f"{column} takes {kinds[CHOSEN_BY[column]]}"
                if column in CHOSEN_BY
                else f"{column!r} is no column"
            )
            raise _refused(where, why)
        found.append((column, sign, value))
        joined = _AND.match(where, one.end())
        if joined is None and one.end() == len(where):
            break
        if joined is None:
            raise _refused(where, f"before {where[one.end() :]!r} there is no AND")
        at = joined.end()
    return found


def _refused(where: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"where={where!r}: give comparisons of {', '.join(CHOSEN_BY)} by {' '.join(_OPERATORS)}, joined by AND, such "
        f"as \"condition = 'amount > 0' AND tries < 3\": {why}"
    )


def selected(where: str, column: Callable[[str], Any], names: Sequence[str] = ()) -> Any:
    """Return the condition on a row that ``where`` means, of columns as the reader has them; None: every row.

    ``names``: those that the stage has had; by one of them all of its rows are meant.
    """

    def compared(name: str, sign: str, value: str | int) -> Any:
        if name == "stage" and value in names and sign in ("=", "<>"):
            return reduce(operator.or_, (column(name) == one for one in names)) == (sign == "=")
        return _OPERATORS[sign](column(name), value)

    parts = [compared(*one) for one in conditions_in(where)]
    return reduce(operator.and_, parts) if parts else None


def left_by(
    orders: Iterable[RequeueRecord], metadata: CheckpointMetadata, graph: PipelineGraph
) -> tuple[RequeueRecord, ...]:
    """Return the orders whose rows a checkpoint has not taken; a stage that has no quarantine any more takes none."""
    taken = {order for stage in metadata.stages for order in stage.metrics.requeue_orders}
    keeps = {stage.uid for stage in metadata.stages if stage.table is not None}
    stages = (stage for stage in graph.authored.stages if stage.uid in keeps)
    names = {name for stage in stages for name in (stage.uid, *stage.previous_uids)}
    return tuple(order for order in orders if order.order_id not in taken and order.stage in names)
