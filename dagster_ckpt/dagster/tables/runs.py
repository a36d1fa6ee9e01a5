"""Published tables that are materialized from Dagster: one op that runs an epoch of their pipeline.

The run is one of Dagster's own asset job, so **Materialize**, schedules, automation conditions and asset jobs of yours
start it. All tables of a pipeline come from one epoch, so they are materialized together; one that the checkpoint
brought no rows gets no event, and what depends on it alone is skipped.

Annotations are evaluated: Dagster reads the config class from them.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.dagster.jobs.build import clear_errors
from dagster_ckpt.dagster.jobs.launched import launch_tables
from dagster_ckpt.dagster.jobs.run_config import RunConfig
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
)
from dagster_ckpt.dagster.resources.pipeline import coordinator_of, own_keys, resources_of, serving_now

if TYPE_CHECKING:
    from dagster_ckpt.spark.stage_report import TableChanged


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
