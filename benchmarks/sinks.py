"""Rows per second and latency of publishing, sinks against bare Spark writing Parquet: ``python -m benchmarks.sinks``

Each round writes the same micro-batches to every sink in turn: prepared as ``foreachBatch`` does, then published as one
checkpoint's. What is compared is taken round by round, in time and in processor time (this process and its JVM), which
others on the machine change less. ``--versions``: publishes of a hundred rows, staged without Spark, before the last
ones are timed.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from benchmarks.common import PIPELINE, UID, median, scratch, show, spark_session
from dagster_ckpt.core.ids import BatchId, CheckpointId, CoordinatorEpoch
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.sinks import AttemptId, DeltaTable, Sink, SinkContext, SinkTarget, SqlTable
from dagster_ckpt.testing.sinks.run import Staging, stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ATTEMPT = AttemptId("bench", CoordinatorEpoch(1))
Targets = Mapping[str, tuple[SinkTarget, tuple[str, ...]]]


@dataclass(frozen=True)
class Taken:
    """One round of one sink, in seconds."""

    prepare: float
    publish: float
    work: float
    """Processor time of both."""

    @property
    def whole(self) -> float:
        return self.prepare + self.publish


def worked() -> float:
    """Processor time of this process and of Spark's JVM, in seconds."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    fields = Path(f"/proc/{gateway.proc.pid}/stat").read_text().rpartition(")")[2].split()
    return time.process_time() + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def opened(target: SinkTarget, key: tuple[str, ...], folder: Path) -> Sink:
    context = SinkContext(
        pipeline=PIPELINE,
        uid=UID,
        name="table",
        key=key,
        is_complete=False,
        table_dir=folder / "tables",
        work_dir=folder / "work",
        attempt=lambda: ATTEMPT,
    )
    sink: Sink = target.open(context)
    sink.take_over()
    return sink


def permit(number: int) -> CommitPermit:
    return CommitPermit(PIPELINE, ATTEMPT.epoch, CheckpointId(number), object(), lineage=ATTEMPT.lineage)


def targets(folder: Path) -> Targets:
    return {
        "Delta, append": (DeltaTable("delta"), ()),
        "Delta, key": (DeltaTable("delta_keyed"), ("k",)),
        "SQLite, append": (SqlTable(f"sqlite:///{folder}/bench.db", "bench"), ()),
    }


def bare(folder: Path) -> Callable[[DataFrame, int], Taken]:
    def write(frame: DataFrame, number: int) -> Taken:
        began, cost = time.perf_counter(), worked()
        frame.write.parquet(f"{folder}/bare/{number}")
        return Taken(time.perf_counter() - began, 0.0, worked() - cost)

    return write


def through(sink: Sink) -> Callable[[DataFrame, int], Taken]:
    def write(frame: DataFrame, number: int) -> Taken:
        began, cost = time.perf_counter(), worked()
        batch = sink.prepare(frame, BatchId(number))
        sink.flush([batch])
        prepared = time.perf_counter()
        sink.publish([batch], permit(number + 1))
        return Taken(prepared - began, time.perf_counter() - prepared, worked() - cost)

    return write


def rows_of(spark: SparkSession, rows: int, number: int) -> DataFrame:
    """One in ten keys is a new one each time."""
    first = number * rows // 10
    return spark.range(first, first + rows, numPartitions=2).selectExpr(
        "id AS k", "rand() AS v", "concat('customer-', id % 1000) AS s"
    )


def throughput(spark: SparkSession, folder: Path, rows: int, rounds: int) -> list[dict[str, Any]]:
    writers = {"bare Spark": bare(folder)} | {
        name: through(opened(target, key, folder)) for name, (target, key) in targets(folder).items()
    }
    taken: dict[str, list[Taken]] = {name: [] for name in writers}
    for number in range(rounds + 1):
        for name, write in writers.items():
            one = write(rows_of(spark, rows, number), number)
            if number:  # the first round warms up
                taken[name].append(one)
    alone = taken["bare Spark"]
    return [
        {
            "sink": name,
            "rows_per_s": rows / median([one.whole for one in all_of_it]),
            "of_bare": median([b.whole / one.whole for b, one in zip(alone, all_of_it, strict=True)]),
            "of_bare_cpu": median([b.work / one.work for b, one in zip(alone, all_of_it, strict=True)]),
            "prepare_ms": 1000 * median([one.prepare for one in all_of_it]),
            "publish_ms": 1000 * median([one.publish for one in all_of_it]),
        }
        for name, all_of_it in taken.items()
    ]


def latency(folder: Path, versions: int) -> list[dict[str, Any]]:
    """Publish a hundred rows again and again, with sinks taking turns."""
    folder.mkdir()
    rows = pa.table({"k": range(100), "v": [0.5] * 100, "s": ["x"] * 100})
    sinks = {name: opened(target, key, folder) for name, (target, key) in targets(folder).items() if not key}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sinks}
    for number in range(versions):
        for name, sink in sinks.items():
            batch = stage(staging(name, sink, folder), ATTEMPT, number, [rows])
            sink.flush([batch])
            began, cost = time.perf_counter(), time.process_time()
            sink.publish([batch], permit(number + 1))
            took = time.perf_counter() - began, time.process_time() - cost
            times[name].append((1000 * took[0], 1000 * took[1]))
    return [
        {
            "sink": name,
            "publishes": versions,
            "first_20_ms": median([took for took, _ in found[:20]]),
            "last_20_ms": median([took for took, _ in found[-20:]]),
            "last_20_cpu_ms": median([cost for _, cost in found[-20:]]),
        }
        for name, found in times.items()
    ]


def staging(name: str, sink: Sink, folder: Path) -> Staging:
    root = folder / "work" if name.startswith("SQLite") else Path(sink.place)
    below = "staged" if name.startswith("SQLite") else "_dagster_ckpt/staged"
    return Staging(root, root / below / str(ATTEMPT.epoch))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of one micro-batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--versions", type=int, default=1_000)
    given = parser.parse_args()
    with scratch() as folder, spark_session(folder) as spark:
        (folder / "work").mkdir()
        show(f"sinks, {given.rows:,} rows each", throughput(spark, folder, given.rows, given.rounds))
        show("latency of a publish of 100 rows", latency(folder / "latency", given.versions))


if __name__ == "__main__":
    main()
