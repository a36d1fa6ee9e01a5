"""Effects of a decision, run after it was stored: data, and each may be done twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dagster_ckpt.core.coordinator.events import CoordinatorEvent
from dagster_ckpt.core.ids import CheckpointId, ExecutionAttempt, StageUid
from dagster_ckpt.core.location import SnapshotLocation
from dagster_ckpt.core.messages import NotifyAborted, StateHandle, TriggerStages
from dagster_ckpt.core.model import CheckpointMetadata


@dataclass(frozen=True, slots=True)
class MakeLocation:
    """Make sure the folder is new (a savepoint: find a free name below ``target``); answer LocationMade."""

    checkpoint_id: CheckpointId
    target: str = ""
    """URI below which a savepoint goes; empty for a checkpoint."""


@dataclass(frozen=True, slots=True)
class AskCoordinators:
    """Ask the stages' driver-side coordinators for their state; answers are CoordinatorAcknowledged."""

    checkpoint_id: CheckpointId
    uids: tuple[StageUid, ...]


@dataclass(frozen=True, slots=True)
class AbortCoordinators:
    """Tell driver-side coordinators that the checkpoint is over."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class CompleteCoordinators:
    """Tell driver-side coordinators that the checkpoint is complete."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class ReleaseFinished:
    """Tell driver-side coordinators of subtasks that had finished, for whose acknowledgement no event waits."""

    checkpoint_id: CheckpointId
    attempts: tuple[ExecutionAttempt, ...]


@dataclass(frozen=True, slots=True)
class CallHooks:
    """Call all master hooks; answers are HookAcked."""

    checkpoint_id: CheckpointId
    timestamp: float


@dataclass(frozen=True, slots=True)
class CompleteHooks:
    """Tell the hooks that a checkpoint is complete; after a restart once more, because the first may have been lost."""

    checkpoint_id: CheckpointId
    subsumed: CheckpointId | None = None
    """Newest subsumed checkpoint that may be deleted."""


@dataclass(frozen=True, slots=True)
class ReleaseHooks:
    """Tell the hooks that this checkpoint, and older ones, may be deleted."""

    subsumed: CheckpointId


@dataclass(frozen=True, slots=True)
class AbortHooks:
    """Tell the hooks that a checkpoint is over without completing."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class SendTrigger:
    """Tell the stages; answer TasksTriggered."""

    message: TriggerStages


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """Write ``_metadata`` once, never over another's; answer MetadataWritten."""

    metadata: CheckpointMetadata
    location: SnapshotLocation
    subtask_handles: Mapping[str, Mapping[int, tuple[StateHandle, ...]]] = field(default_factory=dict)
    """Files of the stages that acknowledged per subtask: written as the stage's own list, before the metadata."""


@dataclass(frozen=True, slots=True)
class SendComplete:
    """Notify completion; the runtime adds the permit it makes from the committed record."""

    checkpoint_id: CheckpointId
    timestamp: float
    subsumed: CheckpointId | None
    attempts: tuple[ExecutionAttempt, ...]


@dataclass(frozen=True, slots=True)
class SendAborted:
    """Notify that a checkpoint is over without completing."""

    message: NotifyAborted


@dataclass(frozen=True, slots=True)
class DiscardFiles:
    """Delete exactly these files of a message that came too late."""

    base_uri: str
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell the listeners."""

    event: CoordinatorEvent


Effect = (
    MakeLocation
    | AskCoordinators
    | AbortCoordinators
    | CompleteCoordinators
    | ReleaseFinished
    | CallHooks
    | CompleteHooks
    | ReleaseHooks
    | AbortHooks
    | SendTrigger
    | WriteMetadata
    | SendComplete
    | SendAborted
    | DiscardFiles
    | Tell
)
