"""A driver-side coordinator whose events to its subtasks fall on the right side of every checkpoint.

Events sent before the coordinator's snapshot is done pass; those sent after it are held until the subtask has
acknowledged the checkpoint, or the checkpoint is over. The checkpoint may complete only once the events sent before it
were confirmed delivered; one that was lost fails it. Several checkpoints may be pending, such as a savepoint beside
a checkpoint: an event is held behind the newest whose snapshot it follows, and belongs before those that come after.
Source: flink-runtime OperatorCoordinatorHolder and SubtaskGatewayImpl (OperatorCoordinatorHolderTest).
Stands between a stage's ``OperatorCoordinator`` and the checkpoint coordinator: events go out through the gates of
``core/event_gate``, and the state is acknowledged only when everything sent before it has arrived. A lost event fails
the checkpoints that wait for it, and the subtask that should have had it. Source: flink-runtime
OperatorCoordinatorHolder (OperatorCoordinatorHolderTest) and SubtaskGatewayImpl.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.messages import AcknowledgeResult
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.runtime.driver.hooks import HearsResets, OperatorCoordinator


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


Deliver = Callable[[int, Any], "Future[None]"]
"""Sends an event to a subtask; the future is done when the subtask has it, or fails."""
Acknowledge = Callable[[CheckpointId, StageUid, str | None], AcknowledgeResult]
Fail = Callable[[CheckpointId, StageUid, Exception], None]
FailSubtask = Callable[[int, Exception], None]
"""Fails a subtask that runs and missed an event: its coordinator believes that it has it."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """An event on its way."""

    number: int
    subtask: int
    delivery: Future[None]


class GatedCoordinator:
    """Give this to ``CheckpointCoordinator.open`` in the place of the coordinator it wraps; thread-safe."""

    def __init__(
        self,
        coordinator: OperatorCoordinator,
        *,
        parallelism: int,
        deliver: Deliver,
        acknowledge: Acknowledge,
        fail: Fail,
        fail_subtask: FailSubtask,
    ) -> None:
        self.uid = coordinator.uid
        self._inner = coordinator
        self._deliver, self._acknowledge, self._fail = deliver, acknowledge, fail
        self._fail_subtask = fail_subtask
        self._lock = threading.RLock()
        self._gate = EventGate(parallelism=parallelism)
        self._states: dict[CheckpointId, str | None] = {}
        """Snapshots that wait for the events sent before them."""
        self._errors: dict[CheckpointId, Exception] = {}

    # --- what the stage's coordinator calls -----------------------------------------------------------------

    def send(self, subtask: int, event: Any) -> None:
        """Send an event now, or after the checkpoint that it belongs behind. Raises InvalidRequest: no such subtask."""
        with self._lock:
            self._gate, passes = self._gate.send(subtask, event)
            sent = self._send(self._gate.sent, subtask, event) if passes else None
        self._watch(sent)

    def is_asked(self, checkpoint_id: CheckpointId) -> bool:
        """True while the state for a checkpoint is owed."""
        return checkpoint_id in self._gate.marked

    def snapshot_done(self, checkpoint_id: CheckpointId, state: str | None) -> AcknowledgeResult | None:
        """Give the state asked for with ``checkpoint``; return what became of it.

        None: it is acknowledged when the events sent before it have arrived. DISCARDED: the checkpoint is over.
        """
        with self._lock:
            if not self.is_asked(checkpoint_id):
                return AcknowledgeResult.DISCARDED
            self._gate = self._gate.snapshot_done(checkpoint_id)
            self._states[checkpoint_id] = state
        return self._settle().get(checkpoint_id)

    # --- what the checkpoint coordinator calls (OperatorCoordinator) ----------------------------------------

    def checkpoint(self, checkpoint_id: CheckpointId) -> None:
        """Ask for the state; events pass until it is given."""
        with self._lock:
            self._gate = self._gate.triggered(checkpoint_id)
        self._inner.checkpoint(checkpoint_id)

    def subtask_acknowledged(self, checkpoint_id: CheckpointId, subtask: int) -> None:
        """Let what waits behind the checkpoint pass to a subtask that has acknowledged it."""
        self._release(lambda gate: gate.acknowledged(checkpoint_id, subtask))

    def checkpoint_complete(self, checkpoint_id: CheckpointId) -> None:
        """Open what is still closed for the checkpoint, then tell the coordinator."""
        self._over(checkpoint_id)
        self._inner.checkpoint_complete(checkpoint_id)

    def checkpoint_aborted(self, checkpoint_id: CheckpointId) -> None:
        """Open what is closed for the checkpoint, then tell the coordinator."""
        self._over(checkpoint_id)
        self._inner.checkpoint_aborted(checkpoint_id)

    def subtask_reset(self, checkpoint_id: CheckpointId | None, subtask: int) -> None:
        """Tell the coordinator that a subtask starts again, where it wants to know."""
        if isinstance(self._inner, HearsResets):
            self._inner.subtask_reset(checkpoint_id, subtask)

    def restore(self, checkpoint_id: CheckpointId | None, state: str | None) -> None:
        """Open all gates, forget what was held, and restore the coordinator."""
        with self._lock:
            self._gate = self._gate.restored()
            self._states.clear()
            self._errors.clear()
        self._inner.restore(checkpoint_id, state)

    # --- inside ---------------------------------------------------------------------------------------------

    def _over(self, checkpoint_id: CheckpointId) -> None:
        with self._lock:
            self._states.pop(checkpoint_id, None)
            self._errors.pop(checkpoint_id, None)
        self._release(lambda gate: gate.over(checkpoint_id))

    def _release(self, opened: Callable[[EventGate], tuple[EventGate, tuple[HeldEvent, ...]]]) -> None:
        with self._lock:
            first = self._gate.sent + 1
            self._gate, events = opened(self._gate)
            sent = [self._send(n, e.subtask, e.event) for n, e in enumerate(events, start=first)]
        for one in sent:
            self._watch(one)

    def _send(self, number: int, subtask: int, event: Any) -> _Sent:
        """Hand an event over while the lock keeps the order."""
        try:
            return _Sent(number, subtask, self._deliver(subtask, event))
        except Exception as error:  # an event that could not even be sent is lost like any other
            lost: Future[None] = Future()
            lost.set_exception(error)
            return _Sent(number, subtask, lost)

    def _watch(self, sent: _Sent | None) -> None:
        if sent is not None:
            sent.delivery.add_done_callback(lambda _: self._delivered(sent))

    def _delivered(self, sent: _Sent) -> None:
        number, lost = sent.number, _error_of(sent.delivery)
        with self._lock:
            if lost is None:
                self._gate = self._gate.delivered(number)
            else:
                waiting = self._gate.in_delivery.get(number, frozenset())
                self._gate = self._gate.failed(number)
                self._errors.update(dict.fromkeys(waiting, lost))
        self._settle()
        if lost is not None:
            self._fail_subtask(sent.subtask, lost)

    def _settle(self) -> dict[CheckpointId, AcknowledgeResult]:
        """Acknowledge, or fail, every checkpoint that waits for nothing more; outside the lock."""
        with self._lock:
            failed = {n: self._errors.pop(n) for n in list(self._errors)}
            self._forget(failed)
            ready = {n: s for n, s in self._states.items() if self._gate.may_complete(n)}
            self._forget(ready)
        for number, error in failed.items():
            self._fail(number, self.uid, error)
        return {number: self._acknowledge(number, self.uid, state) for number, state in ready.items()}

    def _forget(self, numbers: Iterable[CheckpointId]) -> None:
        for number in numbers:
            self._states.pop(number, None)


def _error_of(delivery: Future[None]) -> Exception | None:
    if delivery.cancelled():
        return RuntimeError("the event was not delivered")
    error = delivery.exception()
    return error if error is None or isinstance(error, Exception) else RuntimeError(str(error))
