"""Orders to put rows through a stage again for which no row comes: only its query's start plans a batch without one."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dagster_ckpt.core.ids import BatchId, CheckpointId, StageUid
from dagster_ckpt.spark.streaming.running_stage import RunningStage, StreamingSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IDLE_AFTER = 1.0
"""Seconds without a batch, beyond two trigger intervals, after which no row is waited for."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Stage that was found with orders: its last batch then, and when."""

    batch: BatchId | None
    since: float


@dataclass
class IdleOrders:
    """Orders of the stages of one run that no row comes for."""

    spark: SparkSession
    settings: StreamingSettings
    _waiting: dict[StageUid, _Waiting] = field(default_factory=dict)
    _begun_at: dict[StageUid, CheckpointId | None] = field(default_factory=dict)
    """Checkpoint that was newest when a stage was begun anew: what it has taken then waits for the next one."""

    def look(self, stage: RunningStage, newest: CheckpointId | None) -> None:
        """Begin a stage anew that has had orders for a while, and no batch."""
        uid, query = stage.uid, stage.stage_query
        if stage.is_bounded or query.stage.participant is None or query.requeue(uid) is None:
            self._waiting.pop(uid, None)
            self._begun_at.pop(uid, None)
            return
        now, batch = time.monotonic(), stage.worker.log.last_batch()
        found = self._waiting.setdefault(uid, _Waiting(batch, now))
        if found.batch != batch or not stage.is_quiet() or stage.gate.is_held:
            del self._waiting[uid]
        elif now - found.since > IDLE_AFTER + 2 * self.settings.trigger_interval and (
            uid not in self._begun_at or self._begun_at[uid] != newest
        ):
            del self._waiting[uid]
            self._begun_at[uid] = newest
            stage.begin_anew(self.spark, self.settings)
