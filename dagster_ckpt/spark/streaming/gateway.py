"""Gateway to the stages of a streaming run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from dagster_ckpt.core.checkpoint.tables import ShownTables
from dagster_ckpt.core.messages import NotifyAborted, NotifyComplete, TriggerStages
from dagster_ckpt.core.units import duration
from dagster_ckpt.errors import Declined
from dagster_ckpt.ports import Clock, SystemClock
from dagster_ckpt.spark.attempt.pipeline_setup import StageGateway
from dagster_ckpt.spark.directories import AttemptDirectory
from dagster_ckpt.spark.streaming.loop import BarrierLoop, BegunCheckpoint, IsAborted, IsComplete

WARN_EVERY = 60.0
"""Seconds between two warnings of commits that are slow."""


@dataclass
class StreamingGateway(StageGateway):
    """Hands messages to the barrier loop; publishes tables before anybody is told of a completion."""

    runs_what_finished: ClassVar[bool] = False
    loop: BarrierLoop | None = None
    """Set once the stages run."""
    after_completion: Callable[[], None] | None = None
    """Called after a checkpoint's tables are published."""
    interval: float | None = None
    """Seconds between periodic checkpoints: publishing is to take less. None: there are none."""
    clock: Clock = field(default_factory=SystemClock)
    _warn_from: float = 0.0
    """Monotonic time before which slow commits were told of already."""

    def trigger(self, message: TriggerStages) -> None:
        """Let the source stages put the barrier behind their last batch. Raises Declined before they run."""
        if self.loop is None:
            raise Declined("the stages are not running yet")
        self.loop.post(BegunCheckpoint(message))

    def notify_complete(self, message: NotifyComplete) -> None:
        """Publish what the checkpoint contains, then tell the stages."""
        super().notify_complete(message)
        if self.loop is not None:
            self.loop.post(IsComplete(message.checkpoint_id))
        if self.after_completion is not None:
            self.after_completion()

    def publish(self, attempt: AttemptDirectory, message: NotifyComplete) -> ShownTables | None:
        """Publish; say so where that takes longer than the next checkpoint is away, because then it has to wait."""
        began = self.clock.monotonic()
        shown = super().publish(attempt, message)
        now = self.clock.monotonic()
        took = now - began
        if self.interval is not None and took > self.interval and now >= self._warn_from:
            self._warn_from = now + WARN_EVERY
            self.reporter.warn(
                f"publishing the tables of checkpoint {message.checkpoint_id} took {duration(took)}, and checkpoints "
                f"are {duration(self.interval)} apart: they wait for it. Raise interval"
            )
        return shown

    def notify_aborted(self, message: NotifyAborted) -> None:
        """Tell the stages: alignments of this checkpoint end, snapshots of it stop, no local copy is kept."""
        super().notify_aborted(message)
        if self.loop is not None:
            self.loop.post(IsAborted(message.checkpoint_id, message.latest_completed))
