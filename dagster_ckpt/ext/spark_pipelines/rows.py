"""Rows of a project's flows and views at run time, from inputs that the pipeline gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.spark_pipelines.auto_cdc import (
    changes,
    is_history,
    key_names,
    sequence_of,
    tracked_names,
)
from dagster_ckpt.ext.spark_pipelines.elements import (
    STORED,
    Elements,
    FlowElement,
    Kind,
    Namespace,
    OutputElement,
)
from dagster_ckpt.ext.spark_pipelines.evaluate import Evaluated, Key, evaluate, known_elements
from dagster_ckpt.ext.spark_pipelines.graph import (
    DatasetNode,
    FlowNode,
    ProjectGraph,
    ProjectSpec,
    refuse_connect,
    refuse_stale,
)
from dagster_ckpt.ext.spark_pipelines.registry import refuse_old_imports
from dagster_ckpt.ext.spark_pipelines.schemas import aligned, schema_of_text, stand_in
from dagster_ckpt.spark.quoting import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class RunningProject:
    """A project in a session, compared with its graph."""

    spec: ProjectSpec
    graph: ProjectGraph
    spark: SparkSession

    def flow(self, flow: FlowNode, tables: Mapping[str, DataFrame]) -> DataFrame:
        """Return the rows that a flow brings to its table. Raises InvalidRequest where the project is not its graph."""
        known = self.known()
        key = (flow.written_target, flow.name)
        found = self._evaluated(known, key, f"flow {flow.name!r}", tables, streaming=True)
        if flow.cdc is not None:
            element = known.flows[key]
            if key_names(element, found.frame) != flow.cdc.keys:
                raise InvalidRequest(
                    f"flow {flow.name!r} has other keys than its graph says: {self._again()}"
                )
            if sequence_of(element) != flow.cdc.sequence:
                raise InvalidRequest(
                    f"flow {flow.name!r} has another sequence_by than its graph says: {self._again()}"
                )
            if is_history(element) and tracked_names(element, found.frame) != flow.cdc.tracked:
                raise InvalidRequest(
                    f"flow {flow.name!r} tracks the history of other columns than its graph says: {self._again()}"
                )
            return changes(known.flows[key], found.frame)
        schema = schema_of_text(self.graph.dataset(flow.target).row_schema)
        aligned(
            found.frame, schema, whose=f"flow {flow.name!r}"
        )  # refuses here what its readers could not take
        return found.frame

    def view(self, view: DatasetNode, rows: Mapping[str, DataFrame | None]) -> DataFrame:
        """Return the rows of a materialized view; ``rows`` by uid, None for a table that nothing was published to."""
        tables = {}
        for name in view.reads:
            table = self.graph.dataset(name)
            schema, found = schema_of_text(table.row_schema), rows[table.uid]
            empty = found is None
            frame = stand_in(self.spark, schema, streaming=False) if found is None else found
            if not empty:  # a column that no flow brings any more may still be in the files
                there = [column for column in frame.columns if column in schema.fieldNames()]
                frame = aligned(frame.select(*map(quoted, there)), schema, whose=f"table {name}")
            tables[name] = frame
        known = self.known()
        [flow] = known.flows_of(view.name)
        found_view = self._evaluated(
            known, flow.key, f"materialized view {view.name!r}", tables, streaming=False
        )
        return aligned(
            found_view.frame, schema_of_text(view.row_schema), whose=f"materialized view {view.name!r}"
        )

    def known(self) -> Elements:
        """Return the project's definitions. Raises InvalidRequest where they are not those of its graph."""
        refuse_stale(self.spec, self.graph)
        refuse_connect(self.spark)
        space = Namespace(catalog=self.graph.catalog, database=self.graph.database)
        known = known_elements(self.spec, self.spark, Elements(namespace=space))
        refuse_old_imports(self.spec.root, self.graph.files)
        different = why_different(self.graph, known)
        if different:
            raise InvalidRequest(f"{different}: {self._again()}")
        return known

    def _evaluated(
        self, known: Elements, key: Key, what: str, tables: Mapping[str, DataFrame], *, streaming: bool
    ) -> Evaluated:
        if key not in known.flows:
            raise InvalidRequest(f"{what} is not defined any more: {self._again()}")

        def read(name: str, as_stream: bool, done: Mapping[Key, Evaluated]) -> DataFrame:
            if name not in tables or as_stream is not streaming:
                raise InvalidRequest(f"{what} reads {name!r} now, which it did not: {self._again()}")
            return tables[name]

        found = evaluate(self.spec, self.spark, known, wanted=[key], read=read)[key]
        unread = tables.keys() - (found.reads.streams if streaming else found.reads.tables)
        if unread:
            raise InvalidRequest(f"{what} does not read {min(unread)!r} any more: {self._again()}")
        return found

    def _again(self) -> str:
        return f"the project depends on more than its files. Run dagster-ckpt adopt-project {self.spec.path}"


def why_different(graph: ProjectGraph, known: Elements) -> str:
    """Return the difference of a project from its graph; empty: none. Temporary views may come and go."""
    outputs = [one for one in known.outputs.values() if one.kind is not Kind.TEMPORARY_VIEW]
    flows = [(known.outputs[known.target_of(flow)], flow) for flow in known.flows.values()]
    written = {f"{one.name!r}": _of_dataset(one) for one in graph.datasets}
    written |= {
        f"flow {one.name!r} of {one.target!r}": (
            dict(one.conf),
            None if one.cdc is None else (one.cdc.deletes, one.cdc.tracked is not None),
        )
        for one in graph.flows
    }
    found = {f"{one.name!r}": _of_dataset(one) for one in outputs}
    found |= {
        f"flow {one.name!r} of {output.name!r}": (dict(one.spark_conf), _cdc(one))
        for output, one in flows
        if output.kind in STORED
    }
    for title in sorted({*written, *found}):
        if title not in found:
            return f"{title} is not defined any more"
        if title not in written:
            return f"{title} is new"
        if written[title] != found[title]:
            return f"{title} has other options than its graph says"
    return ""


def _of_dataset(one: DatasetNode | OutputElement) -> object:
    return one.kind, one.partition_cols, dict(one.properties)


def _cdc(flow: FlowElement) -> tuple[bool, bool] | None:
    return None if flow.cdc is None else (flow.cdc.apply_as_deletes is not None, is_history(flow))
