"""Messages between the coordinator and the stages, in both directions. They never leave the attempt's processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, ExecutionAttempt, PipelineId
from dagster_ckpt.core.model import CheckpointKind, SnapshotMetrics, StageSnapshot
from dagster_ckpt.core.reasons import CheckpointFailureReason


class Alignment(StrEnum):
    """Alignment of a barrier (Flink: CheckpointOptions.AlignmentType)."""

    AT_LEAST_ONCE = "at_least_once"
    ALIGNED = "aligned"
    UNALIGNED = "unaligned"
    FORCED_ALIGNED = "forced_aligned"


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierOptions:
    """Options that travel with a barrier."""

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


@dataclass(frozen=True, slots=True)
class CommitPermit:
    """Proof that ``epoch`` still owned ``pipeline`` when checkpoint ``checkpoint_id`` was committed.

    Only the runtime makes one, from the committed record; a sink's publish takes it, so that publishing without
    owning the epoch cannot be written by accident.
    """

    pipeline: PipelineId
    epoch: CoordinatorEpoch
    checkpoint_id: CheckpointId
    _proof: object = field(repr=False, compare=False)
    lineage: str = field(default="", compare=False)
    """History of the pipeline that the checkpoint belongs to."""


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
    """Scope of a stored file: who owns it."""

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
    """Report of a subtask about itself, in its acknowledgement."""

    NORMAL = "normal"
    """It runs and will go on."""
    FINISHED_ON_RESTORE = "finished_on_restore"
    """It was restored as finished: it holds no state."""
    OPERATORS_FINISHED = "operators_finished"
    """It has consumed all its input and finished its operators; what they saved is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskAcknowledgement:
    """One subtask acknowledges its part; ``handles`` is empty for a stateless one. Runs acknowledge whole stages."""

    checkpoint_id: CheckpointId
    attempt: ExecutionAttempt
    handles: tuple[StateHandle, ...] = ()
    metrics: SnapshotMetrics | None = None
    report: SubtaskReport = SubtaskReport.NORMAL
