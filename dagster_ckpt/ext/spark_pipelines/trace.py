"""Makes the graph of a project: calls every function once with rows that are not there, and refuses what cannot be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dagster_ckpt.authoring.stages import RESERVED_NAMES
from dagster_ckpt.core.ids import stage_uid
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.spark_pipelines.auto_cdc import (
    ROW,
    changes,
    is_history,
    key_names,
    refuse_unsupported,
    sequence_of,
    tracked_names,
    with_bounds,
)
from dagster_ckpt.ext.spark_pipelines.elements import (
    STORED,
    Elements,
    FlowElement,
    Kind,
    Namespace,
    OutputElement,
    parts_of,
)
from dagster_ckpt.ext.spark_pipelines.evaluate import Evaluated, Key, NotYet, evaluate, known_elements
from dagster_ckpt.ext.spark_pipelines.graph import (
    CdcNode,
    DatasetNode,
    FlowNode,
    ProjectGraph,
    ProjectSpec,
    digests_of,
    made_by,
    refuse_connect,
    settings_of,
)
from dagster_ckpt.ext.spark_pipelines.registry import imported_below, refuse_old_imports
from dagster_ckpt.ext.spark_pipelines.schemas import (
    refuse_columns,
    refuse_no_watermark,
    stand_in,
    table_schema,
)
from dagster_ckpt.spark.session import session_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


TABLE_FORMATS = ("parquet", "delta", "iceberg")


def refuse_options(output: OutputElement) -> None:
    """Raise InvalidRequest for an option whose loss would be seen in rows or in their place."""
    if output.kind in (Kind.SINK, Kind.TEMPORARY_VIEW):
        return
    if output.format and output.format.lower() not in TABLE_FORMATS:
        raise InvalidRequest(
            f"{output.title} has format {output.format!r}: tables are written as {', '.join(TABLE_FORMATS)}"
        )
    acts = next((key for key in output.properties if key.startswith("delta.")), None)
    if acts is not None:
        raise InvalidRequest(
            f"{output.title} has the table property {acts!r}, which changes what Delta does: make the table "
            "beforehand, with it, and leave it out here"
        )


def notes_on(output: OutputElement) -> Iterable[str]:
    """Yield a note on each option of an output that is accepted and has no effect here: rows are the same."""
    if output.cluster_by:
        yield f"{output.title}: cluster_by has no effect, files are as the flows write them"
    if output.kind is Kind.MATERIALIZED_VIEW and output.format.lower() not in ("", "parquet"):
        yield f"{output.title}: its format {output.format} has no effect, a materialized view is a Delta table"
    if output.partition_cols and output.format.lower() in ("", "parquet"):
        yield f"{output.title}: partition_cols has no effect on a table whose format is not given: say format='delta'"
    if output.kind is Kind.SINK and "checkpointLocation" in output.properties:
        yield f"{output.title}: its option checkpointLocation has no effect, checkpoints are the coordinator's"
    if output.properties and output.kind is not Kind.SINK and output.format.lower() != "iceberg":
        yield f"{output.title}: table_properties are kept nowhere, its table is a folder"


def refuse_conf(flow: FlowElement, output: OutputElement) -> None:
    """Raise InvalidRequest for settings of a flow that has no query of its own."""
    if flow.spark_conf and output.kind in (Kind.TEMPORARY_VIEW, Kind.MATERIALIZED_VIEW):
        raise InvalidRequest(
            f"{flow.title} of a {output.kind} has spark_conf, or follows SET in its file: only a flow of a streaming "
            "table or sink has a query of its own. Write the setting in the spec file's configuration"
        )


def plain_flow_name(flow: FlowElement) -> str:
    """Return the name of a flow for its stage's uid. Raises InvalidRequest for one that cannot be."""
    parts = parts_of(flow.name)
    if parts is None or len(parts) != 1 or not parts[0].isascii() or not parts[0].replace("_", "a").isalnum():
        raise InvalidRequest(
            f"{flow.title}: its name is one word of letters, digits and '_', because it names files"
        )
    return parts[0]


def checked_uids(datasets: Iterable[DatasetNode], flows: Iterable[FlowNode]) -> None:
    """Raise InvalidRequest where two elements would have one uid, or one that cannot be."""
    taken: dict[str, str] = {}
    for uid, where in [*((one.uid, one.where) for one in datasets), *((one.uid, one.where) for one in flows)]:
        stage_uid(uid)
        if uid in RESERVED_NAMES:
            raise InvalidRequest(f"{where}: {uid!r} names a step of every pipeline's job: rename the dataset")
        if uid in taken:
            raise InvalidRequest(
                f"{where} and {taken[uid]} would both be called {uid!r} here: rename one of them"
            )
        taken[uid] = where


def trace_project(spec: ProjectSpec, spark: SparkSession) -> ProjectGraph:
    """Return the graph of a project. Raises InvalidRequest for what is not supported, by name; nothing is run."""
    refuse_connect(spark)
    with session_settings(spark, settings_of(spec)):
        if not spec.sources():
            raise InvalidRequest(f"{spec.path}: its libraries find no file")
        # Names are completed by the project's own catalog and schema, or else by the session's.
        space = Namespace(
            catalog=spec.catalog or spark.catalog.currentCatalog(),
            database=spec.database or spark.catalog.currentDatabase(),
        )
        known = known_elements(spec, spark, Elements(namespace=space))
        for output in known.outputs.values():
            refuse_options(output)
        for flow in known.flows.values():
            refuse_conf(flow, known.outputs[known.target_of(flow)])
        tracing = _Tracing(spec=spec, spark=spark, known=known)
        tracing.refuse_misplaced()
        return tracing.graph(tracing.call_all())


@dataclass(kw_only=True)
class _Tracing:
    spec: ProjectSpec
    spark: SparkSession
    known: Elements
    schemas: dict[str, StructType] = field(default_factory=dict)
    """Of tables and sinks, by full name."""

    def call_all(self) -> dict[Key, Evaluated]:
        """Call every flow's function."""
        done = evaluate(self.spec, self.spark, self.known, wanted=self.known.flows, read=self._read)
        for flow in self.known.flows.values():
            self._refuse_reads(flow, self.known.outputs[self.known.target_of(flow)], done[flow.key])
        for output in self.known.outputs.values():
            if output.kind is not Kind.TEMPORARY_VIEW:
                self._schema(output.name, done)
        return done

    def _read(self, name: str, streaming: bool, done: Mapping[Key, Evaluated]) -> DataFrame:
        if any(flow.key not in done for flow in self.known.flows_of(name)):
            raise NotYet(name)
        return stand_in(self.spark, self._schema(name, done), streaming=streaming)

    def _schema(self, name: str, done: Mapping[Key, Evaluated]) -> StructType:
        if name not in self.schemas:
            flows = sorted(self.known.flows_of(name), key=lambda flow: flow.name)
            brought = [(flow.title, self._rows(flow, done[flow.key]).schema) for flow in flows]
            self.schemas[name] = table_schema(self.known.outputs[name], brought)
        return self.schemas[name]

    def _rows(self, flow: FlowElement, evaluated: Evaluated) -> DataFrame:
        """Return the rows of a flow as its table gets them."""
        if flow.cdc is None:
            return evaluated.frame
        if not is_history(flow):
            return changes(flow, evaluated.frame).select(f"{ROW}.*")
        tracked_names(flow, evaluated.frame)  # refuses what has no versions
        return with_bounds(changes(flow, evaluated.frame))

    # --- what cannot be ---------------------------------------------------------------------------------------

    def refuse_misplaced(self) -> None:
        """Raise InvalidRequest for outputs and flows that do not go together."""
        for output in self.known.outputs.values():
            flows = self.known.flows_of(output.name)
            if not flows:
                raise InvalidRequest(f"{output.title} has no flow: nothing would ever write it")
            if output.kind not in STORED and len(flows) > 1:
                raise InvalidRequest(
                    f"{output.title} has several flows, {flows[1].title}: only tables and sinks may"
                )
            cdc = next((flow for flow in flows if flow.cdc is not None), None)
            if cdc is None:
                continue
            refuse_unsupported(cdc)
            if len(flows) > 1 or output.kind is not Kind.STREAMING_TABLE:
                raise InvalidRequest(
                    f"{cdc.title} writes {output.title}: Auto CDC has a streaming table to itself"
                )

    def _refuse_reads(self, flow: FlowElement, output: OutputElement, found: Evaluated) -> None:
        if output.kind is Kind.TEMPORARY_VIEW:
            return
        streaming = output.kind in STORED
        if found.frame.isStreaming != streaming:
            raise InvalidRequest(
                f"{flow.title} of {output.title} returns "
                + (
                    "rows that are no stream: use spark.readStream"
                    if streaming
                    else "a stream: use spark.read"
                )
            )
        if streaming and found.reads.tables:
            name = min(found.reads.tables)
            raise InvalidRequest(
                f"{flow.title} reads {name!r} as it stands (spark.read.table) while it streams: which of its rows it "
                "sees would depend on when each of the two runs. Read it with spark.readStream.table, or compute what "
                "joins the two in a materialized view"
            )
        for name in found.reads.streams:
            if any(other.cdc is not None for other in self.known.flows_of(name)):
                raise InvalidRequest(
                    f"{flow.title} reads {name!r} as a stream, whose rows change (Auto CDC): read its source, or "
                    "read it with spark.read.table in a materialized view"
                )
        if streaming:
            refuse_no_watermark(flow, found.frame)

    # --- the graph --------------------------------------------------------------------------------------------

    def graph(self, done: Mapping[Key, Evaluated]) -> ProjectGraph:
        """Return the project's graph. Raises InvalidRequest for names that would meet as uids."""
        space = self.known.namespace
        datasets = [
            self._dataset(one, done)
            for one in self.known.outputs.values()
            if one.kind is not Kind.TEMPORARY_VIEW
        ]
        flows = [self._flow(one, done[one.key]) for one in self.known.flows.values() if self._is_stored(one)]
        checked_uids(datasets, flows)
        imported = dict.fromkeys(imported_below(self.spec.root), "")
        refuse_old_imports(self.spec.root, imported)
        return ProjectGraph(
            made_by=made_by(),
            catalog=space.catalog,
            database=space.database,
            files=digests_of(self.spec, imported),
            datasets=tuple(_in_order(datasets)),
            flows=tuple(flows),
            notes=tuple(note for one in self.known.outputs.values() for note in notes_on(one)),
        )

    def _is_stored(self, flow: FlowElement) -> bool:
        return self.known.outputs[self.known.target_of(flow)].kind in STORED

    def _dataset(self, output: OutputElement, done: Mapping[Key, Evaluated]) -> DatasetNode:
        is_view = output.kind is Kind.MATERIALIZED_VIEW
        found = done[self.known.flows_of(output.name)[0].key]
        kept = output.format or self.spec.configuration.get("spark.sql.sources.default", "parquet")
        refuse_columns(output, self.schemas[output.name], kept)
        return DatasetNode(
            name=output.name,
            uid=self.known.namespace.uid(output.name),
            kind=output.kind,
            where=output.where,
            row_schema=self.schemas[output.name].json(),
            comment=output.comment,
            format=kept,
            partition_cols=output.partition_cols,
            properties=dict(output.properties),
            reads=tuple(sorted(found.reads.tables)) if is_view else (),
        )

    def _flow(self, flow: FlowElement, found: Evaluated) -> FlowNode:
        target = self.known.target_of(flow)
        uid = self.known.namespace.uid(target)
        cdc = None
        if flow.cdc is not None:
            cdc = CdcNode(
                keys=key_names(flow, found.frame),
                deletes=flow.cdc.apply_as_deletes is not None,
                sequence=sequence_of(flow),
                tracked=tracked_names(flow, found.frame) if is_history(flow) else None,
            )
        return FlowNode(
            target=target,
            name=flow.name,
            uid=f"{uid}__{'flow' if flow.is_default else plain_flow_name(flow)}",
            where=flow.where,
            written_target=flow.target,
            streams=tuple(sorted(found.reads.streams)),
            conf=dict(flow.spark_conf),
            cdc=cdc,
        )


def _in_order(datasets: Iterable[DatasetNode]) -> list[DatasetNode]:
    """Return the datasets, materialized views after those they read: circles were refused before."""
    waiting = {one.name: one for one in datasets}
    ordered: list[DatasetNode] = []
    while waiting:
        ready = [one for one in waiting.values() if not any(name in waiting for name in one.reads)]
        assert ready
        ordered += [waiting.pop(one.name) for one in ready]
    return ordered
