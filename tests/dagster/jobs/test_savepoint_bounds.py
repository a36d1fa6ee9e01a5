"""The bounds of scheduled savepoints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.dagster.options import SavepointRetention
from dagster_ckpt.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Taken:
    checkpoint_id: int
    completed_at: float = 0.0


sp = Taken


def ids(savepoints: Iterable[Taken]) -> list[int]:
    return [one.checkpoint_id for one in savepoints]


def test_savepoints_are_kept_by_count() -> None:
    policy = SavepointRetention(keep_last=2)
    assert ids(policy.expired([sp(1, 10), sp(2, 20), sp(3, 30)], now=99)) == [1]


def test_a_clock_that_was_set_back_makes_no_savepoint_old() -> None:
    policy = SavepointRetention(keep_last=2)
    assert ids(policy.expired([sp(2, 3600), sp(4, 3700), sp(6, 100), sp(8, 200)], now=200)) == [2, 4]


def test_savepoints_are_kept_by_age_but_the_newest_always() -> None:
    policy = SavepointRetention(keep_for=15)
    assert ids(policy.expired([sp(1, 10), sp(2, 20), sp(3, 30)], now=40)) == [1, 2]
    assert ids(policy.expired([sp(3, 30)], now=1e9)) == []


def test_a_savepoint_goes_only_when_it_is_outside_both_bounds() -> None:
    policy = SavepointRetention(keep_last=2, keep_for=15)
    savepoints = [sp(4, 38), sp(1, 10), sp(2, 20), sp(3, 30)]
    assert ids(policy.expired(savepoints, now=31)) == [1]
    assert ids(policy.expired(savepoints, now=40)) == [1, 2]


def test_savepoints_are_kept_for_ever_when_no_bound_is_set() -> None:
    assert SavepointRetention().expired([sp(1), sp(2)], now=1e12) == ()


def test_bounds_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="keep_last must be at least 1"):
        SavepointRetention(keep_last=0)
    with pytest.raises(InvalidRequest, match="keep_for must not be negative"):
        SavepointRetention(keep_for=-1)


def test_savepoints_are_thinned_out_by_hours_and_days() -> None:
    hour, day = 3600.0, 86400.0
    at = {1: 0.0, 2: day, 3: day + hour, 4: 2 * day, 5: 2 * day + 60, 6: 2 * day + hour}
    taken = [sp(number, when) for number, when in at.items()]
    gone = SavepointRetention(keep_last=1, keep_hourly=2, keep_daily=2).expired(taken, now=9 * day)
    assert [s.checkpoint_id for s in gone] == [1, 2, 4], "3 is the day's newest, 5 and 6 their hours'"


@given(
    moments=st.lists(st.floats(0, 40 * 86400), min_size=1, max_size=30, unique=True),
    hourly=st.integers(1, 30),
    daily=st.integers(1, 10),
)
def test_thinning_out_keeps_one_of_each_period_and_nothing_comes_back(
    moments: list[float], hourly: int, daily: int
) -> None:
    taken = [sp(number, when) for number, when in enumerate(sorted(moments), start=1)]
    rule = SavepointRetention(keep_hourly=hourly, keep_daily=daily)
    gone = rule.expired(taken, now=50 * 86400)
    kept = [s for s in taken if s not in gone]
    assert taken[-1] in kept
    assert len(kept) <= hourly + daily
    days = sorted({s.completed_at // 86400 for s in taken})[-daily:]
    assert {s.completed_at // 86400 for s in kept} >= set(days)
    assert rule.expired(kept, now=50 * 86400) == (), "what was kept is kept when it is looked at again"
