"""metrics: the coordinator's gauges for Prometheus and OpenTelemetry."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from dagster_ckpt.cli.context import ExitCode, Invocation, command, pipeline_option
from dagster_ckpt.core.ids import pipeline_id
from dagster_ckpt.errors import InvalidRequest, Unavailable, install_extra
from dagster_ckpt.ext.metrics.gauges import GAUGES, READABLE, Exporter, PipelineReading, read_pipelines

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer


PREFIX = "dagster_ckpt_"

Read = Callable[[], Sequence[PipelineReading]]


def exposition(read: Read) -> str:
    """Return the gauges in Prometheus' text format. Raises InvalidRequest: prometheus_client is not installed."""
    registry = _registry(read)
    from prometheus_client import generate_latest

    return generate_latest(registry).decode()


def serve(read: Read, host: str, port: int) -> tuple[WSGIServer, threading.Thread]:
    """Serve ``/metrics`` from a thread; return the server and the thread.

    Raises InvalidRequest: prometheus_client is not installed. Unavailable: the port is taken.
    """
    registry = _registry(read)
    from prometheus_client import start_http_server

    try:
        return start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise Unavailable(
            f"metrics cannot be served at {host}:{port}: {error}. Choose another --port"
        ) from error


def _registry(read: Read) -> Any:
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.core import GaugeMetricFamily
        from prometheus_client.registry import Collector
    except ModuleNotFoundError as error:
        raise InvalidRequest(
            f"metrics need the extra 'prometheus', which is not installed: {install_extra('prometheus')}"
        ) from error

    class Checkpoints(Collector):
        """Reads the store at each scrape; what raises here is an error 500 there, and `up` is 0."""

        def collect(self) -> Iterator[GaugeMetricFamily]:
            readings = read()
            for gauge in (READABLE, *GAUGES):
                family = GaugeMetricFamily(
                    PREFIX + gauge.name, gauge.text, labels=("pipeline", *gauge.labels)
                )
                for reading in readings:
                    for sample in reading.samples(gauge):
                        of = (str(reading.pipeline), *(sample.labels[name] for name in gauge.labels))
                        family.add_metric(of, sample.value)
                yield family

        def describe(self) -> list[GaugeMetricFamily]:
            """Say nothing: the registry would read the store to learn the names."""
            return []

    registry = CollectorRegistry()
    registry.register(Checkpoints())
    return registry


@command("metrics", short_help="gauges for Prometheus and OpenTelemetry")
@pipeline_option
@click.option("--serve", "is_served", is_flag=True, help="Serve /metrics for Prometheus until Ctrl-C.")
@click.option("--host", default="127.0.0.1", show_default=True, help="With --serve: where to listen.")
@click.option("--port", type=click.IntRange(0, 65535), default=9249, show_default=True, help="With --serve.")
@click.option(
    "--otlp",
    default="",
    metavar="URL",
    help="Send to this OpenTelemetry collector by OTLP over HTTP until Ctrl-C.",
)
@click.option(
    "--every",
    type=click.FloatRange(min=0.2),
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    help="With --otlp: time between two looks.",
)
@click.option(
    "--times", type=click.IntRange(min=1), default=None, help="With --otlp: end after so many looks."
)
def metrics(
    work: Invocation,
    *,
    pipeline: str,
    is_served: bool,
    host: str,
    port: int,
    otlp: str,
    every: float,
    times: int | None,
) -> ExitCode:
    """Export the coordinator's gauges, under Flink's names, of all pipelines: as Prometheus' text, served, or by OTLP.

    Read from the store at each scrape or look, so also of a pipeline whose run is dead. With --otlp each checkpoint
    that ends is a span.
    """
    if is_served and otlp:
        raise InvalidRequest("give --serve or --otlp, not both")
    deployment = work.deployment
    only = [pipeline_id(pipeline)] if pipeline else []

    def read() -> Sequence[PipelineReading]:
        return read_pipelines(deployment, only, now=time.time())

    if otlp:
        _send(work, Exporter(read, otlp), every, times)
    elif is_served:
        server, thread = serve(read, host, port)
        url = f"http://{host}:{server.server_port}/metrics"
        work.output.result({"url": url})
        work.output.say(f"metrics at {url} (Ctrl-C ends it)")
        try:
            thread.join()
        except KeyboardInterrupt:
            server.shutdown()
            work.output.say("ended")
    else:
        text = exposition(read)
        work.output.result({"text": text})
        work.output.say(text.rstrip("\n"))
    return ExitCode.FINE


def _send(work: Invocation, exporter: Exporter, every: float, times: int | None) -> None:
    looks = 0
    try:
        while times is None or looks < times:
            if looks:
                time.sleep(every)
            try:
                exporter.look()
            except Unavailable as error:
                work.output.say(f"nothing was sent, the next look tries again: {error}")
            looks += 1
    except KeyboardInterrupt:
        work.output.say("ended")
    finally:
        exporter.close()
