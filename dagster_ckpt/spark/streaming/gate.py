"""Gate of a query: its micro-batches go in one by one, and sources wait where commits are slower than the stream.

Backpressure of tables: in Flink a committer holds the operator it runs in, so a slow table slows the job down from
the first second. Here rows are staged while an earlier checkpoint is published, and a commit of more rows takes
longer: without a bound a stream that is faster than its table would have ever longer commits. See decision 47.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from dagster_ckpt.core.checkpoint.requests import effective_interval
from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.ids import BatchId, CheckpointId
from dagster_ckpt.core.messages import BarrierOptions
from dagster_ckpt.core.units import duration
from dagster_ckpt.ports import Clock
from dagster_ckpt.spark.attempt.query_state import read_source_batch
from dagster_ckpt.spark.stage_report import Reporter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dagster_ckpt.authoring.stage_settings import SourceBatch
    from dagster_ckpt.spark.channel.log import ChannelLog
    from dagster_ckpt.spark.directories import StageDirectory

BatchWriter = Callable[["DataFrame", int], None]


class StoppedAtBatchBoundary(Exception):
    """Ends a query that is being stopped, before its next batch has done anything.

    The text is what Spark itself reports when it interrupts Python, so it logs a stopped query and not a failed one.
    """

    def __init__(self) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling the batch of a stopped query: "
            "java.lang.InterruptedException"
        )


class _NotAnError(logging.Filter):
    """Keeps py4j from logging the stop of a query as an exception of the batch writer."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.exc_info is None or not isinstance(record.exc_info[1], StoppedAtBatchBoundary)


_NOT_AN_ERROR = _NotAnError()


class Hold(StrEnum):
    """Why batches are held; the gate is open when no reason is left."""

    STOP = "the run stops"
    START = "readers of other stages are still being started"
    SAVEPOINT = "a savepoint is to end the run here"
    BOUNDARY = "a barrier belongs here"
    READERS = "it is not known yet who takes them"
    FIRST_CHECKPOINT = "no checkpoint has completed yet"
    SLOW_COMMIT = "tables take longer to commit than rows to come"


class BatchGate:
    """Stands before a stage's batch writer. Thread-safe; batches of one query come one at a time."""

    def __init__(self) -> None:
        logging.getLogger("py4j.clientserver").addFilter(_NOT_AN_ERROR)
        self._changed = threading.Condition()
        self._holds: set[Hold] = set()
        self._is_stopped = False
        self._inside: int | None = None
        self._hold_before: Callable[[int], bool] | None = None

    def guard(self, write: BatchWriter) -> BatchWriter:
        """Return ``write`` behind this gate."""

        def guarded(frame: DataFrame, batch_id: int) -> None:
            self._enter(batch_id)
            try:
                write(frame, batch_id)
            finally:
                self._leave()

        return guarded

    def hold(self, why: Hold = Hold.STOP) -> None:
        """Let no further batch in; the one that is inside may finish."""
        with self._changed:
            self._holds.add(why)

    def hold_before(self, is_the_one: Callable[[int], bool] | None) -> None:
        """Hold before the next batch for whose id the function says so; None: before none."""
        with self._changed:
            self._hold_before = is_the_one

    def open(self, why: Hold = Hold.STOP) -> None:
        """Let batches in again, unless there is another reason to hold them."""
        with self._changed:
            self._holds.discard(why)
            self._changed.notify_all()

    def reopen(self) -> None:
        """Let batches of another query of the stage in, once the one that was stopped is over."""
        with self._changed:
            self._is_stopped = False
        self.open()

    def stop(self) -> None:
        """End the query at its next batch, also one that is waiting at the gate."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    @property
    def is_held(self) -> bool:
        """True while no batch is let in."""
        return self._is_stopped or bool(self._holds)

    def is_held_for(self, why: Hold) -> bool:
        """True while this is one of the reasons."""
        return why in self._holds

    @property
    def inside(self) -> int | None:
        """The batch that is being written; None between two batches."""
        return self._inside

    def _enter(self, batch_id: int) -> None:
        with self._changed:
            if not self.is_held and self._hold_before is not None and self._hold_before(batch_id):
                self._holds.add(Hold.BOUNDARY)
            self._changed.wait_for(lambda: self._is_stopped or not self._holds)
            if self._is_stopped:
                raise StoppedAtBatchBoundary
            self._inside = batch_id

    def _leave(self) -> None:
        with self._changed:
            self._inside = None
            self._changed.notify_all()


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

    @classmethod
    def of(
        cls,
        gate: BatchGate,
        barrier_after: Callable[[SourceBatch], object] | None,
        directory: StageDirectory,
        written: ChannelLog,
    ) -> InducedBarriers | None:
        """Return the barriers that a stage's author places; None: nothing is said of them."""
        if barrier_after is None:
            return None
        return cls(
            gate=gate,
            is_boundary=lambda batch: bool(barrier_after(read_source_batch(directory.query, batch))),
            last_batch=written.last_batch,
        )

    def add(self, trigger: Trigger) -> None:
        """Let a trigger wait; from now on the gate stops the query at the next boundary."""
        self._waiting.append(trigger)
        self.gate.hold_before(lambda following: following == 0 or self.is_boundary(BatchId(following - 1)))

    def drop(self, checkpoint_id: CheckpointId) -> None:
        """Forget the trigger of a checkpoint that is over."""
        self._waiting = [waiting for waiting in self._waiting if waiting[0] != checkpoint_id]
        if not self._waiting:
            self.resume()

    def take(self) -> list[Trigger]:
        """Return the triggers whose barrier belongs here; the gate stays shut until ``resume``."""
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

    def resume(self) -> None:
        """Let the query go on."""
        self.gate.hold_before(None)
        self.gate.open(Hold.BOUNDARY)

    def _stands_at_boundary(self) -> bool:
        last = self.last_batch()
        return last is None or self.is_boundary(last)


LEAST = 60.0
"""Seconds that a commit may always take."""
INTERVALS = 10
"""It may take as long as so many checkpoints are apart, too: who takes them seldom commits much at once."""


def longest_commit(config: CheckpointConfig) -> float | None:
    """Return after how many seconds of a commit the sources wait; None: never, as nothing grows without a timer."""
    interval = effective_interval(config)
    if interval is None:
        return None
    return max(LEAST, INTERVALS * interval, INTERVALS * (config.interval_during_backlog or 0.0))


@dataclass(kw_only=True)
class CommitBackpressure:
    """Holds the sources of a run while a completed checkpoint has waited for its tables for ``longest`` seconds."""

    longest: float | None
    reporter: Reporter
    clock: Clock
    _since: float | None = None
    """Monotonic time since when they wait."""

    def look(self, sources: Iterable[BatchGate], publishing: Mapping[CheckpointId, float]) -> None:
        """Hold or let go; ``publishing``: checkpoints whose tables are not committed yet, since when (monotonic)."""
        if self.longest is None:
            return
        now = self.clock.monotonic()
        oldest = min(publishing.items(), key=lambda item: item[1], default=None)
        if oldest is not None and now - oldest[1] >= self.longest:
            self._hold(sources, now, *oldest)
        elif self._since is not None:
            for gate in sources:
                gate.open(Hold.SLOW_COMMIT)
            self.reporter.info(
                f"sources go on: they have waited {duration(now - self._since)} for tables' commits"
            )
            self._since = None

    def _hold(self, sources: Iterable[BatchGate], now: float, number: CheckpointId, since: float) -> None:
        for gate in sources:
            gate.hold(Hold.SLOW_COMMIT)
        if self._since is None:
            self._since = now
            self.reporter.warn(
                f"sources wait: the tables of checkpoint {number} have been published for {duration(now - since)}, "
                "and rows would come faster than the tables take them. Look at the table's service, or raise interval"
            )
