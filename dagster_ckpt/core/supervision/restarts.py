"""Restarts of a pipeline whose run failed: exponential delay, bounded without progress."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dagster_ckpt.core.settings import refusing_unknown
from dagster_ckpt.core.units import duration
from dagster_ckpt.errors import InvalidRequest


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
