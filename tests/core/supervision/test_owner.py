"""Whether the run that owns a pipeline is alive, and what another run does about it."""

from __future__ import annotations

import pytest

from dagster_ckpt.core.checkpoint.lease import LEASE, NEXT_PROCESS, LeaseWatch
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.request import RunStatus
from dagster_ckpt.core.supervision.ownership import (
    Alive,
    ConcurrentRuns,
    Dead,
    EndSkipped,
    Owner,
    OwnerState,
    Proceed,
    Silent,
    WaitFor,
    decide_turn,
    judge_owner,
)
from dagster_ckpt.errors import InvalidRequest

NOW = 1000.0
ENDED = [state for state in OwnerState if state.is_over]
NOT_ENDED = [OwnerState.ALIVE, OwnerState.UNKNOWN]


def record(lease_until: float | None = None, **given: object) -> CoordinatorRecord:
    values = {"status": RunStatus.RUNNING, "epoch": 1, "status_epoch": 1, "lease_until": lease_until, **given}
    return CoordinatorRecord(pipeline="orders", owner="first").model_copy(update=values)


@pytest.mark.parametrize("state", NOT_ENDED)
def test_a_run_that_holds_its_lease_is_alive_and_one_that_does_not_is_silent(state: OwnerState) -> None:
    assert judge_owner(record(NOW + 1), state, now=NOW) == Alive("first", True, NOW + 1)
    epoch = record(NOW + 1, has_mailbox=False)
    assert judge_owner(epoch, state, now=NOW) == Alive("first", False, NOW + 1)
    assert judge_owner(record(NOW - 1), state, now=NOW) == Silent("first")


def test_a_run_that_waits_for_its_next_process_is_alive() -> None:
    assert judge_owner(record(NOW + NEXT_PROCESS), OwnerState.UNKNOWN, now=NOW) == Alive(
        "first", True, NOW + NEXT_PROCESS
    )


def test_a_lease_of_a_clock_far_ahead_tells_nothing_and_one_that_is_renewed_does() -> None:
    ahead = record(NOW + 3600)
    assert judge_owner(ahead, OwnerState.UNKNOWN, now=NOW) == Silent("first")
    watch = LeaseWatch.of(ahead, 0.0).seen(record(NOW + 3603), 3.0)
    assert watch.was_renewed
    alive = Alive("first", True, NOW + 3603)
    assert judge_owner(record(NOW + 3603), OwnerState.UNKNOWN, now=NOW, was_renewed=True) == alive
    assert not LeaseWatch.of(ahead, 0.0).seen(record(NOW + 3603, epoch=2), 3.0).was_renewed


@pytest.mark.parametrize("state", ENDED)
def test_a_run_whose_end_dagster_saw_is_dead_whatever_its_lease_says(state: OwnerState) -> None:
    assert judge_owner(record(NOW + 60), state, now=NOW) == Dead()


def test_a_run_that_claimed_and_still_starts_is_alive() -> None:
    starts = record(NOW + 1, epoch=2, status=RunStatus.SUSPENDED)
    assert judge_owner(starts, OwnerState.ALIVE, now=NOW) == Alive("first", True, NOW + 1)
    late = record(NOW - 1, epoch=2, status=RunStatus.SUSPENDED)
    assert judge_owner(late, OwnerState.ALIVE, now=NOW) == Silent("first")


def test_an_idle_pipeline_has_no_owner() -> None:
    assert judge_owner(None, OwnerState.UNKNOWN, now=NOW) == Dead()
    assert judge_owner(record(status=RunStatus.SUSPENDED), OwnerState.ALIVE, now=NOW) == Dead()
    ended_by_a_sensor = record(NOW - 1, status=RunStatus.SUSPENDED)
    assert judge_owner(ended_by_a_sensor, OwnerState.ALIVE, now=NOW) == Dead()


def test_of_a_run_of_a_version_without_leases_dagsters_word_counts() -> None:
    assert judge_owner(record(), OwnerState.ALIVE, now=NOW) == Alive("first", False, None)
    assert judge_owner(record(), OwnerState.UNKNOWN, now=NOW) == Dead()


def test_a_lease_is_over_when_nobody_renewed_it_for_as_long_as_it_lasts_by_the_clock_of_who_waits() -> None:
    watch = LeaseWatch.of(record(NOW), 50.0)
    assert not watch.seen(record(NOW), 50.0 + LEASE - 0.1).is_silent(50.0 + LEASE - 0.1)
    assert watch.seen(record(NOW), 50.0 + LEASE).is_silent(50.0 + LEASE)
    renewed = watch.seen(record(NOW + 3), 55.0)
    assert not renewed.is_silent(50.0 + LEASE)
    restarted = watch.seen(record(NOW, epoch=2), 55.0)
    assert not restarted.is_silent(50.0 + LEASE)


ALIVE, SILENT = Alive("first", False, NOW), Silent("first")


@pytest.mark.parametrize(
    ("choice", "owner", "expected"),
    [
        *((choice, Dead(), Proceed()) for choice in ConcurrentRuns),
        (ConcurrentRuns.QUEUE, ALIVE, WaitFor(ALIVE)),
        (ConcurrentRuns.SKIP, ALIVE, EndSkipped(ALIVE)),
        (ConcurrentRuns.TAKE_OVER, ALIVE, Proceed()),
        (ConcurrentRuns.QUEUE, SILENT, WaitFor(SILENT)),
        (ConcurrentRuns.SKIP, SILENT, WaitFor(SILENT)),
        (ConcurrentRuns.TAKE_OVER, SILENT, Proceed()),
    ],
)
def test_every_choice_has_its_treatment_of_the_run_that_is_there(
    choice: ConcurrentRuns, owner: Owner, expected: object
) -> None:
    assert decide_turn(choice, owner, is_silent=False, is_retry=False) == expected


@pytest.mark.parametrize("choice", ConcurrentRuns)
def test_a_run_that_stayed_silent_is_taken_over(choice: ConcurrentRuns) -> None:
    assert decide_turn(choice, SILENT, is_silent=True, is_retry=False) == Proceed()


def test_a_retry_does_not_give_way_to_the_run_it_retries() -> None:
    assert decide_turn(ConcurrentRuns.SKIP, ALIVE, is_silent=False, is_retry=True) == WaitFor(ALIVE)


def test_the_run_chooses_over_the_pipeline_and_the_pipeline_over_the_resource() -> None:
    assert ConcurrentRuns.of() is ConcurrentRuns.QUEUE
    assert ConcurrentRuns.of("skip", "", "") is ConcurrentRuns.SKIP
    assert ConcurrentRuns.of("skip", "queue", "") is ConcurrentRuns.QUEUE
    assert ConcurrentRuns.of("skip", "queue", "TAKE-OVER") is ConcurrentRuns.TAKE_OVER
    with pytest.raises(
        InvalidRequest, match="concurrent_runs must be one of queue, skip, take_over, got 'wait'"
    ):
        ConcurrentRuns.of("wait")
