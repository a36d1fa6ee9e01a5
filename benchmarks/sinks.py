"""Rows per second and latency of publishing, sinks against bare Spark writing Parquet: ``python -m benchmarks.sinks``

Each round writes the same micro-batches to every sink in turn: prepared as ``foreachBatch`` does, then published as one
checkpoint's. ``--versions``: publishes of a hundred rows before the last ones are timed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import PIPELINE, UID, median, scratch, show, spark_session
from dagster_ckpt.core.ids import BatchId, CheckpointId, CoordinatorEpoch
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.sinks import AttemptId, DeltaTable, ParquetTable, Sink, SinkContext, SinkTarget, SqlTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ATTEMPT = AttemptId("bench", CoordinatorEpoch(1))
Targets = Mapping[str, tuple[SinkTarget, tuple[str, ...]]]


@dataclass(frozen=True)
class Taken:
    """One round of one sink, in seconds."""

    prepare: float
    publish: float


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
        "Parquet, append": (ParquetTable("append"), ()),
        "Delta, append": (DeltaTable("delta"), ()),
        "Parquet, key": (ParquetTable("keyed"), ("k",)),
        "Delta, key": (DeltaTable("delta_keyed"), ("k",)),
        "SQLite, append": (SqlTable(f"sqlite:///{folder}/bench.db", "bench"), ()),
    }


def bare(folder: Path) -> Callable[[DataFrame, int], Taken]:
    def write(frame: DataFrame, number: int) -> Taken:
        began = time.perf_counter()
        frame.write.parquet(f"{folder}/bare/{number}")
        return Taken(time.perf_counter() - began, 0.0)

    return write


def through(sink: Sink) -> Callable[[DataFrame, int], Taken]:
    def write(frame: DataFrame, number: int) -> Taken:
        began = time.perf_counter()
        batch = sink.prepare(frame, BatchId(number))
        sink.flush([batch])
        prepared = time.perf_counter()
        sink.publish([batch], permit(number + 1))
        return Taken(prepared - began, time.perf_counter() - prepared)

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
    alone = median([one.prepare for one in taken["bare Spark"]])
    return [
        {
            "sink": name,
            "rows_per_s": rows / median([one.prepare + one.publish for one in all_of_it]),
            "of_bare": alone / median([one.prepare + one.publish for one in all_of_it]),
            "prepare_ms": 1000 * median([one.prepare for one in all_of_it]),
            "publish_ms": 1000 * median([one.publish for one in all_of_it]),
        }
        for name, all_of_it in taken.items()
    ]


def latency(spark: SparkSession, folder: Path, versions: int) -> list[dict[str, Any]]:
    found = []
    for name, (target, key) in targets(folder).items():
        if key:
            continue
        sink = opened(target, key, folder / "latency")
        write = through(sink)
        small = rows_of(spark, 100, 0)
        times = [write(small, number).publish * 1000 for number in range(versions)]
        found.append(
            {
                "sink": name,
                "publishes": versions,
                "first_20_ms": median(times[:20]),
                "last_20_ms": median(times[-20:]),
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of one micro-batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--versions", type=int, default=1_000)
    given = parser.parse_args()
    with scratch() as folder, spark_session(folder) as spark:
        (folder / "work").mkdir()
        show(f"sinks, {given.rows:,} rows each", throughput(spark, folder, given.rows, given.rounds))
        show("latency of a publish of 100 rows", latency(spark, folder, given.versions))


if __name__ == "__main__":
    main()
