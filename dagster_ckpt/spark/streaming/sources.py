"""Input of a running stream: readers that start, sources with a backlog, stages that end, rows put through again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.ids import BatchId, CheckpointId, StageUid
from dagster_ckpt.errors import CheckpointError, Corrupt
from dagster_ckpt.spark.attempt.query_state import read_source_batch
from dagster_ckpt.spark.streaming.running_stage import RunningStage, StreamingSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt.runtime.coordinator import CheckpointCoordinator

IDLE_AFTER = 1.0
"""Seconds without a batch, beyond two trigger intervals, after which no row is waited for."""


def still_starting(
    starting: Sequence[RunningStage], spark: SparkSession, settings: StreamingSettings, at_most: int
) -> list[RunningStage]:
    """Wait until so few stages start their readers, and return these.

    Every reader of a channel starts a Python process, which Spark gives ten seconds: too many at once fail.
    """
    until = time.monotonic() + settings.start_timeout
    while True:
        for stage in starting:
            if stage.starts and not stage.is_active:
                stage.start_again(spark, settings)
        starting = [stage for stage in starting if stage.is_initializing]
        if len(starting) <= at_most or time.monotonic() >= until:
            return list(starting)
        time.sleep(0.02)


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


LOOK_EVERY = 1.0


class BacklogReporter:
    """Looks at the sources now and then; a backlog is reported when it begins and when it ends."""

    def __init__(self, coordinator: CheckpointCoordinator) -> None:
        self._coordinator = coordinator
        self._is_wanted = coordinator.config.interval_during_backlog is not None
        self._looked_at = 0.0
        self._reported: frozenset[StageUid] = frozenset()

    def look(self, stages: Iterable[RunningStage]) -> None:
        """Look if it is time. Raises what a source's ``is_backlog`` raises."""
        now = time.monotonic()
        if not self._is_wanted or now - self._looked_at < LOOK_EVERY:
            return
        self._looked_at = now
        found = frozenset(stage.uid for stage in stages if not stage.worker.inputs and has_backlog(stage))
        if found != self._reported:
            self._coordinator.report_backlog(found)
            self._reported = found


def has_backlog(stage: RunningStage) -> bool:
    """True where the source says so of its newest batch; where it says nothing, as Spark reports."""
    if stage.is_ended or stage.is_over:
        return False
    declared = stage.stage_query.stage.is_backlog
    if declared is None:
        return is_behind(stage.last_progress())
    batch = stage.worker.batches.current.batch
    if batch is None:
        return False
    try:
        seen = read_source_batch(stage.stage_query.directory.query, batch)
    except Corrupt:
        return False  # Spark has removed its note meanwhile: the next look sees a newer one
    return bool(declared(seen))


def is_behind(progress: dict[str, Any]) -> bool:
    """True where a batch ended before the latest offset that its source knew of: a limit per batch held it back.

    Sources that report no latest offset (files) are never behind.
    """
    sources = progress.get("sources", ())
    return any(s.get("latestOffset") not in (None, s.get("endOffset")) for s in sources)


class EndOfInput:
    """Ends the stages whose inputs have all ended, once they have processed everything."""

    def __init__(self, stages: Mapping[StageUid, RunningStage]) -> None:
        """``stages``: inputs before their readers."""
        self._stages = stages
        self._asked: set[StageUid] = set()

    def look(self) -> None:
        """Look for stages that have nothing left to read; whether a batch follows all the same, Spark is asked."""
        for uid, stage in self._stages.items():
            inputs = stage.worker.inputs
            if not inputs or stage.is_ended or uid in self._asked:
                continue
            if all(self._stages[one].is_ended for one in inputs) and stage.is_active and stage.is_quiet():
                if stage.host is not None:
                    stage.worker.is_ended = True  # its rows came with those of its input
                    continue
                self._asked.add(uid)
                threading.Thread(target=self._ask, args=(stage,), name="end-of-data", daemon=True).start()

    @property
    def is_reached(self) -> bool:
        """True when no stage has anything left to do."""
        return all(stage.is_ended for stage in self._stages.values())

    def _ask(self, stage: RunningStage) -> None:
        """Wait until Spark finds no further batch, with data or without: nothing is added to its inputs meanwhile."""
        with suppress(Exception):  # a query that fails meanwhile is its supervisor's to see
            assert stage.query is not None, "it is active"
            stage.query.processAllAvailable()
            stage.worker.is_ended = True
        self._asked.discard(stage.uid)
