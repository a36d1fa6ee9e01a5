"""Drawn pipelines whose programs are killed for good, SIGKILL at any moment; the outside checker judges what was read.

A history is of one drawn pipeline: files arrive, streams and epochs of programs with a Spark of their own run and are
killed, tables are read all the while, and in the end, when an epoch has come to its end, everything is there once.
Where two sources or a watermark leave open what a table shows on the way, its reads count in the end alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.checker.check import Found, check
from tests.checker.record import Recorder
from tests.fuzz.drawn import Drawn, Op
from tests.fuzz.model import Model, columns_of
from tests.fuzz.program import AHEAD
from tests.fuzz.tables import rows_in
from tests.fuzz.values import COLUMNS, Row, rows_of_feed
from tests.fuzz.world import World
from tests.progress import wait_until
from tests.root import ROOT

HOUR = 3600.0
WAYS = ("program",) * 6 + ("python", "java", "terminated")
"""How a program dies: all of it, Python or Java alone, whose other half goes on until it notices; or by SIGTERM."""
CLOCKS = (0.0,) * 6 + (HOUR, -HOUR)


class Program:
    """A program in a session of its own, and what it answered."""

    def __init__(self, scratch: Path, *, ahead: float = 0.0) -> None:
        environment = {**os.environ, AHEAD: str(ahead)}
        with (scratch / "programs.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.program", str(scratch)],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self.answers: list[dict[str, Any]] = []
        self._seen = 0
        threading.Thread(target=self._listen, daemon=True).start()
        wait_until(lambda: self.answers or self._ended(), "a program has its Spark", moves=self._busy)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):
                self.answers.append(json.loads(line))

    def _ended(self) -> bool:
        assert self.process.poll() is None, "a program ended before it had a Spark: programs.log says why"
        return False

    def _busy(self) -> object:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.process.pid}/stat").read_text()
        return None

    def order(self, **order: Any) -> None:
        """Give an order; its answer comes when the run has ended."""
        assert self.process.stdin is not None
        self._seen = len(self.answers)
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()

    @property
    def answer(self) -> dict[str, Any] | None:
        """The answer to the last order; None: there is none yet."""
        if len(self.answers) > self._seen:
            return self.answers[self._seen]
        return {"crashed": "the program is gone"} if self.process.poll() is not None else None

    def signal(self, number: int) -> None:
        """Send a signal to Python and Java."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self, way: str = "program") -> None:
        """Kill it in one of ``WAYS``, and what is left of it once that has noticed."""
        if way == "terminated":
            self.process.terminate()
        elif way == "python":
            self.process.kill()
        elif way == "java":
            for pid in _below(self.process.pid, "org.apache.spark.deploy.SparkSubmit"):
                _kill(pid)
        if way != "program":
            with contextlib.suppress(AssertionError):
                wait_until(lambda: self.answer, "the other half notices", quiet=20)
        self.signal(signal.SIGKILL)
        self.process.wait()

    def kill_worker(self, dice: Random) -> bool:
        """Kill one of the processes in which Spark runs Python; tell whether there was one."""
        workers = _below(self.process.pid, "pyspark.daemon") + _below(self.process.pid, "pyspark.sql")
        return bool(workers) and _kill(dice.choice(workers))


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _below(pid: int, what: str) -> list[int]:
    """Return the processes below one whose command line has a word."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(
                int(stat.parent.name)
            )
    found, waiting = [], [pid]
    while waiting:
        children = parents.get(waiting.pop(), [])
        waiting += children
        found += [one for one in children if what in _command_of(one)]
    return found


def _command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


@dataclass
class Killing:
    """Histories of drawn pipelines, and the program that is alive between them."""

    scratch: Path
    done: Counter[str] = field(default_factory=Counter)
    program: Program | None = None

    def started(self, dice: Random) -> Program:
        """Return the program that is alive, or start one, whose clock may be wrong."""
        if self.program is None or self.program.process.poll() is not None:
            ahead = dice.choice(CLOCKS)
            self.done["clocks an hour off"] += ahead != 0
            self.program = Program(self.scratch, ahead=ahead)
            self.done["programs"] += 1
        return self.program

    def end(self) -> None:
        """Kill what is left."""
        if self.program is not None:
            self.program.kill()

    @property
    def kills(self) -> int:
        """Processes that were killed or terminated."""
        return sum(count for what, count in self.done.items() if what.startswith("killed"))


class History:
    """One drawn pipeline under kills."""

    def __init__(self, drawn: Drawn, folder: Path, killing: Killing) -> None:
        self.drawn, self.folder, self.killing = drawn, folder, killing
        self.dice = Random(f"killed {drawn.seed}")
        self.world = World(drawn, None, folder)  # type: ignore[arg-type]
        self.model, self.numbers = Model(), 0
        self.writes: list[dict[str, list[list[Any]]]] = []
        kinds = {
            one.place: "keyed" if one.key else "append" for _, one in drawn.sinks
        }
        self.recorder = Recorder(folder / "history.jsonl", kinds)
        self.sources = [one for one in drawn.stages if one.op is Op.SOURCE]
        is_open = len(self.sources) > 1 or any(one.op is Op.CLOSED for one in drawn.stages)
        self.reads_on_the_way = not is_open
        self.reads = 0
        for of in range(len(self.sources)):
            (folder / "feed" / str(of)).mkdir(parents=True)

    def play(self) -> list[Found]:
        """Return the anomalies. Raises AssertionError where it stands still."""
        for _ in range(self.dice.randint(1, 2)):
            self.feed()
        for number in range(self.dice.randint(3, 6)):
            restores = number and self.dice.random() < 0.15
            self.life(self.restored() if restores else None)
        self.settle()
        return check(self.recorder.events())

    # --- lives ------------------------------------------------------------------------------------------------------

    def life(self, restore: dict[str, Any] | None) -> None:
        """Let a run live for a while, and kill it."""
        program = self.killing.started(self.dice)
        self.order(program, self.dice.choice(("stream", "stream", "stream", "epoch")), restore)
        self.go_on(program, self.dice.choice((0.5, 2.0, 5.0, 9.0)) * self.dice.random())
        if self.dice.random() < 0.08:
            program = self.suspended(program)
        elif self.dice.random() < 0.12:
            self.fill_disk(program)
        way = self.dice.choice(WAYS)
        self.did(f"killed {way}" if way != "program" else "killed")
        program.kill(way)

    def order(self, program: Program, how: str, restore: dict[str, Any] | None = None) -> None:
        program.order(seed=self.drawn.seed, place=str(self.folder), how=how, restore=restore)

    def did(self, what: str) -> None:
        self.killing.done[what] += 1
        self.recorder.did(what)

    def go_on(self, program: Program, seconds: float) -> None:
        """Feed, read and kill workers meanwhile."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and program.answer is None:
            if self.dice.random() < 0.3 and self.numbers < 40:
                self.feed()
            if self.reads_on_the_way:
                self.look()
            if self.dice.random() < 0.04 and program.kill_worker(self.dice):
                self.did("killed worker")
            time.sleep(self.dice.uniform(0.1, 0.5))

    def suspended(self, program: Program) -> Program:
        """Suspend a program, let another one take the pipeline over, and wake the first up."""
        program.signal(signal.SIGSTOP)
        self.did("suspended")
        self.killing.program = None
        second = self.killing.started(self.dice)
        self.order(second, "stream")
        self.go_on(second, self.dice.uniform(1, 6))
        program.signal(signal.SIGCONT)
        self.go_on(second, self.dice.uniform(1, 4))
        self.did("killed")
        program.kill()
        return second

    def fill_disk(self, program: Program) -> None:
        """Leave no space on the disk for a while."""
        self.did("disk full")
        (self.folder / "full").touch()
        self.go_on(program, self.dice.uniform(0.5, 4))
        (self.folder / "full").unlink()
        self.go_on(program, self.dice.uniform(0.5, 3))

    def restored(self) -> dict[str, Any] | None:
        """Return a restore of any snapshot: all comes again, as every file is still there. None: there is none."""
        if any(one.kind == "function" for _, one in self.drawn.sinks):
            return None  # what it was called with stays
        key = self.dice.choice(["none", *self.world._keys()])
        self.killing.done["restores"] += 1
        self.recorder.did("restore", keeps=0, began=self.recorder.now())
        for rows in self.writes:
            self.recorder.write(rows)
        return {"restore_from": key}

    def settle(self) -> None:
        """Have an epoch come to its end; everything is there then."""
        for _ in range(4):
            program = self.killing.started(self.dice)
            self.order(program, "epoch")
            wait_until(lambda at=program: at.answer, "an epoch ends", moves=self.files, quiet=600)  # type: ignore[misc]
            answer = program.answer
            assert answer is not None
            if "ended" in answer:
                break
            self.killing.done["settled later"] += 1
            print(f"  seed {self.drawn.seed}: {str(answer)[:1500]}", flush=True)
            program.kill()
        else:
            raise AssertionError(f"stuck: {answer}")
        for number, _ in self.drawn.sinks:
            self.read(number, settled=True)

    def files(self) -> object:
        return sum(1 for _ in self.folder.rglob("*"))

    # --- what arrives and what is seen ------------------------------------------------------------------------------

    def feed(self) -> None:
        """Let a file arrive."""
        of = self.dice.randrange(len(self.sources))
        number = self.numbers * 10 + of * 3
        self.numbers += 1
        drawn = self.drawn
        rows = rows_of_feed(self.dice, number, drawn.key_type, drawn.value_type, self.dice.randint(1, 8))
        self.world.files[number] = (of, rows)
        before = self.model.copy()
        self.model.process(drawn, self.world.files)
        self.writes.append({one.place: self._new(i, before) for i, one in drawn.sinks})
        self.recorder.write(self.writes[-1])
        self.world.put(of, number, rows)

    def _new(self, number: int, before: Model) -> list[list[Any]]:
        had = before.rows(self.drawn, number)
        now = self.model.rows(self.drawn, number)
        return self._told(number, (now - had).elements())

    def look(self) -> None:
        """Read a table; a reader that a change of the table breaks tries again later."""
        number, _ = self.dice.choice(self.drawn.sinks)
        try:
            self.read(number)
        except AssertionError:
            raise
        except Exception:
            self.killing.done["looks that broke"] += 1

    def read(self, number: int, **more: bool) -> None:
        began, output = self.recorder.now(), self.drawn.outputs[number]
        rows = rows_in(self.drawn, output, self.folder)
        self.recorder.read(began, {output.place: self._told(number, rows.elements())}, **more)
        self.reads += 1

    def _told(self, number: int, rows: Iterable[Row]) -> list[list[Any]]:
        """Return rows as a history has them: of a keyed table the key first."""
        output = self.drawn.outputs[number]
        width = len(columns_of(self.drawn, output))
        at = [COLUMNS.index(name) for name in output.key]
        return [[[repr(row[i]) for i in at], [repr(value) for value in row[:width]]] for row in rows]
