"""Events for listeners, sent after the compare-and-set that made them true."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.model import CheckpointKind, CheckpointMetadata, SnapshotMetrics
from dagster_ckpt.core.reasons import CheckpointFailureReason
from dagster_ckpt.core.request import CheckpointRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTriggered:
    """A request became a checkpoint: its id is taken and stored."""

    checkpoint_id: CheckpointId
    kind: CheckpointKind
    request: CheckpointRequest
    request_number: int
    triggered_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRejected:
    """A request never became a checkpoint (pre-flight)."""

    request: CheckpointRequest
    request_number: int
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSubsumed:
    """A newer one took its place among the retained ones."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDiscarded:
    """The files of a checkpoint that was complete are gone: nobody can restore from it any more."""

    checkpoint_id: CheckpointId


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
