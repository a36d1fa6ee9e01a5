"""Upserts into a Delta table: merged, or touched files written again: ``python -m benchmarks.delta_upsert``"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.transaction import AddAction, RemoveAction

from dagster_ckpt.ext.delta.lake import Outside

Upsert = Callable[[str, pa.Table], None]


def rows_of(keys: np.ndarray) -> pa.Table:
    return pa.table({"k": keys, "v": np.random.rand(len(keys)), "s": [f"customer-{k % 1000}" for k in keys]})


def make(uri: str, keys: int, files: int) -> None:
    for part in np.array_split(np.arange(keys), files):
        write_deltalake(uri, rows_of(part), mode="append")


def merged(uri: str, rows: pa.Table) -> None:
    Outside.merge(DeltaTable(uri), rows, "t.k = s.k", CommitProperties())


def written_again(uri: str, rows: pa.Table) -> None:
    table, keys, now = DeltaTable(uri), rows["k"], int(time.time() * 1000)
    actions: list[AddAction | RemoveAction] = []

    def add(part: pa.Table) -> None:
        path = Path(uri) / f"part-{time.time_ns()}.parquet"
        pq.write_table(part, path)
        bounds = pc.min_max(part["k"]).as_py()
        stats = {"minValues": {"k": bounds["min"]}, "maxValues": {"k": bounds["max"]}}
        text = json.dumps({"numRecords": part.num_rows, "nullCount": {"k": 0}} | stats)
        actions.append(AddAction(path.name, path.stat().st_size, {}, now, data_change=True, stats=text))

    bounds = pc.min_max(keys).as_py()
    for file in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        if file["min.k"] > bounds["max"] or file["max.k"] < bounds["min"]:
            continue
        there = pq.read_table(Path(uri) / file["path"])
        hit = pc.is_in(there["k"], value_set=keys.combine_chunks())
        if pc.any(hit).as_py():
            actions.append(RemoveAction(file["path"], True, now, file["size_bytes"], {}))
            if (kept := there.filter(pc.invert(hit))).num_rows:
                add(kept)
    add(rows)
    table.create_write_transaction(actions, "append", table.schema(), [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    n, m = args.keys, args.keys // 100
    pieces: dict[str, Callable[[int], np.ndarray]] = {
        "1 % at random": lambda _: np.random.choice(n, m, replace=False),
        "a range of 1 %": lambda _: np.arange(n // 2, n // 2 + m),
        "1 % of new keys": lambda i: np.arange(n * (i + 2), n * (i + 2) + m),
        "all keys": lambda _: np.arange(n),
    }
    for name, keys in pieces.items():
        for upsert in (merged, written_again):
            taken = []
            with tempfile.TemporaryDirectory() as uri:
                make(uri, n, args.files)
                for i in range(args.repeats):
                    rows = rows_of(keys(i))
                    start = time.perf_counter()
                    upsert(uri, rows)
                    taken.append((time.perf_counter() - start) * 1000)
            print(f"{n:,} keys, {name}, {upsert.__name__}: {statistics.median(taken):.0f} ms")


if __name__ == "__main__":
    main()
