"""Scenarios of Flink's coordinator tests that the other files do not have, each as its test plays it."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

import pytest

from dagster_ckpt.core.checkpoint.failures import FailureDecision
from dagster_ckpt.core.checkpoint.requests import NotStopped, StoppedBadly
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatus
from dagster_ckpt.core.graph import StageSpec
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.messages import AcknowledgeResult as Result
from dagster_ckpt.core.messages import CheckpointFailureReason as Reason
from dagster_ckpt.core.model import CheckpointKind, SnapshotMetrics
from dagster_ckpt.core.request import Queued, Rejected, RunStatus, Triggered
from dagster_ckpt.core.restore.choice import Restore
from dagster_ckpt.errors import Declined, InvalidRequest, NotFound
from dagster_ckpt.testing.coordinator.events import (
    Answering,
    RecordingHook,
    RecordingOperatorCoordinator,
)
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness
from dagster_ckpt.testing.coordinator.settings import HarnessOptions
from tests.coordinator.scenarios import two

MANY = 2**31 - 1


def apart(**options: Unpack[HarnessOptions]) -> CoordinatorHarness:
    """Two stages that nothing connects."""
    merged: HarnessOptions = {"edges": (), **options}
    return two(**merged)


# --- state of checkpoints that failed -----------------------------------------------------------------------


def test_shared_files_of_an_aborted_checkpoint_go_with_the_next_completion_that_does_not_use_them() -> None:
    """CheckpointCoordinatorTest#testSharedStateNotDiscaredOnAbort."""
    h = apart(incremental=True, max_concurrent_checkpoints=MANY)
    cp = h.checkpoint()
    shared, private = h.shared(cp, "a", "sst"), h.private(cp, "a")
    h.acknowledge(cp, "a", handles=[private, shared])
    h.decline(cp, "b")
    assert h.files() == [shared.key]
    cp = h.checkpoint()
    h.acknowledge(cp, "a", handles=[h.shared(cp, "a", "sst")])
    h.acknowledge(cp, "b")
    assert shared.key not in h.files()
    assert f"pipeline/shared/a/{cp}/sst" in h.files()


def test_a_pending_savepoint_keeps_no_shared_file_alive() -> None:
    """CheckpointCoordinator#receiveAcknowledgeMessage: shared state of savepoints is not registered."""
    h = CoordinatorHarness(incremental=True, num_retained=2, max_concurrent_checkpoints=MANY)
    first = h.checkpoint()
    shared = h.shared(first, "task", "sst")
    h.acknowledge(first, "task", handles=[shared])
    savepoint = h.savepoint()
    h.acknowledge(savepoint, "task", handles=[shared])
    h.completed_checkpoint()
    assert shared.key in h.files()
    h.completed_checkpoint()
    assert shared.key not in h.files()


def test_a_newer_completion_discards_what_the_older_one_had_and_what_comes_late() -> None:
    """CheckpointCoordinatorTest#testSuccessfulCheckpointSubsumesUnsuccessful, to the end of the run."""
    h = CoordinatorHarness(
        stages={"a": 1, "b": 1, "c": 1},
        edges=[("a", "c"), ("b", "c")],
        max_concurrent_checkpoints=MANY,
        num_retained=10,
    )
    first = h.checkpoint()
    h.acknowledge(first, "b", handles=[h.private(first, "b")])
    second = h.checkpoint()
    for stage in ("c", "a"):
        h.acknowledge(second, stage, handles=[h.private(second, stage)])
    h.acknowledge(first, "a", handles=[h.private(first, "a")])
    late = h.private(first, "c")
    h.acknowledge(second, "b", handles=[h.private(second, "b")])
    assert (h.pending, h.completed, h.failures) == ([], [second], {first: Reason.CHECKPOINT_SUBSUMED})
    assert h.acknowledge(first, "c", handles=[late]) is Result.DISCARDED
    assert not [key for key in h.files() if f"chk-{first}/" in key]
    assert [h.completes(stage) for stage in "abc"] == [[second]] * 3
    h.close(RunStatus.FINISHED)
    assert h.files() == []


def test_a_file_that_is_named_with_another_size_is_kept_as_long_as_it_is_named() -> None:
    """SharedStateRegistry#registerReference refuses it; a checkpoint that names it completes, and must not lose it."""
    h = CoordinatorHarness(incremental=True)
    cp = h.checkpoint()
    shared = h.shared(cp, "task", "sst")
    h.acknowledge(cp, "task", handles=shared)
    for _ in range(2):
        cp = h.checkpoint()
        h.acknowledge(cp, "task", handles=replace(shared, size=shared.size + 1))
        assert (h.completed, h.is_stored(shared)) == ([cp], True)
    h.completed_checkpoint()
    assert not h.is_stored(shared)


def test_disposing_of_a_savepoint_leaves_alone_what_a_pending_checkpoint_has_uploaded() -> None:
    """SharedStateRegistry: only what was last used before the oldest retained checkpoint is free."""
    h = apart(incremental=True, max_concurrent_checkpoints=MANY)
    savepoint = h.completed_savepoint()
    cp = h.checkpoint()
    h.acknowledge(cp, "a", handles=[h.shared(cp, "a", "sst")])
    h.dispose(savepoint)
    h.acknowledge(cp, "b")
    assert h.completed == [cp]
    assert f"pipeline/shared/a/{cp}/sst" in h.files()


def test_a_savepoint_that_goes_does_not_take_what_an_aborted_checkpoint_left_for_the_next() -> None:
    """CheckpointCoordinatorTest#testSharedStateNotDiscaredOnAbort: nothing is free before one has completed."""
    h = apart(incremental=True)
    savepoint = h.completed_savepoint()
    cp = h.checkpoint()
    shared = h.shared(cp, "a", "sst")
    h.acknowledge(cp, "a", handles=[shared])
    h.decline(cp, "b")
    h.dispose(savepoint)
    cp = h.checkpoint()
    h.acknowledge(cp, "a", handles=[shared])
    h.acknowledge(cp, "b")
    assert shared.key in h.files()


def test_the_savepoint_a_run_was_restored_from_goes_only_once_a_checkpoint_has_completed() -> None:
    h = CoordinatorHarness(num_retained=3)
    savepoint = h.completed_savepoint()
    n = h.next_attempt(restore_from=f"savepoint-{savepoint}")
    with pytest.raises(InvalidRequest, match="has completed no checkpoint since"):
        n.dispose(savepoint)
    cp = n.completed_checkpoint()
    n.dispose(savepoint)
    assert (n.completed, n.savepoints, n.files("memory://savepoints")) == ([cp], [], [])


def test_shared_files_whose_deletion_failed_go_with_the_next_one() -> None:
    """StandaloneCompletedCheckpointStoreTest#testAddCheckpointWithFailedRemove: logged, and not forgotten."""
    h = CoordinatorHarness(incremental=True)
    cp = h.checkpoint()
    shared = h.shared(cp, "task", "sst")
    h.acknowledge(cp, "task", handles=[shared])
    h.fail_next_deletion()
    h.completed_checkpoint()
    assert shared.key in h.files()
    h.completed_checkpoint()
    assert shared.key not in h.files()
    assert h.discarded == [1, 2]


# --- numbers ------------------------------------------------------------------------------------------------


def test_a_message_that_comes_after_the_failure_counts_by_its_size_not_as_acknowledged() -> None:
    """CheckpointCoordinatorTest#testCheckpointStatsUpdatedAfterFailure, #testAbortedCheckpointStats…."""
    h = apart()
    cp = h.checkpoint()
    h.decline(cp, "a")
    sent = SnapshotMetrics(bytes_full=18, bytes_new=18, processed_in_flight=19, async_ms=20, alignment_ms=123)
    h.acknowledge(cp, "b", metrics=sent)
    [failed] = h.statistics.history
    assert failed.status is CheckpointStatus.FAILED
    assert (failed.acknowledged, failed.latest_ack_at) == (0, None)
    assert (failed.bytes_full, failed.processed_in_flight) == (18, 19)
    [detail] = failed.stages[1].details
    assert detail.metrics == sent
    assert detail.late


def test_finished_subtasks_are_acknowledged_with_the_trigger_and_listed() -> None:
    """CheckpointCoordinatorTest#testCheckpointTriggeredAfterSomeTasksFinishedIfAllowed."""
    h = CoordinatorHarness(stages={"a": 3, "b": 3}, edges=[("a", "b")])
    for stage, subtask in (("a", 0), ("a", 1), ("b", 1)):
        h.finish(stage, subtask)
    h.clock.advance(5)
    h.checkpoint()
    [underway] = h.statistics.history
    assert (underway.acknowledged, underway.subtasks) == (3, 6)
    assert underway.latest_ack_at == underway.triggered_at
    assert [[d.index for d in s.details] for s in underway.stages] == [[0, 1], [1]]


def test_a_request_that_is_refused_before_the_plan_counts_as_total_and_failed() -> None:
    """CheckpointCoordinator#onTriggerFailure without a pending checkpoint: reportFailedCheckpointsWithoutInProgress."""
    h = CoordinatorHarness(interval=10.0)
    h.stop_periodic()
    refused = h.trigger(periodic=True)
    assert isinstance(refused, Rejected)
    assert refused.reason is Reason.PERIODIC_SCHEDULER_SHUTDOWN
    assert (h.statistics.counts.total, h.statistics.counts.failed) == (1, 1)
    assert (h.pending, h.failure_counter) == ([], 0)


# --- failing the run ----------------------------------------------------------------------------------------


def test_of_all_reasons_five_fail_the_run_each_time() -> None:
    """CheckpointFailureManagerTest#testTotalCountValue, through the coordinator."""
    h = CoordinatorHarness(tolerable_failed_checkpoints=0)
    for reason in Reason:
        h.decline(h.checkpoint(), "task", reason=reason)
    assert len(h.job_failures) == 5
    assert "IO_EXCEPTION" in h.coordinator.failure


def test_a_savepoint_that_was_to_end_the_run_fails_it_though_its_stage_has_ended() -> None:
    """CheckpointFailureManager#handleTaskLevelCheckpointException: a synchronous savepoint fails the job at once."""
    h = apart(max_concurrent_checkpoints=MANY)
    outcome = h.stop_with_savepoint()
    [savepoint] = h.pending
    h.acknowledge(savepoint, "a")
    h.fail_task("a")
    assert h.decline(savepoint, "a") is FailureDecision.FAIL_RUN
    assert "with which the run was to stop" in h.job_failures[0]
    assert h.stop_outcome is not None
    assert outcome


def test_failures_on_the_coordinators_side_of_a_savepoint_do_not_count_a_stages_decline_does() -> None:
    """CheckpointFailureManager: job-level failures are ignored for savepoints, task-level ones are not."""
    h = CoordinatorHarness(tolerable_failed_checkpoints=5, timeout=10.0)
    h.fail_next_metadata_write()
    h.completed_savepoint()
    h.expire(h.savepoint())
    assert (h.failure_counter, set(h.failures.values())) == (
        0,
        {Reason.FINALIZE_CHECKPOINT_FAILURE, Reason.CHECKPOINT_EXPIRED},
    )
    h.decline(h.savepoint(), "task")
    assert h.failure_counter == 1


# --- triggering ---------------------------------------------------------------------------------------------


def test_the_reason_that_a_step_of_the_trigger_gives_is_kept_unless_it_was_an_io_error() -> None:
    """CheckpointCoordinator#getCheckpointException: I/O first, then the reason in the chain, then the default."""
    h = CoordinatorHarness(tolerable_failed_checkpoints=MANY)
    gone = Declined("the task is gone", reason=Reason.TASK_CHECKPOINT_FAILURE)
    wrapped = RuntimeError("not sent")
    wrapped.__cause__ = gone
    on_disk = Declined("the disk is full", reason=Reason.TASK_CHECKPOINT_FAILURE)
    on_disk.__cause__ = OSError("no space")
    for error in (gone, wrapped, on_disk, Declined("no reason")):
        h.fail_next_trigger(error)
        h.trigger()
    assert list(h.failures.values()) == [
        Reason.TASK_CHECKPOINT_FAILURE,
        Reason.TASK_CHECKPOINT_FAILURE,
        Reason.IO_EXCEPTION,
        Reason.TRIGGER_CHECKPOINT_FAILURE,
    ]


def test_the_trigger_is_in_flight_until_the_stages_were_told_or_the_checkpoint_is_over() -> None:
    """CheckpointCoordinatorTriggeringTest#testTriggerCheckpointRequestCancelled (isTriggering)."""
    h = CoordinatorHarness(
        hooks=[RecordingHook("hook", answering=Answering.LATER)], timeout=10.0, interval=1e6
    )
    h.trigger(periodic=True)
    assert h.triggering == 1
    assert isinstance(h.trigger(), Queued)
    h.expire(1)
    assert (h.triggering, h.queued, h.triggered("task")) == (2, 0, [])
    h.answer_hook(1, "hook")
    assert h.triggered("task") == []
    h.answer_hook(2, "hook")
    assert (h.triggering, h.triggered("task")) == (None, [2])


def test_of_ten_periodic_requests_and_a_savepoint_the_savepoint_is_next_in_unaligned_mode() -> None:
    """CheckpointCoordinatorTest#testSavepointScheduledInUnalignedMode."""
    h = CoordinatorHarness(unaligned=True, interval=1e6)
    for _ in range(10):
        h.trigger(periodic=True)
    assert h.queued == 9
    assert isinstance(h.trigger("savepoint"), Queued)
    h.decline(1, "task")
    assert (h.queued, h.pending) == (9, [2])
    assert h.kind(2) is CheckpointKind.SAVEPOINT
    assert not h.record.pending[0].properties.forced


def test_tasks_hear_of_the_abort_before_their_coordinator() -> None:
    """CheckpointCoordinator#sendAbortedMessages: vertices first, then the coordinators."""
    heard: list[str] = []
    driver = RecordingOperatorCoordinator("task")
    h = CoordinatorHarness(coordinators=[driver])
    told = driver.checkpoint_aborted
    driver.checkpoint_aborted = lambda number: (heard.append("coordinator"), told(number))[1]  # type: ignore[method-assign,func-returns-value]
    confirm = h.gateway.on_aborted
    assert confirm is not None
    h.gateway.on_aborted = lambda message: (heard.append("task"), confirm(message))[1]  # type: ignore[func-returns-value]
    h.decline(h.checkpoint(), "task")
    assert heard == ["task", "coordinator"]


# --- a restart of the stages --------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 3])
def test_a_failover_leaves_nothing_pending_and_nothing_waiting(most: int) -> None:
    """FailoverStrategyCheckpointCoordinatorTest#testAbortPendingCheckpointsWithTriggerValidation."""
    h = CoordinatorHarness(interval=1e6, max_concurrent_checkpoints=most)
    h.advance(h.next_periodic or 0.0)
    for _ in range(most):
        h.trigger()
    assert (len(h.pending), h.queued) == (most, 1)
    h.fail_over()
    assert (h.pending, h.queued) == ([], 0), "the tasks of a queued one are about to be restarted"
    assert h.rejected == [Reason.JOB_FAILOVER_REGION]
    assert set(h.failures.values()) == {Reason.JOB_FAILOVER_REGION}
    assert h.next_periodic is not None


def test_a_failover_after_the_savepoint_ends_the_stop_and_the_pipeline_goes_on() -> None:
    """StopWithSavepointTest#testRestartOnTaskFailureAfterSavepointCompletion: it is kept."""
    h = apart(interval=10.0)
    h.stop_with_savepoint()
    [savepoint] = h.pending
    h.acknowledge_all(savepoint)
    h.fail_task("b")
    assert h.stop_outcome is None
    h.fail_over()
    assert isinstance(h.stop_outcome, StoppedBadly)
    assert "a canceled, b failed" in h.stop_outcome.message
    for stage in ("a", "b"):
        h.restart_task(stage)
    assert (h.is_scheduling, h.savepoints) == (True, [savepoint])
    assert isinstance(h.stop_with_savepoint(), Triggered), "it can be tried again"


def test_a_failover_while_stages_run_on_after_the_savepoint_ends_the_stop_and_fails_nothing() -> None:
    """StopWithSavepointTest#testRestartOnGlobalFailureIfRestartConfigured."""
    h = apart(interval=10.0)
    h.stop_with_savepoint()
    h.acknowledge_all(1)
    h.fail_over()
    assert isinstance(h.stop_outcome, StoppedBadly)
    assert "a canceled, b canceled" in h.stop_outcome.message
    assert (h.job_failures, h.is_scheduling) == ([], True)


def test_a_failover_before_the_savepoint_is_a_stop_that_failed() -> None:
    """StopWithSavepointTest#testConcurrentSavepointFailureAndGloballyTerminalStateCauseRestart."""
    h = apart(interval=10.0)
    h.stop_with_savepoint()
    h.fail_over()
    assert isinstance(h.stop_outcome, NotStopped)
    assert h.stop_outcome.reason is Reason.JOB_FAILOVER_REGION
    assert h.is_scheduling


def test_a_savepoint_cannot_be_subsumed() -> None:
    """PendingCheckpointTest#testCanBeSubsumed, #testSyncSavepointCannotBeSubsumed."""
    h = CoordinatorHarness(max_concurrent_checkpoints=MANY)
    savepoint = h.savepoint()
    with pytest.raises(InvalidRequest, match="cannot be subsumed"):
        h.decline(savepoint, "task", reason="checkpoint_subsumed")
    assert h.pending == [savepoint]


def test_an_attempt_does_not_end_running() -> None:
    h = apart()
    with pytest.raises(InvalidRequest, match="not RUNNING"):
        h.close("running")
    assert h.checkpoint() == 1


# --- hooks --------------------------------------------------------------------------------------------------


def test_hooks_get_the_state_of_the_latest_checkpoint_when_stages_restart() -> None:
    """CheckpointCoordinator#restoreLatestCheckpointedStateToSubtasks: hooks are restored on a regional recovery too."""
    hook, other = RecordingHook("hook", "one"), RecordingHook("other", None)
    driver = RecordingOperatorCoordinator("task")
    h = CoordinatorHarness(hooks=[hook, other], coordinators=[driver])
    cp = h.completed_checkpoint()
    h.fail_over()
    assert hook.restored == [(cp, "one")]
    assert other.restored == [(cp, None)]
    assert driver.restored == [(None, None)]


def test_driver_side_state_comes_from_the_checkpoint_even_after_a_clean_end() -> None:
    """restoreInitialCheckpointIfPresent: a directory that was left clean holds nothing for hooks and coordinators."""
    h = CoordinatorHarness(
        hooks=[RecordingHook("hook", "one")], coordinators=[RecordingOperatorCoordinator("task", "splits")]
    )
    cp = h.completed_checkpoint()
    h.close()
    hook, driver = RecordingHook("hook"), RecordingOperatorCoordinator("task")
    n = h.next_attempt(hooks=[hook], coordinators=[driver])
    assert isinstance(n.coordinator.restored, Restore)
    assert "can only begin at a checkpoint" in n.coordinator.restored.reason
    assert (hook.restored, hook.resets) == ([(cp, "one")], 0)
    assert driver.restored == [(cp, "splits")]


def test_hooks_are_restored_by_the_process_that_takes_up_a_claim_nobody_has_restored() -> None:
    """A process may die between the claim and the restore; once the stages run, hooks are left alone."""
    h = CoordinatorHarness(hooks=[RecordingHook("hook", "one")])
    cp = h.completed_checkpoint()
    hook = RecordingHook("hook")
    n = h.next_attempt(hooks=[hook], running=False)
    n.crash()
    n.recover()
    assert hook.restored == [(cp, "one"), (cp, "one")]
    n.run()
    n.crash()
    n.recover()
    assert len(hook.restored) == 2


def test_a_state_that_no_hook_can_read_leaves_the_pipeline_to_who_had_it() -> None:
    """CheckpointCoordinatorMasterHooksTest#testDeserializationFailsOnRestore: nothing restored, nothing claimed."""
    h = CoordinatorHarness(hooks=[RecordingHook("hook", "broken")])
    cp = h.completed_checkpoint()
    fresh = RecordingHook("hook")
    with pytest.raises(ValueError, match="cannot read its state"):
        h.next_attempt(hooks=[fresh])
    with pytest.raises(InvalidRequest, match="'hook'"):
        h.next_attempt(hooks=[])
    assert (fresh.restored, fresh.resets) == ([], 0)
    assert h.completed_checkpoint() == cp + 1  # it was not fenced


# --- restoring ----------------------------------------------------------------------------------------------


def test_state_acknowledged_by_subtasks_is_not_dropped_unasked() -> None:
    """C080: CheckpointMetadataLoadingTest#testNonRestoredStateWhenDisallowed, …WhenAllowed."""
    h = apart()
    cp = h.checkpoint()
    h.acknowledge(cp, "a")
    h.acknowledge(cp, "b", handles=[h.private(cp, "b")])
    with pytest.raises(InvalidRequest, match="holds state of 'b'"):
        h.next_attempt(stages={"a": 1})
    n = h.next_attempt(stages={"a": 1}, allow_non_restored_state=True)
    assert isinstance(n.coordinator.restored, Restore)


def test_a_stage_without_state_may_be_removed() -> None:
    """C082: SavepointITCase#testCanRestoreWithModifiedStatelessOperators."""
    h = apart()
    h.completed_checkpoint()
    assert isinstance(h.next_attempt(stages={"a": 1, "c": 1}).coordinator.restored, Restore)


@pytest.mark.parametrize("pattern", ["pointwise", "all_to_all"])
def test_nothing_that_runs_may_be_put_before_a_stage_of_which_some_subtasks_had_finished(
    pattern: str,
) -> None:
    """CheckpointCoordinatorRestoringTest#testJobGraphModificationsAreCheckedForInitialCheckpoint, …ForSavepoint."""
    h = CoordinatorHarness(stages={"a": 2})
    h.finish("a", 0)
    savepoint = h.completed_savepoint()
    with pytest.raises(InvalidRequest, match="partially finished"):
        h.next_attempt(
            stages={"new": 2, "a": 2}, edges=[("new", "a", pattern)], restore_from=f"savepoint-{savepoint}"
        )


def test_a_parallelism_that_cannot_be_is_refused() -> None:
    for spec in (
        StageSpec(uid=StageUid("a"), parallelism=0),
        StageSpec(uid=StageUid("a"), parallelism=9, max_parallelism=8),
    ):
        with pytest.raises(InvalidRequest, match="parallelism"):
            CoordinatorHarness(stages=[spec])


# --- a crash between the record and the files ---------------------------------------------------------------


def test_deletions_that_a_crash_interrupted_go_on_when_the_process_is_back() -> None:
    """CheckpointResourcesCleanupRunnerTest#testSuccessfulCloseAsyncAfterStart."""
    h = CoordinatorHarness()
    first = h.completed_checkpoint()
    h.block_deletions()
    h.completed_checkpoint()
    h.crash()
    assert [key for key in h.files() if f"chk-{first}/" in key]
    h.recover()
    assert not [key for key in h.files() if f"chk-{first}/" in key]
    assert h.discarded == [first]


# --- the harness itself -------------------------------------------------------------------------------------


def test_the_harness_says_what_there_is_instead_of_what_was_named() -> None:
    h = apart(coordinators=[RecordingOperatorCoordinator("a")])
    cp = h.checkpoint()
    for act in (
        lambda: h.triggered("x"),
        lambda: h.notices("x"),
        lambda: h.completes("x"),
        lambda: h.private(cp, "x"),
        lambda: h.shared(cp, "x", "f"),
        lambda: h.acknowledge_stage(cp, "x"),
        lambda: h.acknowledge(cp, "x"),
        lambda: h.confirm_aborted(cp, "x"),
        lambda: h.finish("x"),
        lambda: h.received("x"),
        lambda: h.attempt("x"),
        lambda: h.status("x"),
        lambda: h.acknowledge_coordinator(cp, "x"),
        lambda: h.fail_coordinator(cp, "x"),
        lambda: apart(union_state=["x"]),
        lambda: apart(coordinators=[RecordingOperatorCoordinator("x")]),
    ):
        with pytest.raises(NotFound, match="the stages are a, b"):
            act()
    with pytest.raises(NotFound, match="1 subtasks, so no subtask 3"):
        h.triggered("a", 3)
    for never in (h.acknowledge_all, h.outstanding, lambda n: h.shared(n, "a", "f")):
        with pytest.raises(NotFound, match="checkpoint 9 was never triggered: the next one will be 2"):
            never(9)
    with pytest.raises(NotFound, match="no stage was told of checkpoint 9"):
        h.options(9)
    for wrong, listed in (
        (lambda: h.trigger("savepiont"), "SYNC_SAVEPOINT_SUSPEND"),
        (lambda: h.report("a", "walking"), "DEPLOYING"),
        (lambda: h.decline(cp, "a", reason="TIRED"), "CHECKPOINT_EXPIRED"),
        (lambda: h.close("over"), "CANCELED"),
        (lambda: h.send_event("b", "e"), "those with one: a"),
        (h.confirm_event, "confirm_events = False"),
        (lambda: h.advance(-1), "backwards"),
        (lambda: CoordinatorHarness(edges=[("task", "task", "sideways")]), "POINTWISE"),
        (lambda: CoordinatorHarness(edges=["ab"]), "upstream, downstream"),  # type: ignore[list-item]
        (lambda: CoordinatorHarness(stages=["a"]), "parallelism"),  # type: ignore[list-item]
        (lambda: CoordinatorHarness(stages={"a": "2"}), "a number, got a: '2'"),  # type: ignore[dict-item]
        (lambda: CoordinatorHarness(directory="gone"), "MISSING"),
        (lambda: CoordinatorHarness(acks="later"), "AT_COMPLETION"),
        (lambda: CoordinatorHarness(claim_mode="mine"), "no_claim"),
        (lambda: RecordingHook("hook", answering="soon"), "LATER"),
        (lambda: apart(coordinators=[RecordingOperatorCoordinator("a")] * 2), "two coordinators"),
        (lambda: h.next_attempt("run-1"), "another owner"),
        (lambda: h.fail_hook(cp, "x"), "no master hook 'x'"),
        (lambda: h.fail_next_store(times=0), "at least once"),
        (lambda: h.fail_next_trigger("boom"), "raises an exception"),  # type: ignore[arg-type]
        (lambda: h.fail_next_location("boom"), "raises an exception"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidRequest, match=listed):
            wrong()


def test_the_harness_takes_no_answer_for_another() -> None:
    h = apart()
    cp = h.checkpoint()
    for wrong, said in (
        ({"handles": ["key"]}, "what private"),
        ({"metrics": {"bytes": 1}}, "metrics have no bytes: sync_ms"),
        ({"attempt": "run-1"}, "what attempt"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            h.acknowledge(cp, "a", **wrong)
    with pytest.raises(InvalidRequest, match="a stage's snapshot has no files: it has uid"):
        h.acknowledge_stage(cp, "a", files=3)
    with pytest.raises(InvalidRequest, match="named by their number, got 'chk-1'"):
        h.acknowledge("chk-1", "a")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="text or None"):
        h.acknowledge_coordinator(cp, "a", b"x")  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="queued as request 2"):
        h.checkpoint()
    h.report("a", "created")
    with pytest.raises(
        AssertionError, match="NOT_ALL_REQUIRED_TASKS_RUNNING: Subtask 0 of stage 'a' is created"
    ):
        h.savepoint()
    assert h.outstanding(cp) == {"a": [0], "b": [0]}


def test_what_a_scenario_asks_of_a_file_a_task_and_a_checkpoint() -> None:
    h = apart(externalized_checkpoint_retention="delete_on_cancellation")
    cp = h.checkpoint()
    file = h.private(cp, "a")
    assert h.is_stored(file)
    h.acknowledge(cp, "a", handles=file, metrics={"bytes_full": 7})
    assert h.statistics.history[0].bytes_full == 7
    kept = h.properties(cp)
    assert (kept.discard_canceled, kept.discard_failed) == (True, False)
    before = h.attempt("b")
    assert h.restart_task("b") != before
    assert h.failures == {cp: Reason.TASK_FAILURE}, "its task was canceled"
    assert not h.is_stored(file)
    with pytest.raises(NotFound, match="neither pending nor retained"):
        h.properties(cp)


def test_the_harness_takes_names_for_members() -> None:
    h = CoordinatorHarness(tolerable_failed_checkpoints=MANY, interval=10.0)
    assert h.is_scheduling
    assert h.next_periodic is not None
    h.decline(h.checkpoint(), "task", reason="checkpoint_expired")
    h.report("task", "DEPLOYING")
    h.report("task", "running")
    h.trigger("SAVEPOINT", scope="full")
    assert h.options(2).kind is CheckpointKind.SAVEPOINT
    h.acknowledge_all(2)
    h.dispose(2)
    assert (h.savepoints, h.files("memory://savepoints"), h.files("memory://never")) == ([], [], [])
    h.close("canceled")
    assert h.record.status is RunStatus.CANCELED
