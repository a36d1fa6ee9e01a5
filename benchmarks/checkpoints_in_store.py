"""Checkpoints as rows of the coordinator store, and in a folder: ``python -m benchmarks.checkpoints_in_store``

Stores a checkpoint's files on eight threads, as an upload does, brings them back verified, deletes the one before,
and tells the medians over the checkpoints; and how large the SQLite file became.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from dagster_ckpt.adapters.fsspec_storage import open_storage
from dagster_ckpt.adapters.sql_store import SqlCoordinatorStore
from dagster_ckpt.core.paths import Digest
from dagster_ckpt.ports import CheckpointStorage
from tests.adapters.servers import ServerMissing, postgres_cluster

THREADS = 8
SHAPES = {
    "64 files of 4 KiB": (64, 4 * 1024),
    "16 files of 256 KiB": (16, 256 * 1024),
    "8 of 4 MiB": (8, 4 * 2**20),
}


def milliseconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return (time.perf_counter() - begun) * 1000


def measure(
    storage: CheckpointStorage, folder: Path, files: int, size: int, repeats: int
) -> dict[str, float]:
    """Return the median milliseconds of each step."""
    sources = [folder / f"source-{n}" for n in range(files)]
    for source in sources:
        source.write_bytes(os.urandom(size))
    times: dict[str, list[float]] = {"store": [], "fetch": [], "delete": []}
    digests: dict[str, Digest] = {}

    def put(item: tuple[str, Path]) -> None:
        made = storage.create(*item)
        assert isinstance(made, Digest)
        digests[item[0]] = made

    with ThreadPoolExecutor(THREADS) as pool:
        for turn in range(repeats):
            keys = [f"p{size}/chk-{turn}/{n}" for n in range(files)]
            old = [key.replace(f"chk-{turn}", f"chk-{turn - 1}") for key in keys]
            work = list(zip(keys, sources, strict=True))
            times["store"].append(milliseconds(lambda work=work: list(pool.map(put, work))))
            fetch = [(key, folder / f"target-{n}", digests[key]) for n, key in enumerate(keys)]
            times["fetch"].append(
                milliseconds(lambda fetch=fetch: list(pool.map(lambda f: storage.fetch(*f), fetch)))
            )
            times["delete"].append(milliseconds(lambda old=old: storage.delete(old)))
    return {step: round(statistics.median(found), 1) for step, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    repeats = parser.parse_args().repeats
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = folder / "db" / "store.db"
        storages: dict[str, CheckpointStorage] = {
            "folder": open_storage(str(folder / "checkpoints")),
            "sqlite": SqlCoordinatorStore(f"sqlite:///{database}").checkpoint_storage(),
        }
        try:
            cluster = stack.enter_context(postgres_cluster())
            storages["postgresql"] = SqlCoordinatorStore(cluster.new_database()).checkpoint_storage()
        except ServerMissing as missing:
            print(f"PostgreSQL is left out: {missing}")
        results = {
            shape: {name: measure(storage, folder, *numbers, repeats) for name, storage in storages.items()}
            for shape, numbers in SHAPES.items()
        }
        written = repeats * sum(files * size for files, size in SHAPES.values())
        grown = sum(path.stat().st_size for path in database.parent.iterdir())
    for shape, found in results.items():
        for name, figures in found.items():
            print(f"{shape:<22}{name:<12}" + "".join(f"{step} {ms:>8} ms   " for step, ms in figures.items()))
    print(f"SQLite's files: {grown / 2**20:.0f} MiB after {written / 2**20:.0f} MiB were written")
    print(
        json.dumps({"repeats": repeats, "results": results, "sqlite_bytes": grown, "written_bytes": written})
    )


if __name__ == "__main__":
    main()
