"""Why a checkpoint failed, and what an acknowledgement was: Flink's two tables, exhaustively.

Source: flink-runtime CheckpointFailureReason and CheckpointFailureManager; the counted ones are the five for
which CheckpointFailureManagerTest#testTotalCountValue expects a job failure at tolerance 0.
"""

from __future__ import annotations

from enum import Enum, StrEnum


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
