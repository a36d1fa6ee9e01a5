"""What ``attach`` costs a program: processor time with a checkpoint a second, and how long a checkpoint takes.

    python -m benchmarks.attach [--rows 2000000] [--files 40] [--rounds 3] [--queries 1 4 16] [--checkpoints 20]

The program is bare Spark: a keyed count of files, two columns wide, into a sink that keeps nothing. It runs in one
session, attached and not in alternating order; the ratio is that of the medians of processor time. Checkpoints of
1, 4 and 16 such queries, which have drained their files, are timed from trigger to completion: a new file arrives
before each. With ``--memory`` only: resident size of the program's Python and of its Java, attached and not, each in a
process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common import median, p95, scratch, show, spark_session
from benchmarks.streaming_throughput import Cost, Meter, count, source_of, transform, write_input
from dagster_ckpt import attach
from dagster_ckpt.adapters.fsspec_storage import open_storage
from dagster_ckpt.runtime.stored import read_metadata

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter

    from dagster_ckpt.ext.attach.attachment import Attachment

WARM_UP = 2


def query(spark: SparkSession, data: Path, place: Path) -> DataStreamWriter:
    counts = count(transform(source_of(spark, data, 1)))
    writer = counts.writeStream.outputMode("update").format("noop").queryName(place.name)
    return writer.option("checkpointLocation", str(place))


@contextmanager
def attached_to(folder: Path, interval: str, *, is_attached: bool = True) -> Iterator[Attachment | None]:
    if not is_attached:
        yield None
        return
    attached = attach("benchmark", base_dir=str(folder / "ckpt"), interval=interval)
    try:
        yield attached
    finally:
        attached.detach()


def run(spark: SparkSession, data: Path, folder: Path, *, is_attached: bool) -> Cost:
    """Process all files; the span ends before the last checkpoint of a program, which is one and not many."""
    with attached_to(folder, "1 s", is_attached=is_attached):
        meter = Meter()
        query(spark, data, folder / "counts").trigger(availableNow=True).start().awaitTermination()
        return meter.read()


def costs(spark: SparkSession, folder: Path, options: argparse.Namespace) -> None:
    data = folder / "in"
    write_input(data, options.rows, options.files)
    taken: dict[bool, list[Cost]] = {False: [], True: []}
    for number in range(WARM_UP + options.rounds):
        for is_attached in (False, True) if number % 2 else (True, False):
            cost = run(spark, data, folder / f"{number}-{is_attached}", is_attached=is_attached)
            if number >= WARM_UP:
                taken[is_attached].append(cost)
    bare, ours = (median([cost.processor for cost in taken[key]]) for key in (False, True))
    rows = [
        {
            "program": "attached, 1 s checkpoints" if key else "as it is",
            "seconds": median([cost.seconds for cost in taken[key]]),
            "processor s": median([cost.processor for cost in taken[key]]),
            "of as it is": bare / ours if key else 1.0,
        }
        for key in taken
    ]
    show("the program", rows)


def durations(
    spark: SparkSession, folder: Path, queries: int, checkpoints: int
) -> tuple[list[float], list[float]]:
    """Milliseconds from trigger to completion, and of this process's processor time, in which no query is."""
    data = folder / "in"
    write_input(data, 1000, 1)
    found, used = [], []
    with attached_to(folder, "1 h") as attached:
        assert attached is not None
        running = [query(spark, data, folder / f"q{number}").start() for number in range(queries)]
        for number in range(checkpoints):
            write_input(folder / f"more-{number}", 1000, 1)
            (folder / f"more-{number}" / "00000.parquet").replace(data / f"more-{number}.parquet")
            for one in running:
                one.processAllAvailable()
            time.sleep(0.1)
            began = time.process_time()
            uri = attached.checkpoint()
            used.append((time.process_time() - began) * 1e3)
            base, _, key = uri.rpartition("/")
            metadata = read_metadata(open_storage(base), key)
            found.append((metadata.completed_at - metadata.triggered_at) * 1e3)
        for one in running:
            one.stop()
    return found, used


MEMORY = """
import os, sys
from pathlib import Path

if {attached}:
    import dagster_ckpt

    dagster_ckpt.attach("memory", base_dir={base!r}, interval="1 s")
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "1g")
spark = builder.config("spark.ui.enabled", "false").config("spark.log.level", "OFF").getOrCreate()
spark.conf.set("spark.sql.shuffle.partitions", "2")
reader = spark.readStream.schema("id long, value long").option("maxFilesPerTrigger", 1)
counts = reader.parquet({data!r}).selectExpr("id % 1000 AS key").groupBy("key").count().writeStream
counts = counts.outputMode("update").format("noop").option("checkpointLocation", {place!r}).queryName("counts")
counts.start().processAllAvailable()


def resident(process):
    return int((process / "status").read_text().partition("VmRSS:")[2].split()[0]) / 1024


mine = Path("/proc/self")
[java] = [
    one.parent
    for one in Path("/proc").glob("[0-9]*/comm")
    if one.read_text() == "java\\n" and f"PPid:\\t{{os.getpid()}}\\n" in (one.parent / "status").read_text()
]
print("MB", resident(mine), resident(java))
"""
"""A program of its own, which imports nothing of ours where it is not attached."""


def memory(folder: Path, rounds: int) -> None:
    rows = []
    for word in ("", "attached"):
        found = []
        for number in range(rounds):
            here = folder / f"{word or 'bare'}-{number}"
            write_input(here / "in", 200_000, 100)
            places = {name: str(here / name) for name in ("base", "place")}
            code = MEMORY.format(attached=bool(word), data=str(here / "in"), **places)
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            found.append([float(one) for one in done.stdout.partition("MB ")[2].split()])
        python, java = (median([one[at] for one in found]) for at in (0, 1))
        rows.append({"program": word or "as it is", "Python MB": python, "Java MB": java})
    show("resident size", rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--files", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--queries", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--checkpoints", type=int, default=20)
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args()
    if options.memory:
        with scratch() as folder:
            memory(folder, max(1, options.rounds))
        return
    with scratch() as folder, spark_session(folder) as spark:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        if options.rounds:
            costs(spark, folder / "program", options)
        rows = []
        for queries in options.queries:
            taken, used = durations(spark, folder / f"of-{queries}", queries, options.checkpoints)
            told = {"checkpoint ms": median(taken), "p95 ms": p95(taken), "processor ms": median(used)}
            rows.append({"queries": queries, **told})
        show("a checkpoint", rows)


if __name__ == "__main__":
    main()
