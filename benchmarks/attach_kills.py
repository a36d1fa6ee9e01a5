"""Attached programs that are killed at any moment, with savepoints and restores between; then all is compared.

    python -m benchmarks.attach_kills [--kills 100] [--per-history 5] [--programs together delta …] [--seed 0]

A history is one program of ``tests/ext/attach/found.py`` in a folder of its own. Its process is ended by SIGKILL, with
its JVM or without, wherever it is: while it starts, in a batch, in a checkpoint, in a restore that a killed one left.
Commands that restore are killed likewise. At last it processes all files and ends. Its tables have to be those that
plain Python makes of the files; the positions and the state of its queries those of a run that nobody has disturbed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.common import scratch
from tests.ext.attach.test_attach import command
from tests.ext.attach.test_found import FOUND, put_orders, results
from tests.progress import wait_until
from tests.root import ROOT

Rows = list[dict[str, Any]]
FILES = 6
"""Files of a history."""
BASE = ("-p", "found", "--base-dir", "ckpt")
CHEAPLY = {
    "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "PYSPARK_SUBMIT_ARGS": "--conf spark.sql.codegen.wholeStage=false --conf spark.sql.codegen.factoryMode=NO_CODEGEN "
    "--conf spark.driver.memory=512m pyspark-shell",
}
"""Environment in which starts, of which there are hundreds, take least."""
REFUSED = (
    "was interrupted: start the program",
    "restore from a later snapshot",
    "has no checkpoint to restore",
)
"""What commands may say after a kill: each names the way on."""


# --- the truth --------------------------------------------------------------------------------------------------


def orders(folder: Path) -> Rows:
    lines = (line for file in (folder / "in").glob("*.json") for line in file.read_text().splitlines())
    return [{**row, "at": datetime.fromisoformat(row["at"])} for row in map(json.loads, lines)]


def totals(given: Rows) -> list[list[Any]]:
    found: Counter[str] = Counter()
    for row in given:
        found[row["key"]] += row["amount"]
    return [[key, total] for key, total in found.items()]


def pairs(given: Rows) -> Iterable[dict[str, Any]]:
    near = timedelta(seconds=90)
    for one in given:
        for other in given:
            is_same = one["key"] == other["key"] and one["amount"] == other["amount"]
            if is_same and one["at"] <= other["at"] <= one["at"] + near:
                yield {**one, "k": other["key"], "more": other["amount"], "then": other["at"]}


def sessions(given: Rows) -> Iterable[dict[str, Any]]:
    """Sessions that the last watermark has closed."""
    gap, closed = timedelta(seconds=12), max(row["at"] for row in given) - timedelta(seconds=20)
    for key in {row["key"] for row in given}:
        open_ones: Rows = []
        for row in sorted((row for row in given if row["key"] == key), key=lambda row: row["at"]):
            if open_ones and row["at"] < open_ones[-1]["end"]:
                open_ones[-1] |= {"end": row["at"] + gap, "total": open_ones[-1]["total"] + row["amount"]}
            else:
                open_ones.append(
                    {"start": row["at"], "end": row["at"] + gap, "key": key, "total": row["amount"]}
                )
        yield from (one for one in open_ones if one["end"] <= closed)


def plain(rows: Iterable[object]) -> list[str]:
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in rows)


def only(given: Rows, *columns: str) -> Rows:
    return [{name: row[name] for name in columns} for row in given]


TRUTHS: dict[str, Callable[[Rows], dict[str, list[str]]]] = {
    "chain": lambda given: {"clean": plain(given), "totals.db": plain(totals(given))},
    "join": lambda given: {"pairs": plain(pairs(given))},
    "sessions": lambda given: {"sessions": plain(sessions(given))},
    "together": lambda given: {
        name: rows for one in ("chain", "join", "sessions") for name, rows in TRUTHS[one](given).items()
    },
    "no_place": lambda given: {"totals.db": plain(totals(given))},
    "own_state": lambda given: {"totals.db": plain(totals(given))},
    "partitioned": lambda given: {"by_key": plain(given)},
    "available": lambda given: {"fresh": plain({(r["key"], r["amount"]): r for r in given}.values())},
    "delta": lambda given: {"delta": plain(only(given, "key", "amount"))},
}
"""What the sinks of programs show of all files, by plain Python; of duplicates any row may be the one that is kept."""


def comparable(name: str, found: dict[str, list[str]]) -> dict[str, list[str]]:
    if name == "available":
        found = {
            table: plain(only([*map(json.loads, rows)], "key", "amount")) for table, rows in found.items()
        }
    return {table: [row.replace("+00:00", "") for row in rows] for table, rows in found.items()}


# --- positions and state ------------------------------------------------------------------------------------------


def places(folder: Path) -> dict[str, Path]:
    """Checkpoint locations of a program's queries, by their names; those that attach has given are left out."""
    return {place.name: place for place in (folder / "checkpoints").glob("*")}


def committed(folder: Path) -> int:
    """Batches that the program's queries have committed."""
    return sum(1 for _ in folder.glob("checkpoints/*/commits/*"))


def positions(place: Path) -> list[str]:
    """Where the query's sources stand behind its newest committed batch."""
    newest = max(int(path.name) for path in (place / "commits").iterdir() if path.name.isdecimal())
    return (place / "offsets" / str(newest)).read_text().splitlines()[2:]


def state(spark: SparkSession, place: Path) -> list[str]:
    """All rows of the query's state."""
    if not (place / "state").is_dir():
        return []
    found: list[str] = []
    for operator in spark.read.format("state-metadata").load(str(place)).collect():
        reader = spark.read.format("statestore").option("operatorId", operator["operatorId"])
        if "Join" not in operator["operatorName"]:
            readers = {"": reader}
        else:
            store = str(operator["stateStoreName"])
            if store not in ("left-keyToNumValues", "right-keyToNumValues"):
                continue
            side = store.partition("-")[0]
            readers = {side: reader.option("joinSide", side)}
        for title, asked in readers.items():
            rows = asked.load(str(place)).drop("partition_id").toJSON().collect()
            found += (f"{operator['operatorName']} {title} {row}" for row in rows)
    return sorted(found)


def environment() -> dict[str, str]:
    return {**os.environ, **CHEAPLY, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}


# --- a history -------------------------------------------------------------------------------------------------------


@dataclass
class History:
    """History of one program under kills."""

    name: str
    folder: Path
    dice: Random
    files: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    slow: float = 8.0
    """Seconds from a start of the program to its first rows, as they were last."""
    took: float = 3.0
    """Seconds that a command took last."""

    def more(self, most: int) -> None:
        first, self.files = self.files, min(most, self.files + self.dice.randint(1, 2))
        put_orders(self.folder, range(first, self.files))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        with (self.folder / "said").open("a") as said:
            process = subprocess.Popen(
                command(self.folder, *arguments),
                stdout=said,
                stderr=said,
                text=True,
                cwd=self.folder,
                start_new_session=True,
                env=environment(),
            )
        self.started.append(process)
        return process

    def close(self) -> None:
        """End what was left."""
        for process in self.started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def program(self) -> subprocess.Popen[str]:
        (self.folder / "seen").unlink(missing_ok=True)
        return self.start("run", str(FOUND), self.name, str(self.folder), *BASE, "--interval", "0.5 s")

    def has_seen(self, files: int) -> bool:
        seen = self.folder / "seen"
        return seen.exists() and int(seen.read_text()) >= files

    def kill(self, process: subprocess.Popen[str], what: str) -> None:
        """End a process where it is, mostly with its JVM; it has not ended by itself but where that is its end."""
        if process.poll() is not None:
            assert process.returncode == 0, (self.folder / "said").read_text()[-4000:]
            return
        with_java = self.dice.random() < 0.7
        try:
            os.killpg(process.pid, signal.SIGKILL) if with_java else process.kill()
        finally:
            process.wait()
        self.kills[what] += 1
        self.told.append(f"{what} killed{'' if with_java else ' alone'}")

    def commanded(self, *arguments: str) -> str:
        """Run a command to its end, which may be refused where a kill before it has left nothing to do it with."""
        before = (self.folder / "said").stat().st_size
        begun, done = time.monotonic(), self.start(*arguments, "--base", "ckpt")
        code = done.wait(900)
        self.took = time.monotonic() - begun
        said = (self.folder / "said").read_text()[before:]
        assert code == 0 or any(why in said for why in REFUSED), said[-4000:]
        self.told.append(f"{arguments[0]}: {' '.join(said.split())[-200:]}")
        return said if code == 0 else ""

    def run_killed(self) -> None:
        """Run the program, take a savepoint of it now and then, and kill it at any moment."""
        begun, process = time.monotonic(), self.program()
        where = self.dice.choice(["start", "batch", "batch", "batch", "savepoint"])
        if where == "start":
            time.sleep(self.dice.uniform(0, 1.5 * self.slow))
        else:
            few = self.dice.randint(max(1, self.files - 2), self.files)
            self.until(process, (self.folder / "seen").exists)
            self.slow = time.monotonic() - begun
            self.until(process, lambda: self.has_seen(few))
            if where == "savepoint":
                self.savepoint(process)
            time.sleep(self.dice.uniform(0, 1.5))
        self.told.append(f"ran {time.monotonic() - begun:.1f} s")
        self.kill(process, f"program in {where}")

    def savepoint(self, process: subprocess.Popen[str] | None = None) -> None:
        if process is not None and self.dice.random() < 0.3:  # the program is killed while it is taken
            asking = self.start("savepoint", "found", "--base", "ckpt")
            time.sleep(self.dice.uniform(0, self.took))
            os.killpg(asking.pid, signal.SIGKILL)
            asking.wait()
            self.told.append("savepoint asked")
            return
        self.keys += re.findall(r"savepoint-\d+", self.commanded("savepoint", "found"))[:1]

    def restore(self) -> None:
        """Put the program back, to any savepoint or the newest checkpoint, killed or not."""
        key = self.dice.choice([*self.keys, "latest"])
        if self.dice.random() < 0.5:
            command = self.start("restore", key, "-p", "found", "--base", "ckpt")
            time.sleep(self.dice.uniform(0.2, 1.0) * self.took)
            self.told.append(f"restore of {key}")
            self.kill(command, "restore")
        else:
            self.commanded("restore", key, "-p", "found")

    def until(self, process: subprocess.Popen[str], holds: Callable[[], bool]) -> None:
        def check() -> None:
            assert process.poll() is None, (self.folder / "said").read_text()[-4000:]

        def moves() -> tuple[int, int]:
            return len(os.listdir(self.folder / "in")), committed(self.folder)

        wait_until(holds, f"{self.name} has come so far", check=check, moves=moves, every=0.1)

    def ended(self) -> None:
        """Let all files arrive, and the program process them and end."""
        put_orders(self.folder, range(self.files, FILES))
        process = self.program()
        self.until(process, lambda: self.has_seen(FILES))
        (self.folder / "stop").touch()
        assert process.wait(900) == 0, (self.folder / "said").read_text()[-4000:]

    def run(self, kills: int) -> None:
        while self.kills.total() < kills:
            self.more(FILES - 1)
            self.run_killed()
            if self.dice.random() < 0.3 and self.has_begun:
                self.savepoint()
            if self.dice.random() < 0.6 and self.has_begun:
                self.restore()
        self.ended()

    @property
    def has_begun(self) -> bool:
        return any((self.folder / "ckpt").glob("**/chk-*/_metadata"))


def undisturbed(name: str, folder: Path) -> None:
    """Let the program process all files as if nothing was there."""
    put_orders(folder, range(FILES))
    with (folder / "said").open("a") as said:
        process = subprocess.Popen(
            [sys.executable, str(FOUND), name, str(folder)],
            stdout=said,
            stderr=said,
            cwd=folder,
            env=environment(),
        )
    wait_until(
        lambda: (folder / "seen").exists() and int((folder / "seen").read_text()) >= FILES,
        "all is seen",
        moves=lambda: committed(folder),
        every=0.1,
    )
    (folder / "stop").touch()
    assert process.wait(900) == 0, (folder / "said").read_text()[-4000:]


def differences(history: History, plain_run: Path, spark: SparkSession) -> list[str]:
    """What is not as it has to be."""
    folder, name = history.folder, history.name
    wrong = []
    found, wanted = (comparable(name, one) for one in (results(folder), TRUTHS[name](orders(folder))))
    for table in wanted.keys() | found.keys():
        gone, more = (
            list((Counter(one.get(table, ())) - Counter(other.get(table, ()))).elements())
            for one, other in ((wanted, found), (found, wanted))
        )
        if gone or more:
            wrong.append(f"{table}: {len(gone)} rows missing {gone[:2]}, {len(more)} more {more[:2]}")
    here, there = places(folder), places(plain_run)
    for query in there:
        if positions(here[query]) != positions(there[query]):
            wrong.append(f"{query}: at {positions(here[query])} instead of {positions(there[query])}")
        if state(spark, here[query]) != state(spark, there[query]):
            wrong.append(f"{query}: another state")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--per-history", type=int, default=5)
    parser.add_argument("--programs", nargs="*", choices=TRUTHS, default=["together", "delta", "partitioned"])
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    dice, kills, wrong = Random(given.seed), Counter[str](), 0
    os.environ |= CHEAPLY
    with scratch() as folder:
        spark = SparkSession.builder.master("local[1]").config("spark.log.level", "OFF").getOrCreate()
        for number in range(10**6):
            if kills.total() >= given.kills:
                break
            name = given.programs[number % len(given.programs)]
            plain_run = folder / f"plain-{name}"
            if not plain_run.exists():
                undisturbed(name, plain_run)
            history = History(name, folder / str(number), Random(dice.random()))
            history.folder.mkdir()
            said: Sequence[str]
            try:
                history.run(given.per_history)
                said = differences(history, plain_run, spark)
            except Exception as error:
                said = [f"{type(error).__name__}: {error}"]
            finally:
                history.close()
            kills += history.kills
            wrong += bool(said)
            print(f"{number} {name}: {history.kills.total()} kills, {'; '.join(said) or 'right'}", flush=True)
            if said:
                print("  " + "\n  ".join(history.told), flush=True)
    print(
        f"{kills.total()} kills ({', '.join(f'{n} {what}' for what, n in kills.items())}): {wrong} histories wrong"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
