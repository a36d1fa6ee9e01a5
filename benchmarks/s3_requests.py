"""Requests to S3 that a stream makes for a checkpoint and in an idle minute, and how long its checkpoints take there.

    python -m benchmarks.s3_requests [--latency 0 0.03] [--checkpoints 10] [--idle 30]

Checkpoints and a Delta table lie in moto's S3, in a process of its own behind a proxy that counts and delays; the store
is SQLite, the working directory is local; two batches of 10,000 rows come every second. ``local`` has all of it on the
disk. ``published_ms``: from the completion of a checkpoint until its rows are in the table. Then a stream of three
stages with channels between them, whose working directory is in S3 too: requests of one micro-batch with rows, of a
checkpoint and of an idle minute.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import median, p95, scratch, show, spark_session
from benchmarks.streaming_common import Stream, streaming, wait
from benchmarks.streaming_cuts import flowing
from dagster_ckpt import checkpointed_pipeline, spark_sink, spark_source, spark_stage
from dagster_ckpt.adapters.fsspec_storage import open_storage
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.sinks import DeltaTable
from dagster_ckpt.spark.channel.entries import DataEntry
from dagster_ckpt.spark.exchange.mounts import mount
from dagster_ckpt.spark.exchange.options import remote_folder
from tests.adapters.s3_proxy import s3_proxy_process, seen_by
from tests.adapters.servers import S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt import CheckpointedPipeline

PAUSE = 0.5
EVERY = 0.5
KEYS = 10_000
ROWS = 1000


@dataclass
class Counted:
    """A bucket, and the requests it has had."""

    server: S3Server
    bucket: str

    def requests(self) -> Counter[tuple[str, str]]:
        """Return how many requests there were, by kind and by what they were for."""
        return Counter((kind, _purpose(path)) for kind, path in seen_by(self.server))

    def table(self) -> DeltaTable:
        options = {
            "AWS_ENDPOINT_URL": self.server.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }
        return DeltaTable(f"s3://{self.bucket}/lake/totals", storage_options=options)


def _purpose(path: str) -> str:
    if "checkpoints" in path:
        return "storage"
    return "work" if "/work" in path or "prefix=work" in path else "table"


@contextmanager
def counted_s3(latency: float) -> Iterator[Counted]:
    with s3_proxy_process(latency) as server:
        yield Counted(server, server.new_bucket())


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
    with streaming(folder, pipeline_of(s3), spark, trigger_interval=EVERY, **settings) as stream:
        wait(lambda: (stream.batch("totals") or 0) >= 3, stream)
        _one(stream)
        _one(stream)
        before = Counter() if s3 is None else s3.requests()
        times, published = zip(*(_one(stream) for _ in range(checkpoints)), strict=True)
        after = Counter() if s3 is None else s3.requests()
        asked, between = after - before, after
        time.sleep(idle)
        idled = Counter() if s3 is None else s3.requests() - between
    return {
        "least_ms": min(times),
        "median_ms": median(times),
        "p95_ms": p95(times),
        "published_ms": median(published),
        **{
            f"{what} {kind}": asked[kind, what] / checkpoints
            for what in ("storage", "table")
            for kind in _KINDS
        },
        "without checkpoints, a minute": idled.total() * 60 / idle,
    }


def channels(source: Path) -> CheckpointedPipeline:
    """numbers of files → checked → totals, each a query of its own."""

    @spark_source
    def numbers(spark):  # type: ignore[no-untyped-def]
        return spark.readStream.schema("n BIGINT").option("maxFilesPerTrigger", 1).json(str(source))

    @spark_stage
    def checked(numbers):  # type: ignore[no-untyped-def]
        return numbers.where("n >= 0")

    @spark_sink
    def kept(checked):  # type: ignore[no-untyped-def]
        return checked

    @checkpointed_pipeline(name="channels", checkpointing={"operator_chaining": False})
    def pipeline() -> None:
        kept(checked(numbers()))

    return pipeline  # type: ignore[no-any-return]


def measure_work_dir(
    folder: Path, spark: SparkSession, s3: Counted, *, batches: int, checkpoints: int, idle: float
) -> dict[str, Any]:
    """Count what goes through a working directory in S3; checkpoints and the table are on the disk."""
    source, uri = folder / "in", f"s3://{s3.bucket}/work"
    source.mkdir(parents=True)
    options = {"endpoint_url": s3.server.endpoint, "key": "test", "secret": "test"}
    mount(folder / "work", remote_folder(uri, options), open_storage(uri, **options))

    def put(number: int) -> None:
        (source / f".{number}").write_text("\n".join(f'{{"n": {n}}}' for n in range(ROWS)))
        (source / f".{number}").rename(source / f"{number:05}.json")

    put(0)
    with streaming(folder, channels(source), spark) as stream:
        wait(lambda: stream.batch("kept") is not None, stream)
        _one(stream)
        before, began = _once_quiet(s3), time.monotonic()
        for number in range(1, batches + 1):
            put(number)
        wait(lambda: sum(entry.rows for entry in _written(stream, "checked")) == (batches + 1) * ROWS, stream)
        took = time.monotonic() - began
        through = _once_quiet(s3)
        files = sum(len(entry.files) for uid in ("numbers", "checked") for entry in _written(stream, uid)) - 2
        for _ in range(checkpoints):
            _one(stream)
        taken = _once_quiet(s3)
        time.sleep(idle)
        idled = s3.requests()
    each = {f"{kind} a file": (through - before)[kind, "work"] / files for kind in _KINDS}
    return {
        **each,
        "files": files,
        "ms a batch of the source": took * 1e3 / batches,
        "a checkpoint": (taken - through).total() / checkpoints,
        "an idle minute": (idled - taken).total() * 60 / idle,
    }


def _written(stream: Stream, uid: str) -> list[DataEntry]:
    """Return what a stage has written to its channel."""
    assert stream.run is not None
    log = stream.run.stages[StageUid(uid)].worker.log
    return [entry for _, entry in log.entries(log.start) if isinstance(entry, DataEntry)]


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


def _one(stream: Stream) -> tuple[float, float]:
    """Take a checkpoint; return how long it took and how long its tables took, in milliseconds."""
    time.sleep(PAUSE)
    done = stream.checkpoint()
    number, completed = done.metadata.checkpoint_id, done.metadata.completed_at
    wait(lambda: stream.run is not None and (stream.run.loop.newest_complete or 0) >= number, stream)
    return (completed - done.metadata.triggered_at) * 1e3, (time.time() - completed) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--latency", type=float, nargs="*", default=[0.0, 0.03])
    parser.add_argument("--checkpoints", type=int, default=10)
    parser.add_argument("--idle", type=float, default=30.0)
    given = parser.parse_args()
    rows, through = [], []
    with scratch() as folder, spark_session(folder) as spark:
        measure(folder / "warm-up", spark, None, checkpoints=2, idle=0.1)
        for latency in (None, *given.latency):
            with nullcontext() if latency is None else counted_s3(latency) as s3:
                where = "local" if latency is None else f"S3, {latency * 1e3:.0f} ms"
                here = folder / str(len(rows))
                found = measure(here, spark, s3, checkpoints=given.checkpoints, idle=given.idle)
                rows.append({"where": where, **found})
                print(rows[-1], flush=True)
        for latency in given.latency:
            with counted_s3(latency) as s3:
                here = folder / f"work-{latency}"
                asked = measure_work_dir(
                    here, spark, s3, batches=20, checkpoints=given.checkpoints, idle=given.idle
                )
                through.append({"where": f"S3, {latency * 1e3:.0f} ms", **asked})
                print(through[-1], flush=True)
    show("a stream's checkpoints in S3", rows)
    show("a working directory in S3", through)


if __name__ == "__main__":
    main()
