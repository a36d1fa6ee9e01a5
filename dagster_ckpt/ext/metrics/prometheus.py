"""The gauges as Prometheus reads them: its text, once or served; each scrape reads the store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import InvalidRequest, Unavailable, install_extra
from dagster_ckpt.ext.metrics.gauges import GAUGES, READABLE, PipelineReading

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
