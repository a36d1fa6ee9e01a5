"""The gauges as OpenTelemetry's metrics, and ended checkpoints as its spans; sent by the SDK to a collector."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics, CheckpointStatus
from dagster_ckpt.errors import InvalidRequest, install_extra
from dagster_ckpt.ext.metrics.gauges import GAUGES, READABLE, Gauge, PipelineReading

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import TracerProvider


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
