"""SubtaskHarness: the stage's side of a checkpoint, for scenarios about its steps and the notices it hears.

The rules are the real ones (``core/subtask``); the test plays the snapshot, the upload and the coordinator::

    t = SubtaskHarness()
    t.abort(3)                                # the notice comes before the barrier
    t.checkpoint(3)
    assert (t.snapshots, t.cancel_markers) == ([], [3])

Every call returns what the subtask asks its host to do, in order; ``effects`` holds all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from dagster_ckpt.core.ids import CheckpointId, checkpoint_id
from dagster_ckpt.core.messages import BarrierOptions, CheckpointFailureReason, StateHandle, SubtaskReport
from dagster_ckpt.core.subtask.checkpoints import (
    OnSyncFailure,
    SubtaskCheckpoints,
    SubtaskStep,
    TaskPhase,
    refusal,
)
from dagster_ckpt.core.subtask.effects import (
    Acknowledge,
    ConfirmLocalCopy,
    DeclineCheckpoint,
    DiscardOwnFiles,
    DropLocalCopy,
    EmitBarrier,
    EmitCancelMarker,
    FailTask,
    FinishTask,
    SubtaskEffect,
    TakeSnapshot,
    TellAborted,
    TellComplete,
    TellSubsumed,
)
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.testing.coordinator.world import one_of

Effects = tuple[SubtaskEffect, ...]
E = TypeVar("E")

ALIGNED = BarrierOptions()
"""What a barrier carries, unless the test says otherwise."""
FILES = (StateHandle("state", 1),)
"""What a snapshot consists of, unless the test says otherwise."""


class SubtaskHarness:
    """One subtask. ``on_sync_failure`` FAIL_TASK is Flink's rule, DECLINE (the default) the library's.

    ``finished_on_restore``: the snapshot it was restored from had it finished. Calls raise InvalidRequest for an id
    below 1, a name that does not exist, and the end of a part of a checkpoint that was never begun.
    """

    def __init__(
        self,
        *,
        restored_from: int | None = None,
        phase: TaskPhase | str = TaskPhase.RUNNING,
        on_sync_failure: OnSyncFailure | str = OnSyncFailure.DECLINE,
        finished_on_restore: bool = False,
    ) -> None:
        fresh = SubtaskCheckpoints(
            phase=one_of(TaskPhase, phase, "phase"),
            on_sync_failure=one_of(OnSyncFailure, on_sync_failure, "on_sync_failure"),
            finished_on_restore=finished_on_restore,
        )
        self.state = fresh if restored_from is None else fresh.restored_from(checkpoint_id(restored_from))
        """What the subtask remembers."""
        self.effects: list[SubtaskEffect] = []
        """Everything it asked for, in order."""

    # --- the checkpoint -------------------------------------------------------------------------------------

    def checkpoint(self, number: int, options: BarrierOptions = ALIGNED) -> Effects:
        """Begin a checkpoint: its barriers are aligned, or it was triggered. The synchronous part succeeds."""
        effects = self.begin(number, options)
        if any(isinstance(effect, TakeSnapshot) for effect in effects):
            self._take(self.state.sync_part_done(CheckpointId(number)))
        return effects

    def begin(self, number: int, options: BarrierOptions = ALIGNED) -> Effects:
        """Begin a checkpoint; its synchronous part is still in progress (``snapshot_fails`` ends it badly)."""
        return self._take(self.state.checkpoint(checkpoint_id(number), options))

    def snapshot_fails(self, number: int, message: str = "the snapshot failed") -> Effects:
        """Let the synchronous part raise."""
        return self._take(self.state.sync_part_failed(checkpoint_id(number), message))

    def upload_done(self, number: int, handles: Sequence[StateHandle] = FILES) -> Effects:
        """Let the asynchronous part finish, with these files."""
        return self._take(self.state.async_part_done(self._begun(number), tuple(handles)))

    def upload_fails(
        self, number: int, message: str = "the upload failed", reason: CheckpointFailureReason | None = None
    ) -> Effects:
        """Let the asynchronous part raise; ``reason``: one found in its cause chain."""
        return self._take(self.state.async_part_failed(self._begun(number), message, reason))

    def upload_closed(self, number: int) -> Effects:
        """Let the task close while the asynchronous part may be in progress."""
        return self._take(self.state.async_part_closed(self._begun(number)))

    # --- notices --------------------------------------------------------------------------------------------

    def complete(self, number: int) -> Effects:
        """Let the coordinator say that a checkpoint is complete."""
        return self._take(self.state.notify_complete(checkpoint_id(number)))

    def abort(self, number: int, latest_completed: int | None = None) -> Effects:
        """Let the coordinator say that a checkpoint is over, and which one was completed last."""
        latest = None if latest_completed is None else checkpoint_id(latest_completed)
        return self._take(self.state.notify_aborted(checkpoint_id(number), latest))

    def subsumed(self, number: int) -> Effects:
        """Let the coordinator say that nothing up to this checkpoint is restored any more."""
        return self._take(self.state.notify_subsumed(checkpoint_id(number)))

    # --- the task's life ------------------------------------------------------------------------------------

    def end_of_data(self, *, checkpoints: bool = True) -> Effects:
        """Let all input be processed; without ``checkpoints`` there is none to wait for."""
        state = self.state
        return self._take(state.end_of_data() if checkpoints else state.end_of_data_without_checkpoints())

    def leave(self, phase: TaskPhase | str) -> None:
        """Let the task be DEPLOYING, RUNNING, CLOSING or ENDED."""
        self.state = self.state.leave(one_of(TaskPhase, phase, "phase"))

    @property
    def refusal(self) -> CheckpointFailureReason | None:
        """Why a trigger would be declined now; None: it would be taken."""
        return refusal(self.state.phase)

    # --- what is read off it --------------------------------------------------------------------------------

    @property
    def snapshots(self) -> list[int]:
        """Checkpoints whose snapshot was begun."""
        return [e.checkpoint_id for e in self._of(TakeSnapshot)]

    @property
    def acknowledged(self) -> list[int]:
        """Checkpoints the coordinator was told are stored."""
        return [e.checkpoint_id for e in self._of(Acknowledge)]

    @property
    def reports(self) -> dict[int, SubtaskReport]:
        """Report with each acknowledgement: NORMAL, OPERATORS_FINISHED or FINISHED_ON_RESTORE."""
        return {e.checkpoint_id: e.report for e in self._of(Acknowledge)}

    @property
    def discarded(self) -> list[int]:
        """Checkpoints whose files it deleted again."""
        return [e.checkpoint_id for e in self._of(DiscardOwnFiles)]

    @property
    def remembered_aborts(self) -> list[int]:
        """Checkpoints that were aborted before their barrier came, oldest notice first."""
        return list(self.state.aborted)

    @property
    def confirmed_copies(self) -> list[int]:
        """Checkpoints whose local copy is kept from then on, and older ones pruned."""
        return [e.checkpoint_id for e in self._of(ConfirmLocalCopy)]

    @property
    def dropped_copies(self) -> list[int]:
        """Checkpoints whose local copy was pruned."""
        return [e.checkpoint_id for e in self._of(DropLocalCopy)]

    @property
    def declined(self) -> dict[int, CheckpointFailureReason]:
        """Checkpoints the coordinator was told failed, and why."""
        return {e.checkpoint_id: e.reason for e in self._of(DeclineCheckpoint)}

    @property
    def barriers(self) -> list[EmitBarrier]:
        """Barriers put into the stage's own output."""
        return self._of(EmitBarrier)

    @property
    def cancel_markers(self) -> list[int]:
        """Checkpoints for which a cancel marker was put into the output instead."""
        return [e.checkpoint_id for e in self._of(EmitCancelMarker)]

    @property
    def told_complete(self) -> list[int]:
        """Completions the operators heard of."""
        return [e.checkpoint_id for e in self._of(TellComplete)]

    @property
    def told_aborted(self) -> list[int]:
        """Aborts the operators heard of."""
        return [e.checkpoint_id for e in self._of(TellAborted)]

    @property
    def told_subsumed(self) -> list[int]:
        """Subsumptions the operators heard of."""
        return [e.checkpoint_id for e in self._of(TellSubsumed)]

    @property
    def is_finished(self) -> bool:
        """True once the task ended by itself."""
        return bool(self._of(FinishTask))

    @property
    def failure(self) -> str | None:
        """Why the task failed; None: it did not."""
        return next((e.message for e in self._of(FailTask)), None)

    # --- inside ---------------------------------------------------------------------------------------------

    def _begun(self, number: int) -> CheckpointId:
        if number not in self.snapshots:
            begun = ", ".join(map(str, self.snapshots)) or "none"
            raise InvalidRequest(f"no snapshot of checkpoint {number} was begun: {begun} was")
        return CheckpointId(number)

    def _of(self, kind: type[E]) -> list[E]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def _take(self, step: SubtaskStep) -> Effects:
        self.state = step.state
        self.effects += step.effects
        return step.effects
