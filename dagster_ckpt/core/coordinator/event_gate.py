"""Keeps the events of a driver-side coordinator on the right side of a checkpoint, per subtask.

Events sent before the coordinator's snapshot is done pass; those sent after it are held until the subtask has
acknowledged the checkpoint, or the checkpoint is over. The checkpoint may complete only once the events that passed
were confirmed delivered; one that was lost fails it. Source: flink-runtime OperatorCoordinatorHolder and
SubtaskGatewayImpl (OperatorCoordinatorHolderTest).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class HeldEvent:
    """An event for one subtask that waits behind the gate."""

    subtask: int
    event: Any
    behind: CheckpointId
    """It belongs after this checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventGate:
    """The gates of one stage's subtasks; ``closed`` maps each closed one to the checkpoint it is closed for."""

    parallelism: int
    marked: frozenset[CheckpointId] = frozenset()
    """Checkpoints whose snapshot is asked for and not done."""
    closed: Mapping[int, CheckpointId] = field(default_factory=dict)
    held: tuple[HeldEvent, ...] = ()
    in_delivery: Mapping[int, frozenset[CheckpointId]] = field(default_factory=dict)
    """Event number to the checkpoints that wait for its delivery."""
    lost: frozenset[CheckpointId] = frozenset()
    """Checkpoints that must fail, because an event before them was not delivered."""
    sent: int = 0
    """Events that passed so far; the number of the last."""

    def triggered(self, checkpoint_id: CheckpointId) -> EventGate:
        """Return the gate once the coordinator was asked for its state: events still on their way count."""
        waiting = {n: cps | {checkpoint_id} for n, cps in self.in_delivery.items()}
        return replace(self, marked=self.marked | {checkpoint_id}, in_delivery=waiting)

    def send(self, subtask: int, event: Any) -> tuple[EventGate, bool]:
        """Return the gate after an event was sent, and whether it passes (its number is ``sent``) or is held."""
        if not 0 <= subtask < self.parallelism:
            raise InvalidRequest(f"there is no subtask {subtask}: the stage has {self.parallelism}")
        behind = self.closed.get(subtask)
        if behind is not None:
            return replace(self, held=(*self.held, HeldEvent(subtask, event, behind))), False
        number = self.sent + 1
        return replace(self, sent=number, in_delivery={**self.in_delivery, number: self.marked}), True

    def delivered(self, number: int) -> EventGate:
        """Return the gate once an event was confirmed."""
        return replace(self, in_delivery={n: c for n, c in self.in_delivery.items() if n != number})

    def failed(self, number: int) -> EventGate:
        """Return the gate once an event was lost: the checkpoints that wait for it must fail."""
        lost = self.lost | self.in_delivery.get(number, frozenset())
        return replace(self.delivered(number), lost=lost)

    def snapshot_done(self, checkpoint_id: CheckpointId) -> EventGate:
        """Return the gate once the coordinator gave its state: closed for every subtask.

        The state of a checkpoint that is over closes nothing.
        """
        if checkpoint_id not in self.marked:
            return self
        closed = {**dict.fromkeys(range(self.parallelism), checkpoint_id), **self.closed}
        return replace(self, marked=self.marked - {checkpoint_id}, closed=closed)

    def may_complete(self, checkpoint_id: CheckpointId) -> bool:
        """True when every event before the checkpoint was delivered."""
        return not any(checkpoint_id in cps for cps in self.in_delivery.values()) and not self.must_fail(
            checkpoint_id
        )

    def must_fail(self, checkpoint_id: CheckpointId) -> bool:
        """True when an event before the checkpoint was lost."""
        return checkpoint_id in self.lost

    def acknowledged(
        self, checkpoint_id: CheckpointId, subtask: int
    ) -> tuple[EventGate, tuple[HeldEvent, ...]]:
        """Return the gate open again for a subtask that acknowledged, and what passes now, in order."""
        if self.closed.get(subtask) != checkpoint_id:
            return self, ()
        return self._opened({subtask})

    def over(self, checkpoint_id: CheckpointId) -> tuple[EventGate, tuple[HeldEvent, ...]]:
        """Return the gate after a checkpoint completed or was aborted, and what passes now, in order."""
        subtasks = {n for n, behind in self.closed.items() if behind == checkpoint_id}
        gate = replace(
            self,
            marked=self.marked - {checkpoint_id},
            lost=self.lost - {checkpoint_id},
            in_delivery={n: cps - {checkpoint_id} for n, cps in self.in_delivery.items()},
        )
        return gate._opened(subtasks)

    def restored(self) -> EventGate:
        """Return the gate after a restore: open, nothing held, nothing on its way."""
        return EventGate(parallelism=self.parallelism, sent=self.sent)

    def _opened(self, subtasks: set[int]) -> tuple[EventGate, tuple[HeldEvent, ...]]:
        released = tuple(h for h in self.held if h.subtask in subtasks)
        kept = tuple(h for h in self.held if h.subtask not in subtasks)
        closed = {n: cp for n, cp in self.closed.items() if n not in subtasks}
        gate = replace(self, closed=closed, held=kept)
        for event in released:
            gate, _ = gate.send(event.subtask, event.event)
        return gate, released
