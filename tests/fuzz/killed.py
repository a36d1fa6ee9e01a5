"""Drawn pipelines whose programs are killed for good, SIGKILL at any moment; the outside checker judges what was read.

A history is of one drawn pipeline: files arrive, streams and epochs of programs with a Spark of their own run and are
killed, tables are read all the while, and in the end, when an epoch has come to its end, everything is there once.
Where two sources or a watermark leave open what a table shows on the way, its reads count in the end alone.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
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
from tests.fuzz.program import obey
from tests.fuzz.tables import rows_in
from tests.fuzz.values import COLUMNS, Row, rows_of_feed
from tests.fuzz.world import World
from tests.progress import wait_until

HOUR = 3600.0
WAYS = ("program",) * 6 + ("python", "java", "terminated")
"""How a program dies: all of it, Python or Java alone, whose other half goes on until it notices; or by SIGTERM."""
CLOCKS = (0.0,) * 6 + (HOUR, -HOUR)


_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.fuzz.program"])


class Program:
    """A program in a session of its own, and what it answered."""

    def __init__(self, scratch: Path, *, ahead: float = 0.0) -> None:
        self.orders, theirs = _SERVER.Pipe()
        self.process = _SERVER.Process(target=obey, args=(theirs, scratch, ahead), daemon=True)
        self.process.start()
        theirs.close()
        self._answer: dict[str, Any] | None = None
        wait_until(lambda: self.answer, "a program has its Spark", moves=self._busy)
        assert "ready" in (self.answer or ()), "a program ended before it had a Spark: programs.log says why"

    def _busy(self) -> object:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.process.pid}/stat").read_text()
        return None

    def order(self, **order: Any) -> None:
        """Give an order; its answer comes when the run has ended."""
        self._answer = None
        with contextlib.suppress(OSError):
            self.orders.send(order)

    @property
    def answer(self) -> dict[str, Any] | None:
        """The answer to the last order; None: there is none yet."""
        if self._answer is None:
            with contextlib.suppress(EOFError, OSError):
                if self.orders.poll():
                    self._answer = self.orders.recv()
            if self._answer is None and not self.is_alive:
                self._answer = {"crashed": "the program is gone"}
        return self._answer

    @property
    def is_alive(self) -> bool:
        """It has not ended."""
        return self.process.is_alive()

    @property
    def pid(self) -> int:
        """Of its Python, and of its session."""
        assert self.process.pid is not None
        return self.process.pid

    def signal(self, number: int) -> None:
        """Send a signal to Python and Java."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def kill(self, way: str = "program") -> None:
        """Kill it in one of ``WAYS``, and what is left of it once that has noticed."""
        if way == "terminated":
            self.process.terminate()
        elif way == "python":
            self.process.kill()
        elif way == "java":
            for pid in _below(self.pid, "org.apache.spark.deploy.SparkSubmit"):
                _kill(pid)
        if way != "program":
            until = time.monotonic() + 20
            while self.answer is None and time.monotonic() < until:
                time.sleep(0.1)  # the other half notices
        self.signal(signal.SIGKILL)
        self.process.join()

    def kill_worker(self, dice: Random) -> bool:
        """Kill one of the processes in which Spark runs Python; tell whether there was one."""
        workers = _below(self.pid, "pyspark.daemon") + _below(self.pid, "pyspark.sql")
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
        if self.program is None or not self.program.is_alive:
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
        kinds = {one.place: "keyed" if one.key else "append" for _, one in drawn.sinks}
        self.recorder = Recorder(folder / "history.jsonl", kinds)
        self.sources = [int(one.uid.split("_")[1]) for one in drawn.stages if one.op is Op.SOURCE]
        is_open = len(self.sources) > 1 or any(one.op is Op.CLOSED for one in drawn.stages)
        self.reads_on_the_way = not is_open
        self.reads = 0
        for of in self.sources:
            (folder / "feed" / str(of)).mkdir(parents=True)

    def play(self) -> list[Found]:
        """Return the anomalies. Raises AssertionError where it stands still."""
        for _ in range(self.dice.randint(1, 2)):
            self.feed()
        for number in range(self.dice.randint(3, 6)):
            restores = number and self.dice.random() < 0.15
            self.life(self.restored() if restores else None)
        self.settle()
        return self.judged()

    def judged(self) -> list[Found]:
        """Return what the outside checker finds in all that was read."""
        return check(self.recorder.events())

    # --- lives ------------------------------------------------------------------------------------------------------

    def life(self, restore: dict[str, Any] | None) -> None:
        """Let a run live for a while, and kill it."""
        program = self.killing.started(self.dice)
        self.order(program, self.dice.choice(("stream", "stream", "stream", "epoch")), restore)
        if self.dice.random() < 0.7:
            self.until_it_moves(program)
        self.go_on(program, self.dice.choice((1.0, 5.0, 20.0, 60.0)) * self.dice.random())
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
            if self.dice.random() < 0.25 and program.kill_worker(self.dice):
                self.did("killed worker")
            time.sleep(self.dice.uniform(0.1, 0.5))

    def until_it_moves(self, program: Program) -> None:
        """Wait until a run changes something, as long as the machine takes for it."""
        before, until = self.files(), time.monotonic() + 60
        while self.files() == before and program.answer is None and time.monotonic() < until:
            time.sleep(0.05)

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
        places = [str(self.folder / place) for place in ("lab", "tables")]
        return sum(
            len(files) for place in places for _, _, files in os.walk(place)
        )  # whatever goes meanwhile

    # --- what arrives and what is seen ------------------------------------------------------------------------------

    def feed(self) -> None:
        """Let a file arrive."""
        of = self.dice.choice(self.sources)
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
