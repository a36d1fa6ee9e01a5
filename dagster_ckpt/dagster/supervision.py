"""Alarms about failing checkpoints, one when an episode starts and one when it is over; restarts of a failed run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics, CheckpointStatus
from dagster_ckpt.core.messages import CheckpointFailureReason
from dagster_ckpt.core.settings import refusing_unknown
from dagster_ckpt.core.units import counted, duration
from dagster_ckpt.errors import InvalidRequest


class AlarmKind(StrEnum):
    """Kind of an alarm."""

    FAILURES = "failures"
    """So many checkpoints in a row have failed."""
    AGE = "age"
    """No checkpoint has completed for too long."""
    HORIZON = "horizon"
    """A retained snapshot stops being restorable within days, or has; told once, and never cleared."""


class AlarmState(StrEnum):
    """State of an alarm: raised or cleared."""

    RAISED = "raised"
    CLEARED = "cleared"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmPolicy:
    """Thresholds of the alarms. Raises InvalidRequest for values that would always raise one."""

    after_failures: int | None = 3
    """Consecutive failed checkpoints; None: never on their account."""
    max_age: float | None = None
    """Seconds since the newest completion; None: never on its account."""

    def __post_init__(self) -> None:
        if self.after_failures is not None and self.after_failures < 1:
            raise InvalidRequest(f"after_failures must be at least 1, got {self.after_failures}")
        if self.max_age is not None and self.max_age <= 0:
            raise InvalidRequest(f"max_age must be more than 0 seconds, got {self.max_age}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEpisodes:
    """Open episodes, which people know of: kind → newest completion when it started."""

    failures: int | None = None
    age: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmFacts:
    """Facts about a pipeline at a tick."""

    streak: FailureStreak
    began_at: float | None
    """When its first known checkpoint was triggered: the age counts from here where none has completed."""
    now: float
    """Seconds since the Unix epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """One message to people."""

    kind: AlarmKind
    state: AlarmState
    failures: int
    """Consecutive failed checkpoints."""
    age: float | None
    """Seconds since the newest completion, or since the pipeline's first checkpoint."""
    checkpoint_id: int | None
    """The newest failed checkpoint; None: none has failed."""
    completed_id: int
    """The newest completed one; 0: none is known."""
    reason: str = ""
    """Name of the failure reason."""
    message: str = ""
    stages: tuple[str, ...] = ()
    """Stages that had not acknowledged."""
    run_id: str = ""

    @property
    def sentence(self) -> str:
        """The alarm in one sentence."""
        if self.state is AlarmState.CLEARED:
            return f"checkpoints complete again: the newest is {self.completed_id}"
        if self.kind is AlarmKind.HORIZON:
            return self.message
        if self.kind is AlarmKind.AGE:
            newest = f"the newest is {self.completed_id}" if self.completed_id else "there is none yet"
            return f"no checkpoint has completed for {duration(self.age or 0.0)} ({newest})"
        where = f" at stage {', '.join(self.stages)}" if self.stages else ""
        return (
            f"{counted(self.failures, 'checkpoint has', 'checkpoints in a row have')} failed, "
            f"the last ({self.checkpoint_id}){where}: "
            f"{self.message or self.reason}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmDecision:
    """Whom to tell what, and what to remember when they have been told."""

    announce: tuple[Alarm, ...]
    open: OpenEpisodes


def judge_alarms(policy: AlarmPolicy, facts: AlarmFacts, told: OpenEpisodes) -> AlarmDecision:
    """Return the alarms to be announced now.

    An episode is known by the completion before it, so two of them with a success in between are two alarms even
    where no tick saw the success.
    """
    since = facts.streak.completed_id
    announce: list[Alarm] = []
    for kind, is_bad in (
        (AlarmKind.FAILURES, _too_many(policy, facts)),
        (AlarmKind.AGE, _too_old(policy, facts)),
    ):
        known = told.failures if kind is AlarmKind.FAILURES else told.age
        if is_bad and known != since:
            announce.append(_alarm(kind, AlarmState.RAISED, facts))
            told = _with(told, kind, since)
        elif not is_bad and known is not None:
            if known != since:
                announce.append(_alarm(kind, AlarmState.CLEARED, facts))
            told = _with(told, kind, None)
    return AlarmDecision(announce=tuple(announce), open=told)


def _with(told: OpenEpisodes, kind: AlarmKind, since: int | None) -> OpenEpisodes:
    return replace(told, failures=since) if kind is AlarmKind.FAILURES else replace(told, age=since)


def age_of(facts: AlarmFacts) -> float | None:
    """Return the seconds since the newest completion, or since the first checkpoint; None: there was none."""
    start = facts.streak.completed_at if facts.streak.completed_at is not None else facts.began_at
    return None if start is None else max(0.0, facts.now - start)


def _too_many(policy: AlarmPolicy, facts: AlarmFacts) -> bool:
    return policy.after_failures is not None and facts.streak.count >= policy.after_failures


def _too_old(policy: AlarmPolicy, facts: AlarmFacts) -> bool:
    age = age_of(facts)
    return policy.max_age is not None and age is not None and age > policy.max_age


def _alarm(kind: AlarmKind, state: AlarmState, facts: AlarmFacts) -> Alarm:
    latest = facts.streak.latest
    return Alarm(
        kind=kind,
        state=state,
        failures=facts.streak.count,
        age=age_of(facts),
        checkpoint_id=None if latest is None else latest.checkpoint_id,
        completed_id=facts.streak.completed_id,
        reason="" if latest is None else latest.failure_reason,
        message="" if latest is None else latest.failure_message,
        stages=facts.streak.stages,
        run_id="" if latest is None else latest.run_id,
    )


_IGNORED_REASONS = frozenset(
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
                if not row.kind.is_savepoint and _counts_as_failure(row):
                    failed.append(row)
            case _:
                return _streak(failed, row)
    return _streak(failed, None)


def _streak(failed: list[CheckpointStatistics], completed: CheckpointStatistics | None) -> FailureStreak:
    return FailureStreak(
        count=len(failed),
        latest=failed[0] if failed else None,
        completed_id=0 if completed is None else completed.checkpoint_id,
        completed_at=None if completed is None else completed.ended_at,
    )


def _counts_as_failure(row: CheckpointStatistics) -> bool:
    reason = CheckpointFailureReason.__members__.get(row.failure_reason)
    return reason not in _IGNORED_REASONS


# --- restarts of a failed run ----------------------------------------------------------------------------------


@refusing_unknown
@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Restart policy: how often and how soon. Raises InvalidRequest for values that mean nothing."""

    max_restarts: int = 3
    """In a row, without a completed checkpoint in between."""
    delay: float = 10.0
    """Seconds from the failure to the first restart."""
    multiplier: float = 2.0
    max_delay: float = 600.0

    def __post_init__(self) -> None:
        if self.max_restarts < 1:
            raise InvalidRequest(f"max_restarts must be at least 1, got {self.max_restarts}")
        if self.delay < 0 or self.max_delay < self.delay or self.multiplier < 1:
            raise InvalidRequest("restarts need 0 <= delay <= max_delay and multiplier >= 1")

    def delay_before(self, number: int) -> float:
        """Return the seconds before restart ``number`` (1, 2, …)."""
        return float(min(self.max_delay, self.delay * self.multiplier ** min(number - 1, 64)))


class LastRun(StrEnum):
    """State of a pipeline's newest run."""

    NONE = "none"
    GOING_ON = "going_on"
    ENDED_WELL = "ended_well"
    """Succeeded, or terminated by a person."""
    FAILED = "failed"
    FAILED_AND_RETRIED = "failed_and_retried"
    """Dagster itself retries it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRunFacts:
    """Facts about the newest run."""

    state: LastRun
    run_id: str = ""
    ended_at: float = 0.0
    """Seconds since the Unix epoch."""
    restarts: int = 0
    """It was this many-th restart in a row; 0: people or schedules started it."""
    completed_a_checkpoint: bool = False


@dataclass(frozen=True, slots=True)
class RestartDeclined:
    """Nothing to restart; ``why`` is for people."""

    why: str


@dataclass(frozen=True, slots=True)
class RestartLater:
    """Not before ``at`` (seconds since the Unix epoch)."""

    at: float
    why: str


@dataclass(frozen=True, slots=True)
class RestartNow:
    """Start it; it is restart ``number`` in a row."""

    number: int


RestartDecision = RestartDeclined | RestartLater | RestartNow


_NOT_FAILED = {
    LastRun.NONE: "the pipeline has not run yet",
    LastRun.GOING_ON: "run {} is going on",
    LastRun.ENDED_WELL: "run {} did not fail",
    LastRun.FAILED_AND_RETRIED: "Dagster retries run {} itself",
}


def decide_restart(policy: RestartPolicy, last: LastRunFacts, *, now: float) -> RestartDecision:
    """Return the decision about the newest run."""
    if last.state is not LastRun.FAILED:
        return RestartDeclined(_NOT_FAILED[last.state].format(last.run_id))
    before = 0 if last.completed_a_checkpoint else last.restarts
    if before >= policy.max_restarts:
        return RestartDeclined(
            f"run {last.run_id} failed, and {before} restarts in a row completed no checkpoint: "
            "repair the cause and start the pipeline yourself"
        )
    at = last.ended_at + policy.delay_before(before + 1)
    if at > now:
        return RestartLater(at, f"run {last.run_id} failed: restart {before + 1} in {duration(at - now)}")
    return RestartNow(before + 1)
