"""The jobs that run a pipeline: one op per stage as an epoch, or one op that hosts all stages as a stream.

Annotations are evaluated: Dagster reads config classes from them.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.authoring.stages import StageDefinition
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.settings import word_of
from dagster_ckpt.core.supervision.ownership import ConcurrentRuns
from dagster_ckpt.dagster.console import failure
from dagster_ckpt.dagster.jobs.build import (
    BARRIER,
    RunConfig,
    after,
    clear_errors,
    epoch_job,
    one_op_job,
    without_restore_options,
)
from dagster_ckpt.dagster.launchpad import seldom
from dagster_ckpt.dagster.names import (
    COMPLETE_OP,
    COMPUTE_KIND_TAG,
    CONCURRENCY_TAG,
    COORDINATOR_KEY,
    RESTORE_OP,
    SPARK_KEY,
    STREAM_OP,
    op_name,
    streaming_job_name,
)
from dagster_ckpt.dagster.reporting import REPORT_PAUSE, ReportPolicy
from dagster_ckpt.dagster.resources.pipeline import resources_of, spark_of
from dagster_ckpt.errors import Fenced, InvalidRequest

if TYPE_CHECKING:
    from dagster_ckpt.dagster.jobs.gate import RestoreGate
    from dagster_ckpt.dagster.reports.events import DagsterEvents
    from dagster_ckpt.dagster.reports.stream_events import StreamingEvents
    from dagster_ckpt.dagster.runs.attempt import PipelineAttempt
    from dagster_ckpt.runtime.attempt_setup import Admit
    from dagster_ckpt.spark.streaming.progress import ProgressWatch
    from dagster_ckpt.spark.streaming.restart import RestartStrategy
    from dagster_ckpt.spark.streaming.service import ServiceEnd


def build_epoch_job(
    pipeline: CheckpointedPipeline,
    *,
    resources: Mapping[str, Any],
    concurrent_runs: str = "",
    executor: dg.ExecutorDefinition = dg.in_process_executor,
    publish_facts: str = "",
) -> dg.JobDefinition:
    """Return the job that drains what has arrived, stage by stage, and ends with a checkpoint."""
    ops = {
        RESTORE_OP: _restore_op(pipeline, concurrent_runs),
        **{str(uid): _stage_op(pipeline, stage) for uid, stage in pipeline.stages.items()},
        COMPLETE_OP: _complete_op(pipeline, _ends(pipeline)),
    }
    return epoch_job(
        pipeline,
        ops,
        resources=resources,
        description=f"An epoch of `{pipeline.name}`: what has arrived, stage by stage, ending with a checkpoint.",
        executor=executor,
        publish_facts=publish_facts,
    )


def _restore_op(pipeline: CheckpointedPipeline, concurrent_runs: str) -> dg.OpDefinition:
    @dg.op(
        name=op_name(pipeline.name, RESTORE_OP),
        description="Take over the pipeline and bring back the state the run starts from.",
        # Without it the other ops are skipped: this run gives way to one that is alive, or only previews.
        out={BARRIER: dg.Out(dg.Nothing, is_required=False)},
        # A pipeline that begins looks at the plans of its stages, to run some of them in one query.
        required_resource_keys={COORDINATOR_KEY, SPARK_KEY, *pipeline.resource_keys},
    )
    def restore(context: dg.OpExecutionContext, config: RunConfig) -> Iterator[dg.Output[None]]:
        from dagster_ckpt.dagster.jobs.gate import RestoreGate
        from dagster_ckpt.dagster.runs.attempt import PipelineAttempt
        from dagster_ckpt.dagster.runs.turn import OpTurn, Skipped

        with clear_errors():
            spark = spark_of(context, pipeline.name)
            turn = OpTurn.chosen(context, pipeline, concurrent_runs, config.concurrent_runs, spark=spark)
            settings = config.settings()
            gate = RestoreGate(context, pipeline, config)
            if not gate.is_open():
                return
            attempt = turn.take(
                lambda admit: PipelineAttempt.of(
                    context, pipeline, admit=admit, settings=settings, **gate.restore_of_host
                )
            )
            if isinstance(attempt, Skipped):
                return
            attempt.restore()
        yield dg.Output(None, BARRIER)

    return restore


def _joined(context: dg.OpExecutionContext, pipeline: CheckpointedPipeline, step: str) -> "PipelineAttempt":
    """Return the attempt of the run; one that re-executes only some of the ops opens it here, in its turn."""
    from dagster_ckpt.dagster.runs.attempt import PipelineAttempt, has_other_steps
    from dagster_ckpt.dagster.runs.turn import OpTurn, Skipped

    if PipelineAttempt.is_open(context, pipeline):  # one that was fenced since must say so, and not wait
        return PipelineAttempt.of(context, pipeline)
    settings = _settings_of_run(context)
    if has_other_steps(context) and not _opens(context, pipeline, step):
        admit = _refusing_others(context, pipeline)
        return PipelineAttempt.of(context, pipeline, settings=settings, admit=admit)
    attempt = OpTurn.of(context, pipeline, ConcurrentRuns.QUEUE).take(
        lambda admit: PipelineAttempt.of(context, pipeline, settings=settings, admit=admit)
    )
    assert not isinstance(attempt, Skipped), "who queues is not skipped"
    return attempt


def _opens(context: dg.OpExecutionContext, pipeline: CheckpointedPipeline, step: str) -> bool:
    """Tell whether a step claims the pipeline for a re-execution without op ``restore``, its steps a process each.

    The one that all others come after does, at its first try. Whoever comes later finds the run as the owner, or knows
    that another has taken over: with two first steps, one could not tell that from a run that has not begun.
    """
    return _first_steps(context, pipeline) == [step] and step != RESTORE_OP and context.retry_number == 0


def _first_steps(context: dg.OpExecutionContext, pipeline: CheckpointedPipeline) -> list[str]:
    """Return the steps of the run that wait for none of its steps; all steps of a job: op ``restore``."""
    keys = context.run.step_keys_to_execute
    if keys is None:
        return [RESTORE_OP]
    steps = {key.split(".")[-1] for key in keys}
    return sorted(step for step in steps if steps.isdisjoint(_steps_before(pipeline, step)))


def _steps_before(pipeline: CheckpointedPipeline, step: str) -> list[str]:
    """Return the steps that a step of the job waits for."""
    if step == RESTORE_OP:
        return []
    if step == COMPLETE_OP:
        return [str(uid) for uid in _ends(pipeline)]
    return [str(uid) for uid in pipeline.upstream[StageUid(step)]] or [RESTORE_OP]


def _ends(pipeline: CheckpointedPipeline) -> list[StageUid]:
    return [uid for uid in pipeline.stages if not pipeline.consumers(uid)]


def _refusing_others(context: dg.OpExecutionContext, pipeline: CheckpointedPipeline) -> "Admit":
    """Return the rule that refuses every claim: of steps with a process each, the first alone claims."""

    def refuse(record: CoordinatorRecord) -> None:
        first = _first_steps(context, pipeline)
        if len(first) > 1 and RESTORE_OP not in first:
            raise InvalidRequest(
                f"steps {', '.join(first)} have a process each, and none of them comes first: which one takes the "
                "pipeline over cannot be told. Re-execute all steps, and the run begins at the latest checkpoint"
            )
        raise Fenced(
            f"run {context.run_id!r} of pipeline {record.pipeline!r} was fenced: run {record.owner!r} owns it with "
            f"epoch {record.epoch}. This run must stop"
        )

    return refuse


def _settings_of_run(context: dg.OpExecutionContext) -> Mapping[str, Any]:
    """Return how this run's checkpoints are taken, as its first op was told."""
    ops: Any = context.run.run_config.get("ops") or {}
    config: Any = (ops.get(RESTORE_OP) or {}).get("config") or {}
    return without_restore_options(config.get("checkpointing") or {})


def _stage_op(pipeline: CheckpointedPipeline, stage: StageDefinition) -> dg.OpDefinition:
    inputs: list[str] = list(dict.fromkeys(pipeline.upstream[stage.uid])) or [RESTORE_OP]

    @dg.op(
        name=op_name(pipeline.name, stage.uid),
        description=stage.description or None,
        ins=after(inputs),
        out={BARRIER: dg.Out(dg.Nothing)},
        config_schema=stage.config_schema,
        required_resource_keys={
            COORDINATOR_KEY,
            SPARK_KEY,
            *pipeline.resource_keys,
        },
        tags={COMPUTE_KIND_TAG: "spark", **stage.tags},
    )
    def run_stage(context: dg.OpExecutionContext) -> None:
        with clear_errors():
            _joined(context, pipeline, stage.uid).run_stage(context, stage.uid)

    return run_stage


def _complete_op(pipeline: CheckpointedPipeline, ends: Iterable[StageUid]) -> dg.OpDefinition:
    @dg.op(
        name=op_name(pipeline.name, COMPLETE_OP),
        description="Report the run's checkpoint and leave the working directory in order.",
        ins=after(ends),
        out={"done": dg.Out(dg.Nothing)},
        required_resource_keys={COORDINATOR_KEY, SPARK_KEY, *pipeline.resource_keys},
    )
    def complete(context: dg.OpExecutionContext) -> None:
        with clear_errors():
            _joined(context, pipeline, COMPLETE_OP).complete(tell=context.add_output_metadata)

    return complete


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
        from dagster_ckpt.spark.streaming.progress import ProgressWatch

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
