"""Scenarios of Flink's own tests that no other file here names, each as its test plays it."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_ckpt.core.checkpoint.requests import NotStopped
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatus
from dagster_ckpt.core.checkpoint.tasks import StageStatus
from dagster_ckpt.core.messages import CheckpointFailureReason as Reason
from dagster_ckpt.core.model import SnapshotMetrics
from dagster_ckpt.core.request import Queued, Rejected, Triggered
from dagster_ckpt.core.restore.choice import Restore
from dagster_ckpt.testing.coordinator.events import RecordingHook, RecordingOperatorCoordinator
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness
from tests.coordinator.scenarios import two

MANY = 2**31 - 1

# --- triggering ---------------------------------------------------------------------------------------------


def test_a_periodic_request_that_waited_for_its_turn_waits_for_the_pause_too() -> None:
    """CheckpointCoordinatorTest#testMinCheckpointPause."""
    h = CoordinatorHarness(interval=1.0, min_pause=1.0)
    first = h.trigger(periodic=True)
    assert isinstance(first, Triggered)
    assert isinstance(h.trigger(periodic=True), Queued)
    h.acknowledge_all(first.id)
    assert (h.pending, h.rejected) == ([], [Reason.MINIMUM_TIME_BETWEEN_CHECKPOINTS])
    h.advance(0.5)
    assert h.pending == []
    h.advance(0.5)
    assert h.pending == [2]


def test_the_storage_is_not_asked_where_no_plan_is_possible() -> None:
    """CheckpointCoordinatorTest#testCheckpointAbortsIfTriggerTasksAreFinishedAndIOException."""
    h = two(checkpoints_after_tasks_finish=False)
    h.finish("a")
    h.fail_next_location()
    h.trigger()
    assert (h.pending, h.rejected) == ([], [Reason.NOT_ALL_REQUIRED_TASKS_RUNNING])
    assert (h.failure_counter, h.job_failures) == (0, [])


def test_a_periodic_trigger_is_an_io_error_only_once_all_tasks_run() -> None:
    """CheckpointCoordinatorTest#testIOExceptionForPeriodicSchedulingWithInactiveTasks."""
    h = two(interval=1000.0, running=False)
    h.report("b", StageStatus.DEPLOYING)
    h.start_periodic()
    h.fail_next_location()
    early = h.trigger(periodic=True)
    assert isinstance(early, Rejected)
    assert early.reason is Reason.NOT_ALL_REQUIRED_TASKS_RUNNING
    h.report("b", StageStatus.RUNNING)
    late = h.trigger(periodic=True)
    assert isinstance(late, Rejected)
    assert late.reason is Reason.IO_EXCEPTION
    assert h.pending == []


@pytest.mark.parametrize("interval", [None, 1000.0])
def test_a_manual_checkpoint_needs_no_timer_and_is_not_held_by_one(interval: float | None) -> None:
    """ManualCheckpointITCase#testTriggeringWhenPeriodicDisabled, #testTriggeringWhenPeriodicEnabled."""
    h = two(interval=interval)
    assert h.completed_checkpoint() in h.completed


def test_nothing_is_made_for_checkpoints_before_the_first_and_nothing_by_a_savepoint() -> None:
    """CheckpointCoordinatorTest#testBaseLocationsNotInitialized,
    SavepointITCase#testTriggerSavepointWithoutCheckpointBaseLocations."""
    h = CoordinatorHarness()
    assert h.files() == []
    h.completed_savepoint()
    assert h.files() == []


# --- participants -------------------------------------------------------------------------------------------


def test_a_driver_side_coordinator_hears_how_each_of_its_checkpoints_ended() -> None:
    """CheckpointCoordinatorTest#testNotifyCheckpointAbortionInOperatorCoordinator."""
    driver = RecordingOperatorCoordinator("task")
    h = CoordinatorHarness(coordinators=[driver], max_concurrent_checkpoints=MANY)
    older, newer = h.checkpoint(), h.checkpoint()
    h.acknowledge_all(newer)
    assert (driver.aborted, driver.completed) == ([older], [newer])


def test_a_checkpoint_is_pending_when_its_hooks_are_called() -> None:
    """CheckpointCoordinatorMasterHooksTest#ensureRegisteredAtHookTime."""
    pending: list[Any] = []
    hook = RecordingHook("hook")
    hook.on_trigger = lambda number: pending.append((number, h.pending))
    h = CoordinatorHarness(hooks=[hook])
    cp = h.checkpoint()
    assert pending == [(cp, [cp])]


# --- ends ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["declined", "expired", "subsumed"])
def test_what_was_acknowledged_goes_with_the_checkpoint(end: str) -> None:
    """PendingCheckpointTest#testAbortDiscardsState."""
    h = two(max_concurrent_checkpoints=MANY)
    cp = h.checkpoint()
    private = h.private(cp, "a")
    h.acknowledge(cp, "a", handles=private)
    match end:
        case "declined":
            h.decline(cp, "b")
        case "expired":
            h.expire(cp)
        case _:
            h.completed_checkpoint()
    assert cp in h.failures
    assert not h.is_stored(private)


def test_a_drain_whose_savepoint_cannot_be_finalized_leaves_the_run_to_its_tasks() -> None:
    """SavepointITCase#testStopWithSavepointWithDrainGlobalFailoverIfSavepointAborted: tasks that hold it fail."""
    h = two(interval=1000.0)
    h.fail_next_metadata_write()
    h.stop_with_savepoint(drain=True)
    [sp] = h.pending
    h.acknowledge_all(sp)
    outcome = h.stop_outcome
    assert isinstance(outcome, NotStopped)
    assert outcome.reason is Reason.FINALIZE_CHECKPOINT_FAILURE
    assert [h.aborts(stage) for stage in "ab"] == [[sp], [sp]]
    assert (h.savepoints, h.job_failures, h.is_scheduling) == ([], [], True)


def test_in_flight_data_is_left_out_of_a_stage_that_had_finished_too() -> None:
    """CheckpointCoordinatorRestoringTest#testRestoreFinishedStateWithoutInFlightData."""
    h = two(unaligned=True)
    h.finish("a")
    cp = h.checkpoint()
    h.acknowledge(cp, "b", metrics=SnapshotMetrics(persisted_in_flight=10, unaligned=True))
    n = h.next_attempt(without_channel_state_of=cp)
    restored = n.coordinator.restored
    assert isinstance(restored, Restore)
    assert restored.drop_in_flight
    finished = {match.uid: match.finished_on_restore for match in restored.stages.matches}
    assert finished == {"a": True, "b": False}


# --- numbers ------------------------------------------------------------------------------------------------


def test_a_history_of_one_shows_the_newest_though_the_older_ends_first() -> None:
    """CheckpointStatsHistoryTest#testSizeOneHistory."""
    h = CoordinatorHarness(history_size=1, max_concurrent_checkpoints=2, num_retained=2)
    first, second = h.checkpoint(), h.checkpoint()
    h.acknowledge_all(first)
    assert [(r.checkpoint_id, r.status) for r in h.statistics.history] == [
        (second, CheckpointStatus.IN_PROGRESS)
    ]
    h.acknowledge_all(second)
    assert [(r.checkpoint_id, r.status) for r in h.statistics.history] == [
        (second, CheckpointStatus.COMPLETED)
    ]


def test_numbers_of_a_run_with_one_of_each_kind() -> None:
    """DefaultCheckpointStatsTrackerTest#testCheckpointTracking, #testTrackerWithoutHistory."""
    h = two(tolerable_failed_checkpoints=MANY)
    done = h.completed_checkpoint()
    bad = h.checkpoint()
    h.decline(bad, "a")
    savepoint = h.completed_savepoint()
    going = h.checkpoint()
    s = h.statistics
    assert (s.counts.total, s.counts.completed, s.counts.failed, s.in_progress) == (4, 2, 1, 1)
    assert [(r.checkpoint_id, str(r.status)) for r in s.history] == [
        (going, "in_progress"),
        (savepoint, "completed"),
        (bad, "failed"),
        (done, "completed"),
    ]
    assert s.summary.bytes_full is not None
    assert s.summary.bytes_full.count == 2
    latest = (s.latest_completed, s.latest_savepoint, s.latest_failed)
    assert [row and row.checkpoint_id for row in latest] == [done, savepoint, bad]
    after = h.next_attempt().statistics
    assert (after.restored_id, after.counts.restored, after.in_progress) == (done, 1, 0)
