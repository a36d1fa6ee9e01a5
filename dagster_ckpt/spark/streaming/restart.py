"""Restart strategies: whether and when a run whose stage died goes on inside the same Dagster run.

Source: flink-runtime FixedDelayRestartBackoffTimeStrategy, ExponentialDelayRestartBackoffTimeStrategy,
FailureRateRestartBackoffTimeStrategy (their tests are named in ours). Values: ``now`` in seconds in, delay out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

from dagster_ckpt.core.units import counted
from dagster_ckpt.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class RestartAfter:
    """Restart in so many seconds; ask ``strategy`` about the next failure."""

    seconds: float
    strategy: RestartStrategy


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Fail the run; ``why`` is one sentence."""

    why: str


class RestartStrategy(Protocol):
    """A value that is replaced with every failure."""

    def on_failure(self, now: float, draw: float = 0.5) -> RestartAfter | GiveUp:
        """Return the answer to a failure at ``now``; ``draw`` in [0, 1) spreads delays that have a jitter."""
        ...


@dataclass(frozen=True, slots=True)
class NoRestart:
    """Every failure fails the run."""

    def on_failure(self, now: float, draw: float = 0.5) -> RestartAfter | GiveUp:
        """Give up."""
        return GiveUp("the restart strategy is none")


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedDelay:
    """So many restarts in all, each after the same delay."""

    attempts: int = 1
    delay: float = 1.0
    used: int = 0

    def __post_init__(self) -> None:
        _check(self.attempts >= 0 and self.delay >= 0, "fixed_delay needs attempts >= 0 and delay >= 0")

    def on_failure(self, now: float, draw: float = 0.5) -> RestartAfter | GiveUp:
        """Restart while attempts are left."""
        if self.used >= self.attempts:
            return GiveUp(f"{self.attempts} restarts are used up")
        return RestartAfter(self.delay, replace(self, used=self.used + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialDelay:
    """The delay grows with every failure, up to a bound, and is reset after a quiet time."""

    initial: float = 1.0
    maximum: float = 60.0
    multiplier: float = 1.5
    reset_after: float = 3600.0
    """Seconds without failure after which the delay is the initial one again."""
    jitter: float = 0.1
    """Share of the delay by which it is spread to both sides."""
    attempts: int | None = None
    """Restarts without a quiet time in between; None: no limit."""
    current: float | None = None
    used: int = 0
    last_restart: float | None = None

    def __post_init__(self) -> None:
        _check(
            0 < self.initial <= self.maximum and self.multiplier > 1,
            "exponential_delay needs 0 < initial <= maximum and multiplier > 1",
        )
        _check(0 <= self.jitter <= 1 and self.reset_after >= 0, "exponential_delay needs 0 <= jitter <= 1")

    def on_failure(self, now: float, draw: float = 0.5) -> RestartAfter | GiveUp:
        """Restart, later each time."""
        quiet = self.last_restart is not None and now - self.last_restart >= self.reset_after
        base = replace(self, current=None, used=0) if quiet else self
        if base.attempts is not None and base.used >= base.attempts:
            return GiveUp(f"{base.attempts} restarts are used up without {base.reset_after:g} s of quiet")
        delay = base.initial if base.current is None else min(base.maximum, base.current * base.multiplier)
        spread = min(base.maximum, max(base.initial, delay * (1 + base.jitter * (2 * draw - 1))))
        after = replace(base, current=delay, used=base.used + 1, last_restart=now + spread)
        return RestartAfter(spread, after)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate:
    """So many failures within a time are survived."""

    max_failures: int = 1
    interval: float = 60.0
    delay: float = 1.0
    failures: tuple[float, ...] = field(default=())

    def __post_init__(self) -> None:
        _check(
            self.max_failures >= 1 and self.interval > 0 and self.delay >= 0,
            "failure_rate needs max_failures >= 1, interval > 0 and delay >= 0",
        )

    def on_failure(self, now: float, draw: float = 0.5) -> RestartAfter | GiveUp:
        """Restart unless there were too many failures lately."""
        recent = tuple(at for at in (*self.failures, now) if now - at <= self.interval)
        if len(recent) > self.max_failures:
            return GiveUp(f"{counted(len(recent), 'failure')} within {self.interval:g} s")
        return RestartAfter(self.delay, replace(self, failures=recent))


def _check(holds: bool, text: str) -> None:
    if not holds:
        raise InvalidRequest(text)
