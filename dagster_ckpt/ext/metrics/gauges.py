"""Gauges of a pipeline's coordinator, under Flink's names and in Flink's units, from the facts of its page.

Source: flink-runtime CheckpointStatsTracker#registerMetrics; Flink's documentation of metrics ("Checkpointing").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.errors import Corrupt, NotFound
from dagster_ckpt.operations.deployment import Deployment
from dagster_ckpt.page.facts import CheckpointPage, Depth, page_facts

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Sample:
    """Value of a gauge."""

    value: float
    labels: Labels = field(default_factory=dict)
    """Beside ``pipeline``."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """Gauge of a pipeline."""

    name: str
    unit: str
    """As OpenTelemetry spells it (UCUM): ``ms``, ``By``, ``{checkpoint}``, or empty."""
    text: str
    of: Callable[[CheckpointPage], Iterable[Sample]]
    labels: tuple[str, ...] = ()


def _one(value: float | None) -> Iterator[Sample]:
    if value is not None:
        yield Sample(float(value))


def _latest(
    of: Callable[[CheckpointStatistics], float | None],
) -> Callable[[CheckpointPage], Iterator[Sample]]:
    """Return a function that reads the latest completed checkpoint; no sample while there is none."""

    def read(page: CheckpointPage) -> Iterator[Sample]:
        latest = page.statistics.latest_completed
        return _one(None if latest is None else of(latest))

    return read


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000.0 * seconds


def _watermarks(page: CheckpointPage) -> Iterator[Sample]:
    for position in page.positions:
        if position.watermark_ms:  # Spark says 0 where no stage of the query has one
            yield Sample(position.watermark_ms, {"stage": position.uid})


def _broken(page: CheckpointPage) -> Iterator[Sample]:
    latest = page.statistics.latest_completed
    for stage in latest.stages if latest else ():
        for condition, rows in stage.metrics.broken.items():
            yield Sample(rows, {"stage": stage.uid, "condition": condition})


def _late(page: CheckpointPage) -> Iterator[Sample]:
    latest = page.statistics.latest_completed
    for stage in latest.stages if latest else ():
        yield Sample(stage.metrics.rows_late, {"stage": stage.uid})


def _pending_ages(page: CheckpointPage) -> float:
    return max((pending.since for pending in page.pending), default=0.0)


READABLE = Gauge(
    "readable", "", "1 where the pipeline's record in the store could be read", lambda _: _one(1)
)

GAUGES = (
    # Flink's
    Gauge(
        "numberOfCompletedCheckpoints",
        "{checkpoint}",
        "Checkpoints and savepoints completed since the pipeline exists",
        lambda page: _one(page.statistics.counts.completed),
    ),
    Gauge(
        "numberOfFailedCheckpoints",
        "{checkpoint}",
        "Checkpoints and savepoints failed since the pipeline exists",
        lambda page: _one(page.statistics.counts.failed),
    ),
    Gauge(
        "totalNumberOfCheckpoints",
        "{checkpoint}",
        "All checkpoints triggered since the pipeline exists",
        lambda page: _one(page.statistics.counts.total),
    ),
    Gauge(
        "numberOfInProgressCheckpoints",
        "{checkpoint}",
        "Pending checkpoints",
        lambda page: _one(len(page.pending)),
    ),
    Gauge(
        "lastCheckpointDuration",
        "ms",
        "Of the latest completed checkpoint, from its trigger",
        _latest(lambda latest: _ms(latest.duration)),
    ),
    Gauge(
        "lastCheckpointSize",
        "By",
        "Bytes that the latest completed checkpoint wrote",
        _latest(lambda latest: latest.bytes_new),
    ),
    Gauge(
        "lastCheckpointFullSize",
        "By",
        "Bytes that a restore of the latest completed checkpoint reads",
        _latest(lambda latest: latest.bytes_full),
    ),
    Gauge(
        "lastCheckpointProcessedData",
        "By",
        "In-flight bytes processed during the alignment of the latest completed checkpoint",
        _latest(lambda latest: latest.processed_in_flight),
    ),
    Gauge(
        "lastCheckpointPersistedData",
        "By",
        "In-flight bytes stored with the latest completed checkpoint",
        _latest(lambda latest: latest.persisted_in_flight),
    ),
    Gauge(
        "lastCompletedCheckpointId",
        "",
        "Id of the latest completed checkpoint",
        _latest(lambda latest: latest.checkpoint_id),
    ),
    Gauge(
        "lastCheckpointRestoreTimestamp",
        "ms",
        "When the pipeline was last restored, since the Unix epoch",
        lambda page: _one(_ms(page.statistics.restored_at)),
    ),
    Gauge(
        "currentOutputWatermark",
        "ms",
        "Watermark of a stage in its newest snapshot, since the Unix epoch",
        _watermarks,
        ("stage",),
    ),
    # ours
    Gauge(
        "lastCheckpointCompletedTimestamp",
        "ms",
        "When the latest checkpoint completed, since the Unix epoch",
        _latest(lambda latest: _ms(latest.ended_at)),
    ),
    Gauge(
        "lastCheckpointRowsBroken",
        "{row}",
        "Rows of the latest completed checkpoint that broke a condition of a stage",
        _broken,
        ("stage", "condition"),
    ),
    Gauge(
        "lastCheckpointRowsLate",
        "{row}",
        "Rows of the latest completed checkpoint that a stage's watermark dropped",
        _late,
        ("stage",),
    ),
    Gauge(
        "oldestInProgressCheckpointAge",
        "ms",
        "Since the trigger of the oldest pending checkpoint; 0: none is pending",
        lambda page: _one(_ms(_pending_ages(page))),
    ),
    Gauge(
        "numberOfRestorableSnapshots",
        "{snapshot}",
        "Retained checkpoints and savepoints",
        lambda page: _one(len(page.restorable)),
    ),
    Gauge(
        "attempt",
        "",
        "Number of the attempt that owns the pipeline: it grows with every run and every restart of a stream",
        lambda page: _one(page.epoch),
    ),
    Gauge(
        "isRunning",
        "",
        "1 while the process of the newest attempt renews its lease",
        lambda page: _one(1 if page.is_alive else 0),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineReading:
    """Values of one pipeline's gauges at one moment."""

    pipeline: PipelineId
    page: CheckpointPage | None
    """None: its record is damaged, or was written by a newer version."""

    def samples(self, gauge: Gauge) -> list[Sample]:
        """Return the values of a gauge."""
        if gauge is READABLE:
            return [Sample(0 if self.page is None else 1)]
        return [] if self.page is None else list(gauge.of(self.page))


def read_pipelines(
    deployment: Deployment, only: Sequence[PipelineId] = (), *, now: float
) -> list[PipelineReading]:
    """Read all pipelines of the store, or some. Raises Unavailable: the store cannot be reached."""
    readings = []
    for pipeline in only or sorted(deployment.store.pipelines()):
        try:
            page: CheckpointPage | None = page_facts(deployment, pipeline, now=now, depth=Depth.POSITIONS)
        except NotFound:
            if only:
                raise
            continue  # gone since it was listed
        except Corrupt:
            page = None
        readings.append(PipelineReading(pipeline=pipeline, page=page))
    return readings
