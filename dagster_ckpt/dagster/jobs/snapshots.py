"""The jobs that take a snapshot: a savepoint, a checkpoint at once, a savepoint that stops the stream.

Annotations are evaluated: Dagster reads the config class from them.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.files.retention import SavepointRetention
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.model import CheckpointKind, Labeled
from dagster_ckpt.core.request import CheckpointRequest, SnapshotScope
from dagster_ckpt.core.supervision.ownership import ConcurrentRuns
from dagster_ckpt.dagster.jobs.build import one_op_job
from dagster_ckpt.dagster.jobs.dispose import SCHEDULE_LABEL, dispose_expired, expired_savepoints
from dagster_ckpt.dagster.names import (
    CHECKPOINT_OP,
    SAVEPOINT_OP,
    SPARK_KEY,
    STOP_OP,
    checkpoint_job_name,
    savepoint_job_name,
    stop_job_name,
    who_of,
)
from dagster_ckpt.dagster.resources.pipeline import coordinator_of
from dagster_ckpt.dagster.runs.attempt import PipelineAttempt
from dagster_ckpt.dagster.runs.lease import request_from_running_stream
from dagster_ckpt.dagster.runs.turn import OpTurn, Skipped
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.runtime.audit import NOBODY, Operator
from dagster_ckpt.spark.sink.waiting.aside import FOLDER


class SavepointTarget(Labeled, dg.Config):
    """Target and label of a savepoint."""

    target: str = ""
    """URI of the folder to write below; empty: the resource's ``savepoint_dir``."""
    name: str = ""
    note: str = ""
    labels: dict[str, str] = {}  # noqa: RUF012 - a pydantic field, copied per instance

    def request(self, kind: CheckpointKind, request_id: str) -> CheckpointRequest:
        """Return the request for it."""
        return CheckpointRequest(kind=kind, target=self.target, request_id=request_id, **self.label.fields())


class SavepointConfig(SavepointTarget):
    """Config of the savepoint job: target, label, how long it waits, which earlier ones it replaces."""

    wait_for_run: float = 0.0
    """Seconds to wait for the end of a run that is alive; 0: fail at once."""
    keep_last: int = 0
    """With a label ``schedule``: keep this many of its savepoints, remove older ones afterwards; 0: no bound."""
    keep_for: float = 0.0
    """The same by age, in seconds; one goes only when it is outside every bound that is set."""
    keep_hourly: int = 0
    """The same: the newest of each of so many hours."""
    keep_daily: int = 0
    """The same: the newest of each of so many days."""

    @property
    def retention(self) -> SavepointRetention:
        """The bounds."""
        return SavepointRetention(
            keep_last=self.keep_last or None,
            keep_for=self.keep_for or None,
            keep_hourly=self.keep_hourly or None,
            keep_daily=self.keep_daily or None,
        )


def build_savepoint_job(pipeline: CheckpointedPipeline, *, resources: Mapping[str, Any]) -> dg.JobDefinition:
    """Return the job that takes a savepoint: of the run that streams the pipeline, or of the idle pipeline."""

    def savepoint(context: dg.OpExecutionContext, config: SavepointConfig) -> None:
        request = config.request(CheckpointKind.SAVEPOINT, f"savepoint-{context.run_id}")
        take_snapshot(context, pipeline, request, wait_for_run=config.wait_for_run)
        _remove_expired(context, pipeline, config)

    return one_op_job(
        pipeline,
        savepoint,
        resources=resources,
        name=savepoint_job_name(pipeline.name),
        op=SAVEPOINT_OP,
        description=f"Write a self-contained, relocatable snapshot of pipeline `{pipeline.name}`.",
        resource_keys={SPARK_KEY, *pipeline.hook_resource_keys},
    )


def _remove_expired(
    context: dg.OpExecutionContext, pipeline: CheckpointedPipeline, config: SavepointConfig
) -> None:
    """Remove savepoints of the same schedule that are outside its bounds, now that a newer one is complete."""
    schedule = config.labels.get(SCHEDULE_LABEL, "")
    if not schedule:
        return
    resource = coordinator_of(context, pipeline.name)
    expired = expired_savepoints(resource, pipeline, config.retention, schedule=schedule, now=time.time())
    dispose_expired(resource, pipeline, expired, instance=context.instance, tell=context.log.info)


def take_snapshot(
    context: dg.OpExecutionContext,
    pipeline: CheckpointedPipeline,
    request: CheckpointRequest,
    *,
    wait_for_run: float,
    set_aside: Sequence[StageUid] = (),
) -> None:
    """Let the run that is alive take it if it streams; else wait for its end, and take it of the idle pipeline.

    ``set_aside``: sinks whose waiting rows go to files first; of an idle pipeline only.

    Raises Failure when a run that does not answer is still alive after ``wait_for_run`` seconds; Declined when the
    snapshot failed; InvalidRequest for a sink that is none.
    """
    what = request.kind.noun
    resource = coordinator_of(context, pipeline.name)
    if set_aside:
        _refuse_unknown(pipeline, set_aside)
        of_stream = None
    else:
        of_stream = request_from_running_stream(
            resource.store(), pipeline, request, open_storage=resource.open_storage
        )
    if of_stream is not None:
        place = of_stream.uri or "a newer checkpoint has taken its place"
        context.log.info(f"{what} {of_stream.checkpoint_id}, taken by run {of_stream.run_id}: {place}")
        return
    turn = OpTurn.of(context, pipeline, ConcurrentRuns.QUEUE, patience=wait_for_run)
    operator = _who_sets_aside(context, pipeline) if set_aside else NOBODY
    attempt = turn.take(
        lambda admit: PipelineAttempt.of(
            context, pipeline, admit=admit, operator=operator, set_aside=set_aside
        )
    )
    assert not isinstance(attempt, Skipped), "who queues is not skipped"
    taken = attempt.take_snapshot(request)
    context.log.info(f"{what} {taken.metadata.checkpoint_id}: {taken.location.uri}")


def _refuse_unknown(pipeline: CheckpointedPipeline, set_aside: Sequence[StageUid]) -> None:
    sinks = [uid for uid, stage in pipeline.stages.items() if stage.table is not None]
    unknown = [uid for uid in set_aside if uid not in sinks]
    if unknown:
        raise InvalidRequest(
            f"pipeline {pipeline.name!r} has no sink {unknown[0]!r} to set rows aside of: it has {', '.join(sinks)}"
        )


def _who_sets_aside(context: dg.OpExecutionContext, pipeline: CheckpointedPipeline) -> Operator:
    table_dir = coordinator_of(context, pipeline.name).resolved_table_dir(pipeline)
    return Operator(who=who_of(context.run.tags), sets_aside=str(table_dir / FOLDER / pipeline.name))


class TakeCheckpointConfig(dg.Config):
    """Config of the checkpoint job: how much it uploads, how long it waits."""

    scope: str = "configured"
    """``configured``: as the setting ``incremental`` says; ``full``: everything, so that it builds on no other
    checkpoint; ``incremental``: only what is new."""
    wait_for_run: float = 0.0
    """Seconds to wait for the end of a run that is alive and does not stream; 0: fail at once."""
    set_aside: list[str] = []  # noqa: RUF012 - Dagster copies defaults of config
    """Sinks whose waiting rows are not to be shown: they are written to files beside the tables first, and the
    checkpoint goes on without them (``dagster-ckpt set-aside`` shows which)."""

    def request(self, request_id: str) -> CheckpointRequest:
        """Return the request for it. Raises InvalidRequest."""
        if self.scope not in tuple(SnapshotScope):
            known = ", ".join(SnapshotScope)
            raise InvalidRequest(
                f"Run config of op {CHECKPOINT_OP!r}: scope must be one of {known}, got {self.scope!r}"
            )
        return CheckpointRequest(scope=SnapshotScope(self.scope), request_id=request_id)


def build_checkpoint_job(pipeline: CheckpointedPipeline, *, resources: Mapping[str, Any]) -> dg.JobDefinition:
    """Return the job that takes a checkpoint: of the run that streams the pipeline, or of the idle pipeline."""

    def checkpoint(context: dg.OpExecutionContext, config: TakeCheckpointConfig) -> None:
        request = config.request(f"checkpoint-{context.run_id}")
        chosen = [StageUid(uid) for uid in config.set_aside]
        take_snapshot(context, pipeline, request, wait_for_run=config.wait_for_run, set_aside=chosen)

    return one_op_job(
        pipeline,
        checkpoint,
        resources=resources,
        name=checkpoint_job_name(pipeline.name),
        op=CHECKPOINT_OP,
        description=f"Take a checkpoint of pipeline `{pipeline.name}` now: as configured, full or incremental.",
        resource_keys={SPARK_KEY, *pipeline.hook_resource_keys},
    )


class StopConfig(SavepointTarget):
    """Config of stop-with-savepoint: suspend or drain, and the savepoint's target."""

    drain: bool = False
    """Process what the sources have read to the end first (no effect on windows that are still open)."""


def build_stop_job(pipeline: CheckpointedPipeline, *, resources: Mapping[str, Any]) -> dg.JobDefinition:
    """Return the job that stops the pipeline's streaming run with a savepoint."""

    def stop(context: dg.OpExecutionContext, config: StopConfig) -> None:
        suspend, drain = CheckpointKind.SYNC_SAVEPOINT_SUSPEND, CheckpointKind.SYNC_SAVEPOINT_TERMINATE
        request = config.request(drain if config.drain else suspend, f"stop-{context.run_id}")
        resource = coordinator_of(context, pipeline.name)
        taken = request_from_running_stream(
            resource.store(), pipeline, request, open_storage=resource.open_storage
        )
        if taken is None:
            raise InvalidRequest(
                f"no streaming run of pipeline {pipeline.name!r} is alive: there is nothing to stop "
                f"(take a savepoint of the idle pipeline with job {savepoint_job_name(pipeline.name)})"
            )
        context.log.info(f"run {taken.run_id} stopped with savepoint {taken.checkpoint_id}: {taken.uri}")

    return one_op_job(
        pipeline,
        stop,
        resources=resources,
        name=stop_job_name(pipeline.name),
        op=STOP_OP,
        description=f"Stop the stream `{pipeline.name}` with a savepoint: it ends exactly there.",
    )
