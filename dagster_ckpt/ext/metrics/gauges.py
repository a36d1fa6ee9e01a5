"""Gauges of a pipeline's coordinator, under Flink's names and in Flink's units, from the facts of its page.

Source: flink-runtime CheckpointStatsTracker#registerMetrics; Flink's documentation of metrics ("Checkpointing").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics, CheckpointStatus
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound, install_extra
from dagster_ckpt.operations.deployment import Deployment
from dagster_ckpt.page.facts import CheckpointPage, Depth, page_facts

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import TracerProvider

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


NAME = "dagster_ckpt"

Read = Callable[[], Sequence[PipelineReading]]


def observe(provider: MeterProvider, readings: Callable[[], Sequence[PipelineReading]]) -> None:
    """Add the gauges to a provider of yours; ``readings`` is asked for each of them, at each collection."""
    from opentelemetry.metrics import Observation

    meter = provider.get_meter(NAME)

    def callback(gauge: Gauge) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def values(_: CallbackOptions) -> Iterator[Observation]:
            for reading in readings():
                for sample in reading.samples(gauge):
                    yield Observation(sample.value, {"pipeline": str(reading.pipeline), **sample.labels})

        return values

    for gauge in (READABLE, *GAUGES):
        meter.create_observable_gauge(
            otlp_name(gauge.name), callbacks=[callback(gauge)], unit=gauge.unit, description=gauge.text
        )


def otlp_name(name: str) -> str:
    """Return a gauge's name as OpenTelemetry has names: its SDK would write them in lower case."""
    return f"{NAME}." + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


@dataclass
class CheckpointSpans:
    """Spans of checkpoints that have ended since the first look: one each, and one below it per stage."""

    provider: TracerProvider
    _told: dict[str, set[int]] = field(default_factory=dict)

    def tell(self, readings: Sequence[PipelineReading]) -> int:
        """Tell of what has ended since; return how many checkpoints that were."""
        told = 0
        for reading in readings:
            if reading.page is None:
                continue
            name = str(reading.pipeline)
            ended = {
                row.checkpoint_id: row
                for row in reading.page.statistics.history
                if row.ended_at is not None and row.status is not CheckpointStatus.IN_PROGRESS
            }
            if name in self._told:
                new = sorted(ended.keys() - self._told[name])
                for number in new:
                    self._tell(name, ended[number])
                told += len(new)
            self._told[name] = set(ended)
        return told

    def _tell(self, pipeline: str, row: CheckpointStatistics) -> None:
        from opentelemetry import trace

        tracer = self.provider.get_tracer(NAME)
        failed = row.status is CheckpointStatus.FAILED
        span = tracer.start_span(
            f"{row.kind.noun} {pipeline}",
            start_time=_ns(row.triggered_at),
            attributes={
                "pipeline": pipeline,
                "checkpoint": row.checkpoint_id,
                "run_id": row.run_id,
                "bytes_new": row.bytes_new,
                "bytes_full": row.bytes_full,
                "periodic": row.trigger.periodic,
                **({"failure_reason": row.failure_reason} if failed else {}),
            },
        )
        within = trace.set_span_in_context(span)
        for stage in row.stages:
            if stage.latest_ack_at is None:
                continue
            part = tracer.start_span(
                str(stage.uid),
                context=within,
                start_time=_ns(row.triggered_at),
                attributes={
                    "stage": stage.uid,
                    "bytes_new": stage.metrics.bytes_new,
                    "alignment_ms": stage.metrics.alignment_ms,
                    "sync_ms": stage.metrics.sync_ms,
                    "async_ms": stage.metrics.async_ms,
                },
            )
            part.end(_ns(stage.latest_ack_at))
        if failed:
            span.set_status(trace.StatusCode.ERROR, row.failure_message or row.failure_reason)
        span.end(_ns(row.ended_at or row.triggered_at))


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


class Exporter:
    """Sends gauges and spans to a collector by OTLP over HTTP, as often as ``look`` is called.

    Raises InvalidRequest: OpenTelemetry is not installed.
    """

    def __init__(self, read: Read, endpoint: str) -> None:
        """``endpoint`` is the collector's, such as ``http://localhost:4318``."""
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ModuleNotFoundError as error:
            raise InvalidRequest(
                f"--otlp needs the extra 'opentelemetry', which is not installed: {install_extra('opentelemetry')}"
            ) from error
        self._read = read
        self._readings: Sequence[PipelineReading] = ()
        base, resource = endpoint.rstrip("/"), Resource.create({"service.name": NAME})
        reader = PeriodicExportingMetricReader(
            OTLPMetricExporter(f"{base}/v1/metrics"), export_interval_millis=float("inf")
        )
        self._metrics: Any = MeterProvider([reader], resource=resource)
        self._traces: Any = TracerProvider(resource=resource)
        self._traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{base}/v1/traces")))
        observe(self._metrics, lambda: self._readings)
        self._spans = CheckpointSpans(self._traces)

    def look(self) -> int:
        """Read the store and send what it says; return how many checkpoints became spans. Raises Unavailable."""
        self._readings = self._read()
        told = self._spans.tell(self._readings)
        self._metrics.force_flush()
        self._traces.force_flush()
        return told

    def close(self) -> None:
        """Send what is left."""
        self._metrics.shutdown()
        self._traces.shutdown()
