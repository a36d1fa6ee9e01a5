"""Small batches: what a micro-batch costs beside its rows, and how soon a row that arrives is published.

    python -m benchmarks.streaming_trickle [--files 60] [--rounds 3] [--seconds 30]

Files of 1,000 rows, one a batch, to a table: a bare query that writes Parquet, one chain, and two stages with a
channel, taking turns. Batches a second while files wait, and processor time a batch. Then a file every 200 ms with a
checkpoint every 500 ms: from a file's arrival to its rows in the published table.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import as_spark_writes, median, p95, scratch, show, spark_session
from benchmarks.streaming_common import Stream, streaming, wait
from dagster_ckpt import checkpointed_pipeline, spark_sink, spark_source
from tests.progress import processor_seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dagster_ckpt import CheckpointedPipeline

ROWS = 1_000
BARE = ("bare query", "bare query in our session")
"""The first writes its files as Spark does by itself; the other has our session's settings, as the stages have."""
WARM = 10
"""Batches before the measurement."""
WAYS: dict[str, dict[str, Any]] = {"one chain": {}, "two stages": {"operator_chaining": False}}


def put(folder: Path, number: int) -> None:
    """Let a file of rows arrive that all carry its number."""
    aside = folder.parent / f".{number}.parquet"
    pq.write_table(pa.table({"file": pa.array([number] * ROWS, pa.int64())}), aside)
    aside.rename(folder / f"{number:06d}.parquet")


def read(spark: SparkSession, folder: Path, per_batch: int) -> DataFrame:
    reader = spark.readStream.schema("file LONG").option("maxFilesPerTrigger", per_batch)
    return reader.option("maxFileAge", "9999d").parquet(str(folder))


def trickle(folder: Path, per_batch: int) -> CheckpointedPipeline:
    @spark_source
    def arriving(spark):  # type: ignore[no-untyped-def]
        return read(spark, folder, per_batch)

    @spark_sink
    def kept(arriving):  # type: ignore[no-untyped-def]
        return arriving.selectExpr("file", "file * 2 AS twice")

    @checkpointed_pipeline(name="trickle")
    def pipeline() -> None:
        kept(arriving())

    return pipeline  # type: ignore[no-any-return]


# --- batches a second ---------------------------------------------------------------------------------------------


class _Span:
    """Wall and processor time per batch from one batch to another."""

    def __init__(self, batches: int) -> None:
        self.batches, self.began, self.processor = batches, time.perf_counter(), processor_seconds()

    def read(self) -> tuple[float, float]:
        seconds = time.perf_counter() - self.began
        return seconds / self.batches * 1e3, (processor_seconds() - self.processor) / self.batches * 1e3


def bare(spark: SparkSession, folder: Path, files: int) -> tuple[float, float]:
    place = folder / "query"
    frame = read(spark, _filled(folder, files), 1).selectExpr("file", "file * 2 AS twice")
    writer = frame.writeStream.option("checkpointLocation", str(place))
    query = writer.foreachBatch(lambda batch, n: batch.write.parquet(f"{folder}/out/{n}")).start()
    wait((place / "commits" / str(WARM)).exists)
    span = _Span(files - 1 - WARM)
    wait((place / "commits" / str(files - 1)).exists)
    cost = span.read()
    query.stop()
    return cost


def ours(spark: SparkSession, folder: Path, files: int, settings: dict[str, Any]) -> tuple[float, float]:
    with streaming(folder / "run", trickle(_filled(folder, files), 1), spark, **settings) as stream:
        wait(lambda: (stream.batch("kept") or 0) >= WARM, stream)
        done = stream.batch("kept") or 0
        span = _Span(files - 1 - done)
        wait(lambda: (stream.batch(_first(stream)) or 0) >= files - 1 and _is_through(stream), stream)
        return span.read()


def _first(stream: Stream) -> str:
    assert stream.run is not None
    return str(next(uid for uid, stage in stream.run.stages.items() if not stage.worker.inputs))


def _is_through(stream: Stream) -> bool:
    assert stream.run is not None
    return all(stage.is_quiet() for stage in stream.run.stages.values())


def _filled(folder: Path, files: int) -> Path:
    arriving = folder / "arriving"
    arriving.mkdir(parents=True)
    for number in range(files):
        put(arriving, number)
    return arriving


# --- from a row's arrival to its publication ----------------------------------------------------------------------


@contextmanager
def _feeding(folder: Path, every: float) -> Iterator[list[float]]:
    """Put a file every so often; yields when each arrived."""
    at: list[float] = []
    over = threading.Event()

    def feed() -> None:
        while not over.wait(every):
            at.append(time.perf_counter())
            put(folder, len(at) - 1)

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    try:
        yield at
    finally:
        over.set()
        thread.join()


def latencies(
    spark: SparkSession, folder: Path, seconds: float, settings: dict[str, Any]
) -> tuple[list[float], float]:
    """Return seconds from arrival to publication, of files after the first ones, and batches a second."""
    arriving = folder / "arriving"
    arriving.mkdir(parents=True)
    seen: dict[int, float] = {}
    looked: set[str] = set()
    table = folder / "run" / "tables" / "kept"
    with (
        streaming(folder / "run", trickle(arriving, 1000), spark, interval=0.5, **settings) as stream,
        _feeding(arriving, 0.2) as at,
    ):
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            log = sorted(table.glob("_delta_log/*.json"))[len(looked) :]
            looked |= {path.name for path in log}
            for path in log:
                for line in path.read_text().splitlines():
                    if "add" in (action := json.loads(line)):
                        added = pq.read_table(table / unquote(action["add"]["path"]), columns=["file"])
                        for number in set(added["file"].to_pylist()):
                            seen.setdefault(number, time.perf_counter())
            time.sleep(0.005)
        batches = (stream.batch("kept") or 0) / seconds
    return [seen[n] - at[n] for n in seen if n >= WARM], batches


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args()
    costs: dict[str, list[tuple[float, float]]] = {name: [] for name in (*BARE, *WAYS)}
    with scratch() as folder, spark_session(folder) as spark:
        bare(spark, folder / "warm-up", given.files // 2)
        for number in range(given.rounds):
            here = folder / str(number)
            for at, name in enumerate(BARE):
                with as_spark_writes(spark) if at == 0 else nullcontext():
                    costs[name].append(bare(spark, here / f"bare-{at}", given.files))
            for at, (name, settings) in enumerate(WAYS.items()):
                costs[name].append(ours(spark, here / str(at), given.files, settings))
        show("small batches", [_cost_of(name, found) for name, found in costs.items()])
        rows = []
        for at, (name, settings) in enumerate(WAYS.items()):
            found, batches = latencies(spark, folder / f"latency-{at}", given.seconds, settings)
            rows.append({"run": name, "p50_s": median(found), "p95_s": p95(found), "batches_per_s": batches})
        show("from arrival to publication, a checkpoint every 0.5 s", rows)


def _cost_of(name: str, found: list[tuple[float, float]]) -> dict[str, Any]:
    wall = median([one for one, _ in found])
    return {
        "run": name,
        "batches_per_s": 1e3 / wall,
        "ms_per_batch": wall,
        "least_ms": min(one for one, _ in found),
        "processor_ms_per_batch": median([one for _, one in found]),
    }


if __name__ == "__main__":
    main()
