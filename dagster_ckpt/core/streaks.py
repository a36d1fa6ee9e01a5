"""How the last checkpoints went: failures since the last completion, read off the history."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dagster_ckpt.core.reasons import CheckpointFailureReason
from dagster_ckpt.core.statistics import CheckpointStatistics, CheckpointStatus

_SAY_NOTHING = frozenset(
    {
        CheckpointFailureReason.CHECKPOINT_SUBSUMED,
        CheckpointFailureReason.CHECKPOINT_DECLINED_SUBSUMED,
        CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_CLOSING,
        CheckpointFailureReason.CHECKPOINT_DECLINED_INPUT_END_OF_STREAM,
        CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN,
        CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND,
        CheckpointFailureReason.PERIODIC_SCHEDULER_SHUTDOWN,
    }
)
"""Reasons of a healthy pipeline that was stopped or overtaken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureStreak:
    """Failed checkpoints since the last completed checkpoint or savepoint."""

    count: int
    latest: CheckpointStatistics | None
    """The newest of them; None: there is none."""
    first_failed_at: float | None
    """Seconds since the Unix epoch."""
    completed_id: int
    """Newest completion before them; 0: none is known."""
    completed_at: float | None

    @property
    def stages(self) -> tuple[str, ...]:
        """Stages the newest failed checkpoint was still waiting for."""
        return () if self.latest is None else outstanding_stages(self.latest)


def outstanding_stages(statistics: CheckpointStatistics) -> tuple[str, ...]:
    """Return the stages that had not acknowledged when a checkpoint ended."""
    return tuple(s.uid for s in statistics.stages if s.acknowledged < s.subtasks)


def failure_streak(newest_first: Iterable[CheckpointStatistics]) -> FailureStreak:
    """Return the failures up to the newest completion; savepoints that failed and stops do not count."""
    failed: list[CheckpointStatistics] = []
    for row in newest_first:
        match row.status:
            case CheckpointStatus.IN_PROGRESS:
                continue
            case CheckpointStatus.FAILED:
                if not row.kind.is_savepoint and _is_telling(row):
                    failed.append(row)
            case _:
                return _streak(failed, row)
    return _streak(failed, None)


def _streak(failed: list[CheckpointStatistics], completed: CheckpointStatistics | None) -> FailureStreak:
    return FailureStreak(
        count=len(failed),
        latest=failed[0] if failed else None,
        first_failed_at=failed[-1].ended_at if failed else None,
        completed_id=0 if completed is None else completed.checkpoint_id,
        completed_at=None if completed is None else completed.ended_at,
    )


def _is_telling(row: CheckpointStatistics) -> bool:
    reason = CheckpointFailureReason.__members__.get(row.failure_reason)
    return reason not in _SAY_NOTHING
