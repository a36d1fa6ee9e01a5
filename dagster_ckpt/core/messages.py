"""Messages between the coordinator and the stages, in both directions. They never leave the attempt's processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from dagster_ckpt.core.ids import CheckpointId, ExecutionAttempt
from dagster_ckpt.core.model import CheckpointKind, SnapshotMetrics, StageSnapshot
from dagster_ckpt.core.reasons import CheckpointFailureReason
from dagster_ckpt.ports import CommitPermit


class Alignment(StrEnum):
    """How a barrier is handled (Flink: CheckpointOptions.AlignmentType)."""

    AT_LEAST_ONCE = "at_least_once"
    ALIGNED = "aligned"
    UNALIGNED = "unaligned"
    FORCED_ALIGNED = "forced_aligned"


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierOptions:
    """What travels with a barrier."""

    kind: CheckpointKind = CheckpointKind.CHECKPOINT
    alignment: Alignment = Alignment.ALIGNED
    aligned_timeout_ms: float | None = None
    """Aligned with timeout: after this many milliseconds from the barrier's timestamp, go unaligned."""
    target: str = ""
    """Folder the checkpoint is written to (storage key; for a savepoint its full URI)."""


# --- coordinator to stages ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerStages:
    """Start checkpoint ``checkpoint_id`` at these subtasks (the roots of what still runs)."""

    checkpoint_id: CheckpointId
    timestamp: float
    options: BarrierOptions
    attempts: tuple[ExecutionAttempt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyComplete:
    """A checkpoint is complete. Delivered at most once; ids grow, so an older or repeated one is skipped."""

    checkpoint_id: CheckpointId
    timestamp: float
    permit: CommitPermit
    subsumed: CheckpointId | None = None
    """Newest subsumed checkpoint that may be deleted."""
    attempts: tuple[ExecutionAttempt, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyAborted:
    """A checkpoint failed. Carries the latest completed id, so that a lost "complete" is made up first."""

    checkpoint_id: CheckpointId
    reason: CheckpointFailureReason
    message: str
    latest_completed: CheckpointId | None
    attempts: tuple[ExecutionAttempt, ...] = ()


# --- stages to coordinator ------------------------------------------------------------------------------------


class StateScope(StrEnum):
    """Who owns a stored file."""

    EXCLUSIVE = "exclusive"
    """One checkpoint alone (Flink: private state)."""
    SHARED = "shared"
    """May be used by later checkpoints (incremental)."""


@dataclass(frozen=True, slots=True)
class StateHandle:
    """A stored file named in an acknowledgement."""

    key: str
    """Storage key."""
    size: int = 0
    scope: StateScope = StateScope.EXCLUSIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class StageAcknowledgement:
    """One stage acknowledges for all its subtasks at once (the way Spark stages do)."""

    checkpoint_id: CheckpointId
    attempt: ExecutionAttempt
    """``subtask`` is ignored: the message covers all of them."""
    snapshot: StageSnapshot
    handles: tuple[StateHandle, ...] = ()
    """Every stored file the snapshot refers to, shared ones included, whether new or reused."""
    subtask_metrics: Mapping[int, SnapshotMetrics] = field(default_factory=dict)
    """Per subtask, where known; else the stage's metrics stand for all."""


class SubtaskReport(StrEnum):
    """What a subtask says of itself when it acknowledges."""

    NORMAL = "normal"
    """It runs and will go on."""
    FINISHED_ON_RESTORE = "finished_on_restore"
    """It was restored as finished: it holds no state."""
    OPERATORS_FINISHED = "operators_finished"
    """It has consumed all its input and closed its operators; it only waits for its final checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskAcknowledgement:
    """One subtask acknowledges its part; ``handles`` is empty for a stateless one."""

    checkpoint_id: CheckpointId
    attempt: ExecutionAttempt
    handles: tuple[StateHandle, ...] = ()
    metrics: SnapshotMetrics | None = None
    report: SubtaskReport = SubtaskReport.NORMAL
