"""How the coordinator reaches the stages of an epoch run."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ckpt.core.messages import NotifyAborted, NotifyComplete, TriggerStages
from dagster_ckpt.spark.directories import AttemptDirectory
from dagster_ckpt.spark.local_copy import drop_local_copies_before, drop_local_copy
from dagster_ckpt.spark.reporting import Reporter
from dagster_ckpt.spark.tables import PipelineTables


@dataclass
class EpochGateway:
    """Stages of an epoch run pass the barrier when it is their turn; what is left to do is publishing."""

    tables: PipelineTables
    reporter: Reporter
    attempt: AttemptDirectory | None = None
    """Set once the working directory is restored."""

    def trigger(self, message: TriggerStages) -> None:
        """Nothing: each op passes the barrier behind its last batch."""

    def notify_complete(self, message: NotifyComplete) -> None:
        """Publish what the checkpoint contains in every two-phase table."""
        if self.attempt is not None:
            self.tables.publish(self.attempt, message.checkpoint_id, message.permit, self.reporter)
            for uid in self.tables.pipeline.stages:
                drop_local_copies_before(self.attempt.local_copies(uid), message.checkpoint_id)

    def notify_aborted(self, message: NotifyAborted) -> None:
        """Keep no local copy of it; what was prepared is published by the next checkpoint that completes."""
        if self.attempt is not None:
            for uid in self.tables.pipeline.stages:
                drop_local_copy(self.attempt.local_copies(uid), message.checkpoint_id)
