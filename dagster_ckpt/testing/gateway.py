"""A gateway that remembers what it was asked to send, and can be told to fail or to answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dagster_ckpt.core.ids import CheckpointId, ExecutionAttempt
from dagster_ckpt.core.messages import NotifyAborted, NotifyComplete, TriggerStages
from dagster_ckpt.core.reasons import CheckpointFailureReason


@dataclass(frozen=True, slots=True)
class CompleteNotice:
    """One task heard that a checkpoint is complete."""

    checkpoint_id: CheckpointId
    subsumed: CheckpointId | None = None


@dataclass(frozen=True, slots=True)
class AbortNotice:
    """One task heard that a checkpoint is over."""

    checkpoint_id: CheckpointId
    reason: CheckpointFailureReason
    latest_completed: CheckpointId | None


Notice = CompleteNotice | AbortNotice


class RecordingGateway:
    """A TaskGateway for tests."""

    def __init__(self) -> None:
        self.triggers: list[TriggerStages] = []
        """Every trigger message, in order."""
        self.completes: list[NotifyComplete] = []
        """Every complete message, in order."""
        self.aborts: list[NotifyAborted] = []
        """Every abort message, in order."""
        self.on_trigger: Callable[[TriggerStages], None] | None = None
        """Called within each trigger: to acknowledge at once, or to raise."""
        self.on_complete: Callable[[NotifyComplete], None] | None = None
        self.on_aborted: Callable[[NotifyAborted], None] | None = None
        self._notices: list[tuple[tuple[ExecutionAttempt, ...], Notice]] = []

    def trigger(self, message: TriggerStages) -> None:
        """Remember a trigger."""
        self.triggers.append(message)
        if self.on_trigger is not None:
            self.on_trigger(message)

    def notify_complete(self, message: NotifyComplete) -> None:
        """Remember a completion."""
        self.completes.append(message)
        notice = CompleteNotice(message.checkpoint_id, message.subsumed)
        self._notices.append((message.attempts, notice))
        if self.on_complete is not None:
            self.on_complete(message)

    def notify_aborted(self, message: NotifyAborted) -> None:
        """Remember an abort."""
        self.aborts.append(message)
        notice = AbortNotice(message.checkpoint_id, message.reason, message.latest_completed)
        self._notices.append((message.attempts, notice))
        if self.on_aborted is not None:
            self.on_aborted(message)

    def triggered(self, stage: str, subtask: int = 0) -> list[CheckpointId]:
        """Return the checkpoints one subtask was asked to start, in order."""
        return [m.checkpoint_id for m in self.triggers if _names(m.attempts, stage, subtask)]

    def notices(self, stage: str, subtask: int = 0) -> list[Notice]:
        """Return the notices to one subtask, in order."""
        return [notice for attempts, notice in self._notices if _names(attempts, stage, subtask)]


def _names(attempts: tuple[ExecutionAttempt, ...], stage: str, subtask: int) -> bool:
    return any(a.stage == stage and a.subtask == subtask for a in attempts)
