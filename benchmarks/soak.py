"""Streams for minutes with checkpoints every second, under kills and storage faults; then compares with the truth.

    python -m benchmarks.soak [--minutes 10] [--seed N] [--mode instant|aligned|unaligned|aligned_with_timeout]
    python -m benchmarks.soak [--minutes 10] [--seed N] --cluster

One source, two paths of different speed, a stage where they meet, two tables. While rows arrive the run's process is
killed (SIGKILL), terminated (SIGTERM), one of its queries is stopped, its checkpoint storage refuses or hangs. Nothing
may be lost or doubled, at any moment. On a cluster other things break: ``soak_cluster``.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

from benchmarks.common import scratch, spark_session
from benchmarks.soak_common import Soak
from benchmarks.streaming_common import service
from dagster_ckpt.core.paths import AlreadyExists, Digest, StoredObject
from dagster_ckpt.errors import Unavailable
from dagster_ckpt.ports import CheckpointStorage
from tests.adapters.servers import ServerMissing
from tests.progress import exit_code, wait_until
from tests.spark.streaming.pipelines import (
    Numbers,
    diamond,
    expected_rows,
    expected_totals,
    read_rows,
    read_totals,
)

MODES = {
    "instant": {"unaligned": True},
    "aligned": {"instant_cuts": False},
    "unaligned": {"instant_cuts": False, "unaligned": True},
    "aligned_with_timeout": {"instant_cuts": False, "unaligned": True, "aligned_checkpoint_timeout": 0.3},
}
STAGES = ("numbers", "fast", "slow", "met", "rows", "totals")


class FaultyByFile:
    """Refuses or hangs while a file says so."""

    def __init__(self, inner: CheckpointStorage, folder: Path) -> None:
        self.inner, self.base_uri, self._folder = inner, inner.base_uri, folder

    def create(self, key: str, source: bytes | Path) -> Digest | AlreadyExists:
        while (self._folder / "hang").exists():
            time.sleep(0.05)
        if (self._folder / "full").exists():
            raise Unavailable(f"{key}: no space left on device")
        return self.inner.create(key, source)

    def read(self, key: str) -> bytes:
        return self.inner.read(key)

    def fetch(self, key: str, target: Path, expected: Digest) -> None:
        self.inner.fetch(key, target, expected)

    def list(self, prefix: str) -> Iterable[StoredObject]:
        return self.inner.list(prefix)

    def delete(self, keys: Sequence[str]) -> None:
        self.inner.delete(keys)


# --- the process that streams -----------------------------------------------------------------------------------


def child(folder: Path, mode: str) -> int:
    with spark_session(folder / f"spark-{os.getpid()}", **{"spark.sql.shuffle.partitions": "2"}) as spark:
        stream = service(
            folder,
            diamond(folder / "numbers"),
            spark,
            owner=f"soak-{os.getpid()}",
            storage=lambda inner: FaultyByFile(inner, folder),
            interval=1.0,
            timeout=10.0,
            **MODES[mode],
        )
        signal.signal(signal.SIGTERM, lambda *_: stream.service.stopping.set())
        threading.Thread(target=_obey, args=(folder, stream.service), daemon=True).start()
        end = stream.service.run()
        print(f"ended: {end}", flush=True)
    return 0


def _obey(folder: Path, streaming: object) -> None:
    while True:
        time.sleep(0.1)
        order = folder / "stop-query"
        current = getattr(streaming, "current", None)
        if order.exists() and current is not None and current.is_started.is_set():
            uid = order.read_text()
            order.unlink()
            query = current.stages[uid].query
            if query is not None:
                query.stop()


# --- the one that feeds, breaks and compares ----------------------------------------------------------------------


class LocalSoak(Soak):
    faults = ("kill", "terminate", "query", "full", "hang")
    tables: ClassVar = {"rows": "append", "totals": "keyed"}

    def __init__(self, folder: Path, mode: str, dice: random.Random) -> None:
        super().__init__(dice, folder)
        self.mode = mode
        self.numbers = Numbers(folder / "numbers")
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with (self.folder / "child.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "benchmarks.soak", "--child", str(self.folder), "--mode", self.mode],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def fed(self) -> int:
        return self.numbers.count

    def feed(self) -> None:
        before, rows = self.numbers.count, self.dice.randint(1, 20)
        totals = [(key, *value) for key, value in expected_totals(before + rows).items()]
        self.recorder.write(
            {"rows": (expected_rows(before + rows) - expected_rows(before)).elements(), "totals": totals}
        )
        self.numbers.put(rows)

    def fault(self, name: str) -> None:
        match name:
            case "kill":
                self.process.kill()
                self.process.wait()
            case "terminate":
                self.process.terminate()
                exit_code(self.process, "the run ends after SIGTERM")
            case "query":
                (self.folder / "stop-query").write_text(self.dice.choice(STAGES))
            case _:
                (self.folder / name).touch()
                threading.Timer(self.dice.uniform(3, 15), (self.folder / name).unlink, [True]).start()

    def restart_if_over(self) -> None:
        if self.process.poll() is not None:
            self.process = self._start()

    def look(self) -> bool:
        self.looks += 1
        try:
            seen = self._seen("rows")
            if self.looks % 10 == 0:
                self._seen("totals")
        except (OSError, ValueError):
            return True  # a roll-back was moving files under the reader
        wrong = seen - expected_rows(self.numbers.count)
        if wrong:
            print(f"rows that must not be there: {sorted(wrong.elements())[:10]}")
        return not wrong

    def _seen(self, table: str, **more: bool) -> Counter[tuple[int, str]]:
        """Read a table, and record what was seen for the outside checker."""
        began = self.recorder.now()
        tables = self.folder / "tables"
        if table == "totals":
            rows = [(key, *value) for key, value in read_totals(tables).items()]
            self.recorder.read(began, {table: rows}, **more)
            return Counter()
        seen = read_rows(tables)
        self.recorder.read(began, {table: seen.elements()}, **more)
        return seen

    def settle(self) -> bool:
        for name in ("hang", "full", "stop-query"):
            (self.folder / name).unlink(missing_ok=True)
        tables = self.folder / "tables"
        wanted = expected_rows(self.numbers.count), expected_totals(self.numbers.count)
        well = True

        def is_over() -> bool:
            nonlocal well
            self.restart_if_over()
            well = self.look()
            return not well or (read_rows(tables), read_totals(tables)) == wanted

        def moves() -> object:
            return read_rows(tables).total(), read_totals(tables)

        try:
            wait_until(is_over, "everything is in both tables", moves=moves, quiet=600.0, every=1.0)
        except AssertionError as error:
            lost = wanted[0] - read_rows(tables)
            print(f"{error}\nrows that are missing: {sorted(lost.elements())[:10]} … ({lost.total()})")
            return False
        for table in ("rows", "totals"):
            self._seen(table, settled=True)
        return well

    def said(self) -> str:
        return (self.folder / "child.log").read_text()[-4000:]

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--mode", choices=MODES, default="aligned")
    parser.add_argument("--cluster", action="store_true", help="on a standalone cluster, PostgreSQL and S3")
    parser.add_argument("--child", default="")
    given = parser.parse_args()
    if given.child:
        return child(Path(given.child), given.mode)
    how = "cluster" if given.cluster else given.mode
    print(f"soak: {given.minutes:g} minutes, {how}, --seed {given.seed}", flush=True)
    dice = random.Random(given.seed)
    with ExitStack() as opened:
        if given.cluster:
            from benchmarks.soak_cluster import cluster_soak

            try:
                soak: Soak = opened.enter_context(cluster_soak(dice))
            except ServerMissing as missing:
                sys.exit(str(missing))
        else:
            soak = LocalSoak(opened.enter_context(scratch()), given.mode, dice)
        well = _soaked(soak, given.minutes * 60)
    print("nothing lost, nothing doubled" if well else "NOT EXACT")
    return 0 if well else 1


def _soaked(soak: Soak, seconds: float) -> bool:
    try:
        well = soak.run(seconds)
    finally:
        soak.end()
    faults = ", ".join(f"{count} {name}" for name, count in soak.done.items())
    print(f"{soak.fed} rows fed, looked {soak.looks} times; faults: {faults}")
    if not well:
        print(soak.said())
    return well


if __name__ == "__main__":
    sys.exit(main())
