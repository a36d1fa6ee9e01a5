"""Checkpoints while rows flow at full speed: how long from trigger to completion, by keys, stages and alignment.

    python -m benchmarks.streaming_cuts [--keys 10000 100000 1000000] [--stages 2 6] [--checkpoints 30]

A source that never runs dry, projections, and a keyed count into a table: every stage works all the time. ``one chain``
is what a stream does by default; the other ways give each stage a query of its own. Then the last checkpoint is
restored in the same session: from the order to the first batch of the last stage. ``bare Spark`` is as many queries
that hand on their rows in folders of Parquet files, stopped and started again.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import median, p95, scratch, show, spark_session
from benchmarks.streaming_common import Stream, streaming, wait
from dagster_ckpt import checkpointed_pipeline, spark_sink, spark_source, spark_stage
from tests.progress import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from dagster_ckpt import CheckpointedPipeline
    from dagster_ckpt.core.request import Completed

WAYS: dict[str, dict[str, Any]] = {
    "one chain": {},
    "instant": {"operator_chaining": False},
    "unaligned": {"operator_chaining": False, "instant_cuts": False, "unaligned": True},
    "aligned": {"operator_chaining": False, "instant_cuts": False},
}
"""Settings of the ways, by name."""
BARE = "bare Spark"
PAUSE = 0.25
ROWS_PER_BATCH = 20_000


def flowing(stages: int, keys: int, rows_per_batch: int) -> CheckpointedPipeline:
    """A pipeline of so many stages in a row, the last one with the state."""

    @spark_source
    def numbers(spark):  # type: ignore[no-untyped-def]
        reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows_per_batch)
        return reader.load().selectExpr("value")

    def step(number: int) -> Any:
        @spark_stage(uid=f"step_{number}")
        def stage(rows):  # type: ignore[no-untyped-def]
            return rows.selectExpr("value + 1 AS value")

        return stage

    @spark_sink(key=["key"])
    def totals(rows):  # type: ignore[no-untyped-def]
        return rows.selectExpr(f"pmod(value, {keys}) AS key").groupBy("key").count()

    @checkpointed_pipeline(name="flowing")
    def pipeline() -> None:
        rows = numbers()
        for number in range(stages - 2):
            rows = step(number)(rows)
        totals(rows)

    return pipeline  # type: ignore[no-any-return]


def measure(
    folder: Path, spark: SparkSession, way: str, *, stages: int, keys: int, checkpoints: int
) -> dict[str, Any]:
    rows_per_batch = max(ROWS_PER_BATCH, keys // 5)
    pipeline = flowing(stages, keys, rows_per_batch)
    with streaming(folder, pipeline, spark, **WAYS[way]) as stream:
        sees_every_key = -(-keys // rows_per_batch) + 3
        wait(lambda: (stream.batch("totals") or 0) >= sees_every_key, stream)
        taken = [_one(stream) for _ in range(checkpoints + 2)][2:]
    last = taken[-1].metadata
    [cut] = [stage.batch_id or 0 for stage in last.stages if stage.uid == "totals"]
    began = time.perf_counter()
    with streaming(folder, pipeline, spark, restore_from=f"chk-{last.checkpoint_id}", **WAYS[way]) as stream:
        wait(lambda: (stream.batch("totals") or 0) > cut, stream)
        restored = time.perf_counter() - began
    times = [(done.metadata.completed_at - done.metadata.triggered_at) * 1e3 for done in taken]
    return {
        "way": way,
        "stages": stages,
        "keys": keys,
        "least_ms": min(times),
        "median_ms": median(times),
        "p95_ms": p95(times),
        "restored_s": restored,
        "in_flight_kB": median([_in_flight(done) for done in taken]) / 1e3,
    }


def measure_bare(folder: Path, spark: SparkSession, *, stages: int, keys: int) -> dict[str, Any]:
    def start() -> list[StreamingQuery]:
        reader = spark.readStream.format("rate-micro-batch").option(
            "rowsPerBatch", max(ROWS_PER_BATCH, keys // 5)
        )
        rows, queries = reader.load().selectExpr("value"), []
        for number in range(stages - 1):
            files = str(folder / f"rows-{number}")
            writer = rows.writeStream.option("checkpointLocation", str(folder / f"query-{number}"))
            queries.append(writer.format("parquet").start(files))
            rows = spark.readStream.schema("value LONG").parquet(files).selectExpr("value + 1 AS value")
        counted = rows.selectExpr(f"pmod(value, {keys}) AS key").groupBy("key").count()
        writer = counted.writeStream.option("checkpointLocation", str(folder / "query-last"))
        return [*queries, writer.outputMode("update").format("noop").start()]

    def batch(query: StreamingQuery) -> int:
        return int((query.lastProgress or {"batchId": -1})["batchId"])

    def run(after: int) -> tuple[float, int]:
        began, queries = time.perf_counter(), start()
        wait_until(
            lambda: batch(queries[-1]) > after,
            "a batch of the last query",
            moves=lambda: list(map(batch, queries)),
        )
        took, last = time.perf_counter() - began, batch(queries[-1])
        for query in queries:
            query.stop()
        return took, last

    _, last = run(3)
    return {"way": BARE, "stages": stages, "keys": keys, "restored_s": run(last + 1)[0]}


def _one(stream: Stream) -> Completed:
    time.sleep(PAUSE)
    return stream.checkpoint()


def _in_flight(done: Completed) -> int:
    return sum(stage.metrics.persisted_in_flight for stage in done.metadata.stages)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--stages", type=int, nargs="*", default=[2, 6])
    parser.add_argument("--checkpoints", type=int, default=30)
    parser.add_argument("--ways", nargs="*", choices=[*WAYS, BARE], default=list(WAYS))
    given = parser.parse_args()
    rows = []
    with scratch() as folder, spark_session(folder) as spark:
        measure(folder / "warm-up", spark, "unaligned", stages=2, keys=1000, checkpoints=2)
        for keys in given.keys:
            for stages in given.stages:
                for way in given.ways:
                    here = folder / f"{keys}-{stages}-{way.replace(' ', '-')}"
                    if way == BARE:
                        rows.append(measure_bare(here, spark, stages=stages, keys=keys))
                    else:
                        many = given.checkpoints
                        rows.append(measure(here, spark, way, stages=stages, keys=keys, checkpoints=many))
                    print(rows[-1], flush=True)
    show("checkpoints while rows flow", rows)


if __name__ == "__main__":
    main()
