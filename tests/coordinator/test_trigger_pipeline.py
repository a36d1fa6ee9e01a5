"""From request to triggered checkpoint (Flink 1.3 in the coordinator, 1.4) and the id counter (1.6)."""

from __future__ import annotations

from functools import partial
from typing import Unpack

import pytest

from dagster_ckpt.core.checkpoint.tasks import StageStatus
from dagster_ckpt.core.messages import Alignment, NotifyComplete
from dagster_ckpt.core.messages import CheckpointFailureReason as Reason
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.request import Failed, Queued, Rejected, SnapshotScope, Triggered
from dagster_ckpt.errors import InvalidRequest, NotFound, Unavailable
from dagster_ckpt.runtime.attempt_setup import AttemptSetup
from dagster_ckpt.testing.coordinator import harness
from dagster_ckpt.testing.coordinator.events import (
    Answering,
    RecordingHook,
    RecordingOperatorCoordinator,
)
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness
from dagster_ckpt.testing.coordinator.settings import HarnessOptions

GRAPH: HarnessOptions = {"stages": {"source": 2, "sink": 2}, "edges": [("source", "sink")]}


def graph(**options: Unpack[HarnessOptions]) -> CoordinatorHarness:
    merged: HarnessOptions = {**GRAPH, **options}
    return CoordinatorHarness(**merged)


# --- the steps ----------------------------------------------------------------------------------------------


def test_the_sources_are_triggered_and_nobody_else() -> None:
    """CheckpointCoordinatorTest#testTriggerAndConfirmSimpleCheckpoint."""
    h = graph()
    first = h.checkpoint()
    assert first == 1
    assert h.triggered("source", 0) == [1]
    assert h.triggered("source", 1) == [1]
    assert h.triggered("sink", 0) == []
    assert h.outstanding(first) == {"source": [0, 1], "sink": [0, 1]}


def test_coordinators_are_asked_before_hooks_and_hooks_before_stages() -> None:
    hook = RecordingHook("hook", answering=Answering.LATER)
    coordinator = RecordingOperatorCoordinator("source", answering=Answering.LATER)
    h = graph(hooks=[hook], coordinators=[coordinator])
    first = h.checkpoint()
    assert (coordinator.asked, hook.triggered, h.triggered("source")) == ([1], [], [])
    h.acknowledge_coordinator(first, "source")
    assert (hook.triggered, h.triggered("source")) == ([1], [])
    h.answer_hook(first, "hook")
    assert h.triggered("source") == [1]


def test_only_one_trigger_is_in_flight_and_the_next_is_queued() -> None:
    """CheckpointCoordinatorTriggeringTest#testTriggerCheckpointBeforePreviousOneCompleted."""
    hook = RecordingHook("hook", answering=Answering.LATER)
    h = graph(hooks=[hook], max_concurrent_checkpoints=10)
    first = h.checkpoint()
    assert isinstance(h.trigger(), Queued)
    assert h.pending == [first]
    h.answer_hook(first, "hook")
    assert h.pending == [1, 2]
    assert hook.triggered == [1, 2]


def test_a_checkpoint_that_expires_before_the_stages_are_told_never_reaches_them() -> None:
    """C044: CheckpointCoordinatorTriggeringTest#testTriggerCheckpointRequestCancelled."""
    hook = RecordingHook("hook", answering=Answering.LATER)
    h = graph(hooks=[hook], timeout=10.0)
    first = h.checkpoint()
    h.trigger()
    h.advance(10.0)
    assert h.failures[first] is Reason.CHECKPOINT_EXPIRED
    h.answer_hook(first, "hook")
    assert h.triggered("source") == []
    assert h.pending == [2]


def test_a_coordinator_that_does_not_finish_lets_the_checkpoint_expire() -> None:
    """CheckpointCoordinatorTest#testTimeoutWhileCheckpointOperatorCoordinatorNotFinishing."""
    coordinator = RecordingOperatorCoordinator("source", answering=Answering.LATER)
    h = graph(coordinators=[coordinator], timeout=10.0)
    h.checkpoint()
    h.advance(10.0)
    assert h.pending == []
    assert coordinator.aborted == [1]
    assert h.triggered("source") == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("rpc"), Reason.TRIGGER_CHECKPOINT_FAILURE),
        (ConnectionError("rpc"), Reason.IO_EXCEPTION),
    ],
)
def test_a_trigger_message_that_fails_fails_the_checkpoint_and_the_next_request_runs(
    error: Exception, reason: Reason
) -> None:
    """CheckpointCoordinatorTriggeringTest#testTriggerCheckpointRequestQueuedWithFailure."""
    h = graph(tolerable_failed_checkpoints=5)
    h.fail_next_trigger(error)
    outcome = h.trigger()
    assert isinstance(outcome, Rejected)
    assert outcome.reason is reason
    assert h.pending == []
    assert h.checkpoint() == 2


def test_an_io_error_anywhere_in_the_cause_chain_counts_as_one() -> None:
    """CheckpointCoordinator#onTriggerFailure: IOException is looked for in the whole chain."""
    wrapped = RuntimeError("outer")
    wrapped.__cause__ = ValueError("middle")
    wrapped.__cause__.__cause__ = OSError("disk")
    h = graph(tolerable_failed_checkpoints=5)
    h.fail_next_trigger(wrapped)
    outcome = h.trigger()
    assert isinstance(outcome, Rejected)
    assert outcome.reason is Reason.IO_EXCEPTION
    assert h.failure_counter == 1


@pytest.mark.parametrize("storage_retries", [0, 1])
def test_a_storage_location_that_cannot_be_made_is_tried_again_or_fails_the_checkpoint_only(
    storage_retries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CheckpointCoordinatorTest#testTriggerCheckpointAfterCheckpointStorageIOException."""
    monkeypatch.setattr(harness, "AttemptSetup", partial(AttemptSetup, storage_retries=storage_retries))
    h = graph(tolerable_failed_checkpoints=5)
    h.fail_next_location()
    if storage_retries:
        assert h.completed_checkpoint() == 1
        return
    outcome = h.trigger()
    assert isinstance(outcome, Rejected)
    assert outcome.reason is Reason.IO_EXCEPTION
    assert (h.statistics.counts.total, h.statistics.counts.failed) == (1, 1)
    assert h.completed_checkpoint() == 2


def test_an_id_that_cannot_be_stored_leaves_nothing_pending_and_is_counted() -> None:
    """CheckpointCoordinatorTest#testTriggerCheckpointWithCounterIOException."""
    h = graph(tolerable_failed_checkpoints=5)
    h.fail_next_store()
    outcome = h.trigger()
    assert isinstance(outcome, Rejected)
    assert outcome.reason is Reason.IO_EXCEPTION
    assert h.pending == []
    assert (h.statistics.counts.total, h.statistics.counts.failed) == (1, 1)
    assert h.statistics.in_progress == 0


def test_a_folder_that_holds_foreign_files_is_never_written_into() -> None:
    h = graph(tolerable_failed_checkpoints=5)
    h.storage.create("pipeline/chk-1/source/left-over", b"?")
    outcome = h.trigger()
    assert isinstance(outcome, Rejected)
    assert "already holds files" in outcome.message
    assert h.checkpoint() == 2
    assert "pipeline/chk-1/source/left-over" in h.files()


def test_a_task_that_ends_between_plan_and_trigger_aborts_the_checkpoint() -> None:
    """CheckpointCoordinatorTest#testTasksFinishDuringTriggering."""
    hook = RecordingHook("hook", answering=Answering.LATER)
    h = graph(hooks=[hook])
    first = h.checkpoint()
    h.finish("source", 0)
    assert h.pending == []
    h.answer_hook(first, "hook")
    assert h.triggered("source", 1) == []


def test_a_coordinator_that_fails_aborts_the_others_and_fails_the_checkpoint() -> None:
    """CheckpointCoordinatorTest#testAbortingBeforeTriggeringCheckpointOperatorCoordinator."""
    one = RecordingOperatorCoordinator("sink", answering=Answering.FAILS)
    other = RecordingOperatorCoordinator("source")
    h = graph(coordinators=[one, other])
    outcome = h.trigger()
    assert isinstance(outcome, Rejected)
    assert outcome.reason is Reason.TRIGGER_CHECKPOINT_FAILURE
    assert other.aborted == [1]
    assert h.failure_counter == 0


def test_no_plan_no_id() -> None:
    """CheckpointCoordinatorTest#testCheckpointAbortsIfTriggerTasksAreNotExecuted."""
    h = graph()
    h.report("sink", StageStatus.DEPLOYING, 1)
    outcome = h.trigger()
    assert isinstance(outcome, Rejected)
    assert outcome.reason is Reason.NOT_ALL_REQUIRED_TASKS_RUNNING
    assert "Subtask 1 of stage 'sink' is deploying" in outcome.message
    assert (h.failure_counter, h.statistics.counts.failed) == (0, 1)
    h.report("sink", StageStatus.RUNNING, 1)
    assert h.checkpoint() == 1


def test_with_the_feature_off_a_finished_task_prevents_checkpoints() -> None:
    """C026: CheckpointCoordinatorTest#testCheckpointAbortsIfTriggerTasksAreFinished."""
    h = graph(checkpoints_after_tasks_finish=False)
    h.finish("source", 0)
    assert isinstance(h.trigger(), Rejected)
    assert h.pending == []


# --- the queue in the coordinator ---------------------------------------------------------------------------


@pytest.mark.parametrize("maximum", [1, 2, 5])
def test_no_more_checkpoints_are_pending_than_allowed(maximum: int) -> None:
    """CheckpointCoordinatorTest#testMaxConcurrentAttempts1, 2, 5."""
    h = CoordinatorHarness(interval=10.0, max_concurrent_checkpoints=maximum, timeout=10_000.0)
    h.advance(200.0)
    assert h.pending == list(range(1, maximum + 1))
    h.acknowledge_all(1)
    h.advance(10.0)
    assert h.pending == list(range(2, maximum + 2))


def test_completing_the_newest_frees_the_slots_of_those_it_subsumes() -> None:
    """C020: CheckpointCoordinatorTest#testMaxConcurrentAttemptsWithSubsumption."""
    h = CoordinatorHarness(interval=10.0, max_concurrent_checkpoints=2, timeout=10_000.0)
    h.advance(100.0)
    assert h.pending == [1, 2]
    h.acknowledge_all(2)
    assert h.failures[1] is Reason.CHECKPOINT_SUBSUMED
    h.advance(30.0)
    assert h.pending == [3, 4]


def test_several_savepoints_run_at_once_whatever_the_maximum() -> None:
    """CheckpointCoordinatorTest#testConcurrentSavepoints."""
    h = CoordinatorHarness(max_concurrent_checkpoints=1)
    started = [h.savepoint() for _ in range(5)]
    assert h.pending == started
    for number in started:
        h.acknowledge_all(number)
    assert h.savepoints == started


def test_with_unaligned_checkpoints_a_savepoint_waits_for_its_turn() -> None:
    """C019: CheckpointCoordinatorTest#testSavepointScheduledInUnalignedMode."""
    h = CoordinatorHarness(unaligned=True, max_concurrent_checkpoints=1)
    cp = h.checkpoint()
    assert isinstance(h.trigger(CheckpointKind.SAVEPOINT), Queued)
    h.acknowledge_all(cp)
    assert h.pending == [2]
    h.acknowledge_all(2)
    assert h.savepoints == [2]


def test_savepoints_do_not_wait_for_the_minimum_pause() -> None:
    """CheckpointCoordinatorTest#testMinDelayBetweenSavepoints."""
    h = CoordinatorHarness(min_pause=1000.0)
    assert h.completed_savepoint() == 1
    assert h.completed_savepoint() == 2


def test_manual_checkpoints_do_not_wait_for_the_minimum_pause() -> None:
    """C014: CheckpointRequestDeciderTest#testCheckpointTiming."""
    h = CoordinatorHarness(interval=1000.0, min_pause=100.0)
    h.completed_checkpoint()
    assert h.completed_checkpoint() == 2
    h.trigger(periodic=True)
    assert h.rejected == [Reason.MINIMUM_TIME_BETWEEN_CHECKPOINTS]
    assert h.queued == 0
    assert h.coordinator.next_periodic == pytest.approx(h.clock.monotonic() + 100.0)


def test_a_savepoint_counts_for_the_minimum_pause_too() -> None:
    h = CoordinatorHarness(interval=1000.0, min_pause=100.0)
    h.completed_savepoint()
    h.trigger(periodic=True)
    assert h.rejected == [Reason.MINIMUM_TIME_BETWEEN_CHECKPOINTS]


def test_deletions_that_do_not_keep_up_hold_back_triggers() -> None:
    """C017: ZooKeeperCompletedCheckpointStoreITCase#testChekpointingPausesAndResumeWhenTooManyCheckpoints."""
    h = CoordinatorHarness(max_concurrent_checkpoints=1, num_retained=1)
    h.block_deletions()
    for _ in range(3):
        h.completed_checkpoint()
    assert isinstance(h.trigger(), Queued)
    assert h.pending == []
    h.release_deletions(1)
    assert h.pending == [4]


def test_commits_that_do_not_keep_up_hold_back_triggers_and_nothing_is_declined() -> None:
    """In Flink a task that commits a checkpoint takes its part of the next one behind that; the trigger after waits."""
    h = CoordinatorHarness(max_concurrent_checkpoints=1)
    waited: list[object] = []

    def committing(message: NotifyComplete) -> None:
        assert list(h.coordinator.notifying) == list(range(1, message.checkpoint_id + 1))
        if message.checkpoint_id == 1:
            h.completed_checkpoint()  # meanwhile
        elif message.checkpoint_id == 2:
            waited.append(h.trigger())
            assert h.pending == []
            h.completed_savepoint()

    h.gateway.on_complete = committing
    h.completed_checkpoint()
    assert isinstance(waited[0], Queued)
    assert (h.completed, h.savepoints, h.pending) == ([2], [3], [4])
    assert not h.coordinator.notifying
    assert h.failures == {}


def test_behind_a_commit_that_hangs_checkpoints_are_triggered_again_after_their_timeout() -> None:
    h = CoordinatorHarness(max_concurrent_checkpoints=1, timeout=60.0, interval=1.0)
    pending: list[list[int]] = []

    def committing(message: NotifyComplete) -> None:
        if message.checkpoint_id == 1:
            h.advance(1.0)
            h.acknowledge_all(2)
        elif message.checkpoint_id == 2:
            for seconds in (58.5, 2.0):
                h.advance(seconds)
                pending.append([*h.pending])

    h.gateway.on_complete = committing
    h.advance(1.0)
    h.acknowledge_all(1)
    assert pending == [[], [3]]


def test_too_many_requests_are_refused() -> None:
    """C013: CheckpointRequestDeciderTest#testQueueSizeLimit."""
    h = CoordinatorHarness(interval=1e6)
    h.checkpoint()
    for _ in range(1000):
        h.trigger(periodic=True)
    assert h.rejected == []
    h.trigger(periodic=True)
    assert h.rejected == [Reason.TOO_MANY_CHECKPOINT_REQUESTS]
    assert isinstance(h.trigger(), Queued)
    assert len(h.rejected) == 2


# --- kinds --------------------------------------------------------------------------------------------------


def test_a_full_checkpoint_builds_on_none_and_an_incremental_one_does() -> None:
    """CheckpointCoordinatorTriggeringTest#testTriggeringCheckpointsWithFullCheckpointType, …Incremental…."""
    h = CoordinatorHarness(incremental=False, num_retained=5)
    h.completed_checkpoint()
    plain = h.checkpoint()
    assert h.kind(plain) is CheckpointKind.CHECKPOINT
    assert h.coordinator.location_of(plain).previous == {}
    h.acknowledge_all(plain)
    full = h.checkpoint(scope=SnapshotScope.FULL)
    assert h.kind(full) is CheckpointKind.FULL_CHECKPOINT
    h.acknowledge_all(full)
    incremental = h.checkpoint(scope=SnapshotScope.INCREMENTAL)
    assert list(h.coordinator.location_of(incremental).previous) == ["task"]


def test_a_configured_checkpoint_of_an_incremental_pipeline_builds_on_the_last() -> None:
    h = CoordinatorHarness(incremental=True)
    h.completed_checkpoint()
    second = h.checkpoint()
    previous = h.coordinator.location_of(second).previous
    assert [s.uid for s in previous.values()] == ["task"]
    h.acknowledge_all(second)
    full = h.checkpoint(scope=SnapshotScope.FULL)
    assert h.coordinator.location_of(full).previous == {}


def test_a_savepoint_builds_on_none() -> None:
    h = CoordinatorHarness(incremental=True)
    h.completed_checkpoint()
    assert h.coordinator.location_of(h.savepoint()).previous == {}


def test_a_savepoint_goes_below_the_target_else_below_the_default_else_nowhere() -> None:
    """AbstractFileCheckpointStorageAccessTestBase#testSavepointPathConfiguredAndTarget, …NoTarget."""
    h = CoordinatorHarness(savepoint_dir="memory://default")
    given = h.coordinator.location_of(h.savepoint(target="memory://given"))
    default = h.coordinator.location_of(h.savepoint())
    assert given.storage.base_uri == "memory://given"
    assert default.storage.base_uri == "memory://default"
    assert given.folder.startswith("savepoint-pipeline-")
    assert len(given.folder) == len("savepoint-pipeline-") + 6
    bare = CoordinatorHarness()
    from dagster_ckpt.core.request import CheckpointRequest

    with pytest.raises(InvalidRequest, match="savepoint_dir"):
        bare.coordinator.trigger(CheckpointRequest(kind=CheckpointKind.SAVEPOINT))


def test_a_savepoint_tries_other_names_while_its_folder_is_taken() -> None:
    """FsCheckpointStorageAccess#initializeLocationForSavepoint: up to ten tries."""
    one, other = CoordinatorHarness(seed=7), CoordinatorHarness(seed=7)
    taken = one.coordinator.location_of(one.savepoint()).folder
    other.storage_at("memory://savepoints").create(f"{taken}/_metadata", b"?")
    assert other.coordinator.location_of(other.savepoint()).folder != taken


def test_alignment_follows_the_settings() -> None:
    """CheckpointOptions#forConfig."""
    cases: list[tuple[dict[str, object], CheckpointKind, Alignment, float | None]] = [
        ({}, CheckpointKind.CHECKPOINT, Alignment.ALIGNED, None),
        ({"mode": "at_least_once"}, CheckpointKind.CHECKPOINT, Alignment.AT_LEAST_ONCE, None),
        ({"unaligned": True}, CheckpointKind.CHECKPOINT, Alignment.UNALIGNED, None),
        (
            {"unaligned": True, "aligned_checkpoint_timeout": 0.1},
            CheckpointKind.CHECKPOINT,
            Alignment.ALIGNED,
            100.0,
        ),
        ({"unaligned": True}, CheckpointKind.SAVEPOINT, Alignment.ALIGNED, None),
    ]
    for settings, kind, alignment, timeout_ms in cases:
        h = CoordinatorHarness(**settings)  # type: ignore[arg-type]
        h.trigger(kind)
        options = h.gateway.triggers[0].options
        assert (options.alignment, options.aligned_timeout_ms) == (alignment, timeout_ms)


# --- identity of requests -----------------------------------------------------------------------------------


def test_the_same_client_id_twice_is_one_operation() -> None:
    """C118: DispatcherCachedOperationsHandlerTest#triggerSavepointRepeatedly."""
    h = CoordinatorHarness()
    first = h.trigger(CheckpointKind.SAVEPOINT, request_id="deploy-42")
    again = h.trigger(CheckpointKind.SAVEPOINT, request_id="deploy-42")
    assert first == again == Triggered(h.pending[0])
    assert len(h.gateway.triggers) == 1
    h.acknowledge_all(1)
    assert h.trigger(CheckpointKind.SAVEPOINT, request_id="deploy-42") == first
    assert h.coordinator.outcome_of_request("deploy-42") == first
    h.crash()
    h.recover()
    assert h.coordinator.outcome_of_request("deploy-42") == first


def test_a_queued_or_rejected_operation_is_answered_by_its_id_too() -> None:
    h = CoordinatorHarness()
    h.checkpoint()
    assert isinstance(h.trigger(request_id="later"), Queued)
    assert isinstance(h.trigger(request_id="later"), Queued)
    assert h.queued == 1
    assert isinstance(h.coordinator.outcome_of_request("later"), Queued)
    h.close()
    rejected = h.coordinator.outcome_of_request("later")
    assert isinstance(rejected, Rejected)
    assert rejected.reason is Reason.CHECKPOINT_COORDINATOR_SHUTDOWN


def test_an_unknown_client_id_is_not_found() -> None:
    """C119: SavepointHandlersTest#testQueryStatusOfUnknownOperationReturnsError."""
    h = CoordinatorHarness()
    with pytest.raises(NotFound, match="never-heard-of"):
        h.coordinator.outcome_of_request("never-heard-of")
    with pytest.raises(NotFound):
        h.outcome(77)


def test_name_labels_and_note_reach_the_metadata() -> None:
    h = CoordinatorHarness()
    number = h.completed_savepoint(name="before 2.0", labels={"team": "a"}, note="why")
    found = h.metadata(number)
    assert (found.name, found.labels, found.note) == ("before 2.0", {"team": "a"}, "why")


# --- ids ----------------------------------------------------------------------------------------------------


def test_ids_start_at_one_and_are_consumed_by_failures() -> None:
    """CheckpointIDCounterTestBase#testSerialIncrementAndGet; an id is consumed even if anything later fails."""
    h = CoordinatorHarness(tolerable_failed_checkpoints=10)
    h.fail_next_trigger(RuntimeError("no"))
    h.trigger()
    assert isinstance(h.outcome(1), Failed)
    assert h.checkpoint() == 2


def test_ids_go_on_over_attempts_and_statuses() -> None:
    """ZooKeeperCheckpointIDCounterITCase#testSuspendKeepsState; here ids are never reused, whatever the status."""
    h = CoordinatorHarness()
    h.completed_checkpoint()
    h.checkpoint()
    assert h.next_attempt().checkpoint() == 3


def test_a_lost_database_does_not_lead_to_ids_that_were_used() -> None:
    h = CoordinatorHarness()
    h.completed_checkpoint()
    h.completed_checkpoint()
    fresh = CoordinatorHarness(storage=h.storage)
    assert fresh.checkpoint() == 3


def test_shutting_down_while_a_trigger_is_in_flight_fails_it_and_nothing_crashes() -> None:
    """C007: CheckpointCoordinatorTriggeringTest#testTriggerCheckpointWithShuttingDownCoordinator."""
    hook = RecordingHook("hook", answering=Answering.LATER)
    h = graph(hooks=[hook])
    first = h.checkpoint()
    h.trigger()
    h.close()
    assert h.failures[first] is Reason.CHECKPOINT_COORDINATOR_SHUTDOWN
    assert h.rejected == [Reason.CHECKPOINT_COORDINATOR_SHUTDOWN]
    h.answer_hook(first, "hook")
    assert h.pending == []
    assert h.triggered("source") == []


def test_a_trigger_whose_storage_fails_while_the_checkpoint_is_discarded_runs_the_next_request() -> None:
    """CheckpointCoordinatorTriggeringTest#discardingTriggeringCheckpointWillExecuteNextCheckpointRequest."""
    hook = RecordingHook("hook", answering=Answering.LATER)
    h = graph(hooks=[hook], tolerable_failed_checkpoints=5)
    h.checkpoint()
    h.trigger()
    h.coordinator.fail_hook(1, "hook", Unavailable("gone"))  # type: ignore[arg-type]
    assert h.failures[1] is Reason.IO_EXCEPTION
    assert h.pending == [2]
