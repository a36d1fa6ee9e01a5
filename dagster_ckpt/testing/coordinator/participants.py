"""Master hooks and driver-side coordinators whose answers a test chooses."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.runtime.driver.hooks import ResultPending
from dagster_ckpt.testing.graph import one_of


class Answering(StrEnum):
    """Answering time of a participant."""

    AT_ONCE = "at_once"
    LATER = "later"
    """The test gives the answer with the harness."""
    FAILS = "fails"


class RecordingHook:
    """A master hook that remembers its calls; state is text."""

    def __init__(
        self, identifier: str, state: Any = "state", answering: Answering | str = Answering.AT_ONCE
    ) -> None:
        self.identifier = identifier
        self.state = state
        """What ``trigger`` returns."""
        self.answering = one_of(Answering, answering, "answering")
        self.error: Exception = RuntimeError(f"hook {identifier} failed")
        """What it raises when it fails."""
        self.on_trigger: Callable[[CheckpointId], None] | None = None
        """Called within ``trigger``: an external system that lets stages acknowledge meanwhile."""
        self.triggered: list[CheckpointId] = []
        self.restored: list[tuple[CheckpointId, Any]] = []
        self.completed_ids: list[CheckpointId] = []
        self.subsumed_ids: list[CheckpointId] = []
        self.aborted_ids: list[CheckpointId] = []
        self.resets = 0
        self.closed = 0

    def trigger(self, checkpoint_id: CheckpointId, timestamp: float) -> Any:
        """Remember the call and answer as told."""
        self.triggered.append(checkpoint_id)
        if self.on_trigger is not None:
            self.on_trigger(checkpoint_id)
        if self.answering is Answering.FAILS:
            raise self.error
        return ResultPending() if self.answering is Answering.LATER else self.state

    def serialize(self, state: Any) -> str:
        """Return text as it is; anything else cannot be stored."""
        if not isinstance(state, str):
            raise TypeError(f"hook {self.identifier} has no serializer for {state!r}")
        return state

    def deserialize(self, text: str) -> Any:
        """Return the text; ``broken`` cannot be read."""
        if text == "broken":
            raise ValueError(f"hook {self.identifier} cannot read its state")
        return text

    def restore(self, checkpoint_id: CheckpointId, state: Any) -> None:
        """Remember what it was restored with."""
        self.restored.append((checkpoint_id, state))

    def complete(self, checkpoint_id: CheckpointId) -> None:
        """Remember."""
        self.completed_ids.append(checkpoint_id)

    def subsumed(self, checkpoint_id: CheckpointId) -> None:
        """Remember."""
        self.subsumed_ids.append(checkpoint_id)

    def aborted(self, checkpoint_id: CheckpointId) -> None:
        """Remember."""
        self.aborted_ids.append(checkpoint_id)

    def reset(self) -> None:
        """Count."""
        self.resets += 1

    def close(self) -> None:
        """Count."""
        self.closed += 1


class RecordingOperatorCoordinator:
    """A stage's driver-side coordinator that remembers its calls."""

    def __init__(
        self, uid: str, state: str | None = "splits", answering: Answering | str = Answering.AT_ONCE
    ) -> None:
        self.uid = StageUid(uid)
        self.state = state
        """What it acknowledges at once."""
        self.answering = one_of(Answering, answering, "answering")
        self.acknowledge: Callable[[CheckpointId, StageUid, str | None], object] | None = None
        """Where an answer goes; the harness sets it."""
        self.asked: list[CheckpointId] = []
        self.completed: list[CheckpointId] = []
        self.aborted: list[CheckpointId] = []
        self.restored: list[tuple[CheckpointId | None, str | None]] = []
        self.resets: list[tuple[CheckpointId | None, int]] = []
        """Checkpoint and subtask, for each that started again."""

    def checkpoint(self, checkpoint_id: CheckpointId) -> None:
        """Remember the call and answer as told."""
        self.asked.append(checkpoint_id)
        if self.answering is Answering.FAILS:
            raise RuntimeError(f"coordinator of {self.uid} failed")
        if self.answering is Answering.AT_ONCE and self.acknowledge is not None:
            self.acknowledge(checkpoint_id, self.uid, self.state)

    def checkpoint_complete(self, checkpoint_id: CheckpointId) -> None:
        """Remember."""
        self.completed.append(checkpoint_id)

    def checkpoint_aborted(self, checkpoint_id: CheckpointId) -> None:
        """Remember."""
        self.aborted.append(checkpoint_id)

    def restore(self, checkpoint_id: CheckpointId | None, state: str | None) -> None:
        """Remember what it was restored with."""
        self.restored.append((checkpoint_id, state))

    def subtask_reset(self, checkpoint_id: CheckpointId | None, subtask: int) -> None:
        """Remember which subtask starts again, and from where."""
        self.resets.append((checkpoint_id, subtask))
