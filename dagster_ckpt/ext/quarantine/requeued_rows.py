"""Rows of the quarantine that go through their stage again: judged by today's conditions, beside the rows of a batch.

The batch's counts say which orders it has taken, and are captured with its checkpoint. Which rows are still kept the
table alone knows: an order waits until the table shows the batch that took rows last, so no row is taken twice.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.core.checkpoint.tables import RequeueRecord
from dagster_ckpt.core.units import counted
from dagster_ckpt.errors import NotFound
from dagster_ckpt.ext.quarantine.expectations import Action, Condition
from dagster_ckpt.ext.quarantine.poisoned_rows import InputFile, PoisonedRow
from dagster_ckpt.ext.quarantine.verdicts import (
    AS_JSON,
    VERDICT,
    action_on,
    broken_by,
    read_apart,
)
from dagster_ckpt.operations.care.maintain import is_struct, selected
from dagster_ckpt.spark.attempt.participant import ParticipantContext, Requeue
from dagster_ckpt.spark.channel.batch_input import PLACE, read_rows
from dagster_ckpt.spark.channel.sink import CODEC, write_apart, write_staged
from dagster_ckpt.spark.files import DataFile
from dagster_ckpt.spark.quoting import quoted
from dagster_ckpt.spark.snapshot.batch_notes import RowCounts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

KEPT_BEFORE = "_dagster_ckpt_kept"
"""Column of what the quarantine said of a row, while the row is judged again."""
_LOSSY = re.compile(r"[:<,](variant|time\()")
"""Types, as Spark writes a schema, of which JSON has the value and not all of the type."""
_FOLDER, _PASSED = "again", "passed"
_SAID = ("id", "condition", "conditions", "tries")


@dataclass(frozen=True, kw_only=True)
class RequeuedRows:
    """Rows that a batch took out of the quarantine, judged."""

    orders: tuple[str, ...] = ()
    """Orders that are done with."""
    judged: DataFrame | None = None
    """The rows, with their verdicts and ``KEPT_BEFORE``; None: there are none."""
    kinds: Mapping[int, Sequence[DataFile]] = field(default_factory=dict)
    """Their files, by verdict."""
    passed: tuple[DataFile, ...] = ()
    """Files of those that go on."""

    @property
    def verdicts(self) -> Counter[int]:
        """Number of rows of each verdict."""
        return Counter({verdict: sum(one.rows for one in files) for verdict, files in self.kinds.items()})

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.verdicts.total()


@dataclass(frozen=True)
class RequeuedInput:
    """Rows of a stage's input that could not be processed, and that a batch processes behind its own."""

    files: tuple[InputFile, ...] = ()

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(rows for _, _, rows in self.files)

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the rows as the quarantine has told of them."""
        return read_rows(spark, [path for _, path, _ in self.files], _told())

    def among(self, spark: SparkSession, poisoned: Sequence[PoisonedRow]) -> dict[str, PoisonedRow]:
        """Return the rows on which the batch fails again, by their ids in the quarantine."""
        found: dict[str, PoisonedRow] = {}
        for _, path, _ in self.files:
            failed = {one.file[1]: one for one in poisoned if one.file[0] == path}
            if failed:
                told = read_rows(spark, [path], _told(), [0])
                rows = told.where(told[PLACE].isin([*failed])).select(PLACE, f"{KEPT_BEFORE}.id")
                found |= {row["id"]: failed[row[PLACE]] for row in rows.collect()}
        return found


def _told() -> StructType:
    from pyspark.sql.types import StructType

    return StructType.fromDDL(
        f"{KEPT_BEFORE} STRUCT<id STRING, condition STRING, conditions ARRAY<STRING>, tries BIGINT, "
        "error STRING, input STRING, row STRING>"
    )


@dataclass(frozen=True)
class Requeuing:
    """Takes rows of a stage's quarantine back."""

    conditions: tuple[Condition, ...]
    judged: Callable[[DataFrame], DataFrame]
    """Returns rows with their verdicts."""
    schema: StructType
    """Columns that the stage returns today."""
    struct: str
    """Name of the struct that the quarantine has them in; empty: there is no quarantine."""
    context: ParticipantContext

    def take(
        self, spark: SparkSession, folder: Path, root: Path, before: RowCounts, pending: Requeue | None
    ) -> RequeuedRows:
        """Judge the rows of orders that were not taken ``before`` this batch; their files lie below ``folder``."""
        orders = _due(before, pending)
        if pending is None or not orders:
            return RequeuedRows()
        done = tuple(one.order_id for one in orders)
        try:
            found = self._found(spark, pending, orders)
        except NotFound:  # nothing was published
            return RequeuedRows(orders=done)
        judged = self.judged(found)
        kinds = write_apart(judged, VERDICT, folder / _FOLDER, root)
        if not kinds:
            return RequeuedRows(orders=done)
        rows = read_apart(spark, judged.drop(VERDICT).schema, root, kinds)
        return RequeuedRows(
            orders=done, judged=rows, kinds=kinds, passed=self._passed(rows, kinds, folder, root)
        )

    def inputs(
        self, spark: SparkSession, folder: Path, before: RowCounts, pending: Requeue | None
    ) -> RequeuedInput:
        """Write the ordered rows that could not be processed below a new folder, as their channels have them now.

        Only those that read as they were kept: other columns, or text that is no UTF-8, are guessed at by nobody.
        """
        orders = _due(before, pending)
        if pending is None or not orders:
            return RequeuedInput()
        try:
            kept = _chosen(spark, pending, orders, self.context.stage.names)
        except NotFound:  # nothing was published
            return RequeuedInput()
        found: list[InputFile] = []
        for channel, schema in self.context.input_of(None).schemas().items():
            meant = kept.where(kept["input"] == channel)
            rows = _as_they_were(meant, schema)
            written = () if rows is None else write_staged(rows, folder / channel, folder, codec=CODEC)
            found += [(channel, folder / one.name, one.rows) for one in written if one.rows]
            if left := meant.count() - sum(one.rows for one in written):
                self.context.warn(
                    f"stage {self.context.stage.uid} leaves {counted(left, 'row')} of {channel} in its quarantine: "
                    "JSON does not say all of them, so insert them into its input once more"
                )
        return RequeuedInput(tuple(found))

    def _found(self, spark: SparkSession, pending: Requeue, orders: list[RequeueRecord]) -> DataFrame:
        from pyspark.sql import functions as f

        kept = _chosen(spark, pending, orders, self.context.stage.names)
        structs = [name for name in kept.columns if is_struct(name)]
        self._tell_others(kept, [name for name in structs if name != self.struct])
        kept_as = f.col(self.struct) if self.struct in structs else f.lit(None)
        # No table keeps the order of texts (COLLATE), by which conditions are asked, nor every name.
        mine = kept_as.cast(self.schema)
        columns = [mine[name].alias(name) for name in self.schema.names]
        return kept.where(mine.isNotNull()).select(*columns, f.struct(*_SAID).alias(KEPT_BEFORE))

    def _tell_others(self, kept: DataFrame, structs: Sequence[str]) -> None:
        """Tell of rows that were kept when the stage returned other columns."""
        number = kept.where(" OR ".join(f"{name} IS NOT NULL" for name in structs)).count() if structs else 0
        if number:
            self.context.warn(
                f"{counted(number, 'row')} of the quarantine of stage {self.context.stage.uid} stay there: they have "
                f"other columns than {self.schema.simpleString()}, which the stage returns now: insert them into its "
                "input in the new form"
            )

    def _passed(
        self, rows: DataFrame, verdicts: Iterable[int], folder: Path, root: Path
    ) -> tuple[DataFile, ...]:
        passing = [v for v in verdicts if outcome_of(v, self.conditions) == "requeued"]
        if not passing:
            return ()
        going = rows.where(f"{VERDICT} IN ({', '.join(map(str, passing))})").select(
            *map(quoted, self.schema.names)
        )
        return write_staged(going, folder / _PASSED, root, codec=CODEC)


def _as_they_were(kept: DataFrame, schema: StructType) -> DataFrame | None:
    """Return kept rows as columns, with what the quarantine says of each, where they read as they were written.

    None: JSON does not say all of such columns.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as f

    if _LOSSY.search(schema.simpleString()):
        return None
    row = f.from_json("row", schema, AS_JSON)
    in_zone = {name: form for name, form in AS_JSON.items() if name != "timeZone"}  # as they were kept once
    is_same = [f.to_json(row, form) == f.col("row") for form in (AS_JSON, in_zone)]
    is_exact = reduce(operator.or_, is_same) & ~f.col("row").contains("\ufffd")
    said = f.struct(*_SAID, "error", "input", "row").alias(KEPT_BEFORE)
    try:
        return kept.where(is_exact).select(row.alias("as_it_was"), said).select("as_it_was.*", KEPT_BEFORE)
    except AnalysisException:
        return None


def _due(before: RowCounts, pending: Requeue | None) -> list[RequeueRecord]:
    """Return the orders that a batch takes; none while the table shows rows that were taken, if it is there."""
    orders = [one for one in pending.orders if one.order_id not in before.orders] if pending else []
    position = pending.table.position() if pending is not None and orders else None
    if position is None or position.head is None or before.requeued_in is None:
        return orders
    shown = -1 if position.through_batch is None else position.through_batch
    return orders if shown >= before.requeued_in else []


def _chosen(
    spark: SparkSession, pending: Requeue, orders: list[RequeueRecord], names: Sequence[str]
) -> DataFrame:
    """Return the quarantined rows that orders mean. Raises NotFound before any was published."""
    from pyspark.sql import functions as f

    kept = pending.table.rows().to_spark(spark).where("state = 'quarantined'").dropDuplicates(["id"])
    wanted = [selected(one.where, f.col, names) for one in orders]
    return kept.where(reduce(operator.or_, wanted)) if all(one is not None for one in wanted) else kept


def outcome_of(verdict: int, conditions: Sequence[Condition]) -> str:
    """Return the state of a row in the quarantine once it was judged again.

    A row that must not be fails no run a second time: it stays where it is.
    """
    match action_on(broken_by(verdict, conditions)):
        case None | Action.WARN:
            return "requeued"
        case Action.DROP:
            return "dropped"
        case Action.QUARANTINE | Action.FAIL:
            return "quarantined"
