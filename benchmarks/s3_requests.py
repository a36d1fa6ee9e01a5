"""Requests to S3 that a stream makes for a checkpoint and in an idle minute, and how long its checkpoints take there.

    python -m benchmarks.s3_requests [--latency 0 0.03] [--checkpoints 10] [--idle 30]

Checkpoints and a Delta table lie in moto's S3, in a process of its own behind a proxy that counts and delays; the store
is SQLite, the working directory is local. ``local`` has all of it on the disk.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import median, p95, scratch, show, spark_session
from benchmarks.streaming_common import Stream, streaming, wait
from benchmarks.streaming_cuts import flowing
from dagster_ckpt.adapters.fsspec_storage import open_storage
from dagster_ckpt.sinks import DeltaTable
from tests.adapters.s3_proxy import SEEN
from tests.adapters.servers import S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt import CheckpointedPipeline

PAUSE = 0.5
KEYS = 10_000


@dataclass
class Counted:
    """A bucket, and the requests it has had."""

    server: S3Server
    bucket: str

    def requests(self) -> Counter[tuple[str, str]]:
        """Return how many requests there were, by kind and by what they were for."""
        with urllib.request.urlopen(self.server.endpoint + SEEN) as answer:
            seen = json.load(answer)
        return Counter((kind, "storage" if "checkpoints" in path else "table") for kind, path in seen)

    def table(self) -> DeltaTable:
        options = {
            "AWS_ENDPOINT_URL": self.server.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }
        return DeltaTable(f"s3://{self.bucket}/lake/totals", storage_options=options)


@contextmanager
def counted_s3(latency: float) -> Iterator[Counted]:
    command = [sys.executable, "-m", "tests.adapters.s3_proxy", str(latency)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        server = S3Server(process.stdout.readline().strip())
        yield Counted(server, server.new_bucket())
        process.stdin.close()


def pipeline_of(s3: Counted | None) -> CheckpointedPipeline:
    made = flowing(2, KEYS, rows_per_batch=KEYS)
    to = DeltaTable("totals") if s3 is None else s3.table()
    return replace(made, stages={**made.stages, "totals": replace(made.stages["totals"], to=to)})


def measure(
    folder: Path, spark: SparkSession, s3: Counted | None, *, checkpoints: int, idle: float
) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if s3 is not None:
        storage = open_storage(f"s3://{s3.bucket}/checkpoints", **s3.server.options)
        settings["storage"] = lambda _: storage
    with streaming(folder, pipeline_of(s3), spark, **settings) as stream:
        wait(lambda: (stream.batch("totals") or 0) >= 3, stream)
        _one(stream)
        _one(stream)
        before = Counter() if s3 is None else s3.requests()
        times = [_one(stream) for _ in range(checkpoints)]
        after = Counter() if s3 is None else _once_quiet(s3)
        asked, between = after - before, after
        time.sleep(idle)
        idled = Counter() if s3 is None else s3.requests() - between
    return {
        "least_ms": min(times),
        "median_ms": median(times),
        "p95_ms": p95(times),
        **{
            f"{what} {kind}": asked[kind, what] / checkpoints
            for what in ("storage", "table")
            for kind in _KINDS
        },
        "without checkpoints, a minute": idled.total() * 60 / idle,
    }


_KINDS = ("PUT", "GET", "HEAD", "LIST", "DELETE", "POST")


def _once_quiet(s3: Counted) -> Counter[tuple[str, str]]:
    """Return the requests so far once the last checkpoint is published: two seconds go by without one."""
    seen = s3.requests()
    while True:
        time.sleep(2.0)
        now = s3.requests()
        if now == seen:
            return now
        seen = now


def _one(stream: Stream) -> float:
    time.sleep(PAUSE)
    done = stream.checkpoint()
    return (done.metadata.completed_at - done.metadata.triggered_at) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--latency", type=float, nargs="*", default=[0.0, 0.03])
    parser.add_argument("--checkpoints", type=int, default=10)
    parser.add_argument("--idle", type=float, default=30.0)
    given = parser.parse_args()
    rows = []
    with scratch() as folder, spark_session(folder) as spark:
        measure(folder / "warm-up", spark, None, checkpoints=2, idle=0.1)
        for latency in (None, *given.latency):
            with nullcontext() if latency is None else counted_s3(latency) as s3:
                where = "local" if latency is None else f"S3, {latency * 1e3:.0f} ms"
                here = folder / str(len(rows))
                found = measure(here, spark, s3, checkpoints=given.checkpoints, idle=given.idle)
                rows.append({"where": where, **found})
                print(rows[-1], flush=True)
    show("a stream's checkpoints in S3", rows)


if __name__ == "__main__":
    main()
