"""Rules of the tables behind a stage, as far as they can be asked of the stage's own rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_ckpt.authoring.stages import StageRole
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.spark.plan.tree import analyzed, expression, kind_of
from dagster_ckpt.spark.sink.accepts import RowRule
from dagster_ckpt.spark.sink.port import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline


@dataclass(frozen=True, slots=True)
class RuleAhead:
    """A rule of a table's rows, and the table."""

    place: str
    rule: RowRule

    @property
    def said(self) -> str:
        """The rule's sentence for a row that breaks it."""
        return f"column {self.rule.column!r} has {self.rule.what}, and {self.place} cannot hold it"


def rules_ahead(
    pipeline: CheckpointedPipeline, uid: StageUid, frame: DataFrame, sink_of: Callable[[StageUid], Sink]
) -> tuple[RuleAhead, ...]:
    """Return the rules of the sinks that get a stage's rows, or some of their columns, as they are.

    Of a sink that filters rows or makes other columns of them, nobody knows ahead what it is going to write.
    """
    return tuple(_rules(pipeline, uid, frame, sink_of))


def _rules(
    pipeline: CheckpointedPipeline, uid: StageUid, frame: DataFrame, sink_of: Callable[[StageUid], Sink]
) -> Iterator[RuleAhead]:
    for reader, inputs in pipeline.authored.upstream.items():
        stage = pipeline.authored.stages[reader]
        if stage.role is not StageRole.SINK or inputs != (uid,):
            continue
        if stage.takes_context or stage.takes_spark or stage.state is not None:
            continue
        rows = stage.fn(**dict.fromkeys(stage.inputs, frame))
        if are_columns_of(rows, frame):
            sink = sink_of(reader)
            yield from (RuleAhead(sink.place, rule) for rule in sink.accepts.rules(rows.schema.json()))


def are_columns_of(rows: DataFrame, frame: DataFrame) -> bool:
    """Tell whether rows are a frame's, each as it is, with all of its columns or some."""
    node, whole = analyzed(rows), analyzed(frame)
    while node is not None and node != whole:
        if kind_of(node) not in ("Project", "SubqueryAlias"):
            return False
        if any(kind_of(expression(one)) != "AttributeReference" for one in node.get("projectList") or ()):
            return False
        node = node["_children"][0]
    return node is not None
