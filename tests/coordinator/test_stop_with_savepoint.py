"""Stop-with-savepoint (Flink 1.20): suspend and drain, three endings."""

from __future__ import annotations

import pytest

from dagster_ckpt.core.checkpoint.failures import FailureDecision
from dagster_ckpt.core.checkpoint.requests import (
    NotStopped,
    SavepointCreated,
    SavepointFailed,
    Stopped,
    StoppedBadly,
    StopWithSavepoint,
)
from dagster_ckpt.core.checkpoint.tasks import StageStatus
from dagster_ckpt.core.coordinator.effects import StopEnded
from dagster_ckpt.core.graph import Edge
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, StageUid
from dagster_ckpt.core.messages import CheckpointFailureReason as Reason
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.request import CheckpointRequest, Rejected
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness
from tests.coordinator.scenarios import two


def finish_all(h: CoordinatorHarness) -> None:
    h.finish("a")
    h.finish("b")


@pytest.mark.parametrize("drain", [False, True])
def test_the_savepoint_is_taken_and_all_stages_finish(drain: bool) -> None:
    """StopWithSavepointTerminationHandlerImplTest#testHappyPath; C112: the kind tells stages to drain first."""
    h = two(interval=1000.0)
    h.stop_with_savepoint(drain=drain)
    [sp] = h.pending
    kind = CheckpointKind.SYNC_SAVEPOINT_TERMINATE if drain else CheckpointKind.SYNC_SAVEPOINT_SUSPEND
    assert h.gateway.triggers[-1].options.kind is kind
    assert not h.coordinator.is_scheduling
    h.acknowledge_all(sp)
    assert h.completes("a") == [sp]
    assert h.coordinator.stop_outcome is None
    finish_all(h)
    assert h.coordinator.stop_outcome == Stopped(h.coordinator.location_of(sp).uri)
    assert h.job_failures == []


@pytest.mark.parametrize("drain", [False, True])
def test_a_sink_that_goes_back_before_the_savepoint_is_told_that_it_was_published(drain: bool) -> None:
    """It belongs to the user, as one beside the run does, which is published nowhere."""
    h = two()
    cp = h.completed_checkpoint()
    beside = h.completed_savepoint()
    newer = h.completed_checkpoint()
    h.stop_with_savepoint(drain=drain)
    [sp] = h.pending
    h.acknowledge_all(sp)
    assert h.savepoints == [beside, sp]
    epoch = CoordinatorEpoch(h.record.epoch)
    assert h.record.published_after(cp) == {newer: epoch, sp: epoch}
    assert h.record.published_after(newer) == {sp: epoch}
    assert h.record.published_after(sp) == {}


def test_stopping_aborts_what_is_pending() -> None:
    h = two()
    cp = h.checkpoint()
    h.stop_with_savepoint()
    assert h.failures == {cp: Reason.CHECKPOINT_COORDINATOR_SUSPEND}
    assert len(h.pending) == 1


def test_a_savepoint_that_expires_leaves_the_pipeline_running_with_its_timer() -> None:
    """C110: StopWithSavepointTerminationHandlerImplTest#testSavepointCreationFailureWithoutExecutionTermination."""
    h = two(interval=1000.0, timeout=10.0)
    h.stop_with_savepoint()
    h.advance(10.0)
    outcome = h.coordinator.stop_outcome
    assert isinstance(outcome, NotStopped)
    assert outcome.reason is Reason.CHECKPOINT_EXPIRED
    assert h.coordinator.is_scheduling
    assert h.job_failures == []
    h.acknowledge_all(h.pending[0])
    assert h.completed == [2]


def test_after_a_failed_savepoint_it_does_not_matter_how_stages_end() -> None:
    """StopWithSavepointTerminationHandlerImplTest#testSavepointCreationFailureWithFailingExecutions, …Finishing…."""
    h = two(timeout=10.0)
    h.stop_with_savepoint()
    h.advance(10.0)
    before = h.coordinator.stop_outcome
    h.fail_task("a")
    h.fail_task("b")
    assert h.coordinator.stop_outcome == before
    assert h.job_failures == []


def test_a_stage_that_declines_the_savepoint_fails_the_run() -> None:
    """CheckpointCoordinatorTest#jobFailsIfInFlightSynchronousSavepointIsDiscarded."""
    h = two(tolerable_failed_checkpoints=100)
    h.stop_with_savepoint()
    assert h.decline(h.pending[0], "a") is FailureDecision.FAIL_RUN
    assert len(h.job_failures) == 1
    assert isinstance(h.coordinator.stop_outcome, NotStopped)


def test_stages_that_fail_after_the_savepoint_fail_the_run_and_the_savepoint_is_named() -> None:
    """StopWithSavepointTerminationHandlerImplTest#testFailedTerminationHandling,
    SavepointITCase#testStopWithSavepointFailingAfterSnapshotCreation."""
    h = two()
    h.stop_with_savepoint()
    [sp] = h.pending
    h.acknowledge_all(sp)
    h.finish("a")
    h.fail_task("b")
    outcome = h.coordinator.stop_outcome
    assert isinstance(outcome, StoppedBadly)
    assert outcome.uri == h.coordinator.location_of(sp).uri
    assert outcome.uri in h.job_failures[0]
    assert h.savepoints == [sp]


def test_a_stage_that_failed_after_the_savepoint_and_finishes_when_it_runs_again_did_not_stop_well() -> None:
    """SchedulerBase#stopWithSavepoint waits for the tries that ran when it began: what a later one did lies
    behind the savepoint."""
    h = two()
    h.stop_with_savepoint()
    [sp] = h.pending
    h.acknowledge_all(sp)
    h.fail_task("b")
    h.restart_task("b")
    h.finish("b")
    assert h.coordinator.stop_outcome is None
    h.finish("a")
    outcome = h.coordinator.stop_outcome
    assert isinstance(outcome, StoppedBadly)
    assert "b failed" in outcome.message
    assert len(h.job_failures) == 1


def test_the_end_of_the_stages_may_be_known_before_the_savepoint() -> None:
    """C109: StopWithSavepointTerminationManagerTest#testCompletionInInverseOrder."""
    statuses = {StageUid("a"): StageStatus.FINISHED}
    created = SavepointCreated(CheckpointId(1), "memory://s/1")
    stop = StopWithSavepoint()
    one = stop.with_savepoint(created).with_terminal(statuses)
    other = stop.with_terminal(statuses).with_savepoint(created)
    assert one.outcome == other.outcome == Stopped("memory://s/1")
    assert stop.with_terminal(statuses).outcome is None
    assert stop.with_savepoint(created).outcome is None
    failed = SavepointFailed(Reason.CHECKPOINT_EXPIRED, "late")
    assert stop.with_terminal(statuses).with_savepoint(failed).outcome == NotStopped(
        Reason.CHECKPOINT_EXPIRED, "late"
    )


def test_calls_in_the_wrong_order_are_errors() -> None:
    """StopWithSavepointTerminationHandlerImplTest#testInvalidExecutionTerminationCall,
    #testSavepointCreationParameterBothSet."""
    created = SavepointCreated(CheckpointId(1), "memory://s/1")
    with pytest.raises(InvalidRequest):
        StopWithSavepoint().with_savepoint(created).with_savepoint(created)
    with pytest.raises(InvalidRequest, match="has not ended"):
        StopWithSavepoint().with_terminal({StageUid("a"): StageStatus.RUNNING})


def test_it_is_refused_without_a_target_and_nothing_is_stopped() -> None:
    h = two(interval=1000.0)
    cp = h.checkpoint()
    request = CheckpointRequest(kind=CheckpointKind.SYNC_SAVEPOINT_SUSPEND)
    with pytest.raises(InvalidRequest, match="target"):
        h.coordinator.stop_with_savepoint(request)
    with pytest.raises(InvalidRequest, match="synchronous"):
        h.coordinator.stop_with_savepoint(
            CheckpointRequest(kind=CheckpointKind.SAVEPOINT, target="memory://s")
        )
    assert h.pending == [cp]
    assert h.coordinator.is_scheduling


def test_a_run_that_is_canceled_meanwhile_ends_the_stop_and_takes_no_checkpoint_any_more() -> None:
    """StopWithSavepointTest#testTransitionToCancellingOnCancel, #testExceptionalOperationFutureCompletionOnLeave…."""
    h = two(interval=10.0)
    h.stop_with_savepoint()
    h.close("canceled")
    outcome = h.coordinator.stop_outcome
    assert isinstance(outcome, NotStopped)
    assert outcome.reason is Reason.CHECKPOINT_COORDINATOR_SHUTDOWN
    assert not h.coordinator.is_scheduling
    assert h.coordinator.next_periodic is None


@pytest.mark.parametrize("status", ["canceled", "suspended", "failed"])
def test_a_run_that_ends_between_its_savepoint_and_the_end_of_its_stages_did_not_stop_well(
    status: str,
) -> None:
    """StopWithSavepointTest#testTransitionToCancellingOnCancel, …OnSuspend: who asked hears where the savepoint is."""
    h = two(interval=10.0)
    h.stop_with_savepoint()
    h.acknowledge_all(1)
    h.finish("a")
    assert h.stop_outcome is None
    h.close(status)
    outcome = h.stop_outcome
    assert isinstance(outcome, StoppedBadly)
    assert outcome.uri in outcome.message
    assert "b canceled" in outcome.message
    assert "a " not in outcome.message.partition("(")[2]
    assert h.job_failures == [], "the run ends as it was told to"
    assert [e for e in h.events if isinstance(e, StopEnded)] == [StopEnded(checkpoint_id=CheckpointId(1))]


def test_a_run_that_finished_has_stopped_with_its_savepoint_though_no_stage_said_so() -> None:
    h = two()
    h.stop_with_savepoint()
    h.acknowledge_all(1)
    h.close("finished")
    assert isinstance(h.stop_outcome, Stopped)


def test_it_is_refused_while_an_output_is_blocking() -> None:
    edge = Edge(upstream=StageUid("a"), downstream=StageUid("b"), blocking=True)
    h = CoordinatorHarness(stages={"a": 1, "b": 1}, edges=[edge])
    outcome = h.stop_with_savepoint()
    assert isinstance(outcome, Rejected)
    assert outcome.reason is Reason.BLOCKING_OUTPUT_EXIST
    assert isinstance(h.coordinator.stop_outcome, NotStopped)


def test_only_one_is_in_progress_and_the_same_client_id_is_the_same_one() -> None:
    """C118: DispatcherCachedOperationsHandlerTest#stopWithSavepointRepeatedly."""
    h = two()
    first = h.stop_with_savepoint(request_id="stop")
    assert h.stop_with_savepoint(request_id="stop") == first
    with pytest.raises(InvalidRequest, match="in progress"):
        h.stop_with_savepoint()


def test_a_stop_that_failed_can_be_tried_again() -> None:
    h = two(timeout=10.0)
    h.stop_with_savepoint()
    h.advance(10.0)
    h.stop_with_savepoint()
    h.acknowledge_all(h.pending[0])
    finish_all(h)
    assert isinstance(h.coordinator.stop_outcome, Stopped)


def test_no_plan_no_stop_and_the_timer_goes_on_when_all_run() -> None:
    h = two(interval=1000.0)
    h.report("b", StageStatus.DEPLOYING)
    h.stop_with_savepoint()
    assert isinstance(h.coordinator.stop_outcome, NotStopped)
    h.report("b", StageStatus.RUNNING)
    assert h.coordinator.is_scheduling


def test_a_pipeline_that_ends_by_itself_meanwhile_ends_the_stop_as_failed() -> None:
    """SavepointITCase#testStopSavepointWithBoundedInput: a stage gone before it acknowledged."""
    h = two()
    h.stop_with_savepoint()
    finish_all(h)
    assert isinstance(h.coordinator.stop_outcome, NotStopped)


def test_it_can_be_asked_for_while_stages_wait_for_their_final_checkpoint() -> None:
    """StreamTaskFinalCheckpointsTest#testTriggerStopWithSavepointWhenWaitingForFinalCheckpoint."""
    h = two(interval=1e6)
    h.end_of_data("a")
    h.end_of_data("b")
    assert h.pending == [1]
    h.stop_with_savepoint()
    assert h.failures == {1: Reason.CHECKPOINT_COORDINATOR_SUSPEND}
    h.acknowledge_all(2)
    finish_all(h)
    assert isinstance(h.coordinator.stop_outcome, Stopped)
