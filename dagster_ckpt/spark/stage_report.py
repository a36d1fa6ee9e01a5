"""Reports of the stage runner to its host; Dagster's side turns them into log lines and events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from dagster_ckpt.core.checkpoint.statistics import HISTORY_SIZE
from dagster_ckpt.core.ids import BatchId, CheckpointId, StageUid
from dagster_ckpt.core.model import SnapshotMetrics
from dagster_ckpt.core.units import counted, milliseconds, size
from dagster_ckpt.errors import CheckpointError

if TYPE_CHECKING:
    from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics
    from dagster_ckpt.runtime.coordinator import CheckpointCoordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReport:
    """Report of one stage in an epoch run."""

    uid: StageUid
    chain: str = ""
    """Of a chain: its name, ``orders -> clean -> totals``."""
    checkpoint_id: CheckpointId | None
    """None: the checkpoint could not be triggered, and the stage only processed its input."""
    batch_id: BatchId | None
    """Last committed micro-batch in the cut."""
    batches: int
    """Micro-batches this run added."""
    rows: int
    """Rows read by them."""
    drain_ms: float
    subtasks: int = 1
    metrics: SnapshotMetrics = SnapshotMetrics()
    outcome: str = "acknowledged"
    """``acknowledged``, or why the stage took no part."""

    def line(self) -> str:
        """Return the one line of the event log that speaks of this stage."""
        read = f"{counted(self.rows, 'row')} in {counted(self.batches, 'batch', 'batches')}"
        work = f"{self.chain or self.uid}: {read} ({milliseconds(self.drain_ms)})"
        if self.checkpoint_id is None:
            return f"{work}; no checkpoint: {self.outcome}"
        cut = "no batch yet" if self.batch_id is None else f"batch {self.batch_id}"
        m = self.metrics
        return (
            f"{work}; checkpoint {self.checkpoint_id} {self.outcome} at {cut}: {counted(self.subtasks, 'subtask')}, "
            f"{size(m.bytes_new)} new of {size(m.bytes_full)}, sync {milliseconds(m.sync_ms)}, async "
            f"{milliseconds(m.async_ms)}"
        )


def recent_checkpoints(coordinator: CheckpointCoordinator) -> tuple[CheckpointStatistics, ...]:
    """Return the latest ten checkpoints, newest first; none while the store cannot be asked."""
    try:
        return coordinator.statistics(window=HISTORY_SIZE).history
    except CheckpointError:
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChanged:
    """Rows that a sink shows since now, or no longer."""

    uid: StageUid
    place: str
    checkpoint_id: int
    """Checkpoint whose rows it shows; 0: it was emptied."""
    data_version: str
    """Other for other rows."""
    rows: int = 0
    bytes: int = 0
    version: str = ""
    """The outside's own name of its state."""
    taken_back: str = ""
    """What a restore did to it; empty: rows were published."""
    is_of_before: bool = False
    """An earlier run has published the rows, and not all tables showed its checkpoint: nobody counted them."""

    def after(self, earlier: TableChanged) -> TableChanged:
        """Return both changes as one: the newest state, with the rows that both have brought."""
        return replace(self, rows=earlier.rows + self.rows, bytes=earlier.bytes + self.bytes)


def not_published(tables: Mapping[str, str]) -> str:
    """Return which tables do not show the rows of a completed checkpoint yet, and why; empty: all of them do."""
    named = {name if name.startswith("view ") else f"table {name}": why for name, why in tables.items()}
    return "; ".join(f"{name} does not show its rows yet: {why}" for name, why in named.items())


class Reporter(Protocol):
    """Reporter: receives the runner's reports."""

    def info(self, message: str) -> None:
        """Say something an operator may want to read."""
        ...

    def warn(self, message: str) -> None:
        """Say something an operator should read."""
        ...


def rows_late(progress: Mapping[str, Any]) -> int:
    """Return how many rows of a batch a watermark dropped, before its stateful operators, as Spark tells."""
    operators = progress.get("stateOperators") or ()
    return sum(int(one.get("numRowsDroppedByWatermark") or 0) for one in operators)


_NONE_YET = BatchId(-1)


@dataclass(slots=True)
class BatchMeter:
    """Adds up what Spark reports of one query's batches."""

    rows: int = 0
    last_batch: BatchId = _NONE_YET
    last_batch_ms: float = 0.0
    late: int = 0
    """Rows that watermarks have dropped."""
    _rows_before: int = 0
    _busy_ms: float = 0.0

    def take(self, recent: Sequence[Mapping[str, Any]]) -> int:
        """Count the batches that were not counted yet, and return how many rows of theirs watermarks have dropped."""
        before = self.late
        for progress in recent:
            if progress["batchId"] <= self.last_batch:
                continue
            duration = float(progress.get("durationMs", {}).get("triggerExecution", 0.0))
            self.last_batch = progress["batchId"]
            self.last_batch_ms = duration
            self.rows += int(progress.get("numInputRows") or 0)
            self.late += rows_late(progress)
            self._busy_ms += duration
        return self.late - before

    def rates(self, seconds: float) -> tuple[float, float]:
        """Return (rows per second, busy share) since the last call, ``seconds`` ago."""
        rate = (self.rows - self._rows_before) / seconds if seconds > 0 else 0.0
        busy = min(1.0, self._busy_ms / 1e3 / seconds) if seconds > 0 else 0.0
        self._rows_before, self._busy_ms = self.rows, 0.0
        return rate, busy
