"""How the coordinator reaches the stages of a streaming run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from dagster_ckpt.core.messages import NotifyAborted, NotifyComplete, TriggerStages
from dagster_ckpt.errors import Declined
from dagster_ckpt.spark.directories import AttemptDirectory
from dagster_ckpt.spark.local_copy import drop_local_copies_before, drop_local_copy
from dagster_ckpt.spark.reporting import Reporter
from dagster_ckpt.spark.streaming.loop import BarrierLoop, Begin, IsAborted, IsComplete
from dagster_ckpt.spark.tables import PipelineTables


@dataclass
class StreamingGateway:
    """Hands messages to the barrier loop; publishes tables before anybody is told of a completion."""

    tables: PipelineTables
    reporter: Reporter
    attempt: AttemptDirectory | None = None
    """Set once the working directory is restored."""
    loop: BarrierLoop | None = None
    """Set once the stages run."""
    after_completion: Callable[[], None] | None = None
    """Called after a checkpoint's tables are published."""
    publishing: threading.Lock = field(default_factory=threading.Lock)
    """Held while tables are published."""

    def trigger(self, message: TriggerStages) -> None:
        """Let the source stages put the barrier behind their last batch. Raises Declined before they run."""
        if self.loop is None:
            raise Declined("the stages are not running yet")
        self.loop.post(Begin(message))

    def notify_complete(self, message: NotifyComplete) -> None:
        """Publish what the checkpoint contains, then tell the stages."""
        if self.attempt is not None:
            with self.publishing:
                self.tables.publish(self.attempt, message.checkpoint_id, message.permit, self.reporter)
            for uid in self.tables.pipeline.stages:
                drop_local_copies_before(self.attempt.local_copies(uid), message.checkpoint_id)
        if self.loop is not None:
            self.loop.post(IsComplete(message.checkpoint_id))
        if self.after_completion is not None:
            self.after_completion()

    def notify_aborted(self, message: NotifyAborted) -> None:
        """Tell the stages: alignments of this checkpoint end, snapshots of it stop, no local copy is kept."""
        if self.attempt is not None:
            for uid in self.tables.pipeline.stages:
                drop_local_copy(self.attempt.local_copies(uid), message.checkpoint_id)
        if self.loop is not None:
            self.loop.post(IsAborted(message.checkpoint_id, message.latest_completed))
