"""Streams for minutes with checkpoints every second, under kills and storage faults; then compares with the truth.

    python -m benchmarks.soak [--minutes 10] [--seed N] [--mode instant|aligned|unaligned|aligned_with_timeout]

One source, two paths of different speed, a stage where they meet, two tables. While rows arrive the run's process is
killed (SIGKILL), terminated (SIGTERM), one of its queries is stopped, its checkpoint storage refuses or hangs. Nothing
may be lost or doubled, at any moment.
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
from pathlib import Path

from benchmarks.common import scratch, spark_session
from benchmarks.streaming_common import service
from dagster_ckpt.core.storage import AlreadyExists, Digest, StoredObject
from dagster_ckpt.errors import Unavailable
from dagster_ckpt.ports import CheckpointStorage
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
FAULTS = ("kill", "terminate", "query", "full", "hang")
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


class Soak:
    def __init__(self, folder: Path, mode: str, dice: random.Random) -> None:
        self.folder, self.mode, self.dice = folder, mode, dice
        self.numbers = Numbers(folder / "numbers")
        self.done: Counter[str] = Counter()
        self.looks = 0
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with (self.folder / "child.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "benchmarks.soak", "--child", str(self.folder), "--mode", self.mode],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def run(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        next_fault = time.monotonic() + 30
        while time.monotonic() < until:
            self.numbers.put(self.dice.randint(1, 20))
            time.sleep(self.dice.uniform(0.2, 1.0))
            self.restart_if_over()
            if time.monotonic() > next_fault:
                self.fault(self.dice.choice(FAULTS))
                next_fault = time.monotonic() + self.dice.uniform(10, 30)
            if not self.look():
                return False
        return self.settle()

    def fault(self, name: str) -> None:
        self.done[name] += 1
        print(f"  {time.strftime('%H:%M:%S')} {name} ({self.numbers.count} rows so far)", flush=True)
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
        """The published tables never show a row twice, nor one that was not fed."""
        self.looks += 1
        try:
            seen = read_rows(self.folder / "tables")
        except (OSError, ValueError):
            return True  # a roll-back was moving files under the reader
        wrong = seen - expected_rows(self.numbers.count)
        if wrong:
            print(f"rows that must not be there: {sorted(wrong.elements())[:10]}")
        return not wrong

    def settle(self) -> bool:
        """Everything that was fed is in both tables, once."""
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
        return well

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
    parser.add_argument("--child", default="")
    given = parser.parse_args()
    if given.child:
        return child(Path(given.child), given.mode)
    print(f"soak: {given.minutes:g} minutes, {given.mode}, --seed {given.seed}", flush=True)
    with scratch() as folder:
        soak = Soak(folder, given.mode, random.Random(given.seed))
        try:
            well = soak.run(given.minutes * 60)
        finally:
            soak.end()
        faults = ", ".join(f"{count} {name}" for name, count in soak.done.items())
        print(f"{soak.numbers.count} rows fed, looked {soak.looks} times; faults: {faults}")
        if not well:
            print((folder / "child.log").read_text()[-4000:])
    print("nothing lost, nothing doubled" if well else "NOT EXACT")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
