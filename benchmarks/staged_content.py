"""What comparing staged rows with what was staged costs a publish: ``python -m benchmarks.staged_content``

Files as Spark stages them (three columns, Snappy) are written, and compared while the kernel still has them, as right
after a checkpoint; medians of ``--rounds``.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import median, scratch, show
from dagster_ckpt.digests import digest_file
from dagster_ckpt.spark.sink.committables import TableFile
from dagster_ckpt.spark.sink.staged_rows import refuse_changed


def staged(folder: Path, rows: int, number: int) -> tuple[TableFile, Path]:
    """Write one file, and name it as its committable does."""
    dice = random.Random(number)
    columns = {
        "k": [dice.getrandbits(60) for _ in range(rows)],
        "v": [dice.random() for _ in range(rows)],
        "customer": [f"customer-{n % 5000}" for n in range(rows)],
    }
    path = folder / f"{number}.parquet"
    pq.write_table(pa.table(columns), path)
    found = digest_file(path)
    file = TableFile(name=path.name, staged=path.name, rows=rows, bytes=found.size, checksum=found.checksum)
    return file, path


def measure(folder: Path, *, rows: int, files: int, rounds: int) -> dict[str, Any]:
    places = [staged(folder, rows, number) for number in range(files)]
    tables = [pq.read_table(path) for _, path in places]
    took, worked, written = [], [], []
    for _ in range(rounds):
        processor = time.process_time()
        for (_, path), table in zip(places, tables, strict=True):
            pq.write_table(table, path.with_suffix(".again"))
        written.append((time.process_time() - processor) * 1e3)
        began, processor = time.perf_counter(), time.process_time()
        refuse_changed(places)
        worked.append((time.process_time() - processor) * 1e3)
        took.append((time.perf_counter() - began) * 1e3)
    return {
        "files": files,
        "MB": sum(file.bytes for file, _ in places) / 1e6,
        "compare_processor_ms": median(worked),
        "compare_ms": median(took),
        "arrow_writes_processor_ms": median(written),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="*", default=[1_000, 500_000])
    parser.add_argument("--files", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    results = []
    with scratch() as folder:
        for rows in given.rows:
            (folder / str(rows)).mkdir()
            results.append(measure(folder / str(rows), rows=rows, files=given.files, rounds=given.rounds))
    show("staged files compared by size and checksum", results)


if __name__ == "__main__":
    main()
