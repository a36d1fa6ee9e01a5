"""The ``<pipeline>_streaming`` job: one op hosts all stages as concurrent queries until it is stopped.

Annotations are evaluated: Dagster reads config classes from them.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.settings import word_of
from dagster_ckpt.core.supervision.reporting import REPORT_PAUSE, ReportPolicy
from dagster_ckpt.dagster.jobs.build import one_op_job
from dagster_ckpt.dagster.jobs.gate import RestoreGate
from dagster_ckpt.dagster.jobs.run_config import RunConfig
from dagster_ckpt.dagster.launchpad import seldom
from dagster_ckpt.dagster.names import (
    COMPUTE_KIND_TAG,
    CONCURRENCY_TAG,
    ROOT_RUN_TAG,
    SPARK_KEY,
    STREAM_OP,
    streaming_job_name,
)
from dagster_ckpt.dagster.reports.events import DagsterEvents
from dagster_ckpt.dagster.reports.lines import on_stderr
from dagster_ckpt.dagster.reports.stream_events import StreamingEvents, StreamReports
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.dagster.resources.pipeline import coordinator_of, resources_of, serving_now, spark_of
from dagster_ckpt.dagster.runs.turn import Skipped, Turn
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.runtime.attempt_setup import Admit
from dagster_ckpt.spark.attempt.stage_query import StageArguments
from dagster_ckpt.spark.stage_report import not_published, recent_checkpoints
from dagster_ckpt.spark.streaming.restart import (
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    RestartStrategy,
)
from dagster_ckpt.spark.streaming.run import EndOfData, StoppedWithSavepoint, TakenOver
from dagster_ckpt.spark.streaming.service import GaveUp, Interrupted, ServiceEnd, StreamingService
from dagster_ckpt.spark.streaming.settings import StreamingSettings
from dagster_ckpt.spark.streaming.watch import ProgressWatch
from dagster_ckpt.version import __version__

DEFAULT_INTERVAL = 10.0
"""Seconds between checkpoints where neither the pipeline nor the resource says."""


class StreamConfig(RunConfig):
    """Config of a streaming run: what it starts from, and how it restarts."""

    restart_strategy: str = "exponential_delay"
    """``exponential_delay``, ``fixed_delay``, ``failure_rate`` or ``none``: what follows when a stage dies."""
    restart_delay: float = seldom(1.0)
    """Seconds before a restart (exponential_delay: before the first one)."""
    restart_max_delay: float = seldom(60.0)
    """exponential_delay: longest delay, in seconds."""
    restart_attempts: int = seldom(10)
    """fixed_delay: restarts in all; exponential_delay: without an hour of quiet; failure_rate: failures survived."""
    restart_interval: float = seldom(600.0)
    """failure_rate: seconds within which failures are counted."""
    trigger_interval: float = 0.0
    """Least seconds between two batches of a stage; 0: as fast as there is data."""
    report: str = seldom("")
    """Checkpoints that become events: ``changed``, ``every: 10`` or ``all``; empty: as the pipeline says."""
    progress_interval: float = seldom(REPORT_PAUSE)
    """Seconds between observations that show how the stages are going (0: none), and between other reports."""
    stages: dict[str, Any] = seldom({})
    """Config of single stages by uid, as their ops have it in the epoch job."""

    def strategy(self) -> RestartStrategy:
        """Return the restart strategy. Raises InvalidRequest."""
        match word_of(self.restart_strategy):
            case "exponential_delay":
                longest = max(self.restart_delay, self.restart_max_delay)
                return ExponentialDelay(
                    initial=self.restart_delay, maximum=longest, attempts=self.restart_attempts
                )
            case "fixed_delay":
                return FixedDelay(attempts=self.restart_attempts, delay=self.restart_delay)
            case "failure_rate":
                return FailureRate(
                    max_failures=self.restart_attempts,
                    interval=self.restart_interval,
                    delay=self.restart_delay,
                )
            case "none":
                return NoRestart()
        raise InvalidRequest(
            "restart_strategy must be exponential_delay, fixed_delay, failure_rate or none, "
            f"got {self.restart_strategy!r}"
        )


def build_streaming_job(
    pipeline: CheckpointedPipeline,
    *,
    resources: Mapping[str, Any],
    concurrent_runs: str = "",
    report: str = "changed",
    executor: dg.ExecutorDefinition = dg.in_process_executor,
) -> dg.JobDefinition:
    """Return the job that runs all stages at once until it is stopped, with checkpoints on a timer."""

    def stream(context: dg.OpExecutionContext, config: StreamConfig) -> None:
        spark = spark_of(context, pipeline.name)
        turn = Turn.chosen(context, pipeline, concurrent_runs, config.concurrent_runs, spark=spark)
        gate = RestoreGate(context, pipeline, config.options(), approved=config.approved)
        if not gate.is_open():
            return
        told = DagsterEvents(
            pipeline,
            job_name=streaming_job_name(pipeline.name),
            restore_op=STREAM_OP,
            ui_base_url=coordinator_of(context, pipeline.name).ui_base_url,
            page=coordinator_of(context, pipeline.name).page_of(pipeline.name),
            report=ReportPolicy.of(config.report or report),
        )
        end = turn.take(
            lambda admit: _stream(context, pipeline, config, gate, gate.guarding(admit), told=told)
        )
        if not isinstance(end, Skipped):
            _report(context, end)

    return one_op_job(
        pipeline,
        stream,
        resources=resources,
        name=streaming_job_name(pipeline.name),
        op=STREAM_OP,
        description=f"Run `{pipeline.name}` as a stream: all its stages as concurrent queries, until it is stopped.",
        resource_keys={SPARK_KEY, *pipeline.resource_keys},
        op_tags={COMPUTE_KIND_TAG: "spark"},
        tags={CONCURRENCY_TAG: pipeline.name},
        executor=executor,
    )


# --- the stream -------------------------------------------------------------------------------------------------


def _stream(
    context: dg.OpExecutionContext,
    pipeline: CheckpointedPipeline,
    config: StreamConfig,
    gate: RestoreGate,
    admit: Admit,
    *,
    told: DagsterEvents,
) -> ServiceEnd:
    resource = coordinator_of(context, pipeline.name)
    told.attach(context)
    told.serving = lambda: serving_now(resource, pipeline)
    reports = StreamReports(told, pause=config.progress_interval or REPORT_PAUSE)
    events = StreamingEvents(reports, unpublished=lambda: service.unpublished)
    spark = spark_of(context, pipeline.name)
    arguments = stage_arguments(context, pipeline, config.stages)
    service = StreamingService(
        pipeline=pipeline,
        config=streaming_config(resource, pipeline, config.settings()),
        store=resource.store(),
        storage=resource.storage(pipeline),
        open_storage=resource.open_storage,
        session=lambda: spark.session,
        work_dir=resource.resolved_work_dir,
        table_dir=resource.resolved_table_dir(pipeline),
        owner=context.run_id,
        root=context.run.tags.get(ROOT_RUN_TAG, context.run_id),
        reporter=events,
        restore=config.options(),
        operator=gate.operator,
        listeners=[events],
        tell_tables=events.table_changed,
        strategy=config.strategy(),
        settings=StreamingSettings(
            trigger_interval=config.trigger_interval, snapshot_retries=resource.snapshot_retries
        ),
        arguments=arguments,
        planning=arguments.__getitem__,
        hook_resources=resources_of(context, pipeline.name),
        library_version=__version__,
        admit=admit,
        watch=ProgressWatch(
            tell=events.progress, tell_every=config.progress_interval, look_on=events.look_on
        ),
    )
    told.unpublished = lambda: service.unpublished
    told.history = lambda: () if service.coordinator is None else recent_checkpoints(service.coordinator)
    try:
        with on_stderr():
            end = service.run()
    finally:
        events.close()
    _tell_late(context, end, not_published(service.unpublished))
    return end


def _tell_late(context: dg.OpExecutionContext, end: ServiceEnd, late: str) -> None:
    """Tell which tables do not show all rows yet; after a stop the run fails: nobody looks at one that succeeded."""
    if late and isinstance(end, StoppedWithSavepoint):
        raise dg.Failure(
            description=f"{end.line}, which holds all rows, and the next run publishes the rest: {late}",
            allow_retries=False,
        )
    if late:
        context.log.warning(f"the next run publishes the rest: {late}")


def streaming_config(
    resource: CheckpointCoordinatorResource,
    pipeline: CheckpointedPipeline,
    run: Mapping[str, Any] | None = None,
) -> CheckpointConfig:
    """Return the settings of a streaming run: checkpoints on a timer, every 10 s unless somebody says otherwise."""
    config = resource.checkpoint_config(pipeline, run)
    if config.interval is not None:
        return config
    return config.model_copy(update={"interval": DEFAULT_INTERVAL})


def stage_arguments(
    context: dg.OpExecutionContext, pipeline: CheckpointedPipeline, stages: Mapping[str, Any]
) -> dict[StageUid, StageArguments]:
    """Return each stage's config and resources. Raises InvalidRequest for config of a stage there is not."""
    refuse_unknown_stages(pipeline, stages)
    return {
        uid: StageArguments(config=stages.get(uid, {}), resources=resources_of(context, pipeline.name))
        for uid in pipeline.stages
    }


def refuse_unknown_stages(pipeline: CheckpointedPipeline, stages: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for config of a stage there is not."""
    unknown = sorted(set(stages) - set(pipeline.stages))
    if unknown:
        raise InvalidRequest(
            f"config of stage {unknown[0]!r}: pipeline {pipeline.name!r} has the stages {', '.join(pipeline.stages)}"
        )


def _report(context: dg.OpExecutionContext, end: ServiceEnd) -> None:
    match end:
        case StoppedWithSavepoint():
            context.log.info(end.line)
        case EndOfData(None):
            context.log.info(
                "all bounded sources are exhausted; no final checkpoint, as checkpoints_after_tasks_finish is off: "
                "what came after the latest one is published by the next run"
            )
        case EndOfData(number):
            context.log.info(f"all bounded sources are exhausted; final checkpoint {number}")
        case Interrupted(clean):
            context.log.info(f"stopped {'between two batches' if clean else 'while batches were running'}")
        case TakenOver(message):
            raise dg.Failure(description=message, allow_retries=False)
        case GaveUp(why, last):
            raise dg.Failure(description=f"{last.message}; {why}") from last.error
