"""Completion (Flink 1.9), the store (1.10), deletion (1.11), and what a failing store or storage leads to."""

from __future__ import annotations

import pytest

from dagster_ckpt.core.coordinator.effects import CheckpointCompleted
from dagster_ckpt.core.messages import AcknowledgeResult as Result
from dagster_ckpt.core.messages import CheckpointFailureReason as Reason
from dagster_ckpt.core.messages import NotifyComplete
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.request import Completed, Failed, Rejected, RunStatus
from dagster_ckpt.errors import Unavailable
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness
from dagster_ckpt.testing.coordinator.settings import Settings
from dagster_ckpt.testing.faults import Operation
from dagster_ckpt.testing.faulty import CompleteNotice
from tests.coordinator.scenarios import two

TOLERANT: Settings = {"tolerable_failed_checkpoints": 5}


# --- what a completion does ---------------------------------------------------------------------------------


def test_metadata_is_written_before_the_record_says_completed_and_tasks_hear_of_it_after() -> None:
    """The compare-and-set that moves a checkpoint to completed is the commit point."""
    h = two()
    cp = h.checkpoint()
    h.acknowledge(cp, "a")
    h.calls.calls.clear()
    seen: list[bool] = []
    h.gateway.on_complete = lambda message: seen.append(h.record.completed_of(cp) is not None)
    h.acknowledge(cp, "b")
    operations = [c.operation for c in h.calls.calls if c.operation.writes]
    assert operations == [Operation.CREATE, Operation.COMPARE_AND_SET]
    assert seen == [True]


def test_a_completion_subsumes_an_older_checkpoint_that_is_still_pending() -> None:
    """CheckpointCoordinatorTest#testSuccessfulCheckpointSubsumesUnsuccessful."""
    h = two(max_concurrent_checkpoints=2)
    older, newer = h.checkpoint(), h.checkpoint()
    state = h.private(older, "a")
    h.acknowledge(older, "a", handles=[state])
    h.acknowledge_all(newer)
    assert h.failures == {older: Reason.CHECKPOINT_SUBSUMED}
    assert h.completed == [newer]
    assert state.key not in h.files()
    assert h.acknowledge(older, "b") is Result.DISCARDED
    assert h.failure_counter == 0


def test_an_older_checkpoint_may_complete_first() -> None:
    h = two(max_concurrent_checkpoints=2, num_retained=2)
    older, newer = h.checkpoint(), h.checkpoint()
    h.acknowledge_all(older)
    assert h.pending == [newer]
    h.acknowledge_all(newer)
    assert h.completed == [older, newer]


def test_a_plain_savepoint_is_not_stored_subsumes_nothing_and_tells_nobody() -> None:
    """C068: CheckpointCoordinatorTest#testTriggerAndConfirmSimpleSavepoint."""
    h = two()
    sp = h.completed_savepoint()
    assert h.completed == []
    assert h.savepoints == [sp]
    assert h.notices("a") == []
    assert isinstance(h.outcome(sp), Completed)


def test_savepoints_are_not_subsumed() -> None:
    """C040: CheckpointCoordinatorTest#testSavepointsAreNotSubsumed."""
    h = two(max_concurrent_checkpoints=3)
    sp = h.savepoint()
    h.acknowledge(sp, "a")
    cp = h.completed_checkpoint()
    assert h.pending == [sp]
    other = h.completed_savepoint()
    assert h.pending == [sp]
    h.acknowledge(sp, "b")
    assert (h.completed, h.savepoints) == ([cp], [other, sp])
    assert h.completes("a") == [cp]


def test_a_synchronous_savepoint_subsumes_older_pending_checkpoints_and_is_notified() -> None:
    """CheckpointCoordinator#completePendingCheckpoint: props.isSynchronous()."""
    h = two()
    h.stop_with_savepoint()
    sp = h.pending[0]
    h.acknowledge_all(sp)
    assert h.completes("a") == [sp]
    assert h.completed == []


def test_people_are_told_of_a_completion_after_the_stages_which_publish_what_it_contains() -> None:
    h = two()
    told_before: list[bool] = []

    def publish(_: NotifyComplete) -> None:
        told_before.append(any(isinstance(event, CheckpointCompleted) for event in h.events))

    h.gateway.on_complete = publish
    h.completed_checkpoint()
    assert told_before == [False]
    assert any(isinstance(event, CheckpointCompleted) for event in h.events)


def test_the_subsumed_id_is_told_with_the_completion() -> None:
    """SubtaskCheckpointCoordinatorTest#testNotifyCheckpointSubsumed."""
    h = two()
    first, second = h.completed_checkpoint(), h.completed_checkpoint()
    assert h.notices("a") == [CompleteNotice(first), CompleteNotice(second, subsumed=first)]
    assert (h.subsumed, h.discarded) == ([first], [first])


def test_the_number_of_retained_checkpoints_is_held() -> None:
    """CompletedCheckpointStoreTest#testAddCheckpointMoreThanMaxRetained."""
    h = CoordinatorHarness(num_retained=3)
    done = []
    for _ in range(6):
        cp = h.checkpoint()
        h.acknowledge(cp, "task", handles=[h.private(cp, "task")])
        done.append(cp)
    assert h.completed == done[-3:]
    kept = {key.split("/")[1] for key in h.files()}
    assert kept == {f"chk-{n}" for n in done[-3:]}


def test_a_savepoint_keeps_its_files_when_checkpoints_go() -> None:
    h = CoordinatorHarness()
    sp = h.savepoint()
    state = h.private(sp, "task")
    h.acknowledge(sp, "task", handles=[state])
    h.completed_checkpoint()
    h.completed_checkpoint()
    h.close(RunStatus.FINISHED)
    assert state.key in h.files("memory://savepoints")


def test_a_savepoint_is_deleted_only_on_request() -> None:
    h = CoordinatorHarness()
    h.completed_checkpoint()
    sp = h.completed_savepoint()
    h.coordinator.dispose_savepoint(sp)
    assert h.files("memory://savepoints") == []
    assert h.savepoints == []
    assert h.discarded == [sp]


# --- metadata that cannot be written ------------------------------------------------------------------------


def test_metadata_that_cannot_be_written_fails_the_checkpoint_and_counts() -> None:
    """C055: CheckpointFailureManagerITCase#testFinalizationFailureCounted."""
    h = two(tolerable_failed_checkpoints=1)
    for _ in range(2):
        h.fail_next_metadata_write()
        h.completed_checkpoint()
    assert set(h.failures.values()) == {Reason.FINALIZE_CHECKPOINT_FAILURE}
    assert len(h.job_failures) == 1
    assert h.completed == []
    assert h.aborts("a") == [1, 2]
    assert h.files() == []


def test_metadata_that_exists_is_not_overwritten() -> None:
    """C115: AbstractFileCheckpointStorageAccessTestBase#writeToAlreadyExistingCheckpointFails."""
    h = CoordinatorHarness(**TOLERANT)
    cp = h.checkpoint()
    other = CoordinatorHarness(pipeline="pipeline", owner="run-elsewhere")
    theirs = other.completed_checkpoint()
    body = other.storage.read(f"pipeline/chk-{theirs}/_metadata")
    h.storage.create(f"pipeline/chk-{cp}/_metadata", body)
    h.acknowledge(cp, "task")
    failed = h.outcome(cp)
    assert isinstance(failed, Failed)
    assert failed.reason is Reason.FINALIZE_CHECKPOINT_FAILURE
    assert "not overwritten" in failed.message


def test_metadata_this_very_checkpoint_wrote_before_is_accepted() -> None:
    """A second process that finishes the checkpoint finds what the first had written."""
    h = CoordinatorHarness()
    cp = h.checkpoint()
    h.acknowledge_stage(cp, "task")
    body = h.storage.read(f"pipeline/chk-{cp}/_metadata")
    again = CoordinatorHarness()
    same = again.checkpoint()
    again.storage.create(f"pipeline/chk-{same}/_metadata", body)
    again.acknowledge_stage(same, "task")
    assert again.completed == [same]


# --- a store that fails -------------------------------------------------------------------------------------


def test_a_completion_the_store_refuses_fails_the_checkpoint_deletes_its_files_and_counts() -> None:
    """C056: CheckpointCoordinatorTest#testExceptionInStoringCompletedCheckpointIsReportedToFailureManager,
    CheckpointCoordinatorFailureTest#testFailingCompletedCheckpointStoreAdd, #testCleanupForGenericFailure."""
    h = CoordinatorHarness(**TOLERANT)
    first = h.completed_checkpoint()
    cp = h.checkpoint()
    state = h.private(cp, "task")
    h.fail_next_store()
    h.acknowledge(cp, "task", handles=[state])
    assert h.failures == {cp: Reason.FINALIZE_CHECKPOINT_FAILURE}
    assert h.failure_counter == 1
    assert h.completed == [first]
    assert h.aborts("task") == [cp]
    assert all(not key.startswith(f"pipeline/chk-{cp}/") for key in h.files())


@pytest.mark.parametrize("times", [1, 2])
def test_a_completion_whose_outcome_is_unknown_keeps_its_files(times: int) -> None:
    """C067: CheckpointCoordinatorFailureTest#testCleanupOmissionForPossibleInconsistentStateException."""
    h = CoordinatorHarness(**TOLERANT)
    cp = h.checkpoint()
    state = h.private(cp, "task")
    h.lose_next_store(times=times)
    h.acknowledge(cp, "task", handles=[state])
    assert h.completed == []
    assert h.failures == {cp: Reason.FINALIZE_CHECKPOINT_FAILURE}
    h.completed_checkpoint()
    h.completed_checkpoint()
    h.close()
    assert state.key in h.files()
    assert f"pipeline/chk-{cp}/_metadata" in h.files()


def test_a_completion_that_happened_without_an_answer_is_read_back() -> None:
    """Three outcomes of a store: this one is found to be done."""
    h = CoordinatorHarness()
    cp = h.checkpoint()
    h.lose_next_store_answer()
    h.acknowledge(cp, "task")
    assert h.completed == [cp]
    assert h.completes("task") == [cp]


def test_a_failed_addition_leaves_the_old_checkpoints_alone() -> None:
    """C062: DefaultCompletedCheckpointStoreTest#testAddCheckpointFailedShouldNotRemoveOldOnes."""
    h = CoordinatorHarness(**TOLERANT)
    first = h.completed_checkpoint()
    cp = h.checkpoint()
    h.fail_next_store(times=3)
    h.acknowledge(cp, "task")
    assert h.completed == [first]
    assert f"pipeline/chk-{first}/_metadata" in h.files()
    assert h.next_attempt().completed == [first]


def test_a_store_that_is_down_does_not_stop_the_pipeline() -> None:
    """What says only that a checkpoint is over is kept in memory and stored with the next change."""
    h = two(tolerable_failed_checkpoints=5)
    cp = h.checkpoint()
    h.fail_next_store(times=2)
    h.decline(cp, "a")
    assert h.failures == {cp: Reason.CHECKPOINT_DECLINED}
    assert isinstance(h.trigger(), Rejected)
    done = h.completed_checkpoint()
    other = h.another_process()
    assert other.completed == [done]
    assert other.pending == []


def test_a_stage_hears_that_its_acknowledgement_could_not_be_stored() -> None:
    h = two()
    cp = h.checkpoint()
    h.fail_next_store()
    with pytest.raises(Unavailable):
        h.acknowledge_stage(cp, "a")
    assert h.acknowledge_stage(cp, "a") is Result.SUCCESS


def test_a_stage_acknowledgement_that_was_stored_without_an_answer_succeeds() -> None:
    h = two()
    cp = h.checkpoint()
    h.lose_next_store_answer()
    assert h.acknowledge_stage(cp, "a") is Result.SUCCESS
    assert h.acknowledge_stage(cp, "b") is Result.SUCCESS
    assert h.completed == [cp]


# --- deletion of files --------------------------------------------------------------------------------------


def test_files_of_an_aborted_checkpoint_stay_until_every_stage_has_stopped_writing() -> None:
    """What deletes a folder under a writer fails the writer: the story of a discarded checkpoint that failed tasks."""
    h = CoordinatorHarness(stages={"a": 1, "b": 1, "c": 1}, **TOLERANT)
    h.confirm_aborts = False
    cp = h.checkpoint()
    mine, theirs = h.private(cp, "a"), h.private(cp, "b")
    h.acknowledge(cp, "a", handles=[mine])
    h.decline(cp, "c")
    assert {mine.key, theirs.key} <= set(h.files())
    h.confirm_aborted(cp, "b")
    assert h.files() == []


def test_a_late_acknowledgement_or_decline_says_that_a_stage_has_stopped_writing() -> None:
    h = CoordinatorHarness(stages={"a": 1, "b": 1, "c": 1}, **TOLERANT)
    h.confirm_aborts = False
    cp = h.checkpoint()
    state = h.private(cp, "b")
    h.decline(cp, "a")
    h.decline(cp, "c")
    assert h.files() == [state.key]
    h.acknowledge_stage(cp, "b", handles=[state])
    assert h.files() == []


def test_nothing_is_deleted_before_the_record_says_why() -> None:
    """Were it otherwise, a crash now would leave a pending checkpoint whose files are gone."""
    h = CoordinatorHarness(**TOLERANT)
    cp = h.checkpoint()
    state = h.private(cp, "task")
    h.fail_next_store()
    h.decline(cp, "task")
    assert h.failures == {cp: Reason.CHECKPOINT_DECLINED}
    assert state.key in h.files()
    h.checkpoint()
    assert state.key not in h.files()


def test_the_end_of_the_attempt_says_it_too() -> None:
    h = CoordinatorHarness(**TOLERANT)
    h.confirm_aborts = False
    cp = h.checkpoint()
    h.private(cp, "task")
    h.coordinator.fail_over()
    assert h.files()
    h.close()
    assert h.files() == []


def test_a_newer_attempt_removes_what_the_older_one_left_pending() -> None:
    h = CoordinatorHarness()
    h.private(h.checkpoint(), "task")
    h.next_attempt()
    assert h.files() == []


def test_a_deletion_that_fails_is_tried_again() -> None:
    """StandaloneCompletedCheckpointStoreTest#testAddCheckpointWithFailedRemove: logged, not raised."""
    h = CoordinatorHarness()
    first = h.completed_checkpoint()
    h.fail_next_deletion()
    second = h.completed_checkpoint()
    assert h.completed == [second]
    assert f"pipeline/chk-{first}/_metadata" in h.files()
    h.completed_checkpoint()
    assert f"pipeline/chk-{first}/_metadata" not in h.files()


def test_deletions_lost_in_a_crash_are_done_by_the_next_attempt() -> None:
    """CheckpointResourcesCleanupRunnerTest#testSuccessfulCloseAsyncAfterStart."""
    h = CoordinatorHarness()
    h.completed_checkpoint()
    h.block_deletions()
    done = h.completed_checkpoint()
    h.crash()
    h.next_attempt()
    assert {key.split("/")[1] for key in h.files()} == {f"chk-{done}"}


def test_data_goes_before_the_metadata() -> None:
    h = CoordinatorHarness()
    cp = h.checkpoint()
    h.acknowledge(cp, "task", handles=[h.private(cp, "task")])
    h.completed_checkpoint()
    mine = [key for key in h.removed() if key.startswith(f"pipeline/chk-{cp}/")]
    assert mine == [
        f"pipeline/chk-{cp}/task/state",
        f"pipeline/chk-{cp}/task/subtask_handles.json",
        f"pipeline/chk-{cp}/_metadata",
    ]


# --- shared files -------------------------------------------------------------------------------------------


def take(h: CoordinatorHarness, *names: tuple[int, str]) -> int:
    """Complete a checkpoint that uses these shared files; 0 stands for the checkpoint itself."""
    cp = h.checkpoint()
    h.acknowledge(cp, "task", handles=[h.shared(n or cp, "task", name) for n, name in names])
    return cp


def shared_files(h: CoordinatorHarness) -> set[str]:
    return {key.removeprefix("pipeline/shared/task/") for key in h.files() if "/shared/" in key}


def test_a_shared_file_goes_with_the_last_checkpoint_that_uses_it() -> None:
    """C071: SharedStateRegistryTest#testRegistryNormal."""
    h = CoordinatorHarness(incremental=True)
    take(h, (0, "x"), (0, "y"))
    take(h, (1, "x"), (0, "z"))
    assert shared_files(h) == {"1/x", "2/z"}
    take(h, (2, "z"))
    assert shared_files(h) == {"2/z"}


def test_after_a_crash_the_files_of_retained_checkpoints_are_known_from_their_lists() -> None:
    h = CoordinatorHarness(incremental=True)
    take(h, (0, "x"), (0, "y"))
    h.crash()
    n = h.next_attempt()
    cp = n.checkpoint()
    n.acknowledge(cp, "task", handles=[n.shared(1, "task", "x")])
    assert shared_files(n) == {"1/x"}


def test_files_stay_while_a_pending_checkpoint_may_build_on_them() -> None:
    h = CoordinatorHarness(incremental=True, max_concurrent_checkpoints=3)
    take(h, (0, "x"))
    from dagster_ckpt.core.request import SnapshotScope

    full = h.checkpoint(scope=SnapshotScope.FULL)
    building = h.checkpoint()
    h.acknowledge(full, "task")
    assert h.completed == [full]
    assert shared_files(h) == {"1/x"}
    h.acknowledge(building, "task", handles=[h.shared(1, "task", "x")])
    assert shared_files(h) == {"1/x"}
    take(h)
    assert shared_files(h) == set()


# --- the end of the run -------------------------------------------------------------------------------------

RETENTION = [
    ("no_externalized_checkpoints", RunStatus.FINISHED, False),
    ("no_externalized_checkpoints", RunStatus.CANCELED, False),
    ("no_externalized_checkpoints", RunStatus.FAILED, False),
    ("no_externalized_checkpoints", RunStatus.SUSPENDED, True),
    ("delete_on_cancellation", RunStatus.FINISHED, False),
    ("delete_on_cancellation", RunStatus.CANCELED, False),
    ("delete_on_cancellation", RunStatus.FAILED, True),
    ("delete_on_cancellation", RunStatus.SUSPENDED, True),
    ("retain_on_cancellation", RunStatus.FINISHED, False),
    ("retain_on_cancellation", RunStatus.CANCELED, True),
    ("retain_on_cancellation", RunStatus.FAILED, True),
    ("retain_on_cancellation", RunStatus.SUSPENDED, True),
]


@pytest.mark.parametrize(("retention", "status", "kept"), RETENTION)
def test_what_the_end_of_the_run_keeps(retention: str, status: RunStatus, kept: bool) -> None:
    """CompletedCheckpointTest#testCleanUpOnShutdown; C065; SUSPENDED keeps the pointers whatever the properties."""
    h = CoordinatorHarness(externalized_checkpoint_retention=retention)
    cp = h.checkpoint()
    h.acknowledge(cp, "task", handles=[h.private(cp, "task"), h.shared(cp, "task", "s")])
    h.close(status)
    assert (h.completed == [cp]) is kept
    assert bool(h.files()) is kept


def test_closing_twice_is_closing_once() -> None:
    h = CoordinatorHarness()
    h.close()
    h.close(RunStatus.FAILED)
    assert h.record.status is RunStatus.SUSPENDED


def test_the_end_is_not_lost_when_the_store_fails() -> None:
    h = CoordinatorHarness()
    h.fail_next_store()
    with pytest.raises(Unavailable):
        h.close()
    h.close()
    assert h.record.clean


def test_a_full_kind_is_recorded() -> None:
    from dagster_ckpt.core.request import SnapshotScope

    h = CoordinatorHarness()
    cp = h.completed_checkpoint(scope=SnapshotScope.FULL)
    assert h.metadata(cp).kind is CheckpointKind.FULL_CHECKPOINT
