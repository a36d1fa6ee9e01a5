"""Restore to first batch, against a bare Spark restart. ``python -m benchmarks.restore [--keys 10000 1000000]``

Bare: the query is started on its own checkpoint directory, as after a crash (a fresh copy of it, made before the
clock starts, so that no state store is loaded yet). Restored: the directory is first built from a checkpoint, by
hard links, or by copies from another file system. Each then processes the same one new input file.
"""

from __future__ import annotations

import argparse
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.common import (
    Checkpoints,
    changed_keys,
    keyed_count,
    median,
    scratch,
    show,
    spark_session,
    start,
    write_keys,
)
from dagster_ckpt.adapters.fsspec_storage import Durability
from dagster_ckpt.spark.snapshot.restore import build_stage_directory
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot

BATCHES = 12
ELSEWHERE = Path("/dev/shm")


def first_batch(spark: SparkSession, folder: Path, stage_dir: Path) -> float:
    """Return the milliseconds from start to the end of the first batch."""
    began = time.perf_counter()
    query = start(keyed_count(spark, folder / "in"), stage_dir)
    try:
        query.processAllAvailable()
        return (time.perf_counter() - began) * 1e3
    finally:
        query.stop()


def build(source: StoredSnapshot, target: Path) -> float:
    began = time.perf_counter()
    build_stage_directory(
        source, source.metadata.stages[0], target_dir=target, new_query_id=str(uuid.uuid4())
    )
    return (time.perf_counter() - began) * 1e3


def measure(spark: SparkSession, folder: Path, elsewhere: Path, keys: int, repeats: int) -> dict[str, Any]:
    write_keys(folder / "in", 0, range(keys))
    query = start(keyed_count(spark, folder / "in"), folder / "stage")
    for number in range(1, BATCHES):
        write_keys(folder / "in", number, changed_keys(keys, number))
        query.processAllAvailable()
    time.sleep(12)  # let maintenance upload a snapshot, as in a query that has run for a while
    query.stop()
    linked = _checkpoint(folder / "storage", folder / "stage")
    copied = _checkpoint(elsewhere, folder / "stage")
    write_keys(folder / "in", BATCHES, changed_keys(keys, BATCHES))
    times: dict[str, list[float]] = {name: [] for name in ("bare", "link", "copy", "link only", "copy only")}

    def bare(target: Path) -> float:
        shutil.copytree(folder / "stage", target)
        return 0.0

    ways: dict[str, Callable[[Path], float]] = {
        "bare": bare,
        "link": lambda target: build(linked, target),
        "copy": lambda target: build(copied, target),
    }
    for turn in range(repeats + 1):
        for name, prepare in ways.items():
            target = folder / f"run-{name}-{turn}"
            prepared = prepare(target)
            total = prepared + first_batch(spark, folder, target)
            if turn:  # the first turn warms the JVM up
                times[name].append(total)
                if name != "bare":
                    times[f"{name} only"].append(prepared)
    took = {name: median(values) for name, values in times.items()}
    return {
        "keys": keys,
        "bare restart ms": took["bare"],
        "restored by links ms": took["link"],
        "restored by copies ms": took["copy"],
        "links alone ms": took["link only"],
        "copies alone ms": took["copy only"],
        "over bare ms": took["link"] - took["bare"],
    }


def _checkpoint(storage: Path, stage_dir: Path) -> StoredSnapshot:
    taker = Checkpoints.at(storage, stage_dir, Durability.PROCESS_CRASH)
    return taker.complete(*taker.take())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    other = ELSEWHERE / f"dagster-ckpt-bench-{uuid.uuid4().hex[:8]}"
    try:
        with scratch() as folder, spark_session(folder) as spark:
            rows = [
                measure(spark, folder / str(keys), other / str(keys), keys, arguments.repeats)
                for keys in arguments.keys
            ]
    finally:
        shutil.rmtree(other, ignore_errors=True)
    show("restore to first batch", rows)


if __name__ == "__main__":
    main()
