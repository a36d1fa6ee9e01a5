"""Processor time of publishing a keyed table once a checkpoint: ``python -m benchmarks.keyed_publish``

No Spark: micro-batches are staged as it stages them, so many files each, and published. ``all``: every key is in every
micro-batch, as in a running count; ``some``: one key in a hundred is, at random; ``new``: so many that never were
there. Medians of ``--publishes``, the first two left out; ``cpu_ms``: user and system time of this process.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.common import median, scratch, show
from benchmarks.sinks import ATTEMPT, opened, permit, staging
from dagster_ckpt.sinks import DeltaTable, SinkTarget
from dagster_ckpt.testing.sinks.run import stage

DEFAULT = DeltaTable()
SHARES = ("all", "some", "new")


def keys_of(share: str, keys: int, batch: int) -> np.ndarray[Any, Any]:
    few = keys // 100
    match share:
        case "all":
            return np.arange(keys)
        case "some":
            return np.random.default_rng(batch).choice(keys, few, replace=False)
        case _:
            return np.arange(keys + batch * few, keys + (batch + 1) * few)


def measure(
    target: SinkTarget, folder: Path, *, share: str, keys: int, batches: int, files: int, publishes: int
) -> dict[str, Any]:
    sink = opened(target, ("k",), folder)
    worked, took = [], []
    number = 0
    for publish in range(publishes + 3):
        staged = []
        for _ in range(batches if publish else 1):
            found = keys_of(share if publish else "all", keys, number)
            rows = [
                pa.table({"k": part, "v": np.full(len(part), number)})
                for part in np.array_split(found, files)
            ]
            staged.append(stage(staging("Delta", sink, folder), ATTEMPT, number, rows))
            number += 1
        began, processor = time.perf_counter(), time.process_time()
        sink.publish(staged, permit(publish + 1))
        worked.append((time.process_time() - processor) * 1e3)
        took.append((time.perf_counter() - began) * 1e3)
    return {
        "share": share,
        "keys": keys,
        "cpu_ms": median(worked[3:]),
        "ms": median(took[3:]),
        "least_ms": min(took[3:]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, nargs="*", default=[1_000, 100_000])
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--publishes", type=int, default=15)
    given = parser.parse_args()
    how = {"batches": given.batches, "files": given.files, "publishes": given.publishes}
    with scratch() as folder:
        rows = [
            measure(DEFAULT, folder / f"{share}-{keys}", share=share, keys=keys, **how)
            for keys in given.keys
            for share in SHARES
        ]
    show(f"a publish of {given.batches} micro-batches of {given.files} files, by key", rows)


if __name__ == "__main__":
    main()
