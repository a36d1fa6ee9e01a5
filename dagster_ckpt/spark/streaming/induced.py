"""Barriers whose place the source decides: the end of a file, of a day (Flink: externally induced sources).

The coordinator's trigger waits here until the source has just written a batch that its author calls a boundary;
the next batch stands at the gate meanwhile. Where none comes in time the checkpoint expires, as any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dagster_ckpt.core.ids import BatchId, CheckpointId
from dagster_ckpt.core.messages import BarrierOptions
from dagster_ckpt.spark.streaming.gate import BatchGate, Hold

Trigger = tuple[CheckpointId, float, BarrierOptions]
"""Id, timestamp (seconds since the Unix epoch), options."""


@dataclass(kw_only=True)
class InducedBarriers:
    """The triggers of one source that wait for a boundary; used by the barrier loop's thread."""

    gate: BatchGate
    is_boundary: Callable[[BatchId], bool]
    """Asked of a written batch; also from the query's thread."""
    last_batch: Callable[[], BatchId | None]
    """The last batch that is written; None: none, and the beginning is a boundary."""
    _waiting: list[Trigger] = field(default_factory=list)

    def add(self, trigger: Trigger) -> None:
        """Let a trigger wait; from now on the gate stops the query at the next boundary."""
        self._waiting.append(trigger)
        self.gate.hold_before(lambda following: following == 0 or self.is_boundary(BatchId(following - 1)))

    def drop(self, checkpoint_id: CheckpointId) -> None:
        """Forget the trigger of a checkpoint that is over."""
        self._waiting = [waiting for waiting in self._waiting if waiting[0] != checkpoint_id]
        if not self._waiting:
            self.let_on()

    def take(self) -> list[Trigger]:
        """Return the triggers whose barrier belongs here; the gate stays shut until ``let_on``."""
        if not self._waiting:
            return []
        was_held = self.gate.is_held_for(Hold.BOUNDARY)
        self.gate.hold(Hold.BOUNDARY)
        if self.gate.inside is None and self._stands_at_boundary():
            taken, self._waiting = self._waiting, []
            return taken
        if not was_held:
            self.gate.open(Hold.BOUNDARY)
        return []

    def let_on(self) -> None:
        """Let the query go on."""
        self.gate.hold_before(None)
        self.gate.open(Hold.BOUNDARY)

    def _stands_at_boundary(self) -> bool:
        last = self.last_batch()
        return last is None or self.is_boundary(last)
