"""Gateway of an attempt: how the coordinator reaches its stages, as far as both kinds of run do the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from dagster_ckpt.core.checkpoint.shown import ShownTables
from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.messages import NotifyAborted, NotifyComplete, TriggerStages
from dagster_ckpt.spark.attempt.sinks import PipelineSinks
from dagster_ckpt.spark.directories import AttemptDirectory
from dagster_ckpt.spark.snapshot.local_copy import drop_local_copies_before, drop_local_copy
from dagster_ckpt.spark.stage_report import Reporter


@dataclass
class StageGateway:
    """Publishes tables and drops local copies; subclasses reach the stages themselves."""

    runs_what_finished: ClassVar[bool] = True
    """A source that had finished reads what has come since."""
    tables: PipelineSinks
    reporter: Reporter
    attempt: AttemptDirectory | None = None
    """Set once the working directory is restored."""
    publishing: threading.Lock = field(default_factory=threading.Lock)
    """Held while tables are published."""
    all_shown: Callable[[ShownTables], None] = lambda shown: None
    """Called with what every table shows; set once the coordinator is open."""
    notified: CheckpointId | None = None
    """Checkpoint of whose completion this process has heard last: its tables were published, or it knows why not."""

    def trigger(self, message: TriggerStages) -> None:
        """Ask the stages to start a checkpoint."""
        raise NotImplementedError

    def notify_complete(self, message: NotifyComplete) -> None:
        """Publish what the checkpoint contains in every two-phase table; only its local copies are kept."""
        if self.attempt is None:
            return
        with self.publishing:
            shown = self.publish(self.attempt, message)
            if shown is not None:
                self.all_shown(shown)
        self.notified = message.checkpoint_id
        for uid in self.tables.pipeline.stages:
            drop_local_copies_before(self.attempt.local_copies(uid), message.checkpoint_id)

    def publish(self, attempt: AttemptDirectory, message: NotifyComplete) -> ShownTables | None:
        """Publish what the checkpoint contains in every two-phase table; nobody else publishes meanwhile.

        Returns what all of them show; None where one does not show this checkpoint.
        """
        try:
            return self.tables.publish(attempt, message.checkpoint_id, message.permit, self.reporter)
        except Exception as error:  # of which one is not known
            self.tables.none_published(str(error))
            raise

    def notify_aborted(self, message: NotifyAborted) -> None:
        """Keep no local copy of it; what was prepared is published by the next checkpoint that completes."""
        if self.attempt is None:
            return
        for uid in self.tables.pipeline.stages:
            drop_local_copy(self.attempt.local_copies(uid), message.checkpoint_id)
