"""Scheduled epochs and savepoints."""

from __future__ import annotations

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.label import SnapshotLabel
from dagster_ckpt.dagster.jobs.savepoint_retention import SCHEDULE_LABEL
from dagster_ckpt.dagster.names import RESTORE_OP, SAVEPOINT_OP, epoch_job_name, savepoint_job_name
from dagster_ckpt.dagster.options import EpochSchedule, SavepointSchedule


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
