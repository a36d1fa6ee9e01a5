"""Effects of a decision, run after it was stored: data, and each may be done twice. Events that listeners then hear."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics
from dagster_ckpt.core.ids import CheckpointId, ExecutionAttempt, OfCheckpoint, StageUid
from dagster_ckpt.core.messages import CheckpointFailureReason, NotifyAborted, StateHandle, TriggerStages
from dagster_ckpt.core.model import CheckpointKind, CheckpointMetadata, SnapshotMetrics
from dagster_ckpt.core.paths import SnapshotLocation
from dagster_ckpt.core.request import CheckpointRequest


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


class AbortCoordinators(OfCheckpoint):
    """Tell driver-side coordinators that the checkpoint is over."""


class CompleteCoordinators(OfCheckpoint):
    """Tell driver-side coordinators that the checkpoint is complete."""


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


class AbortHooks(OfCheckpoint):
    """Tell the hooks that a checkpoint is over without completing."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTriggered:
    """A request became a checkpoint: its id is taken and stored."""

    checkpoint_id: CheckpointId
    kind: CheckpointKind
    request: CheckpointRequest
    triggered_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRejected:
    """A request never became a checkpoint (pre-flight)."""

    request: CheckpointRequest
    reason: CheckpointFailureReason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageAcknowledged:
    """A stage's part is complete."""

    checkpoint_id: CheckpointId
    uid: StageUid
    acknowledged: int
    """Stages that have acknowledged so far."""
    expected: int
    metrics: SnapshotMetrics = SnapshotMetrics()
    """Of its part; zeros where its subtasks acknowledged one by one."""
    after: float = 0.0
    """Seconds since the trigger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCompleted:
    """The checkpoint is complete and restorable; told after the stages were notified, which publish its rows."""

    checkpoint_id: CheckpointId
    kind: CheckpointKind
    metadata: CheckpointMetadata
    uri: str
    """Its folder."""
    statistics: CheckpointStatistics
    subsumed: CheckpointId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed:
    """The checkpoint is over without completing."""

    checkpoint_id: CheckpointId
    kind: CheckpointKind
    reason: CheckpointFailureReason
    message: str
    statistics: CheckpointStatistics
    consecutive_failures: int
    """Counted failures since the last completion …"""
    tolerable: int
    """… of which so many are survived."""


class CheckpointSubsumed(OfCheckpoint):
    """A newer one took its place among the retained ones."""


class CheckpointDiscarded(OfCheckpoint):
    """The files of a checkpoint that was complete are gone: nobody can restore from it any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed:
    """The run must fail; ``cause`` is one sentence."""

    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopEnded:
    """A stop-with-savepoint is over; the outcome is ``CheckpointCoordinator.stop_outcome``."""

    checkpoint_id: CheckpointId | None


CoordinatorEvent = (
    CheckpointTriggered
    | CheckpointRejected
    | StageAcknowledged
    | CheckpointCompleted
    | CheckpointFailed
    | CheckpointSubsumed
    | CheckpointDiscarded
    | JobFailed
    | StopEnded
)
