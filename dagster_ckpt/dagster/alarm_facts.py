"""Facts behind the alarm and the age checks, read from the history."""

from __future__ import annotations

from dataclasses import replace

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.supervision.alarms import AlarmFacts, FailureStreak, failure_streak
from dagster_ckpt.ports import CoordinatorStore
from dagster_ckpt.runtime.history import parse_row
from dagster_ckpt.runtime.record_store import RecordStore

ROWS = 25
"""Newest rows of the history a tick looks at, at least."""


def alarm_facts(store: CoordinatorStore, pipeline: PipelineId, *, now: float) -> AlarmFacts | None:
    """Return the history's facts; None for a pipeline that has not run. Its cost does not grow with the history."""
    records = RecordStore(store)
    record = records.record(pipeline)
    if record is None:
        return None
    rows = records.rows(pipeline, limit=ROWS)
    streak = failure_streak(numbers for row in rows if (numbers := parse_row(row)) is not None)
    return AlarmFacts(
        streak=_completed_by_record(streak, record),
        began_at=min((row.triggered_at for row in rows), default=None),
        now=now,
    )


def _completed_by_record(streak: FailureStreak, record: CoordinatorRecord) -> FailureStreak:
    """A streak longer than the rows looked at does not reach the completion before it: the record knows that one."""
    if streak.completed_id:
        return streak
    newest = max((*record.completed, *record.savepoints), key=lambda c: c.checkpoint_id, default=None)
    if newest is None:
        return replace(streak, completed_id=record.latest_completed or 0)
    return replace(streak, completed_id=newest.checkpoint_id, completed_at=newest.completed_at)
