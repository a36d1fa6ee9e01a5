"""The queries of a run's stages: each processes what has arrived when its stage has its turn, or from before it.

Stages that need nothing of one another run side by side: Spark runs queries of its own accord, so one that is begun
early goes on while another stage has its turn, and no thread of ours does. Everything a stage tells (barrier, snapshot,
events of its op) waits for its turn.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.units import counted, duration
from dagster_ckpt.errors import Unavailable
from dagster_ckpt.spark.attempt.stage_query import StageQuery
from dagster_ckpt.spark.java.process import MAX_START_ATTEMPTS, is_java_gone, is_retryable_start
from dagster_ckpt.spark.java.sessions import has_read_everything
from dagster_ckpt.spark.plan.errors import was_stopped
from dagster_ckpt.spark.snapshot.batch_notes import note_late
from dagster_ckpt.spark.stage_report import BatchMeter, Reporter, rows_late

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FIRST_WORD_AFTER = 5.0
LAST_WORD_AFTER = 60.0
"""Seconds between two lines: each is an event that Dagster stores."""


def wait_for(query: StreamingQuery, name: str, reporter: Reporter) -> None:
    """Return when the query has read all there was. Raises what it failed with, Unavailable where it was stopped."""
    meter, began, pause = BatchMeter(), time.monotonic(), FIRST_WORD_AFTER
    while not query.awaitTermination(math.ceil(pause)):
        meter.take(query.recentProgress)
        rate, _ = meter.rates(pause)
        reporter.info(
            f"{name}: {counted(meter.rows, 'row')} so far, {rate:,.0f} rows/s, {duration(time.monotonic() - began)}"
            f"{_behind(query)}; batch {meter.last_batch + 1} is running"
        )
        pause = min(LAST_WORD_AFTER, pause * 2)
    if not has_read_everything(query):
        raise Unavailable(was_stopped(name))


def _behind(query: StreamingQuery) -> str:
    """Return how far its sources are behind, where these know (Kafka)."""
    sources = (query.lastProgress or {}).get("sources", ())
    told = ((source.get("metrics") or {}).get("maxOffsetsBehindLatest") for source in sources)
    found = [float(behind) for behind in told if behind is not None]
    return f", {max(found):,.0f} rows behind in the slowest partition" if found else ""


AT_ONCE = 4
"""Queries of an epoch run that run at once, at most: fewer than a stream of the same pipeline keeps open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """Batches and rows that a query has processed."""

    batches: int = 0
    rows: int = 0
    ms: float = 0.0


@dataclass(frozen=True, slots=True)
class _BegunQuery:
    running: StreamingQuery
    at: float


class Drains:
    """Starts queries and waits for them; ``most`` run at once."""

    def __init__(self, session: Callable[[], SparkSession], reporter: Reporter, *, most: int = 1) -> None:
        self._session = session
        self._reporter = reporter
        self._most = most
        self._early: dict[StageUid, _BegunQuery] = {}
        self._had_turn: set[StageUid] = set()

    @property
    def room(self) -> int:
        """How many more may be begun beside the one whose turn it is."""
        running = len([begun for begun in self._early.values() if begun.running.isActive])
        return max(0, self._most - 1 - running)

    def has(self, uid: StageUid) -> bool:
        """Return True where the stage's query was begun before its turn."""
        return uid in self._early

    def had_turn(self, uid: StageUid) -> bool:
        """Return True where the stage's turn has come: its op may have failed, and is not begun beside another one."""
        return uid in self._had_turn

    def begin(self, query: StageQuery) -> None:
        """Start the query of a stage whose turn comes later. Raises what prevents it."""
        self._early[query.uid] = self._start(query)

    def finish(self, query: StageQuery, name: str, *, meanwhile: Callable[[], None]) -> Drained:
        """Run a query to its end, unless it was begun already; ``meanwhile`` is called while it runs.

        Raises what it failed with, understood where it can be.
        """
        self._had_turn.add(query.uid)
        begun = self._early.pop(query.uid, None) or self._start(query)
        ran: list[StreamingQuery] = []
        while True:
            ran.append(begun.running)
            try:
                meanwhile()
                wait_for(begun.running, name, self._reporter)
                break
            except Exception as error:
                told = query.understood(error)
                if told is not None:
                    raise told from error
                if not is_retryable_start(error):
                    raise
                if len(ran) >= MAX_START_ATTEMPTS:
                    raise Unavailable(
                        f"{name}: the process of its reader did not start in time, {len(ran)} times: run again when "
                        "the machine is less busy"
                    ) from error
            finally:
                _stop(begun.running)
            self._reporter.warn(f"the reader of stage {query.uid} was slow to start: started again")
            begun = _BegunQuery(self._start(query).running, begun.at)
        ms = (time.perf_counter() - begun.at) * 1e3
        if late := sum(map(_late, ran)):
            note_late(query.directory, late)
        return Drained(batches=sum(map(_batches, ran)), rows=sum(map(_rows, ran)), ms=ms)

    def stop(self) -> None:
        """Stop what was begun early and whose turn did not come: the run is over."""
        for begun in self._early.values():
            with suppress(Exception):  # its session may be gone already
                begun.running.stop()
        self._early.clear()

    def _start(self, query: StageQuery) -> _BegunQuery:
        at = time.perf_counter()
        return _BegunQuery(query.start(self._session(), available_now=True), at)


def _stop(query: StreamingQuery) -> None:
    """Stop a query; one whose JVM has ended has stopped, and what ended the run is told, not that."""
    try:
        query.stop()
    except Exception as error:
        if not is_java_gone(error):
            raise


def _rows(query: StreamingQuery) -> int:
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def _late(query: StreamingQuery) -> int:
    return sum({progress["batchId"]: rows_late(progress) for progress in query.recentProgress}.values())


def _batches(query: StreamingQuery) -> int:
    return len({progress["batchId"] for progress in query.recentProgress})
