"""The failure manager in the coordinator (Flink 1.12)."""

from __future__ import annotations

from dagster_ckpt.core.checkpoint.failures import FailureDecision
from dagster_ckpt.core.coordinator.effects import CheckpointFailed
from dagster_ckpt.core.messages import CheckpointFailureReason as Reason
from tests.coordinator.scenarios import two


def test_an_expired_checkpoint_fails_the_run_when_none_is_tolerable() -> None:
    """C053: CheckpointCoordinatorTest#testExpiredCheckpointExceedsTolerableFailureNumber."""
    h = two(timeout=10.0)
    h.checkpoint()
    h.advance(10.0)
    assert len(h.job_failures) == 1
    assert "CHECKPOINT_EXPIRED" in h.coordinator.failure


def test_an_io_error_of_the_trigger_fails_the_run_when_none_is_tolerable() -> None:
    """CheckpointCoordinatorTest#testIOExceptionCheckpointExceedsTolerableFailureNumber."""
    h = two()
    h.fail_next_location()
    h.trigger()
    assert len(h.job_failures) == 1


def test_a_decline_answers_the_stage_with_the_end_of_the_run() -> None:
    h = two(tolerable_failed_checkpoints=1)
    assert h.decline(h.checkpoint(), "a") is FailureDecision.GO_ON
    assert h.decline(h.checkpoint(), "a") is FailureDecision.FAIL_RUN
    assert len(h.job_failures) == 1


def test_declines_failovers_and_declines_again() -> None:
    """C049: CheckpointFailureManagerTest#testContinuousFailure, through the coordinator."""
    h = two(tolerable_failed_checkpoints=2)
    for reason in (Reason.CHECKPOINT_DECLINED, Reason.CHECKPOINT_DECLINED):
        h.decline(h.checkpoint(), "a", reason=reason)
    h.checkpoint()
    h.coordinator.fail_over()
    assert h.failure_counter == 2
    h.decline(h.checkpoint(), "a")
    assert len(h.job_failures) == 1


def test_a_completed_savepoint_starts_the_count_anew_too() -> None:
    h = two(tolerable_failed_checkpoints=2)
    h.decline(h.checkpoint(), "a")
    h.completed_savepoint()
    assert h.failure_counter == 0


def test_the_count_survives_crashes_and_runs() -> None:
    """Epoch runs take one checkpoint each: consecutive failures are counted over runs."""
    h = two(tolerable_failed_checkpoints=1)
    h.decline(h.checkpoint(), "a")
    h.close()
    n = h.next_attempt()
    assert n.failure_counter == 1
    n.crash()
    n.recover()
    assert n.decline(n.checkpoint(), "a") is FailureDecision.FAIL_RUN


def test_the_event_says_how_many_failures_are_tolerable() -> None:
    h = two(tolerable_failed_checkpoints=3)
    h.decline(h.checkpoint(), "a", message="disk full")
    [event] = [e for e in h.events if isinstance(e, CheckpointFailed)]
    assert (event.consecutive_failures, event.tolerable, event.message) == (1, 3, "disk full")


def test_a_task_that_is_gone_already_does_not_fail_the_run_again() -> None:
    """CheckpointFailureManager: acts only if that attempt is still the current one and runs."""
    h = two(max_concurrent_checkpoints=2)
    cp = h.checkpoint()
    h.acknowledge(cp, "a")
    h.fail_task("a")
    assert h.pending == [cp]
    assert h.decline(cp, "a") is FailureDecision.GO_ON
    assert h.job_failures == []


def test_no_failure_of_a_discarded_checkpoint_reaches_a_run_that_recovered() -> None:
    """A snapshot that fails because its checkpoint was discarded must not start the next recovery."""
    h = two(tolerable_failed_checkpoints=0)
    cp = h.checkpoint()
    h.decline(cp, "a", reason=Reason.CHECKPOINT_DECLINED_TASK_NOT_READY)
    assert h.decline(cp, "b", reason=Reason.CHECKPOINT_ASYNC_EXCEPTION) is FailureDecision.GO_ON
    assert h.job_failures == []


def test_storage_that_fails_for_a_while_leaves_the_pipeline_running() -> None:
    """A snapshot that fails marks the checkpoint failed; data goes on, and the alarm has its event."""
    h = two(tolerable_failed_checkpoints=10)
    for _ in range(5):
        assert (
            h.decline(h.checkpoint(), "b", reason=Reason.CHECKPOINT_ASYNC_EXCEPTION) is FailureDecision.GO_ON
        )
    assert len([e for e in h.events if isinstance(e, CheckpointFailed)]) == 5
    assert h.completed_checkpoint() == 6
    assert h.failure_counter == 0


def test_a_failover_lets_the_run_go_on_after_the_count_was_full() -> None:
    h = two()
    h.decline(h.checkpoint(), "a")
    assert h.coordinator.failure
    h.coordinator.fail_over()
    assert h.coordinator.failure == ""
