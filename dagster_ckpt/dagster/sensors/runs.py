"""Runs that sensors start: on a condition of files or of yours, and again after a run has failed.

An epoch when files arrive that its sources read; a savepoint before an upgrade, after so many checkpoints; a run again
from the latest checkpoint, with a delay, and not for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.model import Labeled
from dagster_ckpt.core.supervision.ownership import Alive, OwnerState, is_lost
from dagster_ckpt.core.units import counted
from dagster_ckpt.dagster.jobs.build import RestoreConfig, without_restore_options
from dagster_ckpt.dagster.names import (
    LOCATION_TAG,
    PIPELINE_TAG,
    RESTART_OF_TAG,
    RESTARTS_TAG,
    RESTORE_OP,
    SAVEPOINT_OP,
    STREAM_OP,
    epoch_job_name,
    savepoint_job_name,
    streaming_job_name,
)
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.dagster.sensors.shared import (
    BoundCoordinator,
    Cursor,
    code_location,
    newest_run,
    read_cursor,
)
from dagster_ckpt.dagster.supervision import (
    LastRun,
    LastRunFacts,
    RestartDeclined,
    RestartLater,
    RestartPolicy,
    decide_restart,
)
from dagster_ckpt.errors import Unavailable

if TYPE_CHECKING:
    from dagster_ckpt.adapters.fsspec_storage import Arrivals


class FilesCursor(Cursor):
    """The files for which an epoch was asked last."""

    count: int = 0
    newest: float = 0.0
    digest: str = ""


def build_new_files_sensor(
    pipeline: CheckpointedPipeline,
    paths: Sequence[str],
    *,
    coordinator: CheckpointCoordinatorResource,
) -> dg.SensorDefinition:
    """Return the sensor that launches an epoch when there are new files at ``paths``; switched off until enabled.

    The epoch reads what has arrived, not what the sensor saw. While a run is alive it waits: that one may have begun
    before the files came.
    """
    standing = BoundCoordinator(coordinator)

    @dg.sensor(
        name=f"{pipeline.name}_new_files",
        job_name=epoch_job_name(pipeline.name),
        description=f"Runs an epoch of `{pipeline.name}` when files arrive at {', '.join(paths)}.",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.STOPPED,
    )
    def new_files(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        from dagster_ckpt.adapters.fsspec_storage import look_at
        from dagster_ckpt.dagster.runs.turn import owner_of
        from dagster_ckpt.runtime.record_store import RecordStore

        resource = standing.of(context.instance)
        before = read_cursor(context.cursor, FilesCursor)
        try:
            now = look_at(paths, resource.storage_options)
            record = RecordStore(resource.store()).record(pipeline.name)
        except Unavailable as error:
            return dg.SkipReason(f"the next tick tries again: {error}")
        if not has_new(before, now):
            context.update_cursor(_cursor(now))
            return dg.SkipReason(f"no new file among {now.count}")
        owner = None if record is None else owner_of(record, context.instance, now=time.time())
        if isinstance(owner, Alive):
            return dg.SkipReason(f"new files; waiting for the end of run {owner.run_id}")
        context.update_cursor(_cursor(now))
        return dg.RunRequest(run_key=f"{pipeline.name}-files-{now.digest}")

    return new_files


def has_new(before: FilesCursor, now: Arrivals) -> bool:
    """Return True where a file is new or was written again; files that went away are no news."""
    return now.digest != before.digest and (now.newest > before.newest or now.count > before.count)


def _cursor(now: Arrivals) -> str:
    return FilesCursor(count=now.count, newest=now.newest, digest=now.digest).model_dump_json()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointWanted(Labeled):
    """Answer of a condition when a savepoint is to be taken."""

    request_key: str
    """Names the occasion: one savepoint is taken per key, however often the condition says so."""
    name: str = ""
    note: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    target: str = ""


Condition = Callable[[dg.SensorEvaluationContext, CoordinatorRecord], SavepointWanted | None]


def build_savepoint_sensor(
    pipeline: CheckpointedPipeline,
    when: Condition,
    *,
    coordinator: CheckpointCoordinatorResource,
    name: str = "",
    minimum_interval_seconds: int = 30,
) -> dg.SensorDefinition:
    """Return the sensor that launches the pipeline's savepoint job when ``when`` says so.

    Args:
        pipeline: whose savepoint.
        when: called each tick with the tick's context and the pipeline's record; ``after_checkpoints`` is one.
        coordinator: the resource its runs use.
        name: for a second sensor of the same pipeline.
        minimum_interval_seconds: Dagster evaluates no sensor more often than every 5 s.
    """

    standing = BoundCoordinator(coordinator)

    @dg.sensor(
        name=name or f"{pipeline.name}_savepoint_sensor",
        job_name=savepoint_job_name(pipeline.name),
        description=f"Takes a savepoint of `{pipeline.name}`, running as a stream or at rest, when a condition holds.",
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=dg.DefaultSensorStatus.STOPPED,
    )
    def take_savepoint(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        from dagster_ckpt.dagster.runs.turn import owner_of
        from dagster_ckpt.runtime.record_store import RecordStore

        try:
            record = RecordStore(standing.of(context.instance).store()).record(pipeline.name)
        except Unavailable as error:
            return dg.SkipReason(f"the next tick tries again: {error}")
        if record is None:
            return dg.SkipReason("the pipeline has not run yet: there is nothing to take a savepoint of")
        wanted = when(context, record)
        if wanted is None:
            return dg.SkipReason("the condition does not hold")
        owner = owner_of(record, context.instance, now=time.time())
        if isinstance(owner, Alive) and not owner.streams:
            return dg.SkipReason(f"wanted ({wanted.request_key}); waiting for the end of run {owner.run_id}")
        config = {**wanted.label.fields(), "target": wanted.target}
        return dg.RunRequest(
            run_key=f"{take_savepoint_name}-{wanted.request_key}",
            run_config={"ops": {SAVEPOINT_OP: {"config": config}}},
        )

    take_savepoint_name = take_savepoint.name
    return take_savepoint


def after_checkpoints(count: int) -> Condition:
    """Return the condition: ``count`` checkpoint numbers have been used since the newest savepoint."""

    def condition(_context: dg.SensorEvaluationContext, record: CoordinatorRecord) -> SavepointWanted | None:
        newest = max((c.checkpoint_id for c in record.completed), default=0)
        since = max((s.checkpoint_id for s in record.savepoints), default=0)
        if newest - since < count:
            return None
        return SavepointWanted(
            request_key=f"after-{newest}",
            note=f"{counted(newest - since, 'checkpoint')} since the last savepoint",
        )

    return condition


_LAST = {
    OwnerState.UNKNOWN: LastRun.NONE,
    OwnerState.ALIVE: LastRun.GOING_ON,
    OwnerState.SUCCEEDED: LastRun.ENDED_WELL,
    OwnerState.CANCELED: LastRun.ENDED_WELL,
    OwnerState.FAILED: LastRun.FAILED,
    OwnerState.FAILED_AND_RETRIED: LastRun.FAILED_AND_RETRIED,
}


class RestartCursor(Cursor):
    """The failed run that was answered last; where it is lost, the run key keeps Dagster from launching twice."""

    answered: str = ""


def build_restart_sensor(
    pipeline: CheckpointedPipeline,
    *,
    coordinator: CheckpointCoordinatorResource,
    policy: RestartPolicy,
    job_name: str = "",
    instead_of: Sequence[str] = (),
) -> dg.SensorDefinition:
    """Return the sensor that restarts ``pipeline`` after its newest run failed.

    The new run has the failed one's config, but restores ``latest``, so it goes on where that one's last completed
    checkpoint is. After ``max_restarts`` in a row without a completed checkpoint it leaves the pipeline to people.
    Runs that Dagster itself retries (run retries) are left to Dagster.

    Args:
        pipeline: what is restarted.
        coordinator: the resource its runs use.
        policy: how often and how soon.
        job_name: the job whose runs are watched and launched; default: the pipeline's epoch job.
        instead_of: jobs whose failed runs are answered with ``job_name`` as well; the restore job is one.
    """
    job = job_name or epoch_job_name(pipeline.name)
    runner = _Runner(
        pipeline=pipeline,
        standing=BoundCoordinator(coordinator),
        policy=policy,
        op=STREAM_OP if job == streaming_job_name(pipeline.name) else RESTORE_OP,
        answered=frozenset((job, *instead_of)),
    )

    @dg.sensor(
        name=f"{job}_restart",
        description=f"Starts `{job}` again from the pipeline's latest checkpoint after a run failed.",
        job_name=job,
        minimum_interval_seconds=10,
        default_status=dg.DefaultSensorStatus.STOPPED,
    )
    def restart(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        return runner.tick(context)

    return restart


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runner:
    pipeline: CheckpointedPipeline
    standing: BoundCoordinator
    policy: RestartPolicy
    op: str
    """The op that restores."""
    answered: frozenset[str]

    def tick(self, context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        from dagster_ckpt.runtime.record_store import RecordStore

        found = newest_run(context.instance, self.pipeline)
        if found is None:
            return dg.SkipReason("the pipeline has not run yet")
        run = found.dagster_run
        others = left_to_others(run, code_location(context), self.answered)
        if others:
            return dg.SkipReason(others)
        if read_cursor(context.cursor, RestartCursor).answered == run.run_id:
            return dg.SkipReason(f"run {run.run_id} was restarted; the new run is about to appear")
        try:
            record = RecordStore(self.standing.of(context.instance).store()).record(self.pipeline.name)
        except Unavailable as error:
            return dg.SkipReason(f"the next tick tries again: {error}")
        now = time.time()
        decision = decide_restart(self.policy, _facts(found, record, now), now=now)
        if isinstance(decision, RestartDeclined | RestartLater):
            return dg.SkipReason(decision.why)
        claimed = record is not None and record.owner == run.run_id
        request = dg.RunRequest(
            run_key=f"restart-{run.run_id}",
            run_config=restart_config(run.run_config, op=self.op, claimed=claimed),
            tags={
                RESTARTS_TAG: str(decision.number),
                PIPELINE_TAG: self.pipeline.name,
                RESTART_OF_TAG: run.run_id,
            },
        )
        after = RestartCursor(answered=run.run_id)
        return dg.SensorResult(run_requests=[request], cursor=after.model_dump_json())


def left_to_others(run: dg.DagsterRun, here: str | None, answered: Collection[str]) -> str:
    """Return why a run is another sensor's to answer; empty: it is the one's in code location ``here``."""
    if run.job_name not in answered:
        return f"the newest run is one of {run.job_name}: not this sensor's"
    there = run.tags.get(LOCATION_TAG)
    if here and there and here != there:
        return f"the newest run is of code location {there}: left to the sensor there"
    return ""


def restart_config(run_config: Mapping[str, Any], *, op: str, claimed: bool) -> dict[str, Any]:
    """Return the failed run's config with ``restore_from: latest`` at ``op``, if it had taken over (``claimed``).

    One that failed before that has restored nothing: what it was to start from still stands. The other restore
    options go with what they belong to: after a fork has begun, ``latest`` is its own.
    """
    config = dict(run_config)
    if not claimed:
        return config
    ops = dict(config.get("ops", {}))
    kept = {k: v for k, v in ops.get(op, {}).get("config", {}).items() if k not in RestoreConfig.model_fields}
    if "checkpointing" in kept:
        kept["checkpointing"] = without_restore_options(kept["checkpointing"])
    ops[op] = {"config": {**kept, "restore_from": "latest"}}
    return {**config, "ops": ops}


def _facts(found: dg.RunRecord, record: CoordinatorRecord | None, now: float) -> LastRunFacts:
    """Return the facts of the newest run; one whose lease is long over has failed, whatever Dagster believes."""
    from dagster_ckpt.dagster.runs.turn import state_of_run

    run = found.dagster_run
    state, ended_at = state_of_run(run), found.end_time or found.update_timestamp.timestamp()
    lost = record is not None and record.owner == run.run_id and is_lost(record, now=now)
    if lost and record is not None and state is OwnerState.ALIVE:
        state, ended_at = OwnerState.FAILED, record.lease_until or now
    tag = run.tags.get(RESTARTS_TAG, "0")
    completed = record is not None and any(c.run_id == run.run_id for c in record.completed)
    return LastRunFacts(
        state=_LAST[state],
        run_id=run.run_id,
        ended_at=ended_at,
        restarts=int(tag) if tag.isdecimal() else 0,
        completed_a_checkpoint=completed,
    )
