"""Restart strategies, as Flink's tests have them."""

from __future__ import annotations

import pytest

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.streaming.restart import (
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    GiveUp,
    NoRestart,
    RestartAfter,
    RestartStrategy,
)


def delays(strategy: RestartStrategy, *failures: float, draw: float = 0.5) -> list[float | None]:
    """Seconds before the restart after each failure; None: it gives up."""
    found: list[float | None] = []
    for at in failures:
        decision = strategy.on_failure(at, draw)
        match decision:
            case RestartAfter(seconds, following):
                found.append(round(seconds, 6))
                strategy = following
            case GiveUp():
                found.append(None)
    return found


def test_without_a_strategy_the_first_failure_fails_the_run() -> None:
    """NoRestartBackoffTimeStrategyTest."""
    assert delays(NoRestart(), 0.0) == [None]


def test_a_fixed_number_of_restarts_comes_each_after_the_same_delay() -> None:
    """FixedDelayRestartBackoffTimeStrategyTest#testNumberOfRestarts."""
    assert delays(FixedDelay(attempts=3, delay=2.0), 0, 10, 20, 30) == [2.0, 2.0, 2.0, None]


def test_the_delay_grows_up_to_its_bound() -> None:
    """ExponentialDelayRestartBackoffTimeStrategyTest#testMaxBackoff."""
    strategy = ExponentialDelay(initial=1.0, maximum=5.0, multiplier=2.0, jitter=0.0)
    assert delays(strategy, 0, 10, 20, 30, 40) == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_after_a_quiet_time_the_delay_begins_anew() -> None:
    """ExponentialDelayRestartBackoffTimeStrategyTest#testResetBackoff."""
    strategy = ExponentialDelay(initial=1.0, maximum=9.0, multiplier=2.0, jitter=0.0, reset_after=100.0)
    assert delays(strategy, 0, 10, 200, 210) == [1.0, 2.0, 1.0, 2.0]


def test_attempts_without_a_quiet_time_are_bounded() -> None:
    """ExponentialDelayRestartBackoffTimeStrategyTest#testMaxAttempts."""
    strategy = ExponentialDelay(initial=1.0, jitter=0.0, attempts=2, reset_after=100.0)
    assert delays(strategy, 0, 10, 20) == [1.0, 1.5, None]
    assert delays(strategy, 0, 10, 500) == [1.0, 1.5, 1.0]


def test_the_jitter_spreads_the_delay_to_both_sides_within_the_bounds() -> None:
    """ExponentialDelayRestartBackoffTimeStrategyTest#testJitterAddedToBackoff."""
    strategy = ExponentialDelay(initial=1.0, maximum=100.0, multiplier=10.0, jitter=0.25)
    assert delays(strategy, 0, 10, draw=0.0) == [1.0, 7.5]
    assert delays(strategy, 0, 10, draw=0.999999) == pytest.approx([1.25, 12.5], rel=1e-4)


def test_more_failures_than_the_rate_allows_within_its_interval_fail_the_run() -> None:
    """FailureRateRestartBackoffTimeStrategyTest#testManyFailuresWithinRate, #testFailuresExceedingRate."""
    strategy = FailureRate(max_failures=2, interval=10.0, delay=0.5)
    assert delays(strategy, 0, 6, 12, 18, 24) == [0.5, 0.5, 0.5, 0.5, 0.5]
    assert delays(strategy, 0, 1, 2) == [0.5, 0.5, None]


@pytest.mark.parametrize(
    "make",
    [
        lambda: FixedDelay(attempts=-1),
        lambda: ExponentialDelay(initial=0.0),
        lambda: ExponentialDelay(initial=5.0, maximum=1.0),
        lambda: ExponentialDelay(multiplier=1.0),
        lambda: FailureRate(max_failures=0),
    ],
)
def test_settings_that_mean_nothing_are_refused(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidRequest):
        make()
