"""Effects that a subtask's side of a checkpoint asks of its host."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ckpt.core.ids import CheckpointId, OfCheckpoint
from dagster_ckpt.core.messages import BarrierOptions, CheckpointFailureReason, StateHandle, SubtaskReport


@dataclass(frozen=True, slots=True)
class FinishOperators:
    """Process the end of input: of this savepoint (drain), or of the data itself (None)."""

    checkpoint_id: CheckpointId | None


class PrepareBarrier(OfCheckpoint):
    """Let operators flush what must go out before the barrier."""


@dataclass(frozen=True, slots=True)
class EmitBarrier:
    """Put the barrier into the stage's own output."""

    checkpoint_id: CheckpointId
    options: BarrierOptions
    priority: bool
    """It overtakes data that is still in the output (unaligned)."""


class EmitCancelMarker(OfCheckpoint):
    """Put a cancel marker into the stage's own output instead: downstream need not wait."""


class ArmAlignmentTimer(OfCheckpoint):
    """Turn the emitted barrier unaligned if it is still in the output when its time is over."""


class FinishOutputChannelState(OfCheckpoint):
    """No more output belongs to the in-flight data of this checkpoint."""


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Run the synchronous part, then start the asynchronous one."""

    checkpoint_id: CheckpointId
    options: BarrierOptions


class CancelAsyncPart(OfCheckpoint):
    """Stop the asynchronous part where it is."""


class DiscardOwnFiles(OfCheckpoint):
    """Delete the files this subtask wrote for the checkpoint itself; shared ones stay."""


class DiscardChannelState(OfCheckpoint):
    """Drop the in-flight data recorded for the checkpoint."""


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Tell the coordinator that the part is stored; None: the subtask has no state."""

    checkpoint_id: CheckpointId
    handles: tuple[StateHandle, ...] | None
    report: SubtaskReport = SubtaskReport.NORMAL
    """What the subtask says of itself: it goes on, has finished its operators, or began finished."""


@dataclass(frozen=True, slots=True)
class DeclineCheckpoint:
    """Tell the coordinator that the part failed."""

    checkpoint_id: CheckpointId
    reason: CheckpointFailureReason
    message: str


class ReportMetrics(OfCheckpoint):
    """Tell the coordinator the numbers of a part that no longer counts."""


class TellComplete(OfCheckpoint):
    """Tell the operators: two-phase sinks publish."""


class TellAborted(OfCheckpoint):
    """Tell every operator, also those whose part succeeded."""


class TellSubsumed(OfCheckpoint):
    """Tell the operators that nothing up to this checkpoint is restored any more."""


class ConfirmLocalCopy(OfCheckpoint):
    """Keep the local copy of this checkpoint and prune older ones."""


class DropLocalCopy(OfCheckpoint):
    """Prune the local copy of exactly this checkpoint."""


@dataclass(frozen=True, slots=True)
class FinishTask:
    """End the task successfully."""


@dataclass(frozen=True, slots=True)
class FailTask:
    """Fail the task."""

    message: str


SubtaskEffect = (
    FinishOperators
    | PrepareBarrier
    | EmitBarrier
    | EmitCancelMarker
    | ArmAlignmentTimer
    | FinishOutputChannelState
    | TakeSnapshot
    | CancelAsyncPart
    | DiscardOwnFiles
    | DiscardChannelState
    | Acknowledge
    | DeclineCheckpoint
    | ReportMetrics
    | TellComplete
    | TellAborted
    | TellSubsumed
    | ConfirmLocalCopy
    | DropLocalCopy
    | FinishTask
    | FailTask
)
