"""Fencing, attaching, crashing, restoring (Flink 1.15, 1.16, 1.21)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dagster_ckpt.core.checkpoint.lease import LEASE, LONGEST
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.checkpoint.tables import RequeueRecord, left_by
from dagster_ckpt.core.config import ClaimMode, RestoreOptions
from dagster_ckpt.core.coordinator.state import AckDurability
from dagster_ckpt.core.graph import PipelineGraph, StageSpec
from dagster_ckpt.core.ids import PipelineId, StageUid
from dagster_ckpt.core.messages import AcknowledgeResult as Result
from dagster_ckpt.core.messages import CheckpointFailureReason as Reason
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.core.model import CheckpointKind, CheckpointMetadata, StageSnapshot, TableSnapshot
from dagster_ckpt.core.request import Completed, Failed, RunStatus
from dagster_ckpt.core.restore.choice import Adopt, Fresh, Restore
from dagster_ckpt.core.restore.facts import DirectoryState
from dagster_ckpt.errors import Corrupt, Fenced, InvalidRequest, NotFound
from dagster_ckpt.operations.deployment import change_record
from dagster_ckpt.runtime.record_store import RecordChange
from dagster_ckpt.testing import MemoryCoordinatorStore
from dagster_ckpt.testing.coordinator import harness
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness
from dagster_ckpt.testing.coordinator.settings import Settings
from dagster_ckpt.testing.coordinator.world import build_graph
from dagster_ckpt.testing.faults import Operation, SimulatedCrash
from tests.coordinator.scenarios import two

KEEP: Settings = {"externalized_checkpoint_retention": "retain_on_cancellation"}


# --- fencing ------------------------------------------------------------------------------------------------


def test_a_newer_attempt_fences_the_older_one() -> None:
    h = two()
    cp = h.checkpoint()
    h.next_attempt("run-2")
    assert h.acknowledge(cp, "a") is Result.UNKNOWN
    assert h.acknowledge_stage(cp, "b") is Result.UNKNOWN
    with pytest.raises(Fenced, match=r"run 'run-1' .*epoch 1.* run 'run-2' owns it with epoch 2"):
        h.trigger()
    for call in (h.coordinator.poll, h.close, lambda: h.decline(cp, "a")):
        with pytest.raises(Fenced):
            call()
    with pytest.raises(Fenced):
        h.coordinator.permit_for(cp)


def test_a_fenced_attempt_writes_nothing_even_with_all_acknowledgements_but_one() -> None:
    h = two()
    cp = h.checkpoint()
    h.acknowledge(cp, "a")
    n = h.next_attempt()
    before = n.files()
    assert h.acknowledge(cp, "b") is Result.UNKNOWN
    assert n.files() == before
    assert n.completed == []
    assert h.gateway.completes == []


def test_the_newer_attempt_aborts_what_the_older_one_left_pending() -> None:
    h = two()
    cp = h.checkpoint()
    n = h.next_attempt()
    assert n.pending == []
    assert n.failures == {cp: Reason.JOB_FAILOVER_REGION}
    assert n.failure_counter == 0


def test_a_permit_is_made_only_for_a_completed_checkpoint_of_the_owner() -> None:
    h = two()
    cp = h.checkpoint()
    with pytest.raises(InvalidRequest, match="not complete"):
        h.coordinator.permit_for(cp)
    h.acknowledge_all(cp)
    assert h.coordinator.permit_for(cp) == CommitPermit(h.graph.pipeline, h.coordinator.epoch, cp, None)


def _call_it_sales_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def renamed(*given: Any) -> PipelineGraph:
        return replace(build_graph(*given), previous_names=(PipelineId("sales"),))

    monkeypatch.setattr(harness, "build_graph", renamed)


@pytest.mark.parametrize(("ends_in", "is_at_work"), [(LEASE, True), (-1.0, False), (LONGEST + 1.0, False)])
def test_a_former_name_is_at_work_while_its_lease_holds_by_a_clock_that_may_be_believed(
    monkeypatch: pytest.MonkeyPatch, ends_in: float, is_at_work: bool
) -> None:
    store = MemoryCoordinatorStore()
    until = two(pipeline="sales", store=store).clock.now() + ends_in

    def leased(record: CoordinatorRecord) -> RecordChange[None]:
        return RecordChange(answer=None, record=record.model_copy(update={"lease_until": until}))

    change_record(store, PipelineId("sales"), leased)
    _call_it_sales_before(monkeypatch)
    if is_at_work:
        with pytest.raises(InvalidRequest, match="is at work: stop it first"):
            two(pipeline="shop", store=store)
    else:
        assert two(pipeline="shop", store=store).coordinator.epoch == 2, "above what was seen"


def test_a_renamed_pipeline_takes_along_what_was_ordered_under_its_former_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryCoordinatorStore()
    two(pipeline="sales", store=store)
    order = RequeueRecord(order_id="1", stage=StageUid("a"), asked_at=0.0)

    def ordered(record: CoordinatorRecord) -> RecordChange[None]:
        return RecordChange(answer=None, record=record.model_copy(update={"requeue": (order,)}))

    change_record(store, PipelineId("sales"), ordered)

    _call_it_sales_before(monkeypatch)
    h = two(pipeline="shop", store=store)
    assert h.coordinator.record.requeue == (order,)
    assert h.next_attempt().coordinator.record.requeue == (order,), "once"


def test_an_order_leaves_the_record_with_the_stage_whose_quarantine_it_names() -> None:
    """Conditions that a sink had no more left their order for ever, and those of later took rows by it."""
    stages = (StageSpec(uid=StageUid("b"), previous_uids=(StageUid("a"),)), StageSpec(uid=StageUid("c")))
    graph = PipelineGraph(pipeline=PipelineId("sales"), stages=stages)
    quarantine = TableSnapshot(uri="/q")
    snapshots = (
        StageSnapshot(uid="b", parallelism=1, table=quarantine),
        StageSnapshot(uid="c", parallelism=1),
    )
    metadata = CheckpointMetadata(
        pipeline="sales",
        checkpoint_id=3,
        kind=CheckpointKind.CHECKPOINT,
        epoch=1,
        triggered_at=0,
        completed_at=1,
        stages=snapshots,
    )
    ordered = [StageUid(one) for one in ("a", "b", "c", "d_rows")]
    orders = [RequeueRecord(order_id=one, stage=one, asked_at=0.0) for one in ordered]
    assert [order.stage for order in left_by(orders, metadata, graph)] == ["a", "b"]


# --- attaching ----------------------------------------------------------------------------------------------


def test_another_process_of_the_run_finishes_the_checkpoint() -> None:
    """Dagster's multiprocess executor: every op has its own process."""
    h = two()
    cp = h.checkpoint()
    h.acknowledge_stage(cp, "a")
    other = h.another_process()
    assert other.coordinator.epoch == h.coordinator.epoch
    assert other.outstanding(cp) == {"b": [0]}
    assert other.acknowledge_stage(cp, "a") is Result.DUPLICATE
    assert other.acknowledge_stage(cp, "b") is Result.SUCCESS
    assert other.completed == [cp]
    assert isinstance(h.outcome(cp), Completed)
    assert h.completed == [cp]


def test_processes_that_attached_earlier_hear_of_later_checkpoints() -> None:
    h = two()
    other = h.another_process()
    cp = h.checkpoint()
    assert other.coordinator.is_pending(cp)
    assert other.acknowledge_stage(cp, "a") is Result.SUCCESS
    assert h.acknowledge_stage(cp, "b") is Result.SUCCESS
    assert h.completed == [cp]
    assert other.coordinator.location_of(cp).folder == f"pipeline/chk-{cp}"


def test_a_completion_the_tasks_may_not_have_heard_of_is_told_again() -> None:
    h = two()
    cp = h.completed_checkpoint()
    h.crash()
    h.gateway.completes.clear()
    h.recover()
    assert [m.checkpoint_id for m in h.gateway.completes] == [cp]
    assert h.gateway.completes[0].permit.epoch == h.coordinator.epoch


def test_a_process_that_died_between_the_last_acknowledgement_and_the_end_is_replaced() -> None:
    """Everything acknowledged is in the record, so any process of the run can write the metadata."""
    h = two()
    cp = h.checkpoint()
    h.acknowledge_stage(cp, "a")
    h.die_at_next_metadata_write()
    with pytest.raises(SimulatedCrash):
        h.acknowledge_stage(cp, "b")
    h.crash()
    h.recover()
    assert h.pending == [cp]
    h.coordinator.poll()
    assert h.completed == [cp]


def test_subtask_acknowledgements_are_lost_with_the_process() -> None:
    """As in Flink, where they live in the JobManager's memory."""
    h = CoordinatorHarness(stages={"a": 2, "b": 1})
    cp = h.checkpoint()
    h.acknowledge(cp, "a", 0)
    h.acknowledge_stage(cp, "b")
    h.crash()
    h.recover()
    assert h.outstanding(cp) == {"a": [0, 1]}
    h.acknowledge_stage(cp, "a")
    assert h.completed == [cp]


def test_in_a_run_of_one_process_acknowledgements_are_stored_with_the_completion() -> None:
    """As in Flink: a crash loses them, and the checkpoint with them; a write per stage is saved."""
    h = two(acks=AckDurability.AT_COMPLETION)
    cp = h.checkpoint()
    h.calls.calls.clear()
    h.acknowledge_stage(cp, "a")
    assert h.calls.count(Operation.COMPARE_AND_SET) == 0
    h.acknowledge_stage(cp, "b")
    assert h.calls.count(Operation.COMPARE_AND_SET) == 1
    assert h.completed == [cp]
    lost = h.checkpoint()
    h.acknowledge_stage(lost, "a")
    h.crash()
    h.recover()
    assert h.outstanding(lost) == {"a": [0], "b": [0]}


def test_acknowledgements_kept_in_memory_outlive_what_others_store_meanwhile() -> None:
    h = two(acks=AckDurability.AT_COMPLETION, savepoint_dir="memory://savepoints")
    cp = h.checkpoint()
    h.acknowledge_stage(cp, "a", batch_id=7)
    h.another_process().savepoint()
    h.coordinator.poll()
    assert h.outstanding(cp) == {"b": [0]}
    h.acknowledge_stage(cp, "b", batch_id=8)
    assert h.completed == [cp]
    done = h.coordinator.status_of(cp)
    assert isinstance(done, Completed)
    assert [stage.batch_id for stage in done.metadata.stages] == [7, 8], (
        "a stage was completed without its state"
    )


def test_acknowledgements_kept_in_memory_are_refused_once_fenced() -> None:
    h = two(acks=AckDurability.AT_COMPLETION)
    cp = h.checkpoint()
    h.next_attempt()
    assert h.acknowledge_stage(cp, "a") is Result.UNKNOWN


def test_an_attempt_that_is_fenced_between_two_of_them_completes_nothing() -> None:
    """The store is asked at the first one, and again before the metadata is written."""
    h = two(acks=AckDurability.AT_COMPLETION)
    cp = h.checkpoint()
    assert h.acknowledge_stage(cp, "a") is Result.SUCCESS
    h.next_attempt()
    assert h.acknowledge_stage(cp, "b") is Result.UNKNOWN
    assert cp not in h.completed


def test_an_attached_process_knows_the_directory_and_what_is_to_restore() -> None:
    h = two()
    other = h.another_process()
    assert other.coordinator.working_directory == "/work/run-1"
    assert isinstance(other.coordinator.restored, Adopt)
    waiting = two(running=False)
    assert waiting.coordinator.working_directory == ""
    assert isinstance(waiting.another_process().coordinator.restored, Fresh)


def test_a_moved_timeout_reaches_the_other_process() -> None:
    h = two(timeout=10.0)
    cp = h.checkpoint()
    other = h.another_process()
    h.clock.advance(9.0)
    other.coordinator.rearm_timeout(cp)
    h.advance(5.0)
    assert h.pending == [cp]


def test_recovery_of_a_damaged_record_fails_clearly() -> None:
    """C064: DefaultCompletedCheckpointStoreTest#testCorruptDataInStateHandleStoreShouldNotBeSkipped."""
    h = two()
    h.completed_checkpoint()
    stored = h.store.load(h.graph.pipeline)
    assert stored is not None
    h.store.compare_and_set(h.graph.pipeline, stored.version, '{"format_version": 7}')
    with pytest.raises(Corrupt, match="record cannot be read"):
        h.next_attempt()


# --- restoring ----------------------------------------------------------------------------------------------


def test_a_first_attempt_starts_fresh() -> None:
    assert isinstance(two().coordinator.restored, Fresh)


def test_a_clean_end_lets_the_next_run_adopt_the_directory_even_without_a_checkpoint() -> None:
    """A failing checkpoint storage never makes a pipeline chase its data."""
    h = two(tolerable_failed_checkpoints=5)
    h.completed_checkpoint()
    h.decline(h.checkpoint(), "a")
    h.close()
    n = h.next_attempt(running=False)
    assert isinstance(n.coordinator.restored, Adopt)
    assert n.coordinator.restored.working_directory == "/work/run-1"


def test_after_an_unclean_end_the_latest_checkpoint_is_built() -> None:
    h = two()
    cp = h.completed_checkpoint()
    n = h.next_attempt(running=False)
    restored = n.coordinator.restored
    assert isinstance(restored, Restore)
    assert restored.metadata.checkpoint_id == cp
    assert n.statistics.restored_id == cp
    assert n.statistics.counts.restored == 1


def test_a_directory_that_is_gone_is_not_adopted() -> None:
    h = two()
    h.completed_checkpoint()
    h.close()
    n = h.next_attempt(running=False, directory=DirectoryState.MISSING)
    assert isinstance(n.coordinator.restored, Restore)


def test_an_explicit_key_is_restored_and_later_checkpoints_leave_the_line() -> None:
    h = two(num_retained=5)
    first, _ = h.completed_checkpoint(), h.completed_checkpoint()
    n = h.next_attempt(restore_from=f"chk-{first}")
    assert isinstance(n.coordinator.restored, Restore)
    assert n.coordinator.restored.metadata.checkpoint_id == first
    again = n.next_attempt("run-3", running=False)
    assert isinstance(again.coordinator.restored, Restore)
    assert again.coordinator.restored.metadata.checkpoint_id == first
    done = again.completed_checkpoint()
    assert done == 3
    last = again.next_attempt("run-4", running=False)
    assert isinstance(last.coordinator.restored, Restore)
    assert last.coordinator.restored.metadata.checkpoint_id == done


def test_an_unknown_restore_point_changes_nothing() -> None:
    h = two()
    h.completed_checkpoint()
    with pytest.raises(NotFound, match="chk-000001"):
        h.next_attempt(restore_from="chk-99")
    with pytest.raises(InvalidRequest):
        h.next_attempt(restore_from="whatever")
    assert h.completed_checkpoint() == 2


def test_a_snapshot_whose_metadata_is_gone_is_reported() -> None:
    h = two()
    cp = h.completed_checkpoint()
    h.storage.delete([f"pipeline/chk-{cp}/_metadata"])
    with pytest.raises(Corrupt, match="its metadata is gone"):
        h.next_attempt()
    with pytest.raises(NotFound, match="no checkpoint or savepoint"):
        h.next_attempt(restore_from="memory://savepoints/savepoint-nowhere")


def test_a_retry_of_the_run_goes_on_from_its_own_checkpoints_not_from_the_given_one() -> None:
    """StateRestore precedence: the job's own checkpoint beats the configured savepoint path."""
    h = two(num_retained=5)
    sp = h.completed_savepoint()
    n = h.next_attempt("run-2", restore_from=f"savepoint-{sp}", running=False)
    assert n.coordinator.working_directory == ""
    n.run()
    cp = n.completed_checkpoint()
    n.crash()
    n.recover()
    assert n.completed[-1] == cp


def test_a_restart_within_the_run_goes_on_from_what_the_run_has_completed() -> None:
    """CheckpointCoordinator#restoreLatestCheckpointedStateToAll: a job that restarts has its own checkpoints first."""
    h = two(num_retained=5)
    savepoint = h.completed_savepoint()
    n = h.next_attempt("run-2", restore_from=f"savepoint-{savepoint}")
    again = n.restart()
    assert again.restored == savepoint, "nothing was completed since"
    done, left = again.completed_checkpoint(), again.checkpoint()
    last = again.restart()
    assert (last.restored, last.pending) == (done, [])
    ended = last.outcome(left)
    assert isinstance(ended, Failed)
    assert ended.reason is Reason.JOB_FAILOVER_REGION
    assert again.acknowledge(left, "a") is Result.UNKNOWN, "the attempt before is fenced"
    assert last.checkpoint() == left + 1


def test_a_restart_of_a_fenced_run_does_not_fence_its_heir() -> None:
    h = two()
    heir = h.next_attempt("run-2")
    with pytest.raises(Fenced):
        h.restart()
    assert heir.completed_checkpoint() == 1


def test_another_try_of_a_run_goes_on_from_what_the_first_has_completed() -> None:
    h = two(num_retained=5)
    savepoint = h.completed_savepoint()
    named = f"savepoint-{savepoint}"
    first = h.next_attempt("run-2", restore_from=named)
    done = first.completed_checkpoint()
    assert first.next_attempt("run-3", root="run-2", restore_from=named).restored == done
    assert first.next_attempt("run-4", restore_from=named).restored == savepoint, (
        "a person who names it means it"
    )


# --- claim modes --------------------------------------------------------------------------------------------


def restore(h: CoordinatorHarness, number: int, mode: ClaimMode, owner: str = "run-2") -> CoordinatorHarness:
    options = RestoreOptions(restore_from=f"savepoint-{number}", claim_mode=mode)
    return h.next_attempt(owner, restore=options)


def test_after_no_claim_checkpoints_are_full_until_one_completes() -> None:
    """C083: CheckpointCoordinatorTriggeringTest#testTriggeringFullCheckpoints,
    #testTriggeringCheckpointsWithCheckpointTypeAfterNoClaimSavepoint."""
    h = two(incremental=True)
    sp = h.completed_savepoint()
    n = restore(h, sp, ClaimMode.NO_CLAIM)
    first = n.checkpoint()
    assert n.kind(first) is CheckpointKind.FULL_CHECKPOINT
    n.decline(first, "a", reason=Reason.CHECKPOINT_DECLINED_TASK_CLOSING)
    n.completed_savepoint()
    second = n.checkpoint()
    assert n.kind(second) is CheckpointKind.FULL_CHECKPOINT
    n.acknowledge_all(second)
    third = n.checkpoint()
    assert n.kind(third) is CheckpointKind.CHECKPOINT
    assert n.coordinator.location_of(third).previous


def test_the_full_checkpoint_is_still_due_after_another_attempt() -> None:
    """CheckpointCoordinatorTriggeringTest#testTriggeringFullSnapshotAfterJobmasterFailover."""
    h = two(incremental=True)
    n = restore(h, h.completed_savepoint(), ClaimMode.NO_CLAIM)
    again = n.next_attempt("run-3")
    assert again.kind(again.checkpoint()) is CheckpointKind.FULL_CHECKPOINT


@pytest.mark.parametrize(
    ("mode", "deleted"),
    [(ClaimMode.CLAIM, True), (ClaimMode.NO_CLAIM, False), (ClaimMode.LEGACY, False)],
)
def test_a_restored_savepoint_is_deleted_only_when_it_was_claimed(mode: ClaimMode, deleted: bool) -> None:
    """C085: SavepointITCase#testTriggerSavepointAndResumeWithClaim, …LegacyMode, …NoClaim."""
    h = two()
    sp = h.savepoint()
    h.acknowledge(sp, "a", handles=[h.private(sp, "a")])
    h.acknowledge(sp, "b")
    n = restore(h, sp, mode)
    assert n.completed == [sp]
    n.completed_checkpoint()
    n.completed_checkpoint()
    assert (n.files("memory://savepoints") == []) is deleted


def test_a_restored_savepoint_counts_towards_the_retained() -> None:
    """CompletedCheckpointStore: savepoints enter it only by a restore, and then they count."""
    h = two(num_retained=2)
    n = restore(h, h.completed_savepoint(), ClaimMode.NO_CLAIM)
    done = [n.completed_checkpoint() for _ in range(2)]
    assert n.completed == done


@pytest.mark.parametrize(("mode", "deleted"), [(ClaimMode.CLAIM, True), (ClaimMode.LEGACY, False)])
def test_shared_files_of_a_restored_checkpoint_are_deleted_only_when_claimed(
    mode: ClaimMode, deleted: bool
) -> None:
    """C074: CheckpointCoordinatorTest#testSharedStateRegistrationOnRestore."""
    h = CoordinatorHarness(incremental=True, **KEEP)  # type: ignore[misc]
    cp = h.checkpoint()
    h.acknowledge(cp, "task", handles=[h.shared(cp, "task", "x")])
    h.close(RunStatus.FAILED, clean=False)
    lost = CoordinatorHarness(storage=h.memory_storages["memory://checkpoints"], running=False)
    n = lost.next_attempt(
        restore=RestoreOptions(restore_from=f"memory://checkpoints/pipeline/chk-{cp}", claim_mode=mode),
        incremental=True,
    )
    second = n.checkpoint()
    n.acknowledge(second, "task", handles=[n.shared(cp, "task", "x")])
    n.completed_checkpoint()
    assert ("pipeline/shared/task/1/x" not in n.files()) is deleted


def test_ids_continue_above_the_restored_snapshot() -> None:
    """Restore from checkpoint N sets the counter to N + 1."""
    h = two()
    for _ in range(4):
        h.completed_checkpoint()
    sp = h.completed_savepoint()
    uri = h.coordinator.location_of(sp).uri
    fresh = two(storage=h.memory_storages["memory://savepoints"])
    n = fresh.next_attempt(restore_from=uri, running=False)
    n.memory_storages.update(h.memory_storages)
    assert n.record.next_id == sp + 1


def test_a_master_state_nobody_wants_fails_the_restore_unless_it_may_be_dropped() -> None:
    """C089: CheckpointCoordinatorMasterHooksTest#checkUnMatchedStateOnRestore."""
    from dagster_ckpt.testing.coordinator.events import RecordingHook

    h = two(hooks=[RecordingHook("gone")])
    h.completed_checkpoint()
    with pytest.raises(InvalidRequest, match="'gone'"):
        h.next_attempt()
    n = h.next_attempt("run-3", restore=RestoreOptions(allow_non_restored_state=True))
    assert isinstance(n.coordinator.restored, Restore)
