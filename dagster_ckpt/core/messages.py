"""Messages between coordinator and stages, why a checkpoint failed, and what an acknowledgement was.

Source: flink-runtime CheckpointFailureReason and CheckpointFailureManager; the counted ones are the five for
which CheckpointFailureManagerTest#testTotalCountValue expects a job failure at tolerance 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, ExecutionAttempt, PipelineId
from dagster_ckpt.core.model import CheckpointKind, SnapshotMetrics, StageSnapshot


class CheckpointFailureReason(Enum):
    """(sentence, pre-flight: failed before any stage heard of it, counted towards the tolerable number)."""

    PERIODIC_SCHEDULER_SHUTDOWN = ("The periodic scheduler is stopped.", True, False)
    TOO_MANY_CHECKPOINT_REQUESTS = ("The queue of checkpoint requests is full.", True, False)
    MINIMUM_TIME_BETWEEN_CHECKPOINTS = (
        "The minimum pause since the last checkpoint is not over.",
        True,
        False,
    )
    NOT_ALL_REQUIRED_TASKS_RUNNING = ("Not all required stages are running.", True, False)
    IO_EXCEPTION = ("An I/O error happened while the checkpoint was triggered.", True, True)
    BLOCKING_OUTPUT_EXIST = ("A stage has a blocking output.", True, False)
    CHECKPOINT_ASYNC_EXCEPTION = ("The asynchronous part of a stage's snapshot failed.", False, True)
    CHANNEL_STATE_SHARED_STREAM_EXCEPTION = (
        "A neighbor that shares the in-flight data file failed.",
        False,
        False,
    )
    CHECKPOINT_EXPIRED = ("The checkpoint expired before it completed.", False, True)
    CHECKPOINT_SUBSUMED = ("A newer checkpoint completed first.", False, False)
    CHECKPOINT_DECLINED = ("A stage declined the checkpoint.", False, True)
    CHECKPOINT_DECLINED_TASK_NOT_READY = ("A stage was not ready.", False, False)
    CHECKPOINT_DECLINED_TASK_CLOSING = ("A stage was closing.", False, False)
    CHECKPOINT_DECLINED_SUBSUMED = ("A newer barrier arrived during alignment.", False, False)
    CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER = ("A cancel marker arrived.", False, False)
    CHECKPOINT_DECLINED_INPUT_END_OF_STREAM = ("An input ended during alignment.", False, False)
    CHECKPOINT_COORDINATOR_SHUTDOWN = ("The coordinator is shut down.", False, False)
    CHECKPOINT_COORDINATOR_SUSPEND = ("The coordinator is suspended.", False, False)
    JOB_FAILOVER_REGION = ("The pipeline is failing over.", False, False)
    TASK_FAILURE = ("A stage failed.", False, False)
    TASK_CHECKPOINT_FAILURE = ("A stage could not handle the checkpoint message.", False, False)
    UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE = ("A notification named an unknown stage.", False, False)
    FINALIZE_CHECKPOINT_FAILURE = ("The checkpoint's metadata could not be written or stored.", False, True)
    TRIGGER_CHECKPOINT_FAILURE = ("Triggering the checkpoint failed.", False, False)

    def __init__(self, text: str, pre_flight: bool, counted: bool) -> None:
        self.text = text
        self.pre_flight = pre_flight
        self.counted = counted


class AcknowledgeResult(StrEnum):
    """Result of an acknowledgement (Flink: PendingCheckpoint.TaskAcknowledgeResult)."""

    SUCCESS = "success"
    """Accepted."""
    DUPLICATE = "duplicate"
    """Acknowledged before by the same attempt; its files are the accepted ones, so nothing is discarded."""
    UNKNOWN = "unknown"
    """Not an attempt this checkpoint waits for; its private files are discarded."""
    DISCARDED = "discarded"
    """The checkpoint is over; the private files are discarded."""


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
