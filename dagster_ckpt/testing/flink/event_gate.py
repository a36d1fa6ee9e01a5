"""Keeps the events of a driver-side coordinator on the right side of a checkpoint, per subtask.

Events sent before the coordinator's snapshot is done pass; those sent after it are held until the subtask has
acknowledged the checkpoint, or the checkpoint is over. The checkpoint may complete only once the events sent before it
were confirmed delivered; one that was lost fails it. Several checkpoints may be pending, such as a savepoint beside
a checkpoint: an event is held behind the newest whose snapshot it follows, and belongs before those that come after.
Source: flink-runtime OperatorCoordinatorHolder and SubtaskGatewayImpl (OperatorCoordinatorHolderTest).
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
    """It belongs after this checkpoint …"""
    before: frozenset[CheckpointId] = frozenset()
    """… and before these, which wait until it is delivered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventGate:
    """The gates of one stage's subtasks; ``closed`` maps each closed one to what it is closed for, in order."""

    parallelism: int
    marked: frozenset[CheckpointId] = frozenset()
    """Checkpoints whose snapshot is asked for and not done."""
    closed: Mapping[int, tuple[CheckpointId, ...]] = field(default_factory=dict)
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
        held = tuple(replace(h, before=h.before | {checkpoint_id}) for h in self.held)
        return replace(self, marked=self.marked | {checkpoint_id}, in_delivery=waiting, held=held)

    def send(self, subtask: int, event: Any) -> tuple[EventGate, bool]:
        """Return the gate after an event was sent, and whether it passes (its number is ``sent``) or is held."""
        if not 0 <= subtask < self.parallelism:
            raise InvalidRequest(f"there is no subtask {subtask}: the stage has {self.parallelism}")
        closed = self.closed.get(subtask)
        if closed is not None:
            return replace(self, held=(*self.held, HeldEvent(subtask, event, closed[-1], self.marked))), False
        return self._passing(self.marked), True

    def _passing(self, before: frozenset[CheckpointId]) -> EventGate:
        """Return the gate once one more event is on its way, for which the checkpoints ``before`` wait."""
        number = self.sent + 1
        return replace(self, sent=number, in_delivery={**self.in_delivery, number: before})

    def delivered(self, number: int) -> EventGate:
        """Return the gate once an event was confirmed."""
        return replace(self, in_delivery={n: c for n, c in self.in_delivery.items() if n != number})

    def failed(self, number: int) -> EventGate:
        """Return the gate once an event was lost: the checkpoints that wait for it must fail."""
        lost = self.lost | self.in_delivery.get(number, frozenset())
        return replace(self.delivered(number), lost=lost)

    def snapshot_done(self, checkpoint_id: CheckpointId) -> EventGate:
        """Return the gate once the coordinator gave its state: closed for every subtask, for this checkpoint too.

        The state of a checkpoint that is over closes nothing.
        """
        if checkpoint_id not in self.marked:
            return self
        closed = {n: tuple(sorted({*self.closed.get(n, ()), checkpoint_id})) for n in range(self.parallelism)}
        return replace(self, marked=self.marked - {checkpoint_id}, closed=closed)

    def may_complete(self, checkpoint_id: CheckpointId) -> bool:
        """True when every event before the checkpoint was delivered."""
        ahead = (*self.in_delivery.values(), *(h.before for h in self.held))
        return not any(checkpoint_id in cps for cps in ahead) and not self.must_fail(checkpoint_id)

    def must_fail(self, checkpoint_id: CheckpointId) -> bool:
        """True when an event before the checkpoint was lost."""
        return checkpoint_id in self.lost

    def acknowledged(
        self, checkpoint_id: CheckpointId, subtask: int
    ) -> tuple[EventGate, tuple[HeldEvent, ...]]:
        """Return the gate open again for a subtask that acknowledged, and what passes now, in order."""
        return self._opened(checkpoint_id, {subtask})

    def over(self, checkpoint_id: CheckpointId) -> tuple[EventGate, tuple[HeldEvent, ...]]:
        """Return the gate after a checkpoint completed or was aborted, and what passes now, in order."""
        gate = replace(
            self,
            marked=self.marked - {checkpoint_id},
            lost=self.lost - {checkpoint_id},
            in_delivery={n: cps - {checkpoint_id} for n, cps in self.in_delivery.items()},
            held=tuple(replace(h, before=h.before - {checkpoint_id}) for h in self.held),
        )
        return gate._opened(checkpoint_id, set(self.closed))

    def restored(self) -> EventGate:
        """Return the gate after a restore: open, nothing held, nothing on its way."""
        return EventGate(parallelism=self.parallelism, sent=self.sent)

    def _opened(
        self, checkpoint_id: CheckpointId, subtasks: set[int]
    ) -> tuple[EventGate, tuple[HeldEvent, ...]]:
        """Return the gate without this checkpoint for these subtasks, and what passes now.

        What waits behind it waits behind the one before from now on, where the subtask still owes that.
        """
        held: list[HeldEvent] = []
        released: list[HeldEvent] = []
        for event in self.held:
            older = [c for c in self.closed[event.subtask] if c < checkpoint_id]
            if event.behind != checkpoint_id or event.subtask not in subtasks:
                held.append(event)
            elif older:
                held.append(replace(event, behind=older[-1]))
            else:
                released.append(event)
        left = {
            n: tuple(c for c in self.closed[n] if c != checkpoint_id) for n in subtasks if n in self.closed
        }
        closed = {n: cps for n, cps in {**self.closed, **left}.items() if cps}
        gate = replace(self, closed=closed, held=tuple(held))
        for event in released:
            gate = gate._passing(event.before)
        return gate, tuple(released)
