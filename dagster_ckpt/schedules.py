"""Savepoints by the clock."""

from __future__ import annotations

import dagster as dg

from dagster_ckpt.options import SavepointSchedule
from dagster_ckpt.pipeline import CheckpointedPipeline
from dagster_ckpt.savepoint_job import savepoint_job_name
from dagster_ckpt.savepoint_retention import SCHEDULE_LABEL


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
        job_name=savepoint_job_name(pipeline),
        cron_schedule=schedule.cron_schedule,
        execution_timezone=schedule.timezone,
        description=f"Takes a savepoint of `{pipeline.name}`; {_bounds(schedule)}.",
        default_status=dg.DefaultScheduleStatus.STOPPED,
    )
    def take_savepoint(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        minute = f"{context.scheduled_execution_time:%Y-%m-%dT%H:%M}"
        config = {
            "name": f"{own} {minute}",
            "note": schedule.note,
            "labels": {**schedule.labels, SCHEDULE_LABEL: own},
            "target": schedule.target,
            "keep_last": schedule.keep_last or 0,
            "keep_for": 0.0 if schedule.keep_for is None else schedule.keep_for.total_seconds(),
            "wait_for_run": schedule.wait_for_run.total_seconds(),
        }
        return dg.RunRequest(run_key=f"{own}-{minute}", run_config={"ops": {"savepoint": {"config": config}}})

    return take_savepoint


def _bounds(schedule: SavepointSchedule) -> str:
    kept = [
        *([f"the newest {schedule.keep_last}"] if schedule.keep_last is not None else []),
        *([f"all of the last {schedule.keep_for}"] if schedule.keep_for is not None else []),
    ]
    return f"keeps {' and '.join(kept)}" if kept else "keeps all of them"
