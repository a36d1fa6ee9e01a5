"""Orders to put rows through a stage again for which no row comes: only its query's start plans a batch without one."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dagster_ckpt.core.ids import BatchId, CheckpointId, StageUid
from dagster_ckpt.errors import CheckpointError
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

    _waiting: dict[StageUid, _Waiting] = field(default_factory=dict)
    _begun_at: dict[StageUid, CheckpointId | None] = field(default_factory=dict)
    """Checkpoint that was newest when a stage was restarted: what it has taken then waits for the next one."""

    def look(
        self,
        stages: Iterable[RunningStage],
        spark: SparkSession,
        settings: StreamingSettings,
        newest: CheckpointId | None,
    ) -> None:
        """Restart the stages that have had orders for a while, and no batch."""
        patience = IDLE_AFTER + 2 * settings.trigger_interval
        for stage in stages:
            query = stage.stage_query
            if stage.is_bounded or query.stage.participant is None or query.requeue(stage.uid) is None:
                self._waiting.pop(stage.uid, None)
                self._begun_at.pop(stage.uid, None)
                continue
            with suppress(CheckpointError):  # a newer attempt has removed the directory
                if stage.is_active and self._has_waited(stage, patience, newest):
                    self._begun_at[stage.uid] = newest
                    stage.restart(spark, settings)

    def _has_waited(self, stage: RunningStage, patience: float, newest: CheckpointId | None) -> bool:
        """Tell whether it has had no batch for so long, and none was begun for these orders since ``newest``."""
        now, batch = time.monotonic(), stage.worker.log.last_batch()
        found = self._waiting.setdefault(stage.uid, _Waiting(batch, now))
        is_new = stage.uid not in self._begun_at or self._begun_at[stage.uid] != newest
        is_idle = found.batch == batch and stage.is_quiet() and not stage.gate.is_held
        is_due = is_idle and is_new and now - found.since > patience
        if is_due or not is_idle:
            del self._waiting[stage.uid]
        return is_due
