"""Effects that a subtask's side of a checkpoint asks of its host."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.messages import BarrierOptions, StateHandle, SubtaskReport
from dagster_ckpt.core.reasons import CheckpointFailureReason


@dataclass(frozen=True, slots=True)
class FinishOperators:
    """Process the end of input: of this savepoint (drain), or of the data itself (None)."""

    checkpoint_id: CheckpointId | None


@dataclass(frozen=True, slots=True)
class PrepareBarrier:
    """Let operators flush what must go out before the barrier."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class EmitBarrier:
    """Put the barrier into the stage's own output."""

    checkpoint_id: CheckpointId
    options: BarrierOptions
    priority: bool
    """It overtakes data that is still in the output (unaligned)."""


@dataclass(frozen=True, slots=True)
class EmitCancelMarker:
    """Put a cancel marker into the stage's own output instead: downstream need not wait."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class ArmAlignmentTimer:
    """Turn the emitted barrier unaligned if it is still in the output when its time is over."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class FinishOutputChannelState:
    """No more output belongs to the in-flight data of this checkpoint."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Run the synchronous part, then start the asynchronous one."""

    checkpoint_id: CheckpointId
    options: BarrierOptions


@dataclass(frozen=True, slots=True)
class CancelAsyncPart:
    """Stop the asynchronous part where it is."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class DiscardOwnFiles:
    """Delete the files this subtask wrote for the checkpoint itself; shared ones stay."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class DiscardChannelState:
    """Drop the in-flight data recorded for the checkpoint."""

    checkpoint_id: CheckpointId


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


@dataclass(frozen=True, slots=True)
class ReportMetrics:
    """Tell the coordinator the numbers of a part that no longer counts."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class TellComplete:
    """Tell the operators: two-phase sinks publish."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class TellAborted:
    """Tell every operator, also those whose part succeeded."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class TellSubsumed:
    """Tell the operators that nothing up to this checkpoint is restored any more."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class ConfirmLocalCopy:
    """Keep the local copy of this checkpoint and prune older ones."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class DropLocalCopy:
    """Prune the local copy of exactly this checkpoint."""

    checkpoint_id: CheckpointId


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
