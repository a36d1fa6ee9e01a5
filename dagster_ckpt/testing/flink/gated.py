"""A driver-side coordinator whose events to its subtasks fall on the right side of every checkpoint.

Stands between a stage's ``OperatorCoordinator`` and the checkpoint coordinator: events go out through the gates of
``core/event_gate``, and the state is acknowledged only when everything sent before it has arrived. A lost event fails
the checkpoints that wait for it, and the subtask that should have had it. Source: flink-runtime
OperatorCoordinatorHolder (OperatorCoordinatorHolderTest) and SubtaskGatewayImpl.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.reasons import AcknowledgeResult
from dagster_ckpt.runtime.driver.hooks import HearsResets, OperatorCoordinator
from dagster_ckpt.testing.flink.event_gate import EventGate, HeldEvent

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
