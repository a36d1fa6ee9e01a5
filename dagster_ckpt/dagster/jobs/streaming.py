"""The ``<pipeline>_streaming`` job: one op hosts all stages as concurrent queries until it is stopped.

Annotations are evaluated: Dagster reads config classes from them.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.settings import word_of
from dagster_ckpt.core.supervision.reporting import REPORT_PAUSE, ReportPolicy
from dagster_ckpt.dagster.console import failure
from dagster_ckpt.dagster.jobs.build import one_op_job
from dagster_ckpt.dagster.jobs.run_config import RunConfig
from dagster_ckpt.dagster.launchpad import seldom
from dagster_ckpt.dagster.names import (
    COMPUTE_KIND_TAG,
    CONCURRENCY_TAG,
    SPARK_KEY,
    STREAM_OP,
    streaming_job_name,
)
from dagster_ckpt.dagster.resources.pipeline import resources_of, spark_of
from dagster_ckpt.errors import InvalidRequest

if TYPE_CHECKING:
    from dagster_ckpt.dagster.jobs.gate import RestoreGate
    from dagster_ckpt.dagster.reports.events import DagsterEvents
    from dagster_ckpt.dagster.reports.stream_events import StreamingEvents
    from dagster_ckpt.runtime.attempt_setup import Admit
    from dagster_ckpt.spark.streaming.restart import RestartStrategy
    from dagster_ckpt.spark.streaming.service import ServiceEnd
    from dagster_ckpt.spark.streaming.watch import ProgressWatch


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

    def strategy(self) -> "RestartStrategy":
        """Return the restart strategy. Raises InvalidRequest."""
        from dagster_ckpt.spark.streaming.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart

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

    def of_service(self) -> dict[str, Any]:
        """Return the strategy and the pause by which a ``Host`` makes a stream. Raises InvalidRequest."""
        return {"strategy": self.strategy(), "trigger_interval": self.trigger_interval}

    def watch(self, events: "StreamingEvents") -> "ProgressWatch":
        """Return the look at the run now and then."""
        from dagster_ckpt.spark.streaming.watch import ProgressWatch

        return ProgressWatch(tell=events.progress, tell_every=self.progress_interval, look_on=events.look_on)


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
        from dagster_ckpt.dagster.jobs.gate import RestoreGate
        from dagster_ckpt.dagster.runs.attempt import told_by
        from dagster_ckpt.dagster.runs.turn import OpTurn, Skipped

        spark = spark_of(context, pipeline.name)
        asked = (concurrent_runs, config.concurrent_runs)
        turn = OpTurn.chosen(context, pipeline, *asked, spark=spark, streams=True)
        gate = RestoreGate(context, pipeline, config)
        if not gate.is_open():
            return
        told = told_by(
            context,
            pipeline,
            job_name=streaming_job_name(pipeline.name),
            restore_op=STREAM_OP,
            report=ReportPolicy.of(config.report or report),
        )
        end = turn.take(lambda admit: _stream(context, pipeline, config, gate, admit, told=told))
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
    gate: "RestoreGate",
    admit: "Admit",
    *,
    told: "DagsterEvents",
) -> "ServiceEnd":
    from dagster_ckpt.dagster.reports.op_log import on_stderr
    from dagster_ckpt.dagster.reports.stream_events import StreamingEvents, StreamReports
    from dagster_ckpt.dagster.runs.attempt import host_of
    from dagster_ckpt.running import run_to_end, stage_arguments
    from dagster_ckpt.spark.epoch.attempt import NotPublished

    reports = StreamReports(told, pause=config.progress_interval or REPORT_PAUSE)
    events = StreamingEvents(reports, unpublished=lambda: told.unpublished())  # noqa: PLW0108 - it is set later
    spark = spark_of(context, pipeline.name)
    arguments = stage_arguments(pipeline, config.stages, resources_of(context, pipeline.name))
    host = host_of(
        context,
        pipeline,
        spark=lambda: spark.session,
        reporter=events,
        listeners=[events],
        tell_tables=events.table_changed,
        settings=config.settings(),
        arguments=arguments.__getitem__,
        **gate.restore_of_host,
    )
    service = host.stream(admit, watch=config.watch(events), **config.of_service())
    told.follow(service)
    try:
        with on_stderr():
            return run_to_end(service)
    except NotPublished as error:
        raise failure(str(error), error, allow_retries=False) from error
    finally:
        events.close()


def _report(context: dg.OpExecutionContext, end: "ServiceEnd") -> None:
    from dagster_ckpt.spark.streaming.run import EndOfData, StoppedWithSavepoint, TakenOver
    from dagster_ckpt.spark.streaming.service import GaveUp, Interrupted

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
            raise failure(message, allow_retries=False)
        case GaveUp(why, last):
            raise failure(f"{last.message}; {why}", last.error) from last.error
