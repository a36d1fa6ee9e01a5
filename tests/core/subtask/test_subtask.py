"""The stage's side of a checkpoint."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.messages import Alignment, BarrierOptions, SubtaskReport
from dagster_ckpt.core.messages import CheckpointFailureReason as Reason
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.subtask.checkpoints import (
    MAX_ABORTED_REMEMBERED,
    OnSyncFailure,
    TaskPhase,
)
from dagster_ckpt.core.subtask.effects import (
    Acknowledge,
    ArmAlignmentTimer,
    CancelAsyncPart,
    ConfirmLocalCopy,
    DeclineCheckpoint,
    DiscardChannelState,
    DiscardOwnFiles,
    DropLocalCopy,
    EmitBarrier,
    EmitCancelMarker,
    FailTask,
    FinishOperators,
    FinishOutputChannelState,
    FinishTask,
    PrepareBarrier,
    ReportMetrics,
    SubtaskEffect,
    TakeSnapshot,
    TellAborted,
    TellComplete,
    TellSubsumed,
)
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.testing.subtask import FILES, SubtaskHarness

ALIGNED = BarrierOptions()
UNALIGNED = BarrierOptions(alignment=Alignment.UNALIGNED)
TIMEOUT = BarrierOptions(aligned_timeout_ms=100)


def n(number: int) -> CheckpointId:
    return CheckpointId(number)


class Task(SubtaskHarness):
    """A subtask whose effects can be counted."""

    def count(self, kind: type[SubtaskEffect]) -> int:
        return sum(isinstance(e, kind) for e in self.effects)


def kinds(effects: tuple[SubtaskEffect, ...]) -> list[type[SubtaskEffect]]:
    return [type(effect) for effect in effects]


# --- the order of the steps -----------------------------------------------------------------------


def test_the_barrier_is_emitted_before_the_snapshot_is_taken() -> None:
    """1.19: pre-barrier hook, barrier downstream first, then the snapshot."""
    assert kinds(Task().checkpoint(1)) == [PrepareBarrier, EmitBarrier, TakeSnapshot]


def test_channel_state_is_finished_before_the_snapshot_of_an_unaligned_checkpoint() -> None:
    assert kinds(Task().checkpoint(1, UNALIGNED)) == [
        PrepareBarrier, EmitBarrier, FinishOutputChannelState, TakeSnapshot,
    ]  # fmt: skip
    assert kinds(Task().checkpoint(1, TIMEOUT)) == [
        PrepareBarrier, EmitBarrier, ArmAlignmentTimer, FinishOutputChannelState, TakeSnapshot,
    ]  # fmt: skip


def emitted(options: BarrierOptions) -> EmitBarrier:
    (barrier,) = [e for e in Task().checkpoint(1, options) if isinstance(e, EmitBarrier)]
    return barrier


def test_only_an_unaligned_barrier_overtakes_output() -> None:
    """SCC#testSavepointNotResultingInPriorityEvents,
    #testForceAlignedCheckpointResultingInPriorityEvents."""
    assert emitted(UNALIGNED).priority
    assert not emitted(ALIGNED).priority
    assert not emitted(BarrierOptions(kind=CheckpointKind.SAVEPOINT)).priority
    forced = emitted(BarrierOptions(alignment=Alignment.FORCED_ALIGNED))
    assert forced.priority
    assert forced.options.alignment is Alignment.UNALIGNED


def test_a_savepoint_holds_no_channel_state() -> None:
    """SCC#testSkipChannelStateForSavepoints."""
    effects = Task().checkpoint(1, BarrierOptions(kind=CheckpointKind.SAVEPOINT))
    assert FinishOutputChannelState not in kinds(effects)


def test_a_drain_finishes_the_operators_before_the_snapshot() -> None:
    """SavepointITCase#testStopWithSavepointWithDrainCallsFinishBeforeSnapshotState (C112)."""
    terminate = BarrierOptions(kind=CheckpointKind.SYNC_SAVEPOINT_TERMINATE)
    assert kinds(Task().checkpoint(1, terminate))[0] is FinishOperators
    suspend = BarrierOptions(kind=CheckpointKind.SYNC_SAVEPOINT_SUSPEND)
    assert FinishOperators not in kinds(Task().checkpoint(1, suspend))


def test_an_out_of_order_checkpoint_is_ignored_and_its_channel_state_discarded() -> None:
    """1.19: id <= last seen id."""
    task = Task()
    task.checkpoint(5)
    assert kinds(task.checkpoint(5)) == [DiscardChannelState]
    assert kinds(task.checkpoint(4)) == [DiscardChannelState]


@pytest.mark.parametrize(
    ("phase", "reason"),
    [
        (TaskPhase.RUNNING, None),
        (TaskPhase.DEPLOYING, Reason.CHECKPOINT_DECLINED_TASK_NOT_READY),
        (TaskPhase.ENDED, Reason.CHECKPOINT_DECLINED_TASK_NOT_READY),
        (TaskPhase.CLOSING, Reason.CHECKPOINT_DECLINED_TASK_CLOSING),
    ],
)
def test_only_a_running_task_takes_a_trigger(phase: TaskPhase, reason: Reason | None) -> None:
    assert Task(phase=phase).refusal is reason


# --- aborts ---------------------------------------------------------------------------------------


def test_an_abort_that_comes_before_the_barrier_is_remembered() -> None:
    """SCC#testNotifyCheckpointAbortedBeforeAsyncPhase, #testBroadcastCancelCheckpointMarkerOnAborting…
    (C100)."""
    task = Task()
    assert kinds(task.abort(3)) == [DiscardChannelState, TellAborted, DropLocalCopy]
    assert kinds(task.checkpoint(3)) == [EmitCancelMarker, DiscardChannelState]
    assert kinds(task.checkpoint(4)) == [PrepareBarrier, EmitBarrier, TakeSnapshot]


def test_the_memory_of_aborts_is_bounded_and_old_ids_count_as_aborted() -> None:
    """SCC#testNotifyCheckpointAbortedManyTimes."""
    task = Task()
    for number in range(1, 3 * MAX_ABORTED_REMEMBERED + 1):
        task.abort(number)
    assert len(task.state.aborted) == MAX_ABORTED_REMEMBERED
    assert kinds(task.checkpoint(1))[0] is EmitCancelMarker
    assert kinds(task.checkpoint(3 * MAX_ABORTED_REMEMBERED + 1))[0] is PrepareBarrier


def test_an_abort_during_the_async_part_cancels_it_and_nothing_is_acknowledged() -> None:
    """SCC#testNotifyCheckpointAbortedDuringAsyncPhase (C101)."""
    task = Task()
    task.checkpoint(1)
    effects = task.abort(1)
    assert kinds(effects)[:2] == [CancelAsyncPart, DiscardOwnFiles]
    assert kinds(task.upload_done(1)) == [ReportMetrics]
    assert task.count(Acknowledge) == 0


def test_an_abort_after_the_async_part_only_tells_the_operators() -> None:
    """SCC#testNotifyCheckpointAbortedAfterAsyncPhase;
    NotifyCheckpointAbortedITCase#testNotifyCheckpointAborted."""
    task = Task()
    task.checkpoint(1)
    task.upload_done(1)
    assert kinds(task.abort(1)) == [DiscardChannelState, TellAborted, DropLocalCopy]
    assert task.state.aborted == ()


def test_an_old_checkpoint_is_aborted_while_a_new_one_starts() -> None:
    """SCC#testAbortOldAndStartNewCheckpoint."""
    task = Task()
    task.checkpoint(1)
    task.abort(1)
    task.checkpoint(2)
    assert kinds(task.upload_done(2)) == [Acknowledge]


# --- the asynchronous part ------------------------------------------------------------------------


def test_whoever_ends_the_async_part_first_wins() -> None:
    """ST#testAsyncCheckpointingConcurrentCloseAfterAcknowledge, …BeforeAcknowledge."""
    acknowledged = Task()
    acknowledged.checkpoint(1)
    acknowledged.upload_done(1)
    assert acknowledged.upload_closed(1) == ()
    closed = Task()
    closed.checkpoint(1)
    assert kinds(closed.upload_closed(1)) == [CancelAsyncPart, DiscardOwnFiles]
    assert kinds(closed.upload_done(1)) == [ReportMetrics]


def test_an_empty_snapshot_is_acknowledged_as_none() -> None:
    """ST#testEmptySubtaskStateLeadsToStatelessAcknowledgment (C104)."""
    task = Task()
    task.checkpoint(1)
    assert task.upload_done(1, ()) == (Acknowledge(n(1), None),)
    task.checkpoint(2)
    assert task.upload_done(2) == (Acknowledge(n(2), FILES),)


@pytest.mark.parametrize(
    ("nested", "reason"),
    [
        (None, Reason.CHECKPOINT_ASYNC_EXCEPTION),
        (Reason.CHANNEL_STATE_SHARED_STREAM_EXCEPTION, Reason.CHANNEL_STATE_SHARED_STREAM_EXCEPTION),
    ],
)
def test_an_error_in_the_async_part_declines_and_the_task_goes_on(
    nested: Reason | None, reason: Reason
) -> None:
    """TaskCheckpointingBehaviourTest#testDeclineOnCheckpointErrorInAsyncPart (C058);
    ACR#testDecline…WhenRunning."""
    task = Task()
    task.checkpoint(1)
    effects = task.upload_fails(1, "disk full", nested)
    assert effects == (DiscardOwnFiles(n(1)), DeclineCheckpoint(n(1), reason, "disk full"))
    assert kinds(task.checkpoint(2))[-1] is TakeSnapshot


def test_an_error_in_the_async_part_of_a_task_that_has_ended_is_not_declined() -> None:
    """ACR#testDeclineWithAsyncCheckpointExceptionWhenNotRunning."""
    task = Task()
    task.checkpoint(1)
    task.leave(TaskPhase.ENDED)
    assert kinds(task.upload_fails(1)) == [DiscardOwnFiles]


def test_an_error_in_the_sync_part_declines_by_default_and_the_task_goes_on() -> None:
    """A pipeline must not chase its data because storage was down."""
    task = Task()
    effects = task.snapshot_fails(1, "no space")
    assert effects[-1] == DeclineCheckpoint(n(1), Reason.CHECKPOINT_DECLINED, "no space")


def test_an_error_in_the_sync_part_fails_the_task_where_that_is_asked_for() -> None:
    """TaskCheckpointingBehaviourTest#testDeclineOnCheckpointErrorInSyncPart."""
    task = Task(on_sync_failure=OnSyncFailure.FAIL_TASK)
    assert task.snapshot_fails(1, "half-way")[-1] == FailTask("half-way")
    ended = Task(on_sync_failure=OnSyncFailure.FAIL_TASK, phase=TaskPhase.ENDED)
    assert FailTask not in kinds(ended.snapshot_fails(1))


# --- notices --------------------------------------------------------------------------------------


def test_completions_are_told_in_rising_order_and_lost_ones_are_made_up_by_aborts() -> None:
    """ST#testSkipRepeatCheckpointComplete: complete 3, abort (5, done 3), abort (10, done 8), complete
    8."""
    task = Task()
    task.complete(3)
    task.abort(5, latest_completed=3)
    task.abort(10, latest_completed=8)
    task.complete(8)
    assert task.told_complete == [3, 8]


def test_a_made_up_completion_comes_before_the_abort() -> None:
    effects = Task().abort(10, latest_completed=8)
    assert kinds(effects).index(TellComplete) < kinds(effects).index(TellAborted)


def test_the_restored_checkpoint_counts_as_told() -> None:
    """ST#testIgnoreCompleteCheckpointBeforeStartup (C103)."""
    task = Task(restored_from=5)
    for number in (4, 5, 6):
        task.complete(number)
    assert task.told_complete == [6]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 20), st.integers(1, 20)), max_size=40))
def test_operators_see_strictly_rising_completions_whatever_arrives(
    notices: list[tuple[bool, int, int]],
) -> None:
    task = Task()
    for completes, number, latest in notices:
        if completes:
            task.complete(number)
        else:
            task.abort(number, min(latest, number))
    told = task.told_complete
    assert told == sorted(set(told))
    greatest = [number if completes else min(latest, number) for completes, number, latest in notices]
    assert (told[-1] if told else None) == max(greatest, default=None)


def test_after_the_task_has_ended_only_local_copies_hear_of_completions() -> None:
    """1.19: after a task leaves RUNNING, only the local state manager gets it."""
    task = Task(phase=TaskPhase.ENDED)
    assert task.complete(1) == (ConfirmLocalCopy(n(1)),)
    assert task.abort(2) == (DropLocalCopy(n(2)),)
    assert task.subsumed(1) == ()


def test_operators_are_told_what_was_subsumed() -> None:
    """SCC#testNotifyCheckpointSubsumed."""
    task = Task()
    assert task.subsumed(1) == (TellSubsumed(n(1)),)


# --- stop-with-savepoint and the final checkpoint -------------------------------------------------

SUSPEND = BarrierOptions(kind=CheckpointKind.SYNC_SAVEPOINT_SUSPEND)
TERMINATE = BarrierOptions(kind=CheckpointKind.SYNC_SAVEPOINT_TERMINATE)


def test_the_task_ends_when_its_synchronous_savepoint_is_complete() -> None:
    """1.20: tasks hold after the snapshot until notifyComplete of that id, then finish."""
    task = Task()
    task.checkpoint(4, SUSPEND)
    task.upload_done(4)
    task.complete(3)
    assert task.count(FinishTask) == 0
    assert kinds(task.complete(4))[-1] is FinishTask


@pytest.mark.parametrize("acked", [True, False])
def test_the_task_fails_when_its_synchronous_savepoint_is_aborted(acked: bool) -> None:
    """ST#testSavepointSuspendedAborted, #testSavepointTerminateAborted, …AbortedAsync."""
    task = Task()
    task.checkpoint(4, SUSPEND)
    if acked:
        task.upload_done(4)
    assert task.abort(4)[-1] == FailTask("Stop-with-savepoint failed")


def test_the_abort_of_another_checkpoint_does_not_stop_the_savepoint() -> None:
    task = Task()
    task.checkpoint(3)
    task.checkpoint(4, SUSPEND)
    assert FailTask not in kinds(task.abort(3))


def test_a_task_at_the_end_of_data_waits_for_a_checkpoint_that_began_later() -> None:
    """STF#testWaitingForFinalCheckpoint, #testWaitingForFinalCheckpointNotTheFirsNotifiedComplete
    (C106)."""
    task = Task()
    task.checkpoint(1)
    task.upload_done(1)
    assert kinds(task.end_of_data()) == [FinishOperators]
    task.complete(1)
    assert task.count(FinishTask) == 0
    task.checkpoint(2)
    task.upload_done(2)
    task.complete(2)
    assert task.count(FinishTask) == 1


def test_a_lost_final_notice_is_made_up_by_a_later_checkpoint() -> None:
    task = Task()
    task.end_of_data()
    task.checkpoint(2)
    task.upload_done(2)
    task.checkpoint(3)
    task.abort(3, latest_completed=2)
    assert task.count(FinishTask) == 1


def test_a_task_does_not_end_while_an_earlier_part_is_under_way() -> None:
    """STF#testWaitingForPendingCheckpointsOnFinished."""
    task = Task()
    task.checkpoint(1)
    task.end_of_data()
    task.checkpoint(2)
    task.upload_done(2)
    task.complete(2)
    assert task.count(FinishTask) == 0
    task.upload_done(1)
    assert task.count(FinishTask) == 1


def test_a_task_ends_once() -> None:
    task = Task()
    task.end_of_data()
    task.checkpoint(2)
    task.upload_done(2)
    task.complete(2)
    task.complete(3)
    assert task.count(FinishTask) == 1


def test_nothing_is_waited_for_when_checkpointing_is_off() -> None:
    """1.19: not waited for if checkpointing is off."""
    effects = Task().end_of_data(checkpoints=False)
    assert kinds(effects) == [FinishOperators, FinishTask]


def test_a_savepoint_can_stop_a_task_that_waits_for_its_final_checkpoint() -> None:
    """STF#testTriggerStopWithSavepointWhenWaitingForFinalCheckpoint."""
    task = Task()
    task.end_of_data()
    task.checkpoint(2, SUSPEND)
    task.upload_done(2)
    task.complete(2)
    assert task.count(FinishTask) == 1


@pytest.mark.parametrize("drain", [False, True])
@pytest.mark.parametrize("acknowledged_first", [False, True])
def test_a_savepoint_that_ends_the_run_is_waited_for_though_the_final_checkpoint_is_complete(
    drain: bool, acknowledged_first: bool
) -> None:
    """STF#testTriggerStopWithSavepointWhenWaitingForFinalCheckpoint, …NoDrain…OnSourceTask."""
    task = Task()
    task.end_of_data()
    task.checkpoint(6)
    task.upload_done(6)
    task.checkpoint(7, TERMINATE if drain else SUSPEND)
    if acknowledged_first:
        task.upload_done(7)
    task.complete(6)
    assert not task.is_finished
    if not acknowledged_first:
        task.upload_done(7)
    assert not task.is_finished
    task.complete(7)
    assert task.told_complete == [6, 7]
    assert task.count(FinishTask) == 1


def test_operators_are_finished_once_whether_the_data_ends_or_a_drain_begins_first() -> None:
    ended_first, drained_first = Task(), Task()
    ended_first.end_of_data()
    ended_first.checkpoint(1, TERMINATE)
    drained_first.checkpoint(1, TERMINATE)
    drained_first.end_of_data()
    assert ended_first.count(FinishOperators) == drained_first.count(FinishOperators) == 1


@pytest.mark.parametrize(("options", "finished"), [(SUSPEND, 0), (TERMINATE, 1)])
@pytest.mark.parametrize("completes", [True, False])
def test_data_that_ends_while_a_savepoint_ends_the_run_finishes_operators_in_a_drain_only(
    options: BarrierOptions, finished: int, completes: bool
) -> None:
    """ST#testSavepointSuspendCompleted, #testSavepointTerminateCompleted, …SuspendAbortedAsync, …."""
    task = Task()
    task.checkpoint(1, options)
    task.upload_done(1)
    task.end_of_data()
    task.complete(1) if completes else task.abort(1)
    assert task.count(FinishOperators) == finished
    assert (task.count(FinishTask), task.count(FailTask)) == ((1, 0) if completes else (0, 1))


def test_an_aborted_drain_makes_no_later_checkpoint_the_final_one() -> None:
    """A host may go on after a failed stop: Flink's task fails."""
    task = Task()
    task.checkpoint(1, TERMINATE)
    task.upload_done(1)
    task.abort(1)
    task.checkpoint(2)
    task.upload_done(2)
    task.complete(2)
    assert not task.is_finished
    assert task.reports == {1: SubtaskReport.OPERATORS_FINISHED, 2: SubtaskReport.NORMAL}


def test_an_acknowledgement_says_whether_the_operators_were_finished_when_its_checkpoint_began() -> None:
    """STF#testReportOperatorsFinishedInCheckpoint."""
    task = Task()
    task.checkpoint(2)
    task.end_of_data()
    task.upload_done(2)
    task.checkpoint(4)
    task.upload_done(4)
    assert task.reports == {2: SubtaskReport.NORMAL, 4: SubtaskReport.OPERATORS_FINISHED}


# --- tasks that have no operators, or do not run ---------------------------------------------------


def test_a_task_that_was_finished_when_restored_passes_barriers_on_and_tells_no_operator() -> None:
    """STF#testOperatorSkipLifeCycleIfFinishedOnRestore, #testWaitingForUnalignedChannelStatesIfFinishedOnRestore."""
    task = Task(restored_from=1, finished_on_restore=True)
    assert kinds(task.checkpoint(2, UNALIGNED)) == [EmitBarrier, FinishOutputChannelState, TakeSnapshot]
    assert task.acknowledged == []
    task.upload_done(2, ())
    assert task.reports == {2: SubtaskReport.FINISHED_ON_RESTORE}
    task.complete(2)
    task.abort(3, latest_completed=2)
    task.subsumed(1)
    task.end_of_data()
    assert (task.told_complete, task.told_aborted, task.told_subsumed) == ([], [], [])
    assert task.count(FinishOperators) == task.count(PrepareBarrier) == 0
    assert (task.confirmed_copies, task.dropped_copies) == ([2], [3])


@pytest.mark.parametrize(
    ("phase", "reason"),
    [
        ("deploying", Reason.CHECKPOINT_DECLINED_TASK_NOT_READY),
        ("closing", Reason.CHECKPOINT_DECLINED_TASK_CLOSING),
        ("ended", Reason.CHECKPOINT_DECLINED_TASK_NOT_READY),
    ],
)
def test_a_task_that_does_not_run_declines_and_lets_nobody_downstream_wait(
    phase: str, reason: Reason
) -> None:
    task = Task(phase=phase)
    effects = task.checkpoint(1)
    assert kinds(effects) == [EmitCancelMarker, DiscardChannelState, DeclineCheckpoint]
    assert (task.declined, task.snapshots, task.cancel_markers) == ({1: reason}, [], [1])


# --- the harness ----------------------------------------------------------------------------------


def test_what_a_subtask_remembers_of_aborts_can_be_read() -> None:
    """SCC#testNotifyCheckpointAbortedBeforeAsyncPhase."""
    task = Task()
    task.abort(42)
    assert task.remembered_aborts == [42]
    task.checkpoint(42)
    assert (task.remembered_aborts, task.snapshots, task.cancel_markers) == ([], [], [42])


def test_calls_that_make_no_sense_say_so() -> None:
    task = Task()
    task.checkpoint(1)
    with pytest.raises(InvalidRequest, match="no snapshot of checkpoint 5 was begun: 1 was"):
        task.upload_done(5)
    with pytest.raises(InvalidRequest, match="no snapshot of checkpoint 5 was begun"):
        task.upload_fails(5)
    with pytest.raises(InvalidRequest, match="ids start at 1, got 0"):
        task.checkpoint(0)
    with pytest.raises(InvalidRequest, match="ids start at 1, got 0"):
        task.complete(0)
    with pytest.raises(InvalidRequest, match="phase must be one of DEPLOYING, RUNNING, CLOSING, ENDED"):
        task.leave("gone")
