"""What is to be done about an attempt, by what Dagster knows of its run and what its lease says."""

from __future__ import annotations

from typing import Any

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.request import RunStatus
from dagster_ckpt.core.supervision.ownership import OVERDUE, EndAttempt, NoAction, OwnerState, judge_attempt

NOW = 10_000.0


def running(**fields: Any) -> CoordinatorRecord:
    return CoordinatorRecord(
        pipeline="p", epoch=2, owner="r", status=RunStatus.RUNNING, status_epoch=2, **fields
    )


def test_a_pipeline_that_rests_is_let_be_whatever_became_of_its_last_run() -> None:
    rests = running().model_copy(update={"status": RunStatus.SUSPENDED})
    for owner in OwnerState:
        assert isinstance(judge_attempt(rests, owner, now=NOW), NoAction), owner


def test_a_run_that_claimed_and_restores_is_not_taken_for_its_dead_predecessor() -> None:
    claimed = running().model_copy(update={"epoch": 3})
    assert isinstance(judge_attempt(claimed, OwnerState.ALIVE, now=NOW), NoAction)


def test_every_way_to_be_over_has_its_status() -> None:
    ends = {
        OwnerState.SUCCEEDED: RunStatus.SUSPENDED,
        OwnerState.FAILED: RunStatus.FAILED,
        OwnerState.FAILED_AND_RETRIED: RunStatus.SUSPENDED,
        OwnerState.CANCELED: RunStatus.CANCELED,
    }
    for owner, status in ends.items():
        judged = judge_attempt(running(), owner, now=NOW)
        assert isinstance(judged, EndAttempt)
        assert judged.status is status


def test_a_run_of_another_instance_is_over_when_its_lease_is_long_over() -> None:
    over, fresh = NOW - OVERDUE - 1, NOW - OVERDUE + 1
    judged = judge_attempt(running(lease_until=over), OwnerState.UNKNOWN, now=NOW)
    assert isinstance(judged, EndAttempt)
    assert judged.status is RunStatus.SUSPENDED
    assert isinstance(judge_attempt(running(lease_until=fresh), OwnerState.UNKNOWN, now=NOW), NoAction)
    assert isinstance(judge_attempt(running(), OwnerState.UNKNOWN, now=NOW), NoAction)


def test_a_run_dagster_believes_alive_is_ended_when_it_does_not_renew_its_lease_between_two_looks() -> None:
    silent = running(lease_until=NOW - 500)
    judged = judge_attempt(silent, OwnerState.ALIVE, now=NOW)
    assert isinstance(judged, NoAction)
    assert "has not renewed its lease for 8 min 20 s" in judged.why
    awake = judge_attempt(silent, OwnerState.ALIVE, now=NOW, lease_before=NOW - 503)
    assert isinstance(awake, NoAction), "it renewed its lease: its machine was asleep"
    ended = judge_attempt(silent, OwnerState.ALIVE, now=NOW, lease_before=NOW - 500)
    assert isinstance(ended, EndAttempt)
    assert ended.status is RunStatus.SUSPENDED
