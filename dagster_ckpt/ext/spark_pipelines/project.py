"""``pipeline_from_spark_project``: a Spark declarative pipeline as a checkpointed pipeline. Public name."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline, checked_pipeline
from dagster_ckpt.authoring.stage_settings import StageParticipant, check_values, take_participant
from dagster_ckpt.authoring.stages import StageDefinition, StageRole
from dagster_ckpt.authoring.targets import SinkTarget, TableMode, TableTarget
from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.ids import PipelineId, StageUid, pipeline_id, stage_uid
from dagster_ckpt.core.json_text import canonical
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.spark_pipelines.auto_cdc import START, newest_rows, versions
from dagster_ckpt.ext.spark_pipelines.elements import Kind
from dagster_ckpt.ext.spark_pipelines.graph import (
    DatasetNode,
    FlowNode,
    ProjectGraph,
    ProjectSpec,
    load_graph,
    load_spec,
    save_graph,
    settings_of,
    why_stale,
)
from dagster_ckpt.ext.spark_pipelines.published import (
    CatalogView,
    CatalogViews,
    ComputedTable,
    ComputedTables,
)
from dagster_ckpt.ext.spark_pipelines.rows import RunningProject
from dagster_ckpt.ext.spark_pipelines.schemas import aligned, no_aggregation, schema_of_text, united
from dagster_ckpt.ext.spark_pipelines.targets import refuse_view, target_of
from dagster_ckpt.ext.spark_pipelines.trace import trace_project
from dagster_ckpt.spark.plan.functions import MADE_FROM

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def build_pipeline(
    spec: ProjectSpec, graph: ProjectGraph, *, name: str, sinks: Mapping[str, SinkTarget], **more: Any
) -> CheckpointedPipeline:
    """Return the pipeline of a project. Raises InvalidRequest."""
    builder = _Builder(spec=spec, graph=graph, sinks=sinks)
    builder.refuse_unknown()
    derived = tuple(builder.derived(digest_bytes(canonical(dict(graph.files))).checksum))
    return checked_pipeline(
        CheckpointedPipeline(
            name=_named(spec, name),
            stages={stage.uid: stage for stage in builder.stages()},
            upstream=builder.upstream(),
            description=f"Spark declarative pipeline {spec.name}.",
            derived=derived,
            after_publish=(ComputedTables(derived), CatalogViews(tuple(builder.views()))),
            **more,
        )
    )


def _named(spec: ProjectSpec, name: str) -> PipelineId:
    try:
        return pipeline_id(name or spec.name)
    except InvalidRequest as error:
        raise InvalidRequest(
            f"{error}. What {spec.path} says may stay: give the pipeline a name, pipeline_from_spark_project(..., "
            "name=...) or adopt-project -p NAME"
        ) from error


@dataclass(frozen=True, kw_only=True)
class _Builder:
    spec: ProjectSpec
    graph: ProjectGraph
    sinks: Mapping[str, SinkTarget]

    def refuse_unknown(self) -> None:
        """Raise InvalidRequest for settings of datasets there are not."""
        uids = {one.uid for one in self.graph.datasets}
        views = set(self.spec.catalog_views) - {EVERY}
        of_flows = {self.graph.dataset(flow.target).uid for flow in self.graph.flows}
        settings: dict[str, tuple[Iterable[str], set[str], str]] = {
            "sinks": (self.sinks, uids, "datasets"),
            "previous_uids": (self.spec.previous_uids, uids, "datasets"),
            "catalog_views": (views, uids, "datasets"),
            "bad_rows": (self.spec.bad_rows, of_flows, "tables that flows write"),
        }
        for what, (named, known, are) in settings.items():
            unknown = sorted(set(named) - known)
            if unknown:
                raise InvalidRequest(
                    f"{what} names {unknown[0]!r}, and the {are} are {', '.join(sorted(known))}"
                )
        self._refuse_taken_names(uids)
        if not self.graph.flows and NO_ROWS in uids:
            view = next(one for one in self.graph.datasets if one.uid == NO_ROWS)
            raise InvalidRequest(
                f"{view.where}: {NO_ROWS!r} names the stream that a project of materialized views "
                "alone has here: rename the view"
            )

    def _refuse_taken_names(self, uids: set[str]) -> None:
        """Raise InvalidRequest where the old name of a renamed dataset is that of another one as well."""
        claimed: dict[str, str] = {}
        for name, earlier in self.spec.previous_uids.items():
            for old in earlier:
                other = old if old in uids else claimed.setdefault(old, name)
                if other != name:
                    raise InvalidRequest(
                        f"{self.spec.side_file} says that {name!r} was {old!r}, and {other!r} would have its state "
                        "and its table as well: give the newer of the two a name that no dataset has had"
                    )

    def previous(self, flow: FlowNode) -> tuple[StageUid, ...]:
        table = self.graph.dataset(flow.target).uid
        rest = flow.uid.removeprefix(table)
        return tuple(stage_uid(earlier + rest) for earlier in self.spec.previous_uids.get(table, ()))

    # --- stages -----------------------------------------------------------------------------------------------

    def stages(self) -> list[StageDefinition]:
        return [*map(self._flow, self.graph.flows), *map(self._sink, self.graph.stored)] or _no_rows(
            self.spec
        )

    def upstream(self) -> dict[StageUid, tuple[StageUid, ...]]:
        if not self.graph.flows:
            return {stage.uid: tuple(map(StageUid, stage.inputs)) for stage in _no_rows(self.spec)}
        of_flows = {StageUid(flow.uid): self._inputs(flow.streams) for flow in self.graph.flows}
        of_sinks = {StageUid(one.uid): self._inputs((one.name,)) for one in self.graph.stored}
        return {**of_flows, **of_sinks}

    def _inputs(self, names: Sequence[str]) -> tuple[StageUid, ...]:
        return tuple(StageUid(flow.uid) for name in names for flow in self.graph.flows_of(name))

    def _of_project(self, function: partial[Any]) -> partial[Any]:
        """Return a function of ours that tells, as an author's own does by its code, when the project was changed."""
        setattr(function, MADE_FROM, sorted(self.graph.files.items()))
        return function

    def _flow(self, flow: FlowNode) -> StageDefinition:
        inputs = self._inputs(flow.streams)
        title = f"flow {flow.name!r} ({flow.where})"
        rows = partial(_flow_rows, self.spec, self.graph, flow)
        judged = self._judged(flow, rows)
        return StageDefinition(
            uid=stage_uid(flow.uid),
            role=StageRole.STAGE if inputs else StageRole.SOURCE,
            fn=self._of_project(rows),
            participant=judged,
            table=None if judged is None else judged.target,
            inputs=tuple(inputs),
            takes_spark=True,
            reads_all=True,
            title=title,
            no_aggregation=no_aggregation(title),
            conf={**settings_of(self.spec), **flow.conf},
            chain=not flow.conf,
            previous_uids=self.previous(flow),
            description=f"Flow {flow.name!r} of {flow.written_target!r}, {flow.where}.",
        )

    def _judged(self, flow: FlowNode, rows: partial[DataFrame]) -> StageParticipant | None:
        """Return the judge of a flow's rows, as the side file says. Raises InvalidRequest."""
        settings = dict(self.spec.bad_rows.get(self.graph.dataset(flow.target).uid, {}))
        if not settings:
            return None
        rows.__name__ = f"flow {flow.name}"  # type: ignore[attr-defined]
        try:
            check_values(rows, settings)
            return take_participant(rows, flow.uid, settings | {"previous_uids": self.previous(flow)})
        except InvalidRequest as error:
            raise InvalidRequest(f"{self.spec.side_file}: {error}") from error

    def _sink(self, table: DatasetNode) -> StageDefinition:
        flows = self.graph.flows_of(table.name)
        cdc = flows[0].cdc
        earlier = self.spec.previous_uids.get(table.uid, ())
        keys = () if cdc is None else cdc.keys
        is_history = cdc is not None and cdc.tracked is not None
        place = earlier[-1] if earlier else table.uid
        title = f"{table.kind} {table.name!r} ({table.where})"
        return StageDefinition(
            uid=stage_uid(table.uid),
            role=StageRole.SINK,
            fn=self._of_project(partial(_table_rows, self.graph, table)),
            inputs=self._inputs((table.name,)),
            reads_all=True,
            title=title,
            no_aggregation=no_aggregation(title),
            output_mode="append" if cdc is None else "complete" if cdc.deletes or is_history else "update",
            table=TableTarget(
                name=place,
                mode=TableMode.APPEND if cdc is None else TableMode.UPSERT,
                key=(*keys, START) if is_history else keys,
            ),
            to=self.sinks.get(table.uid) or target_of(table, self.spec),
            conf={**settings_of(self.spec), **({} if cdc is None else flows[0].conf)},
            made_of=self._made_of(table),
            previous_uids=tuple(stage_uid(one) for one in earlier),
            description=table.comment or f"{table.kind.capitalize()} {table.name}, {table.where}.",
        )

    def _made_of(self, table: DatasetNode) -> tuple[StageUid, ...]:
        """Return the tables that its flows read; one of them reading the table itself is no edge."""
        read = [name for flow in self.graph.flows_of(table.name) for name in flow.streams]
        return tuple(
            StageUid(self.graph.dataset(name).uid) for name in dict.fromkeys(read) if name != table.name
        )

    def views(self) -> list[CatalogView]:
        """Return the views in Spark's catalog that the side file asks for. Raises InvalidRequest."""
        chosen = self.spec.catalog_views
        named = [one for one in self.graph.datasets if one.kind is not Kind.SINK] if EVERY in chosen else []
        asked = [*named, *(one for one in self.graph.datasets if one.uid in chosen)]
        for one in asked:
            is_stored = one.kind is not Kind.MATERIALIZED_VIEW
            refuse_view(one, (self.sinks.get(one.uid) or target_of(one, self.spec)) if is_stored else None)
        return [CatalogView(uid=StageUid(one.uid), name=one.name, row_schema=one.row_schema) for one in asked]

    def derived(self, definition: str) -> list[ComputedTable]:
        return [
            ComputedTable(
                uid=stage_uid(one.uid),
                reads=tuple(StageUid(self.graph.dataset(name).uid) for name in one.reads),
                fn=partial(_view_rows, self.spec, self.graph, one),
                definition=definition,
                each_run=True,  # as in Spark: what its function reads elsewhere, nobody can tell
                conf=settings_of(self.spec),
                description=one.comment or f"Materialized view {one.name}, {one.where}.",
            )
            for one in self.graph.datasets
            if one.kind is Kind.MATERIALIZED_VIEW
        ]


NO_ROWS, EVERY = "no_rows", "*"


def _no_rows(spec: ProjectSpec) -> list[StageDefinition]:
    """Return a stream that never has a row, of a project without streaming tables: checkpoints are of streams."""
    uid = stage_uid(f"{NO_ROWS}__flow")
    return [
        StageDefinition(
            uid=uid,
            role=StageRole.SOURCE,
            fn=partial(_nothing, spec),
            takes_spark=True,
            description="Never has a row: the project has no streaming table, and each run is a checkpoint's.",
        ),
        StageDefinition(
            uid=stage_uid(NO_ROWS),
            role=StageRole.SINK,
            fn=lambda **inputs: inputs[uid],
            inputs=(uid,),
            table=TableTarget(name=NO_ROWS, mode=TableMode.APPEND),
            description="Has no rows: the project has no streaming table, and each run is a checkpoint's.",
        ),
    ]


def _nothing(spec: ProjectSpec, *, spark: SparkSession) -> DataFrame:
    return spark.readStream.schema("nothing INT").json(str(spec.root / ".dagster_ckpt" / "*.no_rows"))


# --- what stages do ---------------------------------------------------------------------------------------------


def _flow_rows(
    spec: ProjectSpec, graph: ProjectGraph, flow: FlowNode, *, spark: SparkSession, **inputs: DataFrame
) -> DataFrame:
    tables = {name: _union(graph, name, inputs) for name in flow.streams}
    return RunningProject(spec, graph, spark).flow(flow, tables)


def _table_rows(graph: ProjectGraph, table: DatasetNode, **inputs: DataFrame) -> DataFrame:
    [flow, *_] = graph.flows_of(table.name)
    if flow.cdc is None:
        return _union(graph, table.name, inputs)
    if flow.cdc.tracked is not None:
        rows = versions(inputs[flow.uid], flow.cdc.keys, flow.cdc.tracked, flow.cdc.sequence)
    else:
        rows = newest_rows(inputs[flow.uid], flow.cdc.keys, flow.cdc.sequence)
    return aligned(rows, schema_of_text(table.row_schema), whose=f"flow {flow.name!r}")


def _view_rows(
    spec: ProjectSpec,
    graph: ProjectGraph,
    view: DatasetNode,
    spark: SparkSession,
    rows: Mapping[StageUid, DataFrame | None],
) -> DataFrame:
    return RunningProject(spec, graph, spark).view(view, {str(uid): frame for uid, frame in rows.items()})


def _union(graph: ProjectGraph, name: str, inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return the rows that all flows bring to a table, in its columns."""
    schema = schema_of_text(graph.dataset(name).row_schema)
    return united({flow.name: inputs[flow.uid] for flow in graph.flows_of(name)}, schema)


def pipeline_from_spark_project(
    spec: str | Path,
    *,
    name: str = "",
    spark: SparkSession | None = None,
    sinks: Mapping[str, SinkTarget] | None = None,
    checkpointing: Mapping[str, Any] | None = None,
    table_dir: str = "",
) -> CheckpointedPipeline:
    """Return a Spark declarative pipeline as a checkpointed pipeline; the project's files stay as they are.

    Its graph is read from the file that ``dagster-ckpt adopt-project`` keeps beside the project, so no JVM is needed.
    Where that file is missing or stale, it is made with ``spark``, or with the session that runs in this process.

    Args:
        spec: the spec file (``spark-pipeline.yml``), or its folder.
        name: pipeline id; default: the name in the spec file.
        spark: a classic session, for a project whose graph is not known yet.
        sinks: by uid of a table or sink, where its rows end; default: as format, catalog and options say.
        checkpointing: settings of ``CheckpointConfig`` that override the coordinator's.
        table_dir: overrides the coordinator's ``table_dir``.

    Raises:
        InvalidRequest: something in the project is not supported, which it names; or its graph is not known.
        NotFound: there is no such project.
    """
    project = load_spec(spec)
    settings = dict(checkpointing or {})
    CheckpointConfig.of(**settings)
    graph = load_graph(project)
    why = "has not been made" if graph is None else why_stale(project, graph)
    is_new = graph is None or bool(why)
    if is_new:
        session = spark or _active_session()
        if session is None:
            reason = why if graph is None else f"is stale: {why}"
            raise InvalidRequest(
                f"the graph of project {project.path} {reason}. Run dagster-ckpt adopt-project {project.path}"
            )
        graph = trace_project(project, session)
    assert graph is not None
    pipeline = build_pipeline(
        project, graph, name=name, sinks=sinks or {}, checkpointing=settings, table_dir=table_dir
    )
    if is_new:
        save_graph(project, graph)
    return pipeline


def _active_session() -> SparkSession | None:
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()
