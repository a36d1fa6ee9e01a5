"""The savepoint job: takes a savepoint, a checkpoint at once, a savepoint that stops the stream, and removes one.

Annotations are evaluated: Dagster reads the config class from them.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, assert_never

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.checkpoint.record import CompletedRecord
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.model import CheckpointKind, Labeled
from dagster_ckpt.core.paths import same_place
from dagster_ckpt.core.request import CheckpointRequest, SnapshotScope
from dagster_ckpt.core.supervision.ownership import ConcurrentRuns
from dagster_ckpt.core.units import counted, size
from dagster_ckpt.dagster.jobs.build import one_op_job, refuse_of_others, word_in
from dagster_ckpt.dagster.launchpad import seldom
from dagster_ckpt.dagster.names import (
    SAVEPOINT_OP,
    SPARK_KEY,
    SavepointAction,
    savepoint_job_name,
    who_of,
)
from dagster_ckpt.dagster.options import SavepointRetention
from dagster_ckpt.dagster.reports.asset import checkpoints_partitions
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.dagster.resources.pipeline import coordinator_of
from dagster_ckpt.errors import CheckpointError, InvalidRequest
from dagster_ckpt.runtime.record_store import NOBODY, Operator

if TYPE_CHECKING:
    from dagster_ckpt.operations.care.clean import Disposed


class SavepointConfig(Labeled, dg.Config):
    """Config of the savepoint job: what it does, and the settings of that."""

    action: str = "savepoint"
    """``savepoint``; ``checkpoint``: one now; ``stop``: end the stream with a savepoint; ``dispose``: remove one."""
    target: str = ""
    """URI of the folder to write below; empty: the resource's ``savepoint_dir``."""
    name: str = ""
    note: str = ""
    labels: dict[str, str] = {}  # noqa: RUF012 - a pydantic field, copied per instance
    wait_for_run: float = 0.0
    """Seconds to wait for the end of a run that is alive and does not stream; 0: fail once it renews its lease."""
    keep_last: int = seldom(0)
    """With a label ``schedule``: keep this many of its savepoints, remove older ones afterwards; 0: no bound."""
    keep_for: float = seldom(0.0)
    """The same by age, in seconds; one goes only when it is outside every bound that is set."""
    keep_hourly: int = seldom(0)
    """The same: the newest of each of so many hours."""
    keep_daily: int = seldom(0)
    """The same: the newest of each of so many days."""
    scope: str = seldom("configured")
    """checkpoint: ``configured``: as the setting ``incremental`` says; ``full``: everything, so that it builds on no
    other checkpoint; ``incremental``: only what is new."""
    set_aside: list[str] = seldom([])
    """checkpoint: sinks whose waiting rows are not to be shown: they are written to files beside the tables first, and
    the checkpoint goes on without them (``dagster-ckpt set-aside`` shows which)."""
    drain: bool = seldom(False)
    """stop: process what the sources have read to the end first (no effect on windows that are still open)."""
    savepoint: str = seldom("")
    """dispose: a key such as ``savepoint-7``, or the path or URI of its folder."""
    dry_run: bool = seldom(False)
    """dispose: only say what would be removed."""

    @property
    def retention(self) -> SavepointRetention:
        """The bounds."""
        return SavepointRetention(
            keep_last=self.keep_last or None,
            keep_for=self.keep_for or None,
            keep_hourly=self.keep_hourly or None,
            keep_daily=self.keep_daily or None,
        )

    def request(self, kind: CheckpointKind, request_id: str) -> CheckpointRequest:
        """Return the request for a savepoint."""
        return CheckpointRequest(kind=kind, target=self.target, request_id=request_id, **self.label.fields())

    def checkpoint_request(self, request_id: str) -> CheckpointRequest:
        """Return the request for a checkpoint. Raises InvalidRequest."""
        scope = word_in(SnapshotScope, self.scope, setting="scope", op=SAVEPOINT_OP)
        return CheckpointRequest(scope=scope, request_id=request_id)


_LABEL = ("target", "name", "note", "labels")
_BOUNDS = ("keep_last", "keep_for", "keep_hourly", "keep_daily")
_SETTINGS: dict[SavepointAction, tuple[str, ...]] = {
    SavepointAction.SAVEPOINT: (*_LABEL, *_BOUNDS, "wait_for_run"),
    SavepointAction.CHECKPOINT: ("scope", "set_aside", "wait_for_run"),
    SavepointAction.STOP: (*_LABEL, "drain"),
    SavepointAction.DISPOSE: ("savepoint", "dry_run"),
}


def build_savepoint_job(
    pipeline: CheckpointedPipeline,
    *,
    resources: Mapping[str, Any],
    refused: Collection[str] = (),
) -> dg.JobDefinition:
    """Return the job that takes snapshots, of the run that streams the pipeline or of the idle one, and removes them.

    ``refused``: actions that are not done here.
    """
    allowed = [one for one in SavepointAction if one not in refused]

    def savepoint(context: dg.OpExecutionContext, config: SavepointConfig) -> None:
        action = word_in(SavepointAction, config.action, setting="action", op=SAVEPOINT_OP, among=allowed)
        refuse_of_others(config, action, _SETTINGS, op=SAVEPOINT_OP)
        match action:
            case SavepointAction.SAVEPOINT:
                request = config.request(CheckpointKind.SAVEPOINT, f"savepoint-{context.run_id}")
                take_snapshot(context, pipeline, request, wait_for_run=config.wait_for_run)
                _remove_expired(context, pipeline, config)
            case SavepointAction.CHECKPOINT:
                asked = config.checkpoint_request(f"checkpoint-{context.run_id}")
                chosen = [StageUid(uid) for uid in config.set_aside]
                take_snapshot(context, pipeline, asked, wait_for_run=config.wait_for_run, set_aside=chosen)
            case SavepointAction.STOP:
                _stop(context, pipeline, config)
            case SavepointAction.DISPOSE:
                dispose(context, pipeline, config.savepoint, is_dry=config.dry_run)
            case _:
                assert_never(action)

    return one_op_job(
        pipeline,
        savepoint,
        resources=resources,
        name=savepoint_job_name(pipeline.name),
        op=SAVEPOINT_OP,
        description=(
            f"Take a savepoint of `{pipeline.name}`: a self-contained, relocatable snapshot. By `action` also: a "
            "checkpoint now; stop the stream with a savepoint, it ends exactly there; dispose of a savepoint."
        ),
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
    from dagster_ckpt.dagster.runs.attempt import PipelineAttempt
    from dagster_ckpt.dagster.runs.turn import OpTurn, Skipped, request_from_running_stream

    what = request.kind.noun
    resource = coordinator_of(context, pipeline.name)
    if set_aside:
        _refuse_unknown(pipeline, set_aside)
        of_stream = None
    else:
        of_stream = request_from_running_stream(
            resource.store(), pipeline.name, request, open_storage=resource.open_storage
        )
    if of_stream is not None:
        place = of_stream.uri or "a newer checkpoint has taken its place"
        context.log.info(f"{what} {of_stream.checkpoint_id}, taken by run {of_stream.run_id}: {place}")
        return
    if pipeline.program:
        number, uri = pipeline.snapshot_of_idle(request)
        context.log.info(f"{what} {number}: {uri}")
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
    from dagster_ckpt.spark.sink.waiting import FOLDER

    table_dir = coordinator_of(context, pipeline.name).resolved_table_dir(pipeline)
    return Operator(who=who_of(context.run.tags), sets_aside=str(table_dir / FOLDER / pipeline.name))


def _stop(context: dg.OpExecutionContext, pipeline: CheckpointedPipeline, config: SavepointConfig) -> None:
    """Have the stream end with a savepoint."""
    from dagster_ckpt.dagster.runs.turn import request_from_running_stream

    suspend, drain = CheckpointKind.SYNC_SAVEPOINT_SUSPEND, CheckpointKind.SYNC_SAVEPOINT_TERMINATE
    request = config.request(drain if config.drain else suspend, f"stop-{context.run_id}")
    resource = coordinator_of(context, pipeline.name)
    taken = request_from_running_stream(
        resource.store(), pipeline.name, request, open_storage=resource.open_storage
    )
    if taken is None:
        raise InvalidRequest(
            f"no streaming run of pipeline {pipeline.name!r} is alive: there is nothing to stop (a savepoint of the "
            f"idle pipeline is taken by job {savepoint_job_name(pipeline.name)} without action: stop)"
        )
    context.log.info(f"run {taken.run_id} stopped with savepoint {taken.checkpoint_id}: {taken.uri}")


def dispose(
    context: dg.OpExecutionContext, pipeline: CheckpointedPipeline, savepoint: str, *, is_dry: bool
) -> None:
    """Forget a savepoint and delete its files; refused while somebody needs it. ``is_dry``: only say what would go.

    It is named in the config and not a partition: a drop-down comes with a dialog that launches *all* partitions.
    """
    from dagster_ckpt.operations.care.clean import dispose_savepoint, plan_disposal

    if not savepoint:
        raise InvalidRequest(
            f"Run config of op {SAVEPOINT_OP!r}: action: dispose needs the savepoint, such as savepoint: savepoint-7"
        )
    deployment = coordinator_of(context, pipeline.name).deployment()
    plan = plan_disposal(deployment, savepoint, pipeline.name)
    files = f"{counted(len(plan.keys), 'file')}, {size(plan.bytes)}"
    if is_dry:
        context.log.info(f"would remove {plan.key} at {plan.location.uri}: {files}")
        return
    operator = Operator(who=who_of(context.run.tags), shown=(f"{plan.key} at {plan.location.uri}: {files}",))
    done = dispose_savepoint(deployment, plan, operator=operator, run_id=context.run_id)
    forget_partition(context.instance, pipeline, done)
    context.log.info(f"removed {done.key} at {done.uri}: {files}")


def forget_partition(
    instance: dg.DagsterInstance, pipeline: CheckpointedPipeline, disposed: "Disposed"
) -> None:
    """Take a removed savepoint out of the checkpoints asset; its events stay as history."""
    instance.delete_dynamic_partition(checkpoints_partitions(pipeline.name).name or "", disposed.key)


SCHEDULE_LABEL = "schedule"
"""Label of a savepoint that a schedule took: only those fall under its bounds."""


def expired_savepoints(
    resource: CheckpointCoordinatorResource,
    pipeline: CheckpointedPipeline,
    retention: SavepointRetention,
    *,
    schedule: str,
    now: float,
) -> tuple[CompletedRecord, ...]:
    """Return the savepoints of one schedule that are outside its bounds, oldest first.

    Only of those where it writes them now: others may be another deployment's, which this one is a copy of.
    """
    from dagster_ckpt.runtime.record_store import RecordStore

    record = RecordStore(resource.store()).record(pipeline.name)
    if record is None:
        return ()
    own = [s for s in record.savepoints if s.trigger.labels.get(SCHEDULE_LABEL) == schedule]
    newest = max(own, key=lambda s: s.checkpoint_id, default=None)
    here = [s for s in own if newest and same_place(s.location.base_uri, newest.location.base_uri)]
    return retention.expired(here, now=now)


def dispose_expired(
    resource: CheckpointCoordinatorResource,
    pipeline: CheckpointedPipeline,
    expired: tuple[CompletedRecord, ...],
    *,
    instance: dg.DagsterInstance,
    tell: Callable[[str], None],
) -> "list[Disposed]":
    """Remove savepoints that are outside their bounds; one that somebody needs, or that cannot be removed, stays."""
    from dagster_ckpt.operations.care.clean import dispose_savepoint, plan_disposal

    deployment = resource.deployment()
    gone: list[Disposed] = []
    for entry in expired:
        try:
            plan = plan_disposal(deployment, entry.location.uri, pipeline.name)
            done = dispose_savepoint(
                deployment, plan, operator=Operator(who=f"schedule {entry.trigger.labels[SCHEDULE_LABEL]}")
            )
        except CheckpointError as error:
            tell(f"{entry.known.key} is outside the schedule's bounds and was not removed: {error}")
            continue
        forget_partition(instance, pipeline, done)
        tell(
            f"{done.key} is outside the schedule's bounds: removed {counted(done.files, 'file')}, {size(done.bytes)}"
        )
        gone.append(done)
    return gone
