"""The ``<pipeline>_streaming`` job: one op hosts all stages as concurrent queries until it is stopped; and the job that
stops it with a savepoint.

Annotations are evaluated: Dagster reads config classes from them.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from dagster_ckpt import __version__
from dagster_ckpt.attempt import COORDINATOR_KEY, SPARK_KEY
from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.requests import CheckpointRequest
from dagster_ckpt.dagster_events import DagsterEvents
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.jobs import RestoreConfig, clear_errors
from dagster_ckpt.leases import ask_the_living, wait_for_stream
from dagster_ckpt.pipeline import CheckpointedPipeline
from dagster_ckpt.resources import CheckpointCoordinatorResource
from dagster_ckpt.spark.stage_query import StageArguments
from dagster_ckpt.spark.streaming.restart import (
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    RestartStrategy,
)
from dagster_ckpt.spark.streaming.run import EndOfData, StoppedWithSavepoint, StreamingSettings, TakenOver
from dagster_ckpt.spark.streaming.service import GaveUp, Interrupted, ServiceEnd, StreamingService
from dagster_ckpt.spark.streaming.watch import ProgressWatch
from dagster_ckpt.streaming_events import StreamingEvents

STREAM_OP = "stream"
STOP_OP = "stop"
DEFAULT_INTERVAL = 10.0
"""Seconds between checkpoints where neither the pipeline nor the resource says."""


class StreamConfig(RestoreConfig):
    """What the run starts from, and how it goes on when a stage dies."""

    restart_strategy: str = "exponential_delay"
    """``exponential_delay``, ``fixed_delay``, ``failure_rate`` or ``none``: what follows when a stage dies."""
    restart_delay: float = 1.0
    """Seconds before a restart (exponential_delay: before the first one)."""
    restart_max_delay: float = 60.0
    """exponential_delay: longest delay, in seconds."""
    restart_attempts: int = 10
    """fixed_delay: restarts in all; exponential_delay: without an hour of quiet; failure_rate: failures survived."""
    restart_interval: float = 600.0
    """failure_rate: seconds within which failures are counted."""
    trigger_interval: float = 0.0
    """Least seconds between two batches of a stage; 0: as fast as there is data."""
    progress_interval: float = 60.0
    """Seconds between observations that show how the stages are going; 0: none."""
    stages: dict[str, Any] = {}  # noqa: RUF012 - a pydantic field, copied per instance
    """Config of single stages by uid, as their ops have it in the epoch job."""

    def strategy(self) -> RestartStrategy:
        """Return the restart strategy. Raises InvalidRequest."""
        match self.restart_strategy:
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


class StopConfig(dg.Config):
    """How a streaming run is stopped, and where its savepoint goes."""

    drain: bool = False
    """Process what the sources have read to the end first (no effect on windows that are still open)."""
    target: str = ""
    """URI of the folder to write below; empty: the resource's ``savepoint_dir``."""
    name: str = ""
    note: str = ""
    labels: dict[str, str] = {}  # noqa: RUF012 - a pydantic field, copied per instance


def streaming_job_name(pipeline: CheckpointedPipeline) -> str:
    """Return the name of the job that runs a pipeline as a stream."""
    return f"{pipeline.name}_streaming"


def stop_job_name(pipeline: CheckpointedPipeline) -> str:
    """Return the name of the job that stops a stream with a savepoint."""
    return f"{pipeline.name}_stop"


def build_streaming_job(pipeline: CheckpointedPipeline) -> dg.JobDefinition:
    """Return the job that runs all stages at once until it is stopped, with checkpoints on a timer."""
    needed = {key for stage in pipeline.stages.values() for key in stage.required_resource_keys}

    @dg.op(
        name=f"{pipeline.name}__{STREAM_OP}",
        description="Restore the pipeline and run all its stages as concurrent streaming queries.",
        out={"done": dg.Out(dg.Nothing)},
        required_resource_keys={COORDINATOR_KEY, SPARK_KEY, *needed},
        tags={"dagster/compute_kind": "spark"},
    )
    def stream(context: dg.OpExecutionContext, config: StreamConfig) -> None:
        with clear_errors():
            _report(context, _stream(context, pipeline, config))

    return _one_op_job(
        streaming_job_name(pipeline), stream, STREAM_OP, pipeline, f"Run `{pipeline.name}` as a stream."
    )


def build_stop_job(pipeline: CheckpointedPipeline) -> dg.JobDefinition:
    """Return the job that stops the pipeline's streaming run with a savepoint."""

    @dg.op(
        name=f"{pipeline.name}__{STOP_OP}",
        description="Let the running stream take a savepoint and end exactly there.",
        out={"done": dg.Out(dg.Nothing)},
        required_resource_keys={COORDINATOR_KEY},
    )
    def stop(context: dg.OpExecutionContext, config: StopConfig) -> None:
        with clear_errors():
            _stop(context, pipeline, config)

    return _one_op_job(
        stop_job_name(pipeline),
        stop,
        STOP_OP,
        pipeline,
        f"Stop the stream `{pipeline.name}` with a savepoint.",
    )


def _one_op_job(
    name: str, op: dg.OpDefinition, alias: str, pipeline: CheckpointedPipeline, description: str
) -> dg.JobDefinition:
    graph = dg.GraphDefinition(
        name=f"{name}__graph", node_defs=[op], dependencies={dg.NodeInvocation(op.name, alias=alias): {}}
    )
    return graph.to_job(
        name=name,
        description=description,
        executor_def=dg.in_process_executor,
        tags={"dagster_ckpt/pipeline": pipeline.name, "dagster/retry_strategy": "ALL_STEPS"},
    )


# --- the stream -------------------------------------------------------------------------------------------------


def _stream(
    context: dg.OpExecutionContext, pipeline: CheckpointedPipeline, config: StreamConfig
) -> ServiceEnd:
    resource: CheckpointCoordinatorResource = getattr(context.resources, COORDINATOR_KEY)
    store = resource.store()
    wait_for_stream(context, pipeline)
    events = StreamingEvents(
        DagsterEvents(
            pipeline.name,
            job_name=streaming_job_name(pipeline),
            restore_op=STREAM_OP,
            ui_base_url=resource.ui_base_url,
        ),
        pipeline.name,
        context,
    )
    spark = getattr(context.resources, SPARK_KEY)
    service = StreamingService(
        pipeline=pipeline,
        config=streaming_config(resource, pipeline),
        store=store,
        storage=resource.storage(),
        open_storage=resource.open_storage,
        session=lambda: spark.session,
        work_dir=resource.resolved_work_dir,
        table_dir=resource.resolved_table_dir(pipeline),
        owner=context.run_id,
        root=context.run.tags.get("dagster/root_run_id", context.run_id),
        reporter=events,
        restore=config.options(),
        listeners=[events],
        strategy=config.strategy(),
        settings=StreamingSettings(
            trigger_interval=config.trigger_interval, snapshot_retries=resource.snapshot_retries
        ),
        arguments=_arguments(context, pipeline, config.stages),
        library_version=__version__,
        watch=ProgressWatch(tell=events.progress, tell_every=config.progress_interval),
    )
    try:
        return service.run()
    finally:
        events.close()


def streaming_config(
    resource: CheckpointCoordinatorResource, pipeline: CheckpointedPipeline
) -> CheckpointConfig:
    """Return the settings of a streaming run: checkpoints on a timer, every 10 s unless somebody says otherwise."""
    config = resource.checkpoint_config(pipeline)
    if config.interval is not None:
        return config
    return config.model_copy(update={"interval": DEFAULT_INTERVAL})


def _arguments(
    context: dg.OpExecutionContext, pipeline: CheckpointedPipeline, stages: Mapping[str, Any]
) -> dict[StageUid, StageArguments]:
    unknown = sorted(set(stages) - set(pipeline.stages))
    if unknown:
        raise InvalidRequest(
            f"config of stage {unknown[0]!r}: pipeline {pipeline.name!r} has the stages {', '.join(pipeline.stages)}"
        )
    return {
        uid: StageArguments(config=stages.get(uid, {}), resources=context.resources)
        for uid in pipeline.stages
    }


def _report(context: dg.OpExecutionContext, end: ServiceEnd) -> None:
    match end:
        case StoppedWithSavepoint(uri):
            context.log.info(f"stopped with savepoint {uri}")
        case EndOfData(number):
            context.log.info(f"all bounded sources are worked off; final checkpoint {number}")
        case Interrupted(clean):
            context.log.info(f"stopped {'between two batches' if clean else 'while batches were running'}")
        case TakenOver(message):
            raise dg.Failure(description=message, allow_retries=False)
        case GaveUp(why, last):
            raise dg.Failure(description=f"{last.message}; {why}") from last.error


# --- stop -------------------------------------------------------------------------------------------------------


def _stop(context: dg.OpExecutionContext, pipeline: CheckpointedPipeline, config: StopConfig) -> None:
    resource: CheckpointCoordinatorResource = getattr(context.resources, COORDINATOR_KEY)
    kind = CheckpointKind.SYNC_SAVEPOINT_TERMINATE if config.drain else CheckpointKind.SYNC_SAVEPOINT_SUSPEND
    request = CheckpointRequest(
        kind=kind,
        target=config.target,
        name=config.name,
        labels=config.labels,
        note=config.note,
        request_id=f"stop-{context.run_id}",
    )
    taken = ask_the_living(resource.store(), pipeline, request)
    if taken is None:
        raise InvalidRequest(
            f"no streaming run of pipeline {pipeline.name!r} is alive: there is nothing to stop "
            f"(take a savepoint of the pipeline as it rests with job {pipeline.name}_savepoint)"
        )
    context.log.info(f"run {taken.run_id} stopped with savepoint {taken.checkpoint_id}: {taken.uri}")
