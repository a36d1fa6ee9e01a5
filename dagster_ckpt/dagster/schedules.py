"""Schedules of epochs, savepoints, verification and dry runs: the latter of the newest savepoint, then a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.model import SnapshotLabel
from dagster_ckpt.dagster.checks.chosen_snapshot import NEWEST_SAVEPOINT
from dagster_ckpt.dagster.jobs.dispose import SCHEDULE_LABEL
from dagster_ckpt.dagster.names import (
    CARE_OP,
    CONCURRENCY_TAG,
    RESTORE_OP,
    SAVEPOINT_OP,
    CareAction,
    RestoreMode,
    care_job_name,
    epoch_job_name,
    restore_job_name,
    savepoint_job_name,
)
from dagster_ckpt.dagster.options import EpochSchedule, PipelineOptions, SavepointSchedule
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.dagster.sensors.shared import BoundCoordinator
from dagster_ckpt.errors import CheckpointError


def savepoint_schedule_name(pipeline: CheckpointedPipeline) -> str:
    """Return the name of a pipeline's savepoint schedule."""
    return f"{pipeline.name}_savepoint_schedule"


def build_savepoint_schedule(
    pipeline: CheckpointedPipeline,
    schedule: SavepointSchedule,
    *,
    name: str = "",
) -> dg.ScheduleDefinition:
    """Return the schedule that launches the pipeline's savepoint job; switched off until enabled.

    Args:
        pipeline: whose savepoints.
        schedule: when, where to, and the bounds: a savepoint of this schedule is disposed of after a newer one
            completed, once it is outside every bound that is set. Others are never touched.
        name: for a second schedule of the same pipeline (daily and monthly, say); each has bounds of its own.
    """
    own = name or savepoint_schedule_name(pipeline)

    @dg.schedule(
        name=own,
        job_name=savepoint_job_name(pipeline.name),
        cron_schedule=schedule.cron_schedule,
        execution_timezone=schedule.timezone,
        description=f"Takes a savepoint of `{pipeline.name}`; {_bounds(schedule)}.",
        default_status=dg.DefaultScheduleStatus.STOPPED,
    )
    def take_savepoint(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        minute = f"{context.scheduled_execution_time:%Y-%m-%dT%H:%M}"
        labels = {**schedule.labels, SCHEDULE_LABEL: own}
        label = SnapshotLabel(name=f"{own} {minute}", labels=labels, note=schedule.note)
        config = {
            **label.fields(),
            "target": schedule.target,
            "keep_last": schedule.keep_last or 0,
            "keep_for": 0.0 if schedule.keep_for is None else schedule.keep_for.total_seconds(),
            **({} if schedule.keep_hourly is None else {"keep_hourly": schedule.keep_hourly}),
            **({} if schedule.keep_daily is None else {"keep_daily": schedule.keep_daily}),
            "wait_for_run": schedule.wait_for_run.total_seconds(),
        }
        return dg.RunRequest(
            run_key=f"{own}-{minute}", run_config={"ops": {SAVEPOINT_OP: {"config": config}}}
        )

    return take_savepoint


def _bounds(schedule: SavepointSchedule) -> str:
    kept = [
        *([f"the newest {schedule.keep_last}"] if schedule.keep_last is not None else []),
        *([f"all of the last {schedule.keep_for}"] if schedule.keep_for is not None else []),
        *([f"one of each of {schedule.keep_hourly} hours"] if schedule.keep_hourly is not None else []),
        *([f"one of each of {schedule.keep_daily} days"] if schedule.keep_daily is not None else []),
    ]
    return f"keeps {' and '.join(kept)}" if kept else "keeps all of them"


def build_epoch_schedule(pipeline: CheckpointedPipeline, schedule: EpochSchedule) -> dg.ScheduleDefinition:
    """Return the schedule that launches an epoch; switched off until enabled."""
    name = f"{pipeline.name}_epoch_schedule"

    @dg.schedule(
        name=name,
        job_name=epoch_job_name(pipeline.name),
        cron_schedule=schedule.cron,
        execution_timezone=schedule.timezone,
        description=f"Runs an epoch of `{pipeline.name}`; where another run is alive: {schedule.concurrent_runs}.",
        default_status=dg.DefaultScheduleStatus.STOPPED,
    )
    def run_epoch(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        config = {"concurrent_runs": schedule.concurrent_runs}
        return dg.RunRequest(
            run_key=f"{name}-{context.scheduled_execution_time:%Y-%m-%dT%H:%M}",
            run_config={"ops": {RESTORE_OP: {"config": config}}},
        )

    return run_epoch


def build_check_schedules(
    pipeline: PipelineId, options: PipelineOptions, coordinator: CheckpointCoordinatorResource
) -> Iterator[dg.ScheduleDefinition]:
    """Yield the schedules of checks that options ask for; switched off until enabled."""
    bound = BoundCoordinator(coordinator)

    def to_verify(instance: dg.DagsterInstance) -> tuple[str, ...]:
        from dagster_ckpt.runtime.record_store import RecordStore

        try:
            record = RecordStore(bound.of(instance).store()).record(pipeline)
        except CheckpointError:  # the run says what is wrong
            record = None
        return ("latest",) if record is not None and not record.savepoints else (NEWEST_SAVEPOINT, "latest")

    if options.verify_every:
        yield _schedule(
            f"{pipeline}_verify_schedule",
            care_job_name(pipeline),
            options.verify_every,
            lambda instance: [
                {CARE_OP: {"config": {"action": CareAction.VERIFY.value, "checkpoint": one}}}
                for one in to_verify(instance)
            ],
            does="Reads back every file of the newest savepoint, then of the latest checkpoint",
        )
    if options.dry_run_every:
        tried = {"mode": RestoreMode.DRY_RUN.value, "restore_from": NEWEST_SAVEPOINT}
        yield _schedule(
            f"{pipeline}_dry_run_schedule",
            restore_job_name(pipeline),
            options.dry_run_every,
            lambda _: [{RESTORE_OP: {"config": tried}}],
            does="Tries the restore of the newest savepoint in a scratch directory",
            # it runs beside the pipeline: limits of Dagster's queue that are the pipeline's do not hold it up
            tags={CONCURRENCY_TAG: f"{pipeline}/{RestoreMode.DRY_RUN}"},
        )


def _schedule(
    name: str,
    job: str,
    cron: str,
    wanted: Callable[[dg.DagsterInstance], Sequence[Mapping[str, Any]]],
    *,
    does: str,
    tags: Mapping[str, str] | None = None,
) -> dg.ScheduleDefinition:
    """Return a schedule that launches ``job`` with each config of ops that is ``wanted``."""

    @dg.schedule(
        name=name,
        job_name=job,
        cron_schedule=cron,
        description=f"{does}, with job `{job}`.",
        default_status=dg.DefaultScheduleStatus.STOPPED,
    )
    def run_checks(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest]:
        minute = f"{context.scheduled_execution_time:%Y-%m-%dT%H:%M}"
        return [
            dg.RunRequest(run_key=f"{name}-{minute}-{number}", run_config={"ops": ops}, tags=tags)
            for number, ops in enumerate(wanted(context.instance))
        ]

    return run_checks
