"""Rows by key into a Delta table, by us and by delta-rs's MERGE: ``python -m benchmarks.delta_upsert``

Medians, in milliseconds of the clock and of all processors, over ``--repeats`` publishes into one table; the first is
left out.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, write_deltalake

from benchmarks.common import scratch, show
from dagster_ckpt.digests import digest_file
from dagster_ckpt.ext.delta.lake import Outside
from dagster_ckpt.ext.delta.upsert import upsert
from dagster_ckpt.ext.tables.staged_files import StagedFiles
from dagster_ckpt.spark.sink.committables import TableFile


def rows_of(keys: np.ndarray) -> pa.Table:
    return pa.table({"k": keys, "v": np.random.rand(len(keys)), "s": [f"customer-{k % 1000}" for k in keys]})


def make(folder: Path, keys: int, files: int) -> None:
    for part in np.array_split(np.arange(keys), files):
        write_deltalake(str(folder), rows_of(part), mode="append")


def staged_in(folder: Path, rows: pa.Table) -> tuple[StagedFiles, TableFile]:
    path = folder / "_staged" / f"{time.time_ns()}.parquet"
    path.parent.mkdir(exist_ok=True)
    pq.write_table(rows, path)
    found = digest_file(path)
    name = f"_staged/{path.name}"
    file = TableFile(
        name=path.name, staged=name, rows=rows.num_rows, bytes=found.size, checksum=found.checksum
    )
    return StagedFiles("t", folder, folder, lambda: (None, "")), file


def ours(folder: Path, rows: pa.Table) -> Callable[[], None]:
    staged, file = staged_in(folder, rows)

    def publish() -> None:
        table = DeltaTable(str(folder))
        Outside.write(table, upsert(table, staged, [file], key=("k",)), CommitProperties())

    return publish


def merge(folder: Path, rows: pa.Table) -> Callable[[], None]:
    staged, file = staged_in(folder, rows)

    def publish() -> None:
        merging = DeltaTable(str(folder)).merge(
            staged.latest_rows([file], ("k",)), "t.k = s.k", "s", "t", streamed_exec=False
        )
        merging.when_matched_update_all().when_not_matched_insert_all().execute()

    return publish


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    found = []
    for n in args.keys:
        m = n // 100
        pieces: dict[str, Callable[[int], np.ndarray]] = {
            "1 % at random": lambda _, n=n, m=m: np.random.choice(n, m, replace=False),  # type: ignore[misc]
            "a range of 1 %": lambda _, n=n, m=m: np.arange(n // 2, n // 2 + m),  # type: ignore[misc]
            "1 % of new keys": lambda i, n=n, m=m: np.arange(n * (i + 2), n * (i + 2) + m),  # type: ignore[misc]
            "all keys": lambda _, n=n: np.arange(n),  # type: ignore[misc]
        }
        for name, keys in pieces.items():
            for by in (ours, merge):
                took, worked = [], []
                with scratch() as folder:
                    make(folder, n, args.files)
                    for i in range(args.repeats + 1):
                        publish = by(folder, rows_of(keys(i)))
                        began, processor = time.perf_counter(), time.process_time()
                        publish()
                        took.append((time.perf_counter() - began) * 1e3)
                        worked.append((time.process_time() - processor) * 1e3)
                row = {"keys": n, "changed": name, "by": by.__name__}
                found.append(
                    row | {"ms": statistics.median(took[1:]), "processor_ms": statistics.median(worked[1:])}
                )
    show("a publish of changed keys", found)


if __name__ == "__main__":
    main()
