"""Scheduled savepoints."""

from __future__ import annotations

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.label import SnapshotLabel
from dagster_ckpt.dagster.jobs.savepoint_retention import SCHEDULE_LABEL
from dagster_ckpt.dagster.names import SAVEPOINT_OP, savepoint_job_name
from dagster_ckpt.dagster.options import SavepointSchedule


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
    ]
    return f"keeps {' and '.join(kept)}" if kept else "keeps all of them"
