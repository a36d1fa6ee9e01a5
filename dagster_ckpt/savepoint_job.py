"""The job that takes a savepoint of a pipeline.

Annotations are evaluated: Dagster reads the config class from them.
"""

import time

import dagster as dg

from dagster_ckpt.attempt import COORDINATOR_KEY, SPARK_KEY, PipelineAttempt
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.properties import RunStatus
from dagster_ckpt.core.record import parse_record
from dagster_ckpt.core.requests import CheckpointRequest
from dagster_ckpt.core.retention import SavepointRetention
from dagster_ckpt.jobs import clear_errors
from dagster_ckpt.leases import ask_the_living
from dagster_ckpt.pipeline import CheckpointedPipeline
from dagster_ckpt.resources import CheckpointCoordinatorResource
from dagster_ckpt.savepoint_retention import SCHEDULE_LABEL, dispose_expired, expired_savepoints

_POLL_SECONDS = 5.0


class SavepointConfig(dg.Config):
    """Where a savepoint goes and what people shall know of it."""

    target: str = ""
    """URI of the folder to write below; empty: the resource's ``savepoint_dir``."""
    name: str = ""
    note: str = ""
    labels: dict[str, str] = {}  # noqa: RUF012 - a pydantic field, copied per instance
    wait_for_run: float = 0.0
    """Seconds to wait for the end of a run that is alive; 0: fail at once."""
    keep_last: int = 0
    """With a label ``schedule``: keep this many of its savepoints, remove older ones afterwards; 0: no bound."""
    keep_for: float = 0.0
    """The same by age, in seconds; with both, one goes only when it is outside both."""

    @property
    def retention(self) -> SavepointRetention:
        """The two bounds."""
        return SavepointRetention(keep_last=self.keep_last or None, keep_for=self.keep_for or None)


def savepoint_job_name(pipeline: CheckpointedPipeline) -> str:
    """Return the name of a pipeline's savepoint job."""
    return f"{pipeline.name}_savepoint"


def build_savepoint_job(pipeline: CheckpointedPipeline) -> dg.JobDefinition:
    """Return the job that takes a savepoint: of the run that streams the pipeline, or of the pipeline as it rests."""

    @dg.op(
        name=f"{pipeline.name}__savepoint",
        description=f"Write a self-contained, relocatable snapshot of pipeline `{pipeline.name}`.",
        out={"done": dg.Out(dg.Nothing)},
        required_resource_keys={COORDINATOR_KEY, SPARK_KEY},
    )
    def savepoint(context: dg.OpExecutionContext, config: SavepointConfig) -> None:
        with clear_errors():
            request = CheckpointRequest(
                kind=CheckpointKind.SAVEPOINT,
                target=config.target,
                name=config.name,
                labels=config.labels,
                note=config.note,
                request_id=f"savepoint-{context.run_id}",
            )
            _take(context, pipeline, request, config.wait_for_run)
            remove_expired(context, pipeline, config)

    graph = dg.GraphDefinition(
        name=f"{savepoint_job_name(pipeline)}__graph",
        node_defs=[savepoint],
        dependencies={dg.NodeInvocation(savepoint.name, alias="savepoint"): {}},
    )
    return graph.to_job(
        name=savepoint_job_name(pipeline),
        executor_def=dg.in_process_executor,
        tags={"dagster_ckpt/pipeline": pipeline.name, "dagster/retry_strategy": "ALL_STEPS"},
    )


def _take(
    context: dg.OpExecutionContext,
    pipeline: CheckpointedPipeline,
    request: CheckpointRequest,
    wait: float,
) -> None:
    """Let the run that is alive take the savepoint if it streams; else take it of the pipeline as it rests."""
    resource: CheckpointCoordinatorResource = getattr(context.resources, COORDINATOR_KEY)
    of_stream = ask_the_living(resource.store(), pipeline, request)
    if of_stream is not None:
        context.log.info(
            f"savepoint {of_stream.checkpoint_id}, taken by run {of_stream.run_id}: {of_stream.uri}"
        )
        return
    wait_while_running(context, pipeline, wait)
    taken = PipelineAttempt.of(context, pipeline).savepoint(context, request)
    context.log.info(f"savepoint {taken.metadata.checkpoint_id}: {taken.location.uri}")


def refuse_while_running(context: dg.OpExecutionContext, pipeline: CheckpointedPipeline) -> None:
    """Raise Failure when another run of the pipeline is alive: taking over would end it."""
    resource: CheckpointCoordinatorResource = getattr(context.resources, COORDINATOR_KEY)
    stored = resource.store().load(pipeline.name)
    if stored is None:
        return
    record = parse_record(stored.body)
    if record.status is not RunStatus.RUNNING or record.owner == context.run_id:
        return
    run = context.instance.get_run_by_id(record.owner)
    if run is not None and not run.is_finished:
        raise dg.Failure(
            description=(
                f"run {record.owner} of pipeline {pipeline.name!r} is alive: wait for its end, or terminate it, "
                "and launch this job again"
            ),
            allow_retries=False,
        )


def wait_while_running(
    context: dg.OpExecutionContext, pipeline: CheckpointedPipeline, seconds: float
) -> None:
    """Return when no other run of the pipeline is alive; raise Failure when one still is after ``seconds``."""
    until = time.monotonic() + seconds
    while True:
        try:
            refuse_while_running(context, pipeline)
        except dg.Failure as alive:
            if time.monotonic() >= until:
                raise
            context.log.info(f"waiting: {alive.description}")
        else:
            return
        time.sleep(min(_POLL_SECONDS, max(0.1, until - time.monotonic())))


def remove_expired(
    context: dg.OpExecutionContext, pipeline: CheckpointedPipeline, config: SavepointConfig
) -> None:
    """Remove savepoints of the same schedule that are outside its bounds, now that a newer one is complete."""
    schedule = config.labels.get(SCHEDULE_LABEL, "")
    if not schedule:
        return
    resource: CheckpointCoordinatorResource = getattr(context.resources, COORDINATOR_KEY)
    expired = expired_savepoints(resource, pipeline, config.retention, schedule=schedule, now=time.time())
    dispose_expired(resource, pipeline, expired, instance=context.instance, tell=context.log.info)
