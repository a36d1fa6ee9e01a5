"""The stage's side of a checkpoint: the order of its steps, and what notices from the coordinator do to it.

A value like the barrier handlers: every call returns the state to go on with and the effects to perform, in
order. Sources: flink-runtime SubtaskCheckpointCoordinatorImpl, AsyncCheckpointRunnable, StreamTask;
SubtaskCheckpointCoordinatorTest (SCC), StreamTaskTest (ST), StreamTaskFinalCheckpointsTest (STF).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import assert_never

from dagster_ckpt.core.alignment.events import is_timeoutable, is_unaligned, with_unaligned_supported
from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.messages import BarrierOptions, StateHandle, SubtaskReport
from dagster_ckpt.core.messages import CheckpointFailureReason as Reason
from dagster_ckpt.core.model import CheckpointKind
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

MAX_ABORTED_REMEMBERED = 128
"""Aborts that came before their barrier; an id this far below the greatest one counts as aborted, too."""


class TaskPhase(StrEnum):
    """Phase of a task's life."""

    DEPLOYING = "deploying"
    RUNNING = "running"
    CLOSING = "closing"
    """Its loop takes no more messages."""
    ENDED = "ended"


class OnSyncFailure(StrEnum):
    """Consequence of an error in the synchronous part of a snapshot."""

    DECLINE = "decline"
    """The checkpoint fails and the task goes on: data is never re-read because storage was down."""
    FAIL_TASK = "fail_task"
    """Flink's rule: operators may be left half-way, so the task fails."""


class AsyncPart(StrEnum):
    """State of the asynchronous part of one snapshot; it leaves RUNNING once, whoever comes first."""

    RUNNING = "running"
    COMPLETED = "completed"
    DISCARDED = "discarded"


def refusal(phase: TaskPhase) -> Reason | None:
    """Return why a task in this phase declines a trigger, or None where it takes it."""
    match phase:
        case TaskPhase.RUNNING:
            return None
        case TaskPhase.CLOSING:
            return Reason.CHECKPOINT_DECLINED_TASK_CLOSING
        case TaskPhase.DEPLOYING | TaskPhase.ENDED:
            return Reason.CHECKPOINT_DECLINED_TASK_NOT_READY
    assert_never(phase)


@dataclass(frozen=True, slots=True)
class SubtaskStep:
    """State to go on with, and what to do."""

    state: SubtaskCheckpoints
    effects: tuple[SubtaskEffect, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskCheckpoints:
    """Checkpoints of one subtask: its memory of them, and the order of steps."""

    phase: TaskPhase = TaskPhase.RUNNING
    on_sync_failure: OnSyncFailure = OnSyncFailure.DECLINE
    last_seen: CheckpointId | None = None
    """Highest checkpoint whose barrier or trigger arrived."""
    last_complete: CheckpointId | None = None
    """Highest checkpoint the operators were told is complete; the restored one counts."""
    aborted: tuple[CheckpointId, ...] = ()
    """Aborted before they arrived, oldest notice first."""
    greatest_aborted: CheckpointId | None = None
    async_parts: Mapping[CheckpointId, AsyncPart] = field(default_factory=dict)
    synchronous: tuple[CheckpointId, CheckpointKind] | None = None
    """The savepoint that ends the run: after its snapshot the task holds still until the notice."""
    finished_on_restore: bool = False
    """The snapshot had it finished: it passes barriers on, and there are no operators to tell anything."""
    at_end_of_data: bool = False
    final_from: CheckpointId | None = None
    """First checkpoint seen after the end of data: one with this id or a higher one lets the task end."""
    final_seen: bool = False

    # --- the checkpoint itself -----------------------------------------------------------------

    def checkpoint(self, checkpoint_id: CheckpointId, options: BarrierOptions) -> SubtaskStep:
        """Begin: a barrier has been aligned, or the coordinator has triggered.

        The barrier goes downstream before the snapshot is taken, so that downstream waits as little as
        possible.
        """
        if self.last_seen is not None and checkpoint_id <= self.last_seen:
            return SubtaskStep(self._without_abort(checkpoint_id), (DiscardChannelState(checkpoint_id),))
        seen = replace(self, last_seen=checkpoint_id)
        passed_on: tuple[SubtaskEffect, ...] = (
            EmitCancelMarker(checkpoint_id),
            DiscardChannelState(checkpoint_id),
        )
        if seen.was_aborted(checkpoint_id):
            return SubtaskStep(seen._without_abort(checkpoint_id), passed_on)
        if (reason := refusal(self.phase)) is not None:
            declined = DeclineCheckpoint(checkpoint_id, reason, f"the task is {self.phase}")
            return SubtaskStep(seen, (*passed_on, declined))
        return seen._started(checkpoint_id, with_unaligned_supported(options))

    def was_aborted(self, checkpoint_id: CheckpointId) -> bool:
        """Return True where the abort came before the barrier, or so many aborts that it must have."""
        if checkpoint_id in self.aborted:
            return True
        greatest = self.greatest_aborted
        return greatest is not None and checkpoint_id + MAX_ABORTED_REMEMBERED < greatest

    def _started(self, checkpoint_id: CheckpointId, options: BarrierOptions) -> SubtaskStep:
        effects: list[SubtaskEffect] = []
        state = self
        if options.kind.is_synchronous:
            state = replace(state, synchronous=(checkpoint_id, options.kind))
        if options.kind is CheckpointKind.SYNC_SAVEPOINT_TERMINATE and not state.at_end_of_data:
            effects += state._of_operators(FinishOperators(checkpoint_id))
        if state.at_end_of_data and state.final_from is None:
            state = replace(state, final_from=checkpoint_id)
        priority = is_unaligned(options)
        effects += state._of_operators(PrepareBarrier(checkpoint_id))
        effects.append(EmitBarrier(checkpoint_id, options, priority=priority))
        if is_timeoutable(options):
            effects.append(ArmAlignmentTimer(checkpoint_id))
        if priority or is_timeoutable(options):
            effects.append(FinishOutputChannelState(checkpoint_id))
        effects.append(TakeSnapshot(checkpoint_id, options))
        return SubtaskStep(state, tuple(effects))

    def sync_part_done(self, checkpoint_id: CheckpointId) -> SubtaskStep:
        """The synchronous part succeeded: the asynchronous one runs from now on."""
        return SubtaskStep(self._with_part(checkpoint_id, AsyncPart.RUNNING))

    def sync_part_failed(self, checkpoint_id: CheckpointId, message: str) -> SubtaskStep:
        """The synchronous part raised. Nothing happens where the task does not run any more."""
        cleanup = (DiscardChannelState(checkpoint_id), DiscardOwnFiles(checkpoint_id))
        if self.phase is not TaskPhase.RUNNING:
            return SubtaskStep(self, cleanup)
        match self.on_sync_failure:
            case OnSyncFailure.FAIL_TASK:
                return SubtaskStep(self, (*cleanup, FailTask(message)))
            case OnSyncFailure.DECLINE:
                declined = DeclineCheckpoint(checkpoint_id, Reason.CHECKPOINT_DECLINED, message)
                return SubtaskStep(self, (*cleanup, declined))
        assert_never(self.on_sync_failure)

    def async_part_done(self, checkpoint_id: CheckpointId, handles: tuple[StateHandle, ...]) -> SubtaskStep:
        """The asynchronous part has finished; a snapshot without any state is acknowledged as None.

        Discarded in the meantime: the files are already going, only the numbers are reported.
        """
        if self.async_parts.get(checkpoint_id) is not AsyncPart.RUNNING:
            return SubtaskStep(self, (ReportMetrics(checkpoint_id),))
        state = self._with_part(checkpoint_id, AsyncPart.COMPLETED)
        return state._finishing((Acknowledge(checkpoint_id, handles or None, self._report(checkpoint_id)),))

    def async_part_failed(
        self, checkpoint_id: CheckpointId, message: str, nested: Reason | None = None
    ) -> SubtaskStep:
        """The asynchronous part raised: decline with the reason found in the cause chain, if there was
        one."""
        if self.async_parts.get(checkpoint_id) is not AsyncPart.RUNNING:
            return SubtaskStep(self, (ReportMetrics(checkpoint_id),))
        state = self._with_part(checkpoint_id, AsyncPart.DISCARDED)
        effects: tuple[SubtaskEffect, ...] = (DiscardOwnFiles(checkpoint_id),)
        if self.phase is TaskPhase.RUNNING:
            reason = nested or Reason.CHECKPOINT_ASYNC_EXCEPTION
            effects = (*effects, DeclineCheckpoint(checkpoint_id, reason, message))
        return state._finishing(effects)

    def async_part_closed(self, checkpoint_id: CheckpointId) -> SubtaskStep:
        """The task closes while the part runs: its files go, unless it was acknowledged before."""
        if self.async_parts.get(checkpoint_id) is not AsyncPart.RUNNING:
            return SubtaskStep(self)
        canceled = (CancelAsyncPart(checkpoint_id), DiscardOwnFiles(checkpoint_id))
        return self._with_part(checkpoint_id, AsyncPart.DISCARDED)._finishing(canceled)

    # --- notices from the coordinator ----------------------------------------------------------

    def notify_complete(self, checkpoint_id: CheckpointId) -> SubtaskStep:
        """A checkpoint is complete; an older or repeated notice is skipped
        (ST#testSkipRepeatCheckpointComplete)."""
        if self.last_complete is not None and checkpoint_id <= self.last_complete:
            return SubtaskStep(self)
        parts = {k: part for k, part in self.async_parts.items() if _is_live(k, part, checkpoint_id)}
        state = replace(self, last_complete=checkpoint_id, async_parts=parts)
        if self.phase is not TaskPhase.RUNNING:
            return SubtaskStep(state, (ConfirmLocalCopy(checkpoint_id),))
        effects = (*self._of_operators(TellComplete(checkpoint_id)), ConfirmLocalCopy(checkpoint_id))
        if self.synchronous is not None and self.synchronous[0] == checkpoint_id:
            ended = replace(state, synchronous=None, phase=TaskPhase.CLOSING)
            return SubtaskStep(ended, (*effects, FinishTask()))
        final = self.final_from is not None and checkpoint_id >= self.final_from
        return replace(state, final_seen=state.final_seen or final)._finishing(effects)

    def notify_aborted(
        self, checkpoint_id: CheckpointId, latest_completed: CheckpointId | None
    ) -> SubtaskStep:
        """A checkpoint is over; ``latest_completed`` makes up for a lost notice of completion first."""
        made_up = (
            self.notify_complete(latest_completed) if latest_completed is not None else SubtaskStep(self)
        )
        state, effects = made_up.state, made_up.effects
        if state.phase is not TaskPhase.RUNNING:
            return SubtaskStep(state, (*effects, DropLocalCopy(checkpoint_id)))
        if state.async_parts.get(checkpoint_id) is AsyncPart.RUNNING:
            state = state._with_part(checkpoint_id, AsyncPart.DISCARDED)
            effects = (*effects, CancelAsyncPart(checkpoint_id), DiscardOwnFiles(checkpoint_id))
        elif state.last_seen is None or checkpoint_id > state.last_seen:
            state = state._remember_abort(checkpoint_id)
        told = self._of_operators(TellAborted(checkpoint_id))
        effects = (*effects, DiscardChannelState(checkpoint_id), *told, DropLocalCopy(checkpoint_id))
        if state.synchronous is not None and state.synchronous[0] == checkpoint_id:
            return SubtaskStep(
                replace(state, synchronous=None), (*effects, FailTask("Stop-with-savepoint failed"))
            )
        return state._finishing(effects)

    def notify_subsumed(self, checkpoint_id: CheckpointId) -> SubtaskStep:
        """Nothing will ever be restored from this checkpoint or an older one
        (SCC#testNotifyCheckpointSubsumed)."""
        told = self._of_operators(TellSubsumed(checkpoint_id))
        return SubtaskStep(self, told if self.phase is TaskPhase.RUNNING else ())

    # --- the end of the task -------------------------------------------------------------------

    def restored_from(self, checkpoint_id: CheckpointId) -> SubtaskCheckpoints:
        """Return the state of a task restored from this checkpoint: its completion is old news."""
        return replace(self, last_complete=checkpoint_id)

    def end_of_data(self) -> SubtaskStep:
        """All input is processed: finish the operators, then wait for a checkpoint that begins after
        this."""
        return SubtaskStep(replace(self, at_end_of_data=True), self._finish_operators())

    def end_of_data_without_checkpoints(self) -> SubtaskStep:
        """All input is processed and checkpointing is off: there is nothing to wait for."""
        done = replace(self, at_end_of_data=True, phase=TaskPhase.CLOSING)
        return SubtaskStep(done, (*self._finish_operators(), FinishTask()))

    def leave(self, phase: TaskPhase) -> SubtaskCheckpoints:
        """Return the state in another phase of the task's life."""
        return replace(self, phase=phase)

    # --- helpers -------------------------------------------------------------------------------

    def _finishing(self, effects: tuple[SubtaskEffect, ...]) -> SubtaskStep:
        """Let the task end when its final checkpoint is complete and no part is in progress.

        A savepoint that ends the run is waited for as well, so that its completion is heard
        (STF#testTriggerStopWithSavepointWhenWaitingForFinalCheckpoint).
        """
        busy = AsyncPart.RUNNING in self.async_parts.values() or self.synchronous is not None
        if not self.final_seen or busy or self.phase is not TaskPhase.RUNNING:
            return SubtaskStep(self, effects)
        return SubtaskStep(replace(self, phase=TaskPhase.CLOSING), (*effects, FinishTask()))

    def _finish_operators(self) -> tuple[SubtaskEffect, ...]:
        """Finish the operators for the end of data, unless a savepoint that ends the run is pending.

        A drain has finished them; what is suspended goes on from its savepoint, and fails if there comes to be none
        (ST#testSavepointSuspendCompleted, #testSavepointTerminateCompleted).
        """
        done = self.at_end_of_data or self.synchronous is not None
        return () if done else self._of_operators(FinishOperators(None))

    def _drains(self, checkpoint_id: CheckpointId | None) -> bool:
        """Return True for the savepoint before whose snapshot the operators were finished."""
        return self.synchronous == (checkpoint_id, CheckpointKind.SYNC_SAVEPOINT_TERMINATE)

    def _of_operators(self, effect: SubtaskEffect) -> tuple[SubtaskEffect, ...]:
        """Return an effect for the operators; a task that began finished has none
        (STF#testOperatorSkipLifeCycleIfFinishedOnRestore)."""
        return () if self.finished_on_restore else (effect,)

    def _report(self, checkpoint_id: CheckpointId) -> SubtaskReport:
        """Return the task's state when this checkpoint began (STF#testReportOperatorsFinishedInCheckpoint)."""
        if self.finished_on_restore:
            return SubtaskReport.FINISHED_ON_RESTORE
        at_end = self.final_from is not None and checkpoint_id >= self.final_from
        finished = at_end or self._drains(checkpoint_id)
        return SubtaskReport.OPERATORS_FINISHED if finished else SubtaskReport.NORMAL

    def _with_part(self, checkpoint_id: CheckpointId, part: AsyncPart) -> SubtaskCheckpoints:
        return replace(self, async_parts={**self.async_parts, checkpoint_id: part})

    def _without_abort(self, checkpoint_id: CheckpointId) -> SubtaskCheckpoints:
        return replace(self, aborted=tuple(i for i in self.aborted if i != checkpoint_id))

    def _remember_abort(self, checkpoint_id: CheckpointId) -> SubtaskCheckpoints:
        remembered = (*self._without_abort(checkpoint_id).aborted, checkpoint_id)[-MAX_ABORTED_REMEMBERED:]
        greatest = max(checkpoint_id, self.greatest_aborted or checkpoint_id)
        return replace(self, aborted=remembered, greatest_aborted=greatest)


def _is_live(checkpoint_id: CheckpointId, part: AsyncPart, completed: CheckpointId) -> bool:
    return part is AsyncPart.RUNNING or checkpoint_id > completed
