"""What a checkpoint of a keyed count costs. ``python -m benchmarks.capture [--keys 10000 100000 1000000]``

After a first batch that fills the state, each checkpoint follows a batch that changed 1 % of the keys. Sync: pin
the batch and list its files. Async: copy, verify, write the manifest, every file synced to disk. New bytes: file
content that was not in the checkpoint before; the largest are checkpoints after Spark's own snapshot. Written: the
bytes that went to storage, manifest included, with the small files it holds.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.common import (
    Checkpoints,
    changed_keys,
    keyed_count,
    median,
    p95,
    scratch,
    show,
    spark_session,
    start,
    write_keys,
)


def measure(spark: SparkSession, folder: Path, keys: int, checkpoints: int) -> dict[str, Any]:
    write_keys(folder / "in", 0, range(keys))
    query = start(keyed_count(spark, folder / "in"), folder / "stage")
    query.processAllAvailable()
    taker = Checkpoints.at(folder / "storage", folder / "stage")
    uploads, files, written = [], [], []
    try:
        for number in range(1, checkpoints + 1):
            write_keys(folder / "in", number, changed_keys(keys, number))
            query.processAllAvailable()
            plan, upload = taker.take()
            uploads.append(upload)
            files.append(len(plan.files))
            stored = [e.size for e in upload.entries if e.first_checkpoint == number and e.key is not None]
            written.append(sum(stored) + upload.manifest.size)
    finally:
        query.stop()
    new = [u.metrics.bytes_new for u in uploads[1:]]
    return {
        "keys": keys,
        "sync p50 ms": median(taker.sync_ms[1:]),
        "sync p95 ms": p95(taker.sync_ms[1:]),
        "async p50 ms": median(taker.async_ms[1:]),
        "async p95 ms": p95(taker.async_ms[1:]),
        "first async ms": taker.async_ms[0],
        "files": max(files),
        "full kB": uploads[-1].metrics.bytes_full / 1e3,
        "new p50 kB": median(new) / 1e3,
        "new mean kB": sum(new) / len(new) / 1e3,
        "new max kB": max(new) / 1e3,
        "manifest p50 kB": median([u.manifest.size for u in uploads]) / 1e3,
        "written p50 kB": median(written[1:]) / 1e3,
        "written mean kB": sum(written[1:]) / len(written[1:]) / 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--checkpoints", type=int, default=40)
    arguments = parser.parse_args()
    with scratch() as folder, spark_session(folder) as spark:
        rows = [measure(spark, folder / str(keys), keys, arguments.checkpoints) for keys in arguments.keys]
    show("capture of a keyed count, 1 % of the keys changed per checkpoint", rows)


if __name__ == "__main__":
    main()
