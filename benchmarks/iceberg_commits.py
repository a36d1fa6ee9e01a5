"""Cost of publishing to an Iceberg table by its number of snapshots: ``python -m benchmarks.iceberg_commits``

CPU milliseconds of this process, so that others on the machine do not count. Commits of a hundred rows, staged without
Spark, in the SQLite catalog; with a key they come back to fifty hundreds of keys.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import pyarrow as pa

from benchmarks.common import median, scratch
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.ext.iceberg.sink import IcebergSink
from dagster_ckpt.sinks import AttemptId, IcebergTable
from dagster_ckpt.testing import Staging
from dagster_ckpt.testing.sinks.run import context_in, stage

ATTEMPT = AttemptId("bench", CoordinatorEpoch(1))


def latencies(folder: Path, key: tuple[str, ...], commits: int, properties: dict[str, str]) -> list[float]:
    context = context_in(folder, ATTEMPT, key=key)
    sink = IcebergSink(IcebergTable("db.orders", properties=properties), context)
    sink.take_over()
    files = sink._staged
    staging = Staging(files.root, files.folder(ATTEMPT.epoch))
    taken = []
    for number in range(commits):
        first = number * 100 if not key else number % 50 * 100
        rows = pa.table({"k": range(first, first + 100), "v": [number] * 100})
        batch = stage(staging, ATTEMPT, number, [rows])
        sink.flush([batch])
        permit = CommitPermit(
            context.pipeline, ATTEMPT.epoch, CheckpointId(number + 1), object(), lineage=ATTEMPT.lineage
        )
        began = time.process_time()
        sink.publish([batch], permit)
        taken.append(1000 * (time.process_time() - began))
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=1000)
    given = parser.parse_args()
    for name, key, properties in (
        ("append", (), {}),
        ("append, manifests not merged", (), {"commit.manifest-merge.enabled": "false"}),
        ("key", ("k",), {}),
    ):
        with scratch() as folder:
            taken = latencies(folder, key, given.commits, properties)
        for at in (10, 100, 300, given.commits):
            if at <= len(taken):
                print(f"{name}: at {at} snapshots {median(taken[max(0, at - 20) : at]):.0f} ms", flush=True)


if __name__ == "__main__":
    main()
