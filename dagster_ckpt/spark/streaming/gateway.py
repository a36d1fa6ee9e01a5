"""Gateway to the stages of a streaming run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dagster_ckpt.core.messages import NotifyAborted, NotifyComplete, TriggerStages
from dagster_ckpt.errors import Declined
from dagster_ckpt.spark.attempt.gateway import StageGateway
from dagster_ckpt.spark.streaming.loop import BarrierLoop, Begin, IsAborted, IsComplete


@dataclass
class StreamingGateway(StageGateway):
    """Hands messages to the barrier loop; publishes tables before anybody is told of a completion."""

    loop: BarrierLoop | None = None
    """Set once the stages run."""
    after_completion: Callable[[], None] | None = None
    """Called after a checkpoint's tables are published."""

    def trigger(self, message: TriggerStages) -> None:
        """Let the source stages put the barrier behind their last batch. Raises Declined before they run."""
        if self.loop is None:
            raise Declined("the stages are not running yet")
        self.loop.post(Begin(message))

    def notify_complete(self, message: NotifyComplete) -> None:
        """Publish what the checkpoint contains, then tell the stages."""
        super().notify_complete(message)
        if self.loop is not None:
            self.loop.post(IsComplete(message.checkpoint_id))
        if self.after_completion is not None:
            self.after_completion()

    def notify_aborted(self, message: NotifyAborted) -> None:
        """Tell the stages: alignments of this checkpoint end, snapshots of it stop, no local copy is kept."""
        super().notify_aborted(message)
        if self.loop is not None:
            self.loop.post(IsAborted(message.checkpoint_id, message.latest_completed))
