"""Published tables: inputs of Dagster's assets (``input_manager_key="published_tables"``), or materialized by an op.

A run of the op is one of Dagster's own asset job, so **Materialize**, schedules, automation conditions and asset jobs
of yours start it. All tables of a pipeline come from one epoch, so they are materialized together; one that the
checkpoint brought no rows gets no event, and what depends on it alone is skipped.

Annotations are evaluated: Dagster reads the config class from them.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.dagster.jobs.build import RunConfig, clear_errors
from dagster_ckpt.dagster.jobs.launched import launch_tables
from dagster_ckpt.dagster.launchpad import CodeLocation, seldom
from dagster_ckpt.dagster.names import COORDINATOR_KEY, SPARK_KEY, TABLES_OP, op_name
from dagster_ckpt.dagster.options import Launch
from dagster_ckpt.dagster.reports.op_log import location_of
from dagster_ckpt.dagster.reports.tables import (
    changed_events,
    changed_result,
    is_served,
    result_of,
    served_events,
    table_asset_key,
)
from dagster_ckpt.dagster.resources.pipeline import (
    PipelineResources,
    coordinator_of,
    own_keys,
    resources_of,
    serving_now,
)
from dagster_ckpt.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from dagster_ckpt.operations.readers.load_table import Moment
    from dagster_ckpt.spark.sink.rows import PublishedRows
    from dagster_ckpt.spark.stage_report import TableChanged

AS_OF = "as_of"
"""Metadata of an input: the checkpoint or savepoint whose rows it gets."""


STEPS_REMEMBERED = 64
"""Of so many steps that run side by side in a process all inputs are of one checkpoint."""


class PublishedTablesIOManager(dg.IOManager):
    """Loads tables of pipelines by their asset keys, in the form that the input is annotated with.

    All inputs of a step are of the newest checkpoint that every table of their pipeline showed as the first was loaded.
    """

    def __init__(self, *pipelines: CheckpointedPipeline, resources: Any) -> None:
        from dagster_ckpt.operations.readers.open_sink import tables_of

        self._resources = resources
        self._moments: dict[tuple[object, ...], Moment | None] = {}
        self._looking = threading.Lock()
        self._tables: dict[dg.AssetKey, tuple[CheckpointedPipeline, StageUid]] = {
            table_asset_key(pipeline, uid): (pipeline, uid)
            for pipeline in pipelines
            for uid in tables_of(pipeline)
        }

    def load_input(self, context: dg.InputContext) -> Any:
        """Return the table's rows as the input's annotation says; without one, what ``load_table`` returns."""
        if context.asset_key not in self._tables:
            known = ", ".join(key.to_user_string() for key in self._tables)
            raise InvalidRequest(
                f"{context.asset_key.to_user_string()} is no table of the pipelines given: those have {known or 'none'}"
            )
        pipeline, uid = self._tables[context.asset_key]
        as_of = str((context.definition_metadata or {}).get(AS_OF, ""))
        own = PipelineResources(self._resources, pipeline.name)
        coordinator = getattr(own, COORDINATOR_KEY)
        moment = None if as_of else self._moment(context, pipeline, coordinator)
        rows = _rows(moment, pipeline, uid, coordinator, as_of)
        at = {} if moment is None else {"checkpoint": str(moment.shown.checkpoint_id or "none")}
        context.add_input_metadata({"place": rows.place, "version": rows.version, **at})
        return _in_form(rows, context.dagster_type.typing_type, own)

    def _moment(
        self, context: dg.InputContext, pipeline: CheckpointedPipeline, coordinator: Any
    ) -> "Moment | None":
        """Return the moment that the tables showed as this step began to load; None: they show nothing together yet."""
        from dagster_ckpt.operations.readers.load_table import moment_of

        key = (pipeline.name, *_step_of(context))
        with self._looking:
            if key not in self._moments:
                try:
                    self._moments[key] = moment_of(pipeline, coordinator)
                except NotFound:
                    self._moments[key] = None
                for old in list(self._moments)[:-STEPS_REMEMBERED]:
                    del self._moments[old]
            return self._moments[key]

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Refuse: a pipeline's tables are written by its sinks."""
        raise InvalidRequest(
            "published tables are written by their pipeline's sinks; give this output another io_manager_key"
        )


def _step_of(context: dg.InputContext) -> tuple[object, ...]:
    """Return the key of a step's try; an input that is loaded outside of a step is its own."""
    try:
        step = context.step_context
    except dg.DagsterInvariantViolationError:
        return (id(context),)
    return step.run_id, step.step.key, step.previous_attempt_count


def _rows(
    moment: "Moment | None", pipeline: CheckpointedPipeline, uid: StageUid, coordinator: Any, as_of: str
) -> "PublishedRows":
    """Return a table's rows: as of the moment, where it keeps older ones; else those it shows now."""
    from dagster_ckpt.operations.readers.load_table import NoOlderRows, load_table

    with contextlib.suppress(NoOlderRows):
        if moment is not None:
            if moment.is_empty(uid):
                load_table(
                    pipeline, uid, coordinator=coordinator
                )  # raises NotFound where nothing was ever made
            return moment.rows(uid)
    return load_table(pipeline, uid, coordinator=coordinator, as_of=as_of)


def _in_form(rows: "PublishedRows", wanted: Any, resources: PipelineResources) -> Any:
    from dagster_ckpt.spark.sink.rows import PublishedRows

    named = f"{getattr(wanted, '__module__', '')}.{getattr(wanted, '__name__', wanted)}"
    if wanted in (Any, PublishedRows) or getattr(wanted, "__name__", "") in ("Any", "object"):
        return rows
    match named.split(".", maxsplit=1)[0].lstrip("_"):
        case "pandas":
            return rows.to_pandas()
        case "polars":
            frame = rows.to_polars()
            return frame.lazy() if named.endswith("LazyFrame") else frame
        case "pyarrow":
            return rows.to_arrow()
        case "duckdb":
            return rows.to_duckdb()
        case "pyspark":
            return rows.to_spark(getattr(resources, SPARK_KEY).session)
        case _:
            raise InvalidRequest(
                f"a published table cannot be given as {named}: annotate the input with a DataFrame of pandas, "
                "Polars or Spark, with pyarrow.Table, with a relation of DuckDB, or not at all"
            )


def published_tables_io_manager(*pipelines: CheckpointedPipeline) -> dg.IOManagerDefinition:
    """Return the IO manager for a code location's resources: it loads inputs that are tables of these pipelines."""

    def open_manager(context: dg.InitResourceContext) -> PublishedTablesIOManager:
        return PublishedTablesIOManager(*pipelines, resources=context.resources)

    needed = [own_keys(pipeline.name, (COORDINATOR_KEY, SPARK_KEY)) for pipeline in pipelines]
    return dg.IOManagerDefinition(
        resource_fn=open_manager,
        required_resource_keys={key for keys in needed for key in keys},
        description="Loads the published tables of checkpointed pipelines; writes nothing.",
    )


class TablesConfig(RunConfig):
    """Config of the op that materializes tables: a run's, and config of single stages."""

    stages: dict[str, Any] = seldom({})
    """Config of single stages by uid, as their ops have it in the epoch job."""


def build_materializable_tables(
    pipeline: CheckpointedPipeline,
    specs: Sequence[dg.AssetSpec],
    *,
    concurrent_runs: str = "",
    launch: Launch | None = None,
) -> dg.AssetsDefinition:
    """Return a pipeline's tables as assets whose materialization runs an epoch, in one op ``<pipeline>__tables``."""
    stages = {key for stage in pipeline.stages.values() for key in stage.required_resource_keys}

    @dg.multi_asset(
        name=op_name(pipeline.name, TABLES_OP),
        specs=[spec.replace_attributes(skippable=True) for spec in specs],
        description=f"An epoch of `{pipeline.name}`: what has arrived, ending with a checkpoint.",
        required_resource_keys=own_keys(
            pipeline.name, {COORDINATOR_KEY, SPARK_KEY, *stages, *pipeline.hook_resource_keys}
        ),
    )
    def tables(
        context: dg.AssetExecutionContext, config: TablesConfig
    ) -> Iterator[dg.MaterializeResult[None]]:
        op = context.op_execution_context
        if launch is not None:
            yield from _launched(context, pipeline, launch, config, concurrent_runs)
            return
        changes = _epoch(op, pipeline, config, concurrent_runs)
        coordinator = coordinator_of(op, pipeline.name)
        location = CodeLocation(location_of(op.instance, op.run), coordinator.ui_base_url)
        serving = serving_now(coordinator, pipeline) if changes else ""
        newest = {change.uid: change for change in changes}
        for change in changes:
            if change is not newest[change.uid] or not is_served(pipeline, serving):
                for told in changed_events(pipeline, change, serving=serving, location=location):
                    op.log_event(told)
            else:
                for told in served_events(pipeline, change, serving=serving):
                    op.log_event(told)
        for change in newest.values():
            if is_served(pipeline, serving):
                yield changed_result(pipeline, change, location)

    return tables


def _launched(
    context: dg.AssetExecutionContext,
    pipeline: CheckpointedPipeline,
    launch: Launch,
    config: TablesConfig,
    concurrent_runs: str,
) -> Iterator[dg.MaterializeResult[None]]:
    keys = frozenset(context.selected_asset_keys)
    told = launch_tables(context, pipeline, launch, config, concurrent_runs, hold=keys)
    newest = {event.asset_key: event for event in told}
    for event in told:
        if event is not newest[event.asset_key]:
            context.op_execution_context.log_event(event)
    for event in newest.values():
        yield result_of(event)


def _epoch(
    context: dg.OpExecutionContext, pipeline: CheckpointedPipeline, config: TablesConfig, concurrent_runs: str
) -> "Sequence[TableChanged]":
    """Run an epoch in its turn; return the changes of tables, which are materialized by the results of the op."""
    from dagster_ckpt.dagster.jobs.gate import RestoreGate
    from dagster_ckpt.dagster.runs.attempt import PipelineAttempt
    from dagster_ckpt.dagster.runs.turn import OpTurn, Skipped
    from dagster_ckpt.running import stage_arguments
    from dagster_ckpt.runtime.attempt_setup import Ownership

    with clear_errors():
        turn = OpTurn.chosen(context, pipeline, concurrent_runs, config.concurrent_runs)
        settings = config.settings()
        gate = RestoreGate(context, pipeline, config)
        if not gate.is_open():
            return ()
        arguments = stage_arguments(pipeline, config.stages, resources_of(context, pipeline.name))
        attempt = turn.take(
            lambda admit: PipelineAttempt.of(
                context,
                pipeline,
                admit=admit,
                # One op runs all: what another process has claimed for this run is an earlier try of the op.
                ownership=Ownership.NEW_ATTEMPT,
                arguments=arguments.__getitem__,
                settings=settings,
                **gate.restore_of_host,
            )
        )
        if isinstance(attempt, Skipped):
            return ()
        with attempt.events.holding_changes() as changes:
            attempt.restore()
            attempt.run_all()
            attempt.complete(tell=lambda _: None)
        return changes
