"""Where a flow's sources are in its plan: Spark numbers them by that alone, in its own plan and in ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.spark_pipelines.evaluate import Evaluated, Key, evaluate
from dagster_ckpt.ext.spark_pipelines.graph import FlowNode, ProjectGraph
from dagster_ckpt.ext.spark_pipelines.rows import RunningProject
from dagster_ckpt.ext.spark_pipelines.schemas import schema_of_text, stand_in, united
from dagster_ckpt.spark.java.plans import analyzed_plan, leaves_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


_TAG = "dagster_ckpt_stands_for"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSource:
    """A place of a plan at which a stream is read."""

    number: int
    """Of the source: places may share one, its position is then in the offsets at each of them."""
    stands_for: str
    """A table's name in Spark's plan, a flow's uid in ours; empty: outside of the project."""
    name: str = ""
    """Spark's, of one outside: ``FileSource[/data]``, ``kafka``."""
    topics: str = ""
    """Kafka's option ``subscribe``."""


@dataclass(frozen=True, slots=True)
class SourceOrder:
    """A flow's sources in the order of Spark's plan, and of ours."""

    sparks: tuple[PlannedSource, ...]
    ours: tuple[PlannedSource, ...]


def source_orders(running: RunningProject, graph: ProjectGraph) -> dict[tuple[str, str], SourceOrder]:
    """Return the order of the sources of every flow, by target and name. Raises InvalidRequest."""
    known = running.known()
    wanted = [(flow.written_target, flow.name) for flow in graph.flows]

    def reading(rows_of: Callable[[str], DataFrame]) -> dict[Key, Evaluated]:
        def read(name: str, streaming: bool, done: Mapping[Key, Evaluated]) -> DataFrame:
            return (
                rows_of(name) if streaming else stand_in(running.spark, _schema(graph, name), streaming=False)
            )

        return evaluate(running.spec, running.spark, known, wanted=wanted, read=read)

    channels: dict[str, DataFrame] = {}

    def sparks(name: str) -> DataFrame:
        return _tagged(running, name, _schema(graph, name))  # each read of a table is a source of its own

    def ours(name: str) -> DataFrame:
        if name not in channels:
            inputs = {
                flow.uid: _tagged(running, flow.uid, _schema(graph, name)) for flow in graph.flows_of(name)
            }
            channels[name] = united(inputs, _schema(graph, name))
        return channels[name]

    one, other = reading(sparks), reading(ours)
    return {
        (flow.target, flow.name): _order(
            flow, *(found[flow.written_target, flow.name] for found in (one, other))
        )
        for flow in graph.flows
    }


def _order(flow: FlowNode, sparks: Evaluated, ours: Evaluated) -> SourceOrder:
    order = SourceOrder(_sources(flow, sparks.frame), _sources(flow, ours.frame))
    if [*map(_outside, _unique(order.sparks))] != [*map(_outside, _unique(order.ours))]:
        raise InvalidRequest(
            f"flow {flow.name!r} of {flow.target!r} reads other sources each time its function is called: "
            "which of its positions belongs to which cannot be told"
        )
    return order


def _unique(sources: tuple[PlannedSource, ...]) -> list[PlannedSource]:
    """Return the sources outside of the project, each once, in the order of the plan."""
    found = {source.number: source for source in sources if not source.stands_for}
    return [found[number] for number in sorted(found)]


def _outside(source: PlannedSource) -> tuple[str, str]:
    return source.name, source.topics


def _schema(graph: ProjectGraph, name: str) -> StructType:
    return schema_of_text(graph.dataset(name).row_schema)


def _tagged(running: RunningProject, what: str, schema: StructType) -> DataFrame:
    return stand_in(running.spark, schema, streaming=True, options={_TAG: what})


def _sources(flow: FlowNode, frame: DataFrame) -> tuple[PlannedSource, ...]:
    relations: list[Any] = []
    found: list[PlannedSource] = []
    for leaf in leaves_of(analyzed_plan(frame)):
        kind = str(leaf.getClass().getSimpleName())
        if not leaf.isStreaming():
            continue
        if kind not in ("StreamingRelation", "StreamingRelationV2"):
            raise InvalidRequest(
                f"flow {flow.name!r} of {flow.target!r} reads a stream by {kind}, whose place in its checkpoint "
                "is not known"
            )
        number = next((at for at, one in enumerate(relations) if one.equals(leaf)), len(relations))
        if number == len(relations):
            relations.append(leaf)
        options = leaf.extraOptions() if kind == "StreamingRelationV2" else None
        found.append(
            PlannedSource(
                number=number,
                stands_for="" if options is None else str(options.get(_TAG) or ""),
                name=str(leaf.sourceName()),
                topics="" if options is None else str(options.get("subscribe") or ""),
            )
        )
    return tuple(found)
