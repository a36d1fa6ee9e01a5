"""Numbers of one checkpoint, and what they add up to; stored in the history, so they survive the process.

Source: flink-runtime DefaultCheckpointStatsTracker, CheckpointStatsHistory, CompletedCheckpointStatsSummary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dagster_ckpt.core.checkpoint.record import CountsRecord, TriggerRecord
from dagster_ckpt.core.model import CheckpointKind, Record, SnapshotMetrics

SUMMARY_WINDOW = 10_000
"""Completed checkpoints the quantiles are computed over."""
HISTORY_SIZE = 10
"""Checkpoints of the history that are shown, unless more are asked for (Flink: web.checkpoints.history)."""
STORED_SUBTASKS = 256
"""A history row names single subtasks only up to this many; the stages' sums are always there."""
QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


class CheckpointStatus(StrEnum):
    """Status of a checkpoint in the history."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    SUBSUMED = "subsumed"
    DISCARDED = "discarded"


@dataclass(frozen=True, slots=True, kw_only=True)
class MinMaxAvg:
    """One number over several: completed checkpoints, or subtasks of a stage."""

    count: int
    minimum: float
    maximum: float
    average: float
    total: float
    quantiles: Mapping[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSummary:
    """Numbers of one stage over its subtasks; None: no single subtask is known."""

    bytes_full: MinMaxAvg | None
    bytes_new: MinMaxAvg | None
    processed_in_flight: MinMaxAvg | None
    persisted_in_flight: MinMaxAvg | None
    acknowledged_at: MinMaxAvg | None
    """Seconds since the Unix epoch."""
    sync_ms: MinMaxAvg | None
    async_ms: MinMaxAvg | None
    alignment_ms: MinMaxAvg | None
    start_delay_ms: MinMaxAvg | None


class SubtaskStatistics(Record):
    """One subtask's part."""

    index: int
    acknowledged_at: float
    """Seconds since the Unix epoch."""
    metrics: SnapshotMetrics = SnapshotMetrics()
    late: bool = False
    """Its message came after the checkpoint was over: it does not count as acknowledged."""


class StageStatistics(Record):
    """One stage's part: sums of its subtasks' bytes, maxima of their times."""

    uid: str
    subtasks: int
    acknowledged: int
    latest_ack_at: float | None = None
    metrics: SnapshotMetrics = SnapshotMetrics()
    details: tuple[SubtaskStatistics, ...] = ()
    finished: bool = False
    """All its bounded input was processed: it has nothing more to acknowledge than where it ended."""

    @property
    def latest(self) -> SubtaskStatistics | None:
        """The subtask that acknowledged last."""
        return max((d for d in self.details if not d.late), key=lambda d: d.acknowledged_at, default=None)

    @property
    def summary(self) -> StageSummary:
        """Spread of the numbers over the subtasks.

        Source: TaskStateStats.TaskStateStatsSummary (TaskStateStatsTest).
        """
        numbers = [d.metrics for d in self.details]
        return StageSummary(
            bytes_full=summarize(m.bytes_full for m in numbers),
            bytes_new=summarize(m.bytes_new for m in numbers),
            processed_in_flight=summarize(m.processed_in_flight for m in numbers),
            persisted_in_flight=summarize(m.persisted_in_flight for m in numbers),
            acknowledged_at=summarize(d.acknowledged_at for d in self.details),
            sync_ms=summarize(m.sync_ms for m in numbers),
            async_ms=summarize(m.async_ms for m in numbers),
            alignment_ms=summarize(m.alignment_ms for m in numbers),
            start_delay_ms=summarize(m.start_delay_ms for m in numbers),
        )


class CheckpointStatistics(Record):
    """One checkpoint of the history."""

    checkpoint_id: int
    kind: CheckpointKind
    status: CheckpointStatus
    trigger: TriggerRecord
    triggered_at: float
    latest_ack_at: float | None = None
    ended_at: float | None = None
    """When it completed or failed."""
    stages: tuple[StageStatistics, ...] = ()
    metadata_size: int = 0
    failure_reason: str = ""
    failure_message: str = ""
    path: str = ""
    """Its folder as a URI; empty while it has none."""
    run_id: str = ""

    @property
    def subtasks(self) -> int:
        """Subtasks it waits for."""
        return sum(stage.subtasks for stage in self.stages)

    @property
    def acknowledged(self) -> int:
        """Subtasks that have acknowledged."""
        return sum(stage.acknowledged for stage in self.stages)

    @property
    def bytes_full(self) -> int:
        """All a restore reads (Flink: state size)."""
        return sum(stage.metrics.bytes_full for stage in self.stages)

    @property
    def bytes_new(self) -> int:
        """Bytes this checkpoint wrote (Flink: checkpointed size)."""
        return sum(stage.metrics.bytes_new for stage in self.stages)

    @property
    def processed_in_flight(self) -> int:
        """Bytes processed during alignment."""
        return sum(stage.metrics.processed_in_flight for stage in self.stages)

    @property
    def persisted_in_flight(self) -> int:
        """Bytes of in-flight data stored."""
        return sum(stage.metrics.persisted_in_flight for stage in self.stages)

    @property
    def unaligned(self) -> bool:
        """True where any subtask's part was taken unaligned."""
        return any(stage.metrics.unaligned for stage in self.stages)

    @property
    def is_discarded(self) -> bool:
        """True once its files are gone."""
        return self.status is CheckpointStatus.DISCARDED

    @property
    def duration(self) -> float | None:
        """Seconds from trigger to completion or failure, or to the latest acknowledgement so far; None: nothing yet.

        Source: FailedCheckpointStatsTest#testEndToEndDuration.
        """
        end = self.latest_ack_at if self.status is CheckpointStatus.IN_PROGRESS else self.ended_at
        return None if end is None else max(0.0, end - self.triggered_at)

    def trimmed(self) -> CheckpointStatistics:
        """Return the statistics as stored: without single subtasks where there are very many."""
        if self.subtasks <= STORED_SUBTASKS:
            return self
        stages = tuple(stage.model_copy(update={"details": ()}) for stage in self.stages)
        return self.model_copy(update={"stages": stages})


_LONGEST = ("sync_ms", "async_ms", "alignment_ms", "start_delay_ms")
_ADDED = (
    "bytes_full",
    "bytes_new",
    "files_full",
    "files_new",
    "processed_in_flight",
    "persisted_in_flight",
    "rows_judged",
    "rows_refused",
    "rows_late",
    "rows_late_kept",
    "rows_read",
    "rows_requeued",
)


def combined(parts: Iterable[SnapshotMetrics]) -> SnapshotMetrics:
    """Return the metrics of a stage from those of its subtasks: bytes and files add up, times are maxima."""
    rows = [part.__dict__ for part in parts]
    if not rows:
        return SnapshotMetrics()
    values: dict[str, object] = {name: max([row[name] for row in rows]) for name in _LONGEST}
    values |= {name: sum([row[name] for row in rows]) for name in _ADDED}
    values["unaligned"] = any(row["unaligned"] for row in rows)
    values["requeue_orders"] = tuple(sorted({order for row in rows for order in row["requeue_orders"]}))
    values["broken"] = dict(sum((Counter(row["broken"]) for row in rows), Counter()))
    return SnapshotMetrics(**values)  # type: ignore[arg-type]


def with_late_subtask(
    statistics: CheckpointStatistics, uid: str, late: SubtaskStatistics
) -> CheckpointStatistics:
    """Return the numbers of a failed checkpoint after one more subtask's message came in.

    Its sizes and times count, it does not count as acknowledged
    (CheckpointCoordinatorTest#testCheckpointStatsUpdatedAfterFailure).
    """
    stages = tuple(_with_late(s, late) if s.uid == uid else s for s in statistics.stages)
    return statistics.model_copy(update={"stages": stages})


def _with_late(stage: StageStatistics, late: SubtaskStatistics) -> StageStatistics:
    if any(d.index == late.index for d in stage.details):
        return stage
    return stage.model_copy(
        update={"details": (*stage.details, late), "metrics": combined([stage.metrics, late.metrics])}
    )


# --- summary --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Summary of completed checkpoints."""

    bytes_full: MinMaxAvg | None
    bytes_new: MinMaxAvg | None
    duration: MinMaxAvg | None
    """Seconds."""
    processed_in_flight: MinMaxAvg | None
    persisted_in_flight: MinMaxAvg | None


def summarize(values: Iterable[float | None]) -> MinMaxAvg | None:
    """Return minimum, maximum, average and quantiles; missing and negative values are left out; None: no value."""
    ordered = sorted(v for v in values if v is not None and v >= 0)
    if not ordered:
        return None
    total = sum(ordered)
    return MinMaxAvg(
        count=len(ordered),
        minimum=ordered[0],
        maximum=ordered[-1],
        average=total / len(ordered),
        total=total,
        quantiles={q: _quantile(ordered, q) for q in QUANTILES},
    )


def _quantile(ordered: Sequence[float], q: float) -> float:
    """Percentile as commons-math computes it: position q(n+1), linear in between."""
    position = q * (len(ordered) + 1)
    if position < 1:
        return ordered[0]
    if position >= len(ordered):
        return ordered[-1]
    lower = int(position)
    fraction = position - lower
    return ordered[lower - 1] + fraction * (ordered[lower] - ordered[lower - 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsSnapshot:
    """Everything the statistics say at one moment."""

    counts: CountsRecord
    in_progress: int
    summary: Summary
    history: tuple[CheckpointStatistics, ...]
    """Newest first, at most as many as were asked for."""
    latest_completed: CheckpointStatistics | None
    latest_failed: CheckpointStatistics | None
    latest_savepoint: CheckpointStatistics | None
    restored_id: int | None
    restored_at: float | None

    def checkpoint(self, number: int) -> CheckpointStatistics | None:
        """Return one checkpoint of the history, or the latest of its kind though it left it; None: neither.

        Source: CheckpointStatsHistoryTest#testZeroMaxSizeHistory.
        """
        latest = (self.latest_completed, self.latest_failed, self.latest_savepoint)
        known = [*self.history, *(row for row in latest if row is not None)]
        return next((row for row in known if row.checkpoint_id == number), None)


COMPLETED = (CheckpointStatus.COMPLETED, CheckpointStatus.SUBSUMED, CheckpointStatus.DISCARDED)


def snapshot_of(
    rows: Iterable[CheckpointStatistics],
    *,
    counts: CountsRecord,
    history_size: int,
    restored_id: int | None = None,
    restored_at: float | None = None,
) -> StatisticsSnapshot:
    """Return the statistics over the rows known, whatever their order; the latest of each kind has the highest id."""
    newest_first = sorted(rows, key=lambda r: r.checkpoint_id, reverse=True)
    completed = [r for r in newest_first if r.status in COMPLETED]
    window = completed[:SUMMARY_WINDOW]
    return StatisticsSnapshot(
        counts=counts,
        in_progress=sum(r.status is CheckpointStatus.IN_PROGRESS for r in newest_first),
        summary=Summary(
            bytes_full=summarize(r.bytes_full for r in window),
            bytes_new=summarize(r.bytes_new for r in window),
            duration=summarize(r.duration for r in window),
            processed_in_flight=summarize(r.processed_in_flight for r in window),
            persisted_in_flight=summarize(r.persisted_in_flight for r in window),
        ),
        history=tuple(newest_first[:history_size]),
        latest_completed=next((r for r in completed if not r.kind.is_savepoint), None),
        latest_failed=next((r for r in newest_first if r.status is CheckpointStatus.FAILED), None),
        latest_savepoint=next((r for r in completed if r.kind.is_savepoint), None),
        restored_id=restored_id,
        restored_at=restored_at,
    )


def gauges(snapshot: StatisticsSnapshot) -> dict[str, int | float | str]:
    """Return Flink's 14 checkpoint gauges by name; -1 (or "n/a" for the path) while there is nothing to say.

    Sizes are in bytes; times are in seconds, as everywhere here (Flink: milliseconds).
    """
    last = max(
        (r for r in (snapshot.latest_completed, snapshot.latest_savepoint) if r is not None),
        key=lambda r: r.checkpoint_id,
        default=None,
    )
    counts = snapshot.counts
    return {
        "totalNumberOfCheckpoints": counts.total,
        "numberOfInProgressCheckpoints": snapshot.in_progress,
        "numberOfCompletedCheckpoints": counts.completed,
        "numberOfFailedCheckpoints": counts.failed,
        "lastCheckpointRestoreTimestamp": -1 if snapshot.restored_at is None else snapshot.restored_at,
        "lastCheckpointSize": last.bytes_new if last else -1,
        "lastCheckpointFullSize": last.bytes_full if last else -1,
        "lastCheckpointMetadataSize": last.metadata_size if last else -1,
        "lastCheckpointDuration": last.duration if last and last.duration is not None else -1,
        "lastCheckpointProcessedData": last.processed_in_flight if last else -1,
        "lastCheckpointPersistedData": last.persisted_in_flight if last else -1,
        "lastCheckpointExternalPath": (last.path or "n/a") if last else "n/a",
        "lastCompletedCheckpointId": last.checkpoint_id if last else -1,
        "lastCheckpointCompletedTimestamp": last.ended_at if last and last.ended_at is not None else -1,
    }
