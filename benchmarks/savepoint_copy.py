"""A savepoint against ``cp -r`` of the same files. ``python -m benchmarks.savepoint_copy [--megabytes 512]``

Interleaved in one run, in another order each time, all files in the page cache, each copy into a new folder of
the same file system; the best of the repeats counts, for writeback of other work disturbs the rest. ``cp``
neither checks nor syncs what it copies, so it is compared with a savepoint that leaves content to the operating
system's cache, and ``cp`` followed by ``sync`` with one that survives a power loss (the default).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.common import PIPELINE, UID, scratch, show
from dagster_ckpt.adapters.fsspec_storage import Durability, FsspecCheckpointStorage
from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.model import FileKind
from dagster_ckpt.spark.snapshot.state_files import PlannedFile
from dagster_ckpt.spark.snapshot.upload import UploadMode, upload_stage

SHAPES = {
    "large files": (8, 64_000_000),
    "RocksDB's files": (4_000_000, 64_000),
    "small files": (24_000, 4_000),
}
"""Largest and smallest file in bytes."""


def write_files(stage_dir: Path, total: int, largest: int, smallest: int) -> list[PlannedFile]:
    """Write files that together hold ``total`` bytes of noise."""
    random = Random(1)
    block = random.randbytes(1 << 20)
    files: list[PlannedFile] = []
    while total > 0:
        size = min(total, random.randint(smallest, largest))
        path = f"query/state/0/{len(files) % 8}/SSTs/{len(files):06d}.sst"
        target = stage_dir / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            for at in range(0, size, len(block)):
                file.write(block[: min(len(block), size - at)])
        files.append(PlannedFile(path=path, size=size, kind=FileKind.STATE_SST, content_named=True))
        total -= size
    os.sync()
    return files


def timed(work: Callable[[], object], target: Path) -> float:
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    shutil.rmtree(target)
    os.sync()
    return seconds


def measure(folder: Path, shape: str, total: int, repeats: int) -> dict[str, Any]:
    smallest, largest = sorted(SHAPES[shape])
    stage_dir = folder / "stage"
    files = write_files(stage_dir, total, largest, max(smallest, 8_000_000) if largest > 10**7 else smallest)
    target = folder / "copy"

    def savepoint(durability: Durability) -> Callable[[], object]:
        return lambda: upload_stage(
            files=files,
            stage_dir=stage_dir,
            storage=FsspecCheckpointStorage(target.as_uri(), durability=durability),
            pipeline=PIPELINE,
            uid=UID,
            checkpoint_id=CheckpointId(1),
            folder="savepoint-bench-000001",
            mode=UploadMode.SELF_CONTAINED,
            parallelism=4,
        )

    def cp() -> None:
        subprocess.run(["cp", "-r", stage_dir, target], check=True)

    def cp_and_sync() -> None:
        cp()
        subprocess.run(["sync", "-f", target], check=True)

    ways: dict[str, Callable[[], object]] = {
        "cp": cp,
        "cached": savepoint(Durability.PROCESS_CRASH),
        "cp+sync": cp_and_sync,
        "durable": savepoint(Durability.POWER_LOSS),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for turn in range(repeats):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            seconds[name].append(timed(ways[name], target))
    shutil.rmtree(stage_dir)
    took = {name: min(values) for name, values in seconds.items()}
    written = sum(f.size for f in files)
    return {
        "shape": shape,
        "files": len(files),
        "MB": written / 1e6,
        "cp MB/s": written / took["cp"] / 1e6,
        "savepoint MB/s": written / took["cached"] / 1e6,
        "ratio": took["cp"] / took["cached"],
        "cp+sync MB/s": written / took["cp+sync"] / 1e6,
        "durable MB/s": written / took["durable"] / 1e6,
        "durable ratio": took["cp+sync"] / took["durable"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=8)
    arguments = parser.parse_args()
    rows = []
    for shape in SHAPES:
        share = arguments.megabytes * 1_000_000 // (16 if shape == "small files" else 1)
        with scratch() as folder:
            rows.append(measure(folder, shape, share, arguments.repeats))
    show("savepoint against cp -r", rows)


if __name__ == "__main__":
    main()
