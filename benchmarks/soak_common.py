"""What the soaks share: feed, break, look, until the time is up; then everything that was fed is there, once.

What arrived, what readers saw and what broke is recorded, and judged by the outside checker in the end.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from tests.checker.check import check
from tests.checker.record import Recorder

FIRST_FAULT_AFTER = 30.0
BETWEEN_FAULTS = (10.0, 30.0)


class Soak(ABC):
    """One soak: what is fed, what breaks, and what must hold all the while."""

    faults: ClassVar[tuple[str, ...]]
    tables: ClassVar[Mapping[str, str]]
    """The tables that are read, as a history names them."""
    pauses: ClassVar[tuple[float, float]] = (0.2, 1.0)
    """Seconds between two arrivals, from and to."""

    def __init__(self, dice: random.Random, folder: Path) -> None:
        self.dice, self.folder = dice, folder
        self.recorder = Recorder(folder / "history.jsonl", self.tables)
        self.done: Counter[str] = Counter()
        self.looks = 0

    def run(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        next_fault = time.monotonic() + FIRST_FAULT_AFTER
        while time.monotonic() < until:
            self.feed()
            time.sleep(self.dice.uniform(*self.pauses))
            self.restart_if_over()
            if time.monotonic() > next_fault:
                self.break_something(self.dice.choice(self.faults))
                next_fault = time.monotonic() + self.dice.uniform(*BETWEEN_FAULTS)
            if not self.look():
                return False
        settled = self.settle()
        return self.judged() and settled

    def judged(self) -> bool:
        """Have the outside checker judge all that was seen."""
        events = self.recorder.events()
        found = check(events)
        reads = sum(one["event"] == "read" for one in events)
        print(f"checker: {reads} reads, {len(found)} anomalies", *found[:20], sep="\n  ")
        return not found

    def break_something(self, name: str) -> None:
        self.done[name] += 1
        print(f"  {time.strftime('%H:%M:%S')} {name} ({self.fed} rows so far)", flush=True)
        self.recorder.did(name)
        self.fault(name)

    @property
    @abstractmethod
    def fed(self) -> int:
        """Rows fed so far."""

    @abstractmethod
    def feed(self) -> None:
        """Let more rows arrive."""

    @abstractmethod
    def fault(self, name: str) -> None:
        """Break something."""

    @abstractmethod
    def restart_if_over(self) -> None:
        """Run again what has ended."""

    @abstractmethod
    def look(self) -> bool:
        """The published tables never show a row twice, nor one that was not fed."""

    @abstractmethod
    def settle(self) -> bool:
        """Everything that was fed is in all tables, once."""

    @abstractmethod
    def said(self) -> str:
        """What the processes said last, for people."""

    @abstractmethod
    def end(self) -> None:
        """Stop it."""
