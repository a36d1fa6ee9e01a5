"""Gauges: what they say of a pipeline, read back by Prometheus' own parser and by OpenTelemetry's own SDK."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client.parser import text_string_to_metric_families

from dagster_ckpt.core.checkpoint.record import CountsRecord
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics, CheckpointStatus, StageStatistics
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.model import SnapshotMetrics
from dagster_ckpt.errors import InvalidRequest, NotFound, Unavailable
from dagster_ckpt.ext.metrics.command import exposition, serve
from dagster_ckpt.ext.metrics.gauges import (
    GAUGES,
    READABLE,
    CheckpointSpans,
    Exporter,
    PipelineReading,
    observe,
    otlp_name,
    read_pipelines,
)
from dagster_ckpt.ports import HistoryRow
from tests.operations.world import SALES, World

NOW = 104.0
Samples = dict[tuple[str, str], float]


class TimedWorld(World):
    """Its checkpoints end half a second after their trigger, with the numbers of a stage."""

    def row(self, number: int, status: CheckpointStatus, **more: Any) -> HistoryRow:
        row = super().row(number, status, **more)
        stage = StageStatistics(
            uid="totals",
            subtasks=1,
            acknowledged=1,
            latest_ack_at=number + 0.25,
            metrics=SnapshotMetrics(
                bytes_new=10 * number,
                bytes_full=100 * number,
                persisted_in_flight=7,
                broken={"amount > 0": number},
                rows_late=4,
            ),
        )
        body = CheckpointStatistics.model_validate_json(row.body)
        ended = body.model_copy(update={"ended_at": number + 0.5, "stages": (stage,)})
        return replace(row, body=ended.model_dump_json())


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two checkpoints, a savepoint, one that failed, and one in progress."""
    world = TimedWorld(tmp_path / "queries")
    world.live("totals")
    return world


def read(world: World, *only: PipelineId) -> list[PipelineReading]:
    return read_pipelines(world.deployment, only, now=NOW)


def parsed(text: str) -> Samples:
    families = text_string_to_metric_families(text)
    return {
        (sample.name.removeprefix("dagster_ckpt_"), of_stage(sample.labels)): sample.value
        for family in families
        for sample in family.samples
        if sample.labels["pipeline"] == SALES
    }


def of_stage(labels: Mapping[str, Any]) -> str:
    return ": ".join(labels[name] for name in ("stage", "condition") if name in labels)


def expected(world: World) -> Samples:
    [reading] = read(world, SALES)
    assert reading.page is not None
    latest = reading.page.statistics.latest_completed
    assert latest is not None
    assert latest.duration is not None
    assert latest.ended_at is not None
    stages = {
        ("currentOutputWatermark", p.uid): p.watermark_ms
        for p in reading.page.positions
        if p.watermark_ms  # 0: Spark's word for none, and not the year 1970
    }
    stages |= {
        ("lastCheckpointRowsBroken", "totals: amount > 0"): latest.checkpoint_id,
        ("lastCheckpointRowsLate", "totals"): 4,
    }
    plain = {
        "readable": 1,
        "numberOfCompletedCheckpoints": 3,
        "numberOfFailedCheckpoints": 1,
        "totalNumberOfCheckpoints": 5,
        "numberOfInProgressCheckpoints": 1,
        "lastCheckpointDuration": 1000 * latest.duration,
        "lastCheckpointSize": latest.bytes_new,
        "lastCheckpointFullSize": latest.bytes_full,
        "lastCheckpointProcessedData": latest.processed_in_flight,
        "lastCheckpointPersistedData": latest.persisted_in_flight,
        "lastCompletedCheckpointId": latest.checkpoint_id,
        "lastCheckpointCompletedTimestamp": 1000 * latest.ended_at,
        "oldestInProgressCheckpointAge": 4000,
        "numberOfRestorableSnapshots": 3,
        "attempt": reading.page.epoch,
        "isRunning": 1,
    }
    return {**{(name, ""): float(value) for name, value in plain.items()}, **stages}


def test_prometheus_reads_what_the_page_says(world: World) -> None:
    found = parsed(exposition(lambda: read(world)))
    assert found == expected(world)
    assert found["lastCheckpointDuration", ""] == 500
    assert found["lastCheckpointSize", ""] == 20
    assert found["lastCheckpointFullSize", ""] == 200
    assert found["lastCheckpointPersistedData", ""] == 7
    world.change(restored_id=2, restored_at=99.5, lease_until=50.0, pending=())
    again = parsed(exposition(lambda: read(world)))
    assert again["lastCheckpointRestoreTimestamp", ""] == 99_500
    assert again["isRunning", ""] == 0
    assert again["oldestInProgressCheckpointAge", ""] == 0


def test_a_pipeline_without_a_checkpoint_has_no_sample_where_flink_says_minus_one(tmp_path: Path) -> None:
    world = World(tmp_path / "queries")
    world.change(epoch=1)
    found = parsed(exposition(lambda: read(world)))
    assert found["numberOfCompletedCheckpoints", ""] == 0
    assert not any(name.startswith("last") for name, _ in found)


def test_a_record_that_cannot_be_read_is_told_and_hides_no_other(world: World) -> None:
    world.store.compare_and_set(PipelineId("broken"), 0, "{", ())
    text = exposition(lambda: read(world))
    assert 'dagster_ckpt_readable{pipeline="broken"} 0.0' in text
    assert parsed(text) == expected(world)
    with pytest.raises(NotFound):
        read(world, PipelineId("no_such"))


def test_a_scrape_reads_the_store_and_one_that_cannot_be_read_is_an_error_of_the_scrape(world: World) -> None:
    is_down = threading.Event()

    def look() -> Sequence[PipelineReading]:
        if is_down.is_set():
            raise Unavailable("the database is away")
        return read(world)

    server, thread = serve(look, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.server_port}/metrics"
    try:
        with urlopen(url) as answer:
            assert parsed(answer.read().decode()) == expected(world)
        world.change(counts=CountsRecord(total=9, completed=9))
        with urlopen(url) as answer:
            assert parsed(answer.read().decode())["numberOfCompletedCheckpoints", ""] == 9
        is_down.set()
        with pytest.raises(HTTPError, match="500") as failed:
            urlopen(url)
        failed.value.close()
        with pytest.raises(Unavailable, match="Choose another --port"):
            serve(look, "127.0.0.1", server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_opentelemetry_collects_the_same_numbers(world: World) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    observe(provider, lambda: read(world))
    data = reader.get_metrics_data()
    assert data is not None
    [scope] = data.resource_metrics[0].scope_metrics
    points: Samples = {}
    for metric in scope.metrics:
        for point in metric.data.data_points:
            attributes: Any = point.attributes
            assert attributes["pipeline"] == SALES
            points[metric.name, of_stage(attributes)] = point.value  # type: ignore[union-attr]
    assert points == {(otlp_name(name), stage): value for (name, stage), value in expected(world).items()}
    units = {metric.name: metric.unit for metric in scope.metrics}
    assert units["dagster_ckpt.last_checkpoint_duration"] == "ms"
    assert set(units) <= {otlp_name(gauge.name) for gauge in (READABLE, *GAUGES)}
    provider.shutdown()


def test_a_checkpoint_that_ends_is_one_span_with_one_below_it_per_stage(world: World) -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    telling = CheckpointSpans(provider)
    assert telling.tell(read(world)) == 0, "what had ended before the first look is not told"
    world.checkpoint(6)
    world.over(7, CheckpointStatus.FAILED)
    assert telling.tell(read(world)) == 2
    assert telling.tell(read(world)) == 0
    found = {str(span.name): span for span in spans.get_finished_spans()}
    whole = [s for s in spans.get_finished_spans() if s.parent is None]
    assert [(s.attributes or {})["checkpoint"] for s in whole] == [6, 7]
    [statistics] = [row for row in history(world) if row.checkpoint_id == 6]
    assert statistics.ended_at is not None
    assert whole[0].start_time == int(statistics.triggered_at * 1e9)
    assert whole[0].end_time == int(statistics.ended_at * 1e9)
    assert whole[1].status.status_code is StatusCode.ERROR
    assert whole[0].end_time - (whole[0].start_time or 0) == 500_000_000
    part = found["totals"]
    assert part.parent is not None
    assert part.end_time == int(7.25 * 1e9)
    assert part.attributes is not None
    assert part.attributes["bytes_new"] == 70


def history(world: World) -> Any:
    [reading] = read(world)
    assert reading.page is not None
    return reading.page.statistics.history


class Collector(ThreadingHTTPServer):
    """A collector that keeps what it is sent by OTLP over HTTP."""

    def __init__(self) -> None:
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.traces: list[ExportTraceServiceRequest] = []
        super().__init__(("127.0.0.1", 0), _Receive)


class _Receive(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/metrics":
            self.server.metrics.append(ExportMetricsServiceRequest.FromString(content))
        elif self.path == "/v1/traces":
            self.server.traces.append(ExportTraceServiceRequest.FromString(content))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_a_collector_is_sent_gauges_and_spans(world: World, collector: Collector) -> None:
    exporter = Exporter(lambda: read(world), f"http://127.0.0.1:{collector.server_port}/")
    exporter.look()
    world.checkpoint(6)
    assert exporter.look() == 1
    exporter.close()
    sent = {
        metric.name: metric.gauge.data_points[0]
        for request in collector.metrics
        for metric in request.resource_metrics[0].scope_metrics[0].metrics
    }
    assert sent["dagster_ckpt.number_of_restorable_snapshots"].as_double == 4
    names = [
        span.name for request in collector.traces for span in request.resource_spans[0].scope_spans[0].spans
    ]
    assert f"checkpoint {SALES}" in names


def test_a_missing_client_of_prometheus_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(InvalidRequest, match="prometheus-client>="):
        exposition(list)
