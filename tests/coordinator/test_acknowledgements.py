"""Pending checkpoints (Flink 1.7), acknowledge, decline, timeout (1.8)."""

from __future__ import annotations

import pytest

from dagster_ckpt.core.checkpoint.failures import FailureDecision
from dagster_ckpt.core.checkpoint.tasks import StageStatus
from dagster_ckpt.core.ids import CoordinatorEpoch, ExecutionAttempt, StageUid
from dagster_ckpt.core.messages import AcknowledgeResult as Result
from dagster_ckpt.core.messages import CheckpointFailureReason as Reason
from dagster_ckpt.core.messages import StateHandle, SubtaskReport
from dagster_ckpt.core.model import CheckpointKind, SnapshotMetrics
from dagster_ckpt.core.request import Completed, Failed, Pending
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.testing.coordinator.events import RecordingOperatorCoordinator
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness
from dagster_ckpt.testing.faulty import AbortNotice, CompleteNotice
from tests.coordinator.scenarios import two

# --- acknowledge --------------------------------------------------------------------------------------------


def test_a_checkpoint_completes_with_the_last_acknowledgement() -> None:
    """CheckpointCoordinatorTest#testTriggerAndConfirmSimpleCheckpoint."""
    h = two()
    cp = h.checkpoint()
    assert h.acknowledge(cp, "a") is Result.SUCCESS
    assert h.outcome(cp) == Pending((StageUid("b"),))
    assert h.acknowledge(cp, "b") is Result.SUCCESS
    assert isinstance(h.outcome(cp), Completed)
    assert h.completes("a") == h.completes("b") == [cp]


def test_a_second_acknowledgement_is_a_duplicate_and_its_files_stay() -> None:
    """C031: CheckpointCoordinatorTest#testTriggerAndConfirmSimpleCheckpoint."""
    h = two()
    cp = h.checkpoint()
    state = h.private(cp, "a")
    h.acknowledge(cp, "a", handles=[state])
    assert h.acknowledge(cp, "a", handles=[state]) is Result.DUPLICATE
    assert h.outstanding(cp) == {"b": [0]}
    assert state.key in h.files()


def test_an_unknown_attempt_is_refused_and_its_private_files_are_discarded() -> None:
    """C032: CheckpointCoordinatorTest#testStateCleanupForLateOrUnknownMessages."""
    h = two()
    cp = h.checkpoint()
    stranger = ExecutionAttempt(StageUid("a"), 0, CoordinatorEpoch(1), number=99)
    private, shared = h.private(cp, "a", "theirs"), h.shared(cp, "a", "kept")
    assert h.acknowledge(cp, "a", attempt=stranger, handles=[private, shared]) is Result.UNKNOWN
    assert private.key not in h.files()
    assert shared.key in h.files()
    assert h.outstanding(cp) == {"a": [0], "b": [0]}
    nobody = ExecutionAttempt(StageUid("nobody"))
    assert h.acknowledge(cp, "a", attempt=nobody) is Result.UNKNOWN


def test_an_older_try_of_a_task_is_unknown() -> None:
    """PendingCheckpoint: identity is the execution attempt, not the subtask."""
    h = two()
    old = h.attempt("a")
    h.fail_task("a")
    new = h.restart_task("a")
    cp = h.checkpoint()
    assert h.acknowledge(cp, "a", attempt=old) is Result.UNKNOWN
    assert h.acknowledge(cp, "a", attempt=new) is Result.SUCCESS


def test_a_late_acknowledgement_is_discarded_with_its_private_files_not_the_shared_ones() -> None:
    """C034: CheckpointCoordinatorTest#testSharedStateNotDiscaredOnAbort."""
    h = two(timeout=10.0, tolerable_failed_checkpoints=5)
    cp = h.checkpoint()
    private, shared = h.private(cp, "a"), h.shared(cp, "a", "sst")
    h.expire(cp)
    assert h.acknowledge(cp, "a", handles=[private, shared]) is Result.DISCARDED
    assert private.key not in h.files()
    assert shared.key in h.files()


def test_a_shared_file_of_a_failed_checkpoint_can_be_taken_up_by_a_later_one() -> None:
    """IncrementalStateReuseAfterFailureITCase: nothing shared is deleted on abort."""
    h = CoordinatorHarness(timeout=10.0, tolerable_failed_checkpoints=5, incremental=True)
    cp = h.checkpoint()
    shared = h.shared(cp, "task", "sst")
    h.expire(cp)
    h.acknowledge(cp, "task", handles=[shared])
    second = h.checkpoint()
    h.acknowledge(second, "task", handles=[shared])
    third = h.checkpoint()
    h.acknowledge(third, "task", handles=[shared])
    assert h.completed == [third]
    assert shared.key in h.files()


def test_what_a_failed_checkpoint_uploaded_for_sharing_goes_once_nothing_can_build_on_it() -> None:
    h = CoordinatorHarness(timeout=10.0, tolerable_failed_checkpoints=5, incremental=True)
    cp = h.checkpoint()
    shared = h.shared(cp, "task", "sst")
    h.expire(cp)
    assert shared.key in h.files()
    h.completed_checkpoint()
    assert shared.key not in h.files()


def test_acknowledgements_of_checkpoints_that_never_were_are_ignored() -> None:
    """CheckpointCoordinatorTest#testHandleMessagesForNonExistingCheckpoints."""
    h = two()
    handle = StateHandle("somebody/elses", 1)
    h.storage.create(handle.key, b"x")
    assert h.acknowledge(7, "a", handles=[handle]) is Result.UNKNOWN
    assert handle.key in h.files()
    assert h.decline(7, "a") is FailureDecision.GO_ON


def test_a_repeated_acknowledgement_after_completion_deletes_nothing() -> None:
    h = CoordinatorHarness()
    cp = h.checkpoint()
    state = h.private(cp, "task")
    h.acknowledge(cp, "task", handles=[state])
    assert h.acknowledge(cp, "task", handles=[state]) is Result.DISCARDED
    assert state.key in h.files()


def test_a_subtask_without_state_still_appears_in_the_metadata() -> None:
    """PendingCheckpointTest#testNullSubtaskStateLeadsToStatelessTask, #testNonNullSubtaskStateLeadsToStatefulTask."""
    h = two()
    cp = h.checkpoint()
    h.acknowledge(cp, "a")
    h.acknowledge(cp, "b", handles=[h.private(cp, "b")])
    a, b = h.metadata(cp).stages
    assert (a.uid, a.stateless, a.subtask_handles) == ("a", True, None)
    assert (b.uid, b.stateless) == ("b", False)
    assert b.subtask_handles is not None


def test_subtasks_that_were_restored_as_finished_are_marked() -> None:
    """PendingCheckpointTest#testReportTaskFinishedOnRestore."""
    h = CoordinatorHarness(stages={"a": 2, "b": 2})
    cp = h.checkpoint()
    h.acknowledge(cp, "a", 0, report=SubtaskReport.FINISHED_ON_RESTORE)
    h.acknowledge(cp, "a", 1, report=SubtaskReport.FINISHED_ON_RESTORE)
    h.acknowledge(cp, "b", 0, report=SubtaskReport.OPERATORS_FINISHED)
    h.acknowledge(cp, "b", 1)
    a, b = h.metadata(cp).stages
    assert (a.finished, b.finished, b.finished_subtasks) == (True, False, ())


@pytest.mark.parametrize("drained", [False, True])
def test_what_subtasks_saved_whose_operators_are_finished_is_kept(drained: bool) -> None:
    """PendingCheckpointTest#testReportTaskFinishedOperators: a final checkpoint and a drained savepoint have it all."""
    h = CoordinatorHarness(stages={"a": 2})
    if drained:
        h.stop_with_savepoint(drain=True)
        [cp] = h.pending
    else:
        cp = h.checkpoint()
    for subtask in (0, 1):
        handles = [h.private(cp, "a", f"s{subtask}")]
        h.acknowledge(cp, "a", subtask, handles=handles, report=SubtaskReport.OPERATORS_FINISHED)
    [a] = h.metadata(cp).stages
    assert (a.finished, a.finished_subtasks, a.stateless) == (False, (), False)
    assert a.subtask_handles is not None
    if not drained:
        match = h.next_attempt().match("a")
        assert match is not None
        assert not match.finished_on_restore


def test_many_checkpoints_are_collected_at_once() -> None:
    """CheckpointCoordinatorTest#testMultipleConcurrentCheckpoints."""
    h = two(max_concurrent_checkpoints=10)
    one, two_ = h.checkpoint(), h.checkpoint()
    h.acknowledge(two_, "a")
    h.acknowledge(one, "a")
    h.acknowledge(one, "b")
    assert h.completed == [one]
    h.acknowledge(two_, "b")
    assert h.completed == [two_]


def test_a_stage_acknowledges_for_all_its_subtasks_at_once() -> None:
    h = CoordinatorHarness(stages={"a": 3, "b": 1})
    cp = h.checkpoint()
    h.acknowledge(cp, "a", 1)
    assert h.acknowledge_stage(cp, "a") is Result.SUCCESS
    assert h.acknowledge_stage(cp, "a") is Result.DUPLICATE
    assert h.acknowledge(cp, "a", 2) is Result.DUPLICATE
    assert h.outstanding(cp) == {"b": [0]}


def test_a_stage_cannot_acknowledge_with_anothers_snapshot() -> None:
    h = two()
    cp = h.checkpoint()
    with pytest.raises(InvalidRequest, match="snapshot of 'b'"):
        h.acknowledge_stage(cp, "a", uid="b")


# --- driver-side states -------------------------------------------------------------------------------------


def test_driver_side_states_are_waited_for_and_stored() -> None:
    """PendingCheckpointTest#testInitiallyUnacknowledgedCoordinatorStates, #testAcknowledgedCoordinatorStates."""
    h = CoordinatorHarness(coordinators=[RecordingOperatorCoordinator("task", state="splits")])
    cp = h.completed_checkpoint()
    assert h.metadata(cp).stages[0].coordinator_state == "splits"
    assert h.coordinators["task"].completed == [cp]


def test_a_second_driver_side_state_is_a_duplicate_one_of_a_stranger_unknown() -> None:
    """C043: PendingCheckpointTest#testDuplicateAcknowledgeCoordinator, #testAcknowledgeUnknownCoordinator."""
    h = CoordinatorHarness(
        stages={"a": 1, "b": 1, "nobody": 1},
        coordinators=[RecordingOperatorCoordinator("a"), RecordingOperatorCoordinator("b", state=None)],
    )
    cp = h.checkpoint()
    assert h.acknowledge_coordinator(cp, "a") is Result.DUPLICATE
    # A quirk of Flink: what told a duplicate from a stranger is the state, and an empty one is none.
    assert h.acknowledge_coordinator(cp, "b") is Result.UNKNOWN
    assert h.acknowledge_coordinator(cp, "nobody") is Result.UNKNOWN
    h.decline(cp, "a")
    assert h.acknowledge_coordinator(cp, "a") is Result.DISCARDED


# --- decline ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", [Reason.CHECKPOINT_DECLINED, Reason.CHECKPOINT_ASYNC_EXCEPTION])
def test_a_decline_aborts_the_checkpoint_and_tells_every_task(reason: Reason) -> None:
    """CheckpointCoordinatorTest#testTriggerAndDeclineSyncCheckpointFailureSimple, …Async…."""
    h = two(tolerable_failed_checkpoints=5)
    cp = h.checkpoint()
    state = h.private(cp, "a")
    h.acknowledge(cp, "a", handles=[state])
    assert h.decline(cp, "b", reason=reason, message="disk full") is FailureDecision.GO_ON
    assert h.outcome(cp) == Failed(reason, "disk full")
    assert h.notices("a") == h.notices("b") == [AbortNotice(cp, reason, None)]
    assert state.key not in h.files()


def test_a_second_or_late_decline_is_harmless() -> None:
    """CheckpointCoordinatorTest#testTriggerAndDeclineCheckpointComplex."""
    h = two(tolerable_failed_checkpoints=0)
    first = h.completed_checkpoint()
    cp = h.checkpoint()
    h.decline(cp, "a", reason=Reason.CHECKPOINT_DECLINED_TASK_CLOSING)
    assert h.decline(cp, "b") is FailureDecision.GO_ON
    assert h.decline(first, "b") is FailureDecision.GO_ON
    assert h.job_failures == []
    assert len(h.notices("a")) == 2


def test_a_task_that_had_finished_before_the_trigger_may_decline_as_anybody() -> None:
    """CheckpointCoordinator#receiveDeclineMessage asks only whether the checkpoint is pending."""
    h = two(tolerable_failed_checkpoints=0)
    h.finish("a")
    cp = h.checkpoint()
    h.decline(cp, "a")
    assert h.failures == {cp: Reason.CHECKPOINT_DECLINED}
    assert h.aborts("b") == [cp]
    assert h.job_failures == [], "that try is over: its end was dealt with"


def test_an_older_try_cannot_decline() -> None:
    h = two()
    old = h.attempt("a")
    h.fail_task("a")
    h.restart_task("a")
    cp = h.checkpoint()
    h.decline(cp, "a", attempt=old)
    assert h.pending == [cp]


def test_an_abort_tells_the_latest_completed_checkpoint() -> None:
    """C037: CheckpointCoordinatorTest#testReportLatestCompletedCheckpointIdWithAbort."""
    h = two(tolerable_failed_checkpoints=5)
    done = h.completed_checkpoint()
    cp = h.checkpoint()
    h.decline(cp, "a")
    assert h.notices("a") == [CompleteNotice(done), AbortNotice(cp, Reason.CHECKPOINT_DECLINED, done)]


def test_a_savepoint_does_not_become_the_latest_completed() -> None:
    h = two(tolerable_failed_checkpoints=5)
    done = h.completed_checkpoint()
    h.completed_savepoint()
    cp = h.checkpoint()
    h.decline(cp, "a")
    assert h.notices("a")[-1] == AbortNotice(cp, Reason.CHECKPOINT_DECLINED, done)


# --- timeout ------------------------------------------------------------------------------------------------


def test_a_checkpoint_expires_others_are_not_touched() -> None:
    """C038: CheckpointCoordinatorTest#testCheckpointTimeoutIsolated."""
    h = two(timeout=10.0, max_concurrent_checkpoints=2, tolerable_failed_checkpoints=5)
    cp = h.checkpoint()
    state = h.private(cp, "a")
    h.acknowledge(cp, "a", handles=[state])
    h.advance(5.0)
    younger = h.checkpoint()
    h.advance(5.0)
    assert h.failures == {cp: Reason.CHECKPOINT_EXPIRED}
    assert h.pending == [younger]
    assert state.key not in h.files()
    assert h.acknowledge(cp, "b") is Result.DISCARDED
    assert h.decline(cp, "b") is FailureDecision.GO_ON
    failed = h.outcome(cp)
    assert isinstance(failed, Failed)
    assert "outstanding: b" in failed.message


def test_the_timeout_can_begin_anew() -> None:
    h = two(timeout=10.0)
    cp = h.checkpoint()
    h.advance(9.0)
    h.coordinator.rearm_timeout(cp)
    h.advance(9.0)
    assert h.pending == [cp]
    h.advance(1.0)
    assert h.pending == []


def test_only_expired_checkpoints_are_remembered_the_last_sixteen_of_them() -> None:
    """CheckpointCoordinator: the ring of recently expired checkpoints."""
    h = two(timeout=10.0, tolerable_failed_checkpoints=100)
    declined = h.checkpoint()
    h.decline(declined, "a")
    expired = []
    for _ in range(17):
        cp = h.checkpoint()
        h.expire(cp)
        expired.append(cp)
    assert list(h.record.expired) == expired[1:]


# --- tasks that end -----------------------------------------------------------------------------------------


def test_a_task_that_fails_ends_the_checkpoints_that_wait_for_it() -> None:
    """CheckpointCoordinator#failUnacknowledgedPendingCheckpointsFor."""
    h = two(max_concurrent_checkpoints=2)
    one, other = h.checkpoint(), h.checkpoint()
    h.acknowledge(one, "a")
    h.fail_task("a")
    assert h.failures == {other: Reason.TASK_FAILURE}
    assert h.pending == [one]
    assert h.failure_counter == 0


def test_a_task_that_finishes_without_acknowledging_ends_the_checkpoint_uncounted() -> None:
    h = two()
    cp = h.checkpoint()
    h.finish("a")
    assert h.failures == {cp: Reason.CHECKPOINT_DECLINED_TASK_CLOSING}
    assert h.job_failures == []


def test_a_failover_aborts_everything_pending_and_a_new_trigger_works() -> None:
    """C047: FailoverStrategyCheckpointCoordinatorTest#testAbortPendingCheckpointsWithTriggerValidation."""
    h = two(max_concurrent_checkpoints=3)
    started = [h.checkpoint() for _ in range(3)]
    h.coordinator.fail_over()
    assert h.failures == dict.fromkeys(started, Reason.JOB_FAILOVER_REGION)
    assert h.completed_checkpoint() == 4


# --- retries of a snapshot ----------------------------------------------------------------------------------


def test_a_passing_fault_is_retried_while_tries_and_time_are_left() -> None:
    h = two(timeout=10.0, tolerable_failed_checkpoints=5)
    cp = h.checkpoint()
    assert h.decline(cp, "a", transient=True, retries_left=1) is FailureDecision.RETRY_OP
    assert h.pending == [cp]
    assert h.failure_counter == 0
    assert h.acknowledge_stage(cp, "a") is Result.SUCCESS
    h.acknowledge(cp, "b")
    assert h.completed == [cp]


def test_the_retried_try_may_number_itself_one_further() -> None:
    h = two()
    cp = h.checkpoint()
    h.decline(cp, "a", transient=True, retries_left=1)
    later = ExecutionAttempt(StageUid("a"), 0, h.coordinator.epoch, number=1)
    assert h.acknowledge_stage(cp, "a", attempt=later) is Result.SUCCESS


def test_without_tries_or_time_the_checkpoint_fails_and_is_counted() -> None:
    h = two(timeout=10.0, tolerable_failed_checkpoints=5)
    cp = h.checkpoint()
    assert h.decline(cp, "a", transient=True, retries_left=0) is FailureDecision.GO_ON
    assert h.failure_counter == 1
    late = h.checkpoint()
    h.clock.advance(10.0)
    assert h.decline(late, "a", transient=True, retries_left=3) is FailureDecision.GO_ON
    assert h.failure_counter == 2


def test_a_lasting_fault_is_not_retried() -> None:
    h = two(tolerable_failed_checkpoints=5)
    assert h.decline(h.checkpoint(), "a", transient=False, retries_left=3) is FailureDecision.GO_ON


def test_a_failure_of_a_checkpoint_that_is_over_is_ignored_even_when_it_could_be_retried() -> None:
    h = two(tolerable_failed_checkpoints=0, max_concurrent_checkpoints=2)
    cp = h.checkpoint()
    younger = h.checkpoint()
    h.acknowledge_all(younger)
    assert h.failures[cp] is Reason.CHECKPOINT_SUBSUMED
    assert h.decline(cp, "a", transient=True, retries_left=3) is FailureDecision.GO_ON
    assert h.job_failures == []


# --- finished stages ----------------------------------------------------------------------------------------


def test_union_state_with_part_of_the_subtasks_finished_fails_the_checkpoint_uncounted() -> None:
    """DefaultCheckpointPlanTest#testAbortionIfPartiallyFinishedVertexUsedUnionListState."""
    h = CoordinatorHarness(stages={"a": 2}, union_state=["a"])
    h.finish("a", 0)
    cp = h.checkpoint()
    h.acknowledge(cp, "a", 1)
    assert h.failures == {cp: Reason.CHECKPOINT_DECLINED_TASK_CLOSING}
    assert (h.failure_counter, h.job_failures) == (0, [])


def test_union_state_with_part_of_the_operators_finished_fails_it_too() -> None:
    """C028: DefaultCheckpointPlanTest#testAbortionIfPartiallyOperatorsFinishedVertexUsedUnionListState."""
    h = CoordinatorHarness(stages={"a": 2}, union_state=["a"])
    cp = h.checkpoint()
    h.acknowledge(cp, "a", 0, report=SubtaskReport.OPERATORS_FINISHED)
    h.acknowledge(cp, "a", 1)
    assert h.failures == {cp: Reason.CHECKPOINT_DECLINED_TASK_CLOSING}


def test_union_state_with_all_subtasks_finished_is_fine() -> None:
    h = CoordinatorHarness(stages={"a": 2, "b": 1}, edges=[("a", "b")], union_state=["a"])
    h.finish("a")
    cp = h.completed_checkpoint()
    assert h.metadata(cp).stages[0].finished


def test_a_fully_finished_stage_is_marked_and_its_driver_side_state_dropped() -> None:
    """C029: DefaultCheckpointPlanTest#testFulfillFullyFinishedStatesWithCoordinator."""
    h = CoordinatorHarness(
        stages={"a": 2, "b": 1},
        edges=[("a", "b")],
        coordinators=[RecordingOperatorCoordinator("a", state="splits")],
    )
    h.finish("a")
    cp = h.completed_checkpoint()
    a = h.metadata(cp).stages[0]
    assert (a.finished, a.coordinator_state) == (True, None)
    assert h.triggered("b") == [cp]


def test_a_partly_finished_stage_marks_the_subtasks() -> None:
    """DefaultCheckpointPlanTest#testFulfillFinishedStates."""
    h = CoordinatorHarness(stages={"a": 3, "b": 1}, edges=[("a", "b")])
    h.finish("a", 1)
    cp = h.completed_checkpoint()
    a = h.metadata(cp).stages[0]
    assert (a.finished, a.finished_subtasks) == (False, (1,))


# --- the final checkpoint -----------------------------------------------------------------------------------


def test_when_all_tasks_are_at_the_end_of_their_data_a_checkpoint_is_triggered_at_once() -> None:
    """C107: CheckpointAfterAllTasksFinishedITCase#testImmediateCheckpointing."""
    h = two(interval=1e6)
    h.end_of_data("a")
    assert h.pending == []
    h.end_of_data("b")
    assert h.pending == [1]
    h.end_of_data("b")
    assert h.pending == [1]


def test_a_task_that_starts_again_after_its_end_of_data_leads_to_another_checkpoint_at_once() -> None:
    """DefaultSchedulerTest#testRestoreVertexEndOfDataListener."""
    h = two(interval=1e6)
    h.end_of_data("a")
    h.end_of_data("b")
    h.restart_task("b")
    assert (h.pending, h.completed) == ([], [])
    h.end_of_data("b")
    assert h.pending == [2]
    h.acknowledge_all(2)
    assert h.completed == [2]


def test_without_periodic_checkpoints_nothing_is_triggered_at_the_end_of_data() -> None:
    """Final checkpoint: not waited for if checkpointing is off."""
    h = two()
    h.end_of_data("a")
    h.end_of_data("b")
    assert h.pending == []


# --- metrics that come late ---------------------------------------------------------------------------------


def test_numbers_that_come_after_a_failure_are_added_to_the_failed_entry() -> None:
    """C035: CheckpointCoordinatorTest#testAbortedCheckpointStatsUpdatedAfterFailure."""
    h = two(tolerable_failed_checkpoints=5)
    cp = h.checkpoint()
    h.decline(cp, "a")
    h.acknowledge(cp, "b", metrics=SnapshotMetrics(sync_ms=5.0, bytes_new=7))
    failed = h.statistics.latest_failed
    assert failed is not None
    assert failed.checkpoint_id == cp
    assert (failed.bytes_new, failed.acknowledged) == (7, 0)
    assert failed.stages[1].details[0].late


def test_statuses_of_tasks_are_read_back() -> None:
    h = two()
    assert h.status("a") is StageStatus.RUNNING
    h.fail_task("a")
    assert h.status("a") is StageStatus.FAILED


def test_a_savepoint_kind_is_shown() -> None:
    h = two()
    assert h.kind(h.savepoint()) is CheckpointKind.SAVEPOINT
