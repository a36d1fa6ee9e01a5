"""What checkpoints every second cost a stream, and what channels and chains cost against one fused query.

    python -m benchmarks.streaming_throughput [--rows 6000000] [--files 60] [--only WAY ...] [--append | --tables]

The same work by one bare Spark query, by two with Parquet files between them (what Spark itself takes for a channel),
and by stages: with a channel at every boundary, with one channel (in front of the keyed count), and as one chain; each
without checkpoints and with one every second. With ``--append`` nothing is
counted: every row is appended to a table, which the bare query writes with Spark's own file sink, and once more from
``foreachBatch``. Time from the first batch of the source to the commit of the last stage's last row, the ways taking
turns in alternating order, medians over the rounds; and the processor time of that span, which other work distorts
less.
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import as_spark_writes, median, scratch, show, spark_session
from benchmarks.streaming_common import Stream, streaming, wait
from dagster_ckpt import checkpointed_pipeline, spark_sink, spark_source, spark_stage
from tests.progress import processor_seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

    from dagster_ckpt import CheckpointedPipeline

SCHEMA = "id LONG, value LONG"
BARE, BARE_IN_OURS = "bare query", "bare query in our session"
"""The first writes its files as Spark does by itself; the other has our session's settings, as the stages have."""
HOP = "two bare queries in our session, Parquet files between them"
FOR_EACH_BATCH = "bare foreachBatch in our session"
"""As all queries of stages write: the batch is handed on as an RDD and planned a second time."""
STAGED: dict[str, dict[str, Any]] = {
    "two channels": {"operator_chaining": False},
    "two channels, 1 s checkpoints": {"operator_chaining": False, "interval": 1.0},
    "one channel": {"apart": True},
    "one channel, 1 s checkpoints": {"apart": True, "interval": 1.0},
    "chain": {},
    "chain, 1 s checkpoints": {"interval": 1.0},
}
"""Settings of the runs of the staged pipeline; ``apart``: its last stage is a query of its own."""
TABLES: dict[str, dict[str, Any]] = {
    "three tables": {"tables": True},
    "three tables, 1 s checkpoints": {"tables": True, "interval": 1.0},
}
WARM_UP = 2
"""Rounds that do not count: class loading, code generation, the compiler's second thoughts."""
LOOKS_S = 0.05
"""How often a run is asked whether it is through: seldom, for asking is processor time of the measured span."""


def write_input(folder: Path, rows: int, files: int) -> None:
    folder.mkdir(parents=True)
    each = rows // files
    for number in range(files):
        ids = pa.array(range(number * each, (number + 1) * each), pa.int64())
        pq.write_table(pa.table({"id": ids, "value": ids}), folder / f"{number:05d}.parquet")


def source_of(spark: SparkSession, folder: Path, per_batch: int) -> DataFrame:
    return (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", per_batch)
        .option("maxFileAge", "9999d")
        .parquet(str(folder))
    )


def transform(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("id", "value * 2 AS value", "id % 1000 AS key")


def count(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    return frame.groupBy("key").agg(f.count("*").alias("times"), f.sum("value").alias("total"))


def staged(
    folder: Path, per_batch: int, *, apart: bool = False, append: bool = False, tables: bool = False
) -> CheckpointedPipeline:
    @spark_source
    def numbers(spark):  # type: ignore[no-untyped-def]
        return source_of(spark, folder, per_batch)

    @spark_stage
    def doubled(numbers):  # type: ignore[no-untyped-def]
        return transform(numbers)

    @spark_sink(key=["key"], chain=not apart)
    def totals(doubled):  # type: ignore[no-untyped-def]
        return count(doubled)

    @spark_sink(chain=not apart)
    def rows(doubled):  # type: ignore[no-untyped-def]
        return doubled

    @spark_sink
    def second(doubled):  # type: ignore[no-untyped-def]
        return doubled

    @spark_sink
    def third(doubled):  # type: ignore[no-untyped-def]
        return doubled

    @checkpointed_pipeline(name="throughput")
    def pipeline() -> None:
        projected = doubled(numbers())
        for sink in (rows, second, third) if tables else (rows,) if append else (totals,):
            sink(projected)

    return pipeline  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Cost:
    """What one run took."""

    seconds: float
    processor: float


@dataclass
class Meter:
    """Measures a span from its creation."""

    began: float = field(default_factory=time.perf_counter)
    processor: float = field(default_factory=processor_seconds)

    def read(self) -> Cost:
        return Cost(time.perf_counter() - self.began, processor_seconds() - self.processor)


def writer_of(rows: DataFrame, out: Path, *, append: bool, for_each: bool) -> DataStreamWriter:
    """Return how a bare query writes: rows with Spark's own file sink, or what a batch has (changed) as files."""
    if append and not for_each:
        return rows.writeStream.format("parquet").option("path", str(out))
    writer = rows.writeStream if append else count(rows).writeStream.outputMode("update")
    return writer.foreachBatch(lambda frame, n: frame.write.mode("overwrite").parquet(str(out / str(n))))


def run_fused(
    spark: SparkSession,
    data: Path,
    folder: Path,
    batches: int,
    per_batch: int,
    *,
    append: bool = False,
    for_each: bool = False,
    queries: int = 1,
) -> Cost:
    arriving = folder / "bare" / "arriving"
    arriving.mkdir(parents=True)
    rows = transform(source_of(spark, arriving, per_batch))
    running = []
    for number in range(queries):
        writer = writer_of(rows, folder / f"out-{number}", append=append, for_each=for_each)
        running.append(writer.option("checkpointLocation", str(folder / f"fused-{number}")).start())
    wait(lambda: not any(str(one.status["message"]).startswith("Initializing") for one in running))
    meter = Meter()
    for path in sorted(data.iterdir()):
        (arriving / path.name).hardlink_to(path)
    last = [folder / f"fused-{number}" / "commits" / str(batches - 1) for number in range(queries)]
    wait(lambda: all(one.exists() for one in last), every=LOOKS_S)
    cost = meter.read()
    for one in running:
        one.stop()
    return cost


def run_hop(spark: SparkSession, data: Path, folder: Path, batches: int, per_batch: int) -> Cost:
    """Let one bare query write the projected rows to files by Spark's sink, and another one count what is in them."""
    arriving, between = folder / "bare" / "arriving", folder / "between"
    arriving.mkdir(parents=True)
    between.mkdir()
    rows = transform(source_of(spark, arriving, per_batch))
    read = spark.readStream.schema(rows.schema).option("maxFileAge", "9999d").parquet(str(between))
    writers = {"first": writer_of(rows, between, append=True, for_each=False)}
    writers["second"] = writer_of(read, folder / "out", append=False, for_each=True)
    first, second = (
        writer.option("checkpointLocation", str(folder / name)).start() for name, writer in writers.items()
    )
    wait(lambda: not any(str(one.status["message"]).startswith("Initializing") for one in (first, second)))
    meter = Meter()
    for path in sorted(data.iterdir()):
        (arriving / path.name).hardlink_to(path)
    last = folder / "first" / "commits" / str(batches - 1)
    wait(lambda: last.exists() or not first.isActive, every=LOOKS_S)
    second.processAllAvailable()
    cost = meter.read()
    first.stop()
    second.stop()
    return cost


def run_staged(
    spark: SparkSession,
    data: Path,
    folder: Path,
    per_batch: int,
    *,
    apart: bool = False,
    append: bool = False,
    tables: bool = False,
    **settings: Any,
) -> tuple[Cost, Stream]:
    empty = folder / "arriving"
    empty.mkdir(parents=True)
    pipeline = staged(empty, per_batch, apart=apart, append=append, tables=tables)
    with streaming(folder / "run", pipeline, spark, **settings) as stream:
        meter = Meter()
        for path in sorted(data.iterdir()):
            (empty / path.name).hardlink_to(path)
        wait(lambda: is_through(stream, len(list(data.iterdir())), per_batch), stream, every=LOOKS_S)
        cost = meter.read()
    return cost, stream


def is_through(stream: Stream, files: int, per_batch: int) -> bool:
    """Every file is read, and every stage has committed what its input wrote."""
    assert stream.run is not None
    stages = stream.run.stages
    source = next(uid for uid, stage in stages.items() if not stage.worker.inputs)
    if (stream.batch(source) or 0) < -(-files // per_batch) - 1:
        return False
    return all(stage.is_quiet() for stage in stages.values())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=6_000_000)
    parser.add_argument("--files", type=int, default=60)
    parser.add_argument("--per-batch", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=list(STAGED), default=list(STAGED))
    parser.add_argument("--append", action="store_true", help="append every row instead of counting them")
    parser.add_argument("--tables", action="store_true", help="append every row to three tables")
    given = parser.parse_args()
    given.append |= given.tables
    ways = TABLES if given.tables else {name: STAGED[name] for name in given.only}
    bare = (BARE, BARE_IN_OURS, FOR_EACH_BATCH if given.append else HOP)
    costs: dict[str, list[Cost]] = {name: [] for name in (*bare, *ways)}
    checkpoints: dict[str, list[int]] = {name: [] for name in ways}
    batches = -(-given.files // given.per_batch)
    with scratch() as folder, spark_session(folder) as spark:
        data = folder / "data"
        write_input(data, given.rows, given.files)
        for number in range(given.rounds + WARM_UP):
            here = folder / f"round-{number}"
            order = list(costs) if number % 2 == 0 else list(reversed(costs))
            for at, name in enumerate(order):
                place = here / str(at)
                if name == HOP:
                    cost = run_hop(spark, data, place, batches, given.per_batch)
                elif name in bare:
                    with as_spark_writes(spark) if name == BARE else nullcontext():
                        how: dict[str, Any] = {"append": given.append, "for_each": name == FOR_EACH_BATCH}
                        how["queries"] = 3 if given.tables else 1
                        cost = run_fused(spark, data, place, batches, given.per_batch, **how)
                else:
                    cost, stream = run_staged(
                        spark, data, place, given.per_batch, append=given.append, **ways[name]
                    )
                    checkpoints[name].append(len(stream.completions()))
                if number >= WARM_UP:
                    costs[name].append(cost)
    middle = {
        name: (median([c.seconds for c in found]), median([c.processor for c in found]))
        for name, found in costs.items()
    }
    bare_seconds, bare_processor = middle[BARE]
    show(
        "streaming throughput, appended" if given.append else "streaming throughput",
        [
            {
                "run": name,
                "seconds": seconds,
                "rows_per_second": int(given.rows / seconds),
                "of_bare": bare_seconds / seconds,
                "processor_s": processor,
                "of_bare_processor": bare_processor / processor,
                "checkpoints": int(median(checkpoints[name][WARM_UP:])) if name in ways else 0,
            }
            for name, (seconds, processor) in middle.items()
        ],
    )


if __name__ == "__main__":
    main()
