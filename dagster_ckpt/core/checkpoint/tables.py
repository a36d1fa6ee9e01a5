"""Tables as the record keeps them: what readers find, and orders to put rows of a quarantine through again.

An order stays in the record until a checkpoint that tables are shown has taken its rows: what is taken and not yet in
one is taken again, and a restore to before one brings rows back and no order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from pydantic import Field

from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.model import CheckpointMetadata, FileName, Record, TableSnapshot, Time


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


LATE = "late"
"""Condition of the rows that a watermark drops, as counts and the quarantine name it."""


def id_since(moment: float) -> str:
    """Return the least id of rows that came into a quarantine at a moment or after it: an id begins with the time."""
    return f"{int(moment * 1_000_000):016X}"


class RequeueRecord(Record):
    """Order for one stage's quarantine."""

    order_id: str
    stage: FileName
    where: str = ""
    """Which rows, by comparisons; empty: all."""
    asked_at: float
    """Seconds since the Unix epoch."""


def left_by(
    orders: Iterable[RequeueRecord], metadata: CheckpointMetadata, graph: PipelineGraph
) -> tuple[RequeueRecord, ...]:
    """Return the orders whose rows a checkpoint has not taken; a stage that has no quarantine any more takes none."""
    taken = {order for stage in metadata.stages for order in stage.metrics.requeue_orders}
    keeps = {stage.uid for stage in metadata.stages if stage.table is not None}
    stages = (stage for stage in graph.authored.stages if stage.uid in keeps)
    names = {name for stage in stages for name in (stage.uid, *stage.previous_uids)}
    return tuple(order for order in orders if order.order_id not in taken and order.stage in names)
