"""Rows that a watermark drops, had all the same: a batch's input read once more, up to the operator that drops them.

Only where Spark has said, of a batch, that its operator dropped some. What is late it says by the watermark that the
batch before was planned with, and so is it said here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.core.checkpoint.tables import LATE
from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.core.units import counted
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.quarantine.verdicts import AS_JSON
from dagster_ckpt.spark.attempt.participant import ParticipantContext
from dagster_ckpt.spark.channel.batch_input import read_rows
from dagster_ckpt.spark.channel.sink import CODEC, write_staged
from dagster_ckpt.spark.files import DataFile
from dagster_ckpt.spark.java.plans import analyzed_plan, marked_columns, nodes_of, rows_of, scala_items
from dagster_ckpt.spark.java.sessions import rows_dropped
from dagster_ckpt.spark.plan.operators import with_state
from dagster_ckpt.spark.plan.tree import Tree, kind_of, tree_of, walk
from dagster_ckpt.spark.quoting import quoted
from dagster_ckpt.spark.snapshot.checkpoint_files import read_offset, read_query_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KINDS = ("Aggregate", "Deduplicate", "DeduplicateWithinWatermark")
_MOVING = frozenset({"CurrentTimestamp", "CurrentDate", "CurrentTime", "Now", "LocalTimestamp"})
_PROPAGATES = "spark.sql.streaming.statefulOperator.allowMultiple"


@dataclass(frozen=True)
class LateRows:
    """The late rows of one stage's batches."""

    context: ParticipantContext
    kind: str
    """Kind of the operator that drops them."""
    moment: str
    """SQL of the time by which a row is late."""

    @classmethod
    def of(cls, context: ParticipantContext) -> LateRows:
        """Return a stage's, as it is planned. Raises InvalidRequest where they cannot be told exactly."""
        plan = analyzed_plan(context.frame)
        tree = tree_of(plan)
        operators = [kind_of(one) for one in with_state(tree)]
        if len(operators) != 1 or operators[0] not in _KINDS:
            raise _refused(
                context,
                f"its query has {', '.join(operators) or 'no operator that keeps state'}, and not "
                "one aggregate or one that drops duplicates",
            )
        node = next(one for one in nodes_of(plan) if one.getClass().getSimpleName() == operators[0])
        asked = node.groupingExpressions() if operators[0] == "Aggregate" else node.child().output()
        marked = marked_columns(scala_items(asked))
        if len(marked) != 1 or "session_window" in marked[0][0]:
            told = ", ".join(name for name, _ in marked)
            raise _refused(
                context, f"its rows are late by {told or 'no watermark'}, and not by one time or time window"
            )
        name, type_name = marked[0]
        moment = {"timestamp": quoted(name), "struct<start:timestamp,end:timestamp>": f"{quoted(name)}.`end`"}
        if type_name not in moment:
            raise _refused(context, f"{name!r}, by which its rows are late, is of type {type_name}")
        found = cls(context, operators[0], moment[type_name])
        found._refuse_inexact()
        return found

    def _refuse_inexact(self) -> None:
        """Raise InvalidRequest where the rows below the operator are others when they are computed again."""
        below = self._below(self.context.frame.sparkSession, None)
        plan = analyzed_plan(below)
        expressions = (kind_of(one) for node in walk(tree_of(plan)) for one in _expressions(node))
        if not plan.deterministic() or not _MOVING.isdisjoint(expressions):
            raise _refused(self.context, "its rows are computed by chance, or by the time of the day")
        if len(set(below.columns)) < len(below.columns):
            raise _refused(self.context, "two columns of the rows have the same name")

    def write(self, spark: SparkSession, folder: Path, root: Path, batch: BatchId) -> tuple[DataFile, ...]:
        """Write the late rows of a batch that was computed just now, as JSON; return the files."""
        dropped = rows_dropped(self.context.frame.sparkSession, read_query_id(self._query / "metadata"))
        if not dropped:
            return ()
        from pyspark.sql import functions as f

        below = self._below(spark, batch)
        late = below.where(f"{self.moment} <= timestamp_millis({self._watermark(batch)}L)")
        rows = late.select(f.to_json(f.struct(*map(quoted, below.columns)), AS_JSON).alias("row"))
        written = write_staged(rows, folder / LATE, root, codec=CODEC)
        number = sum(file.rows for file in written)
        if number < dropped or (number > dropped and self.kind != "Aggregate"):
            self.context.warn(
                f"stage {self.context.stage.uid}: Spark tells of {counted(dropped, 'row')} that batch {batch} dropped "
                f"as late, and {number} are in the quarantine"
            )
        return written

    def rows(self, spark: SparkSession, root: Path, files: Sequence[DataFile]) -> DataFrame:
        """Return the late rows that ``write`` wrote: the column ``row``."""
        from pyspark.sql.types import StringType, StructField, StructType

        schema = StructType([StructField("row", StringType())])
        return read_rows(spark, [root / file.name for file in files], schema)

    def rows_read(self, batch: BatchId) -> int:
        """Return how many rows came to the stage in a batch."""
        return self.context.input_of(batch).rows

    @property
    def _query(self) -> Path:
        return self.context.directory.query

    def _below(self, spark: SparkSession, batch: BatchId | None) -> DataFrame:
        """Return the rows that come to the operator in a batch; None: its columns alone."""
        made = self.context.function(spark, self.context.input_of(batch).whole(spark))
        nodes = [one for one in nodes_of(analyzed_plan(made)) if one.getClass().getSimpleName() == self.kind]
        if len(nodes) != 1:
            raise _refused(self.context, "its function makes another plan of rows that do not stream")
        return rows_of(spark, nodes[0].child())

    def _watermark(self, batch: BatchId) -> int:
        """Return the watermark by which Spark tells the late rows of a batch, in milliseconds."""
        own = read_offset(self._query / "offsets" / str(batch))
        if own.conf.get(_PROPAGATES, "true") != "true":
            return own.watermark_ms or 0
        return (read_offset(self._query / "offsets" / str(batch - 1)).watermark_ms or 0) if batch else 0


def _expressions(node: Tree) -> Iterator[Tree]:
    """Yield all expressions of a node of a plan, which has each as a list of nodes."""
    left = [value for name, value in node.items() if name != "_children"]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left += value
        elif isinstance(value, dict) and "class" in value:
            yield value


def _refused(context: ParticipantContext, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"stage {context.stage.uid!r} has late='keep', and which rows its watermark drops cannot be told exactly: "
        f"{why}. Give the operator a stage of its own, or leave late='keep' out: late rows are counted all the same"
    )
