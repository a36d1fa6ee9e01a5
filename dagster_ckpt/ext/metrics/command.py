"""metrics: the coordinator's gauges for Prometheus and OpenTelemetry."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from dagster_ckpt.cli.context import ExitCode, Invocation, command, pipeline_option
from dagster_ckpt.core.ids import pipeline_id
from dagster_ckpt.errors import InvalidRequest, Unavailable
from dagster_ckpt.ext.metrics.gauges import PipelineReading, read_pipelines
from dagster_ckpt.ext.metrics.otlp import Exporter
from dagster_ckpt.ext.metrics.prometheus import exposition, serve


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
