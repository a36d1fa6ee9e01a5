"""Processor time of publishing a keyed Parquet table once a checkpoint: ``python -m benchmarks.keyed_publish``

No Spark: micro-batches are staged as it stages them, so many files each, and published. Every key is in every batch,
as in a running count; medians of ``--publishes``, the first two left out.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from benchmarks.common import PIPELINE, median, scratch, show
from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.spark.table.log import create_table
from dagster_ckpt.spark.table.records import Upsert
from tests.spark.table.tables import permit, prepare, publish_through


def measure(folder: Path, *, keys: int, batches: int, files: int, publishes: int) -> dict[str, Any]:
    table = create_table(str(folder / "table"), pipeline=PIPELINE, mode=Upsert(keys=("k",)))
    worked, took = [], []
    for number in range(1, publishes + 3):
        first = (number - 1) * batches
        for batch in range(first, first + batches):
            prepare(
                table,
                folder / "stage",
                batch,
                [[(k, batch) for k in range(n, keys, files)] for n in range(files)],
            )
        began, processor = time.perf_counter(), time.process_time()
        publish_through(
            table, folder / "stage", BatchId(first + batches - 1), permit(number, pipeline=PIPELINE)
        )
        worked.append((time.process_time() - processor) * 1e3)
        took.append((time.perf_counter() - began) * 1e3)
    return {
        "keys": keys,
        "processor_ms": median(worked[2:]),
        "ms": median(took[2:]),
        "least_ms": min(took[2:]),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, nargs="*", default=[1_000, 100_000])
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--publishes", type=int, default=20)
    given = parser.parse_args()
    how = {"batches": given.batches, "files": given.files, "publishes": given.publishes}
    with scratch() as folder:
        rows = [measure(folder / str(keys), keys=keys, **how) for keys in given.keys]
    show(f"a publish of {given.batches} micro-batches of {given.files} files, by key", rows)


if __name__ == "__main__":
    main()
