"""The recorder of a history: what arrived, what readers saw, what was done (``tests/checker/check.py``)."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.checker.check import check

Tables = Mapping[str, Iterable[Sequence[Any]]]


class Recorder:
    """Writes one history. A write is recorded before its rows can be read, a read after it has ended."""

    def __init__(self, path: Path, tables: Mapping[str, str]) -> None:
        self.path = path
        path.unlink(missing_ok=True)
        self._put({"event": "begin", "tables": dict(tables)})

    def now(self) -> float:
        """Return the moment that a read, a restore or a swap begins."""
        return time.monotonic()

    def write(self, rows: Tables, **more: Any) -> None:
        """Record an input that is about to arrive, and what tables show of it."""
        self._put({"event": "write", "rows": _plain(rows), **more})

    def read(self, began: float, tables: Tables, **more: Any) -> None:
        """Record what a reader saw who began then."""
        self._put({"event": "read", "began": began, "tables": _plain(tables), **more})

    def did(self, event: str, **more: Any) -> None:
        """Record what was done: ``kill``, ``restore`` …"""
        self._put({"event": event, **more})

    def events(self) -> list[dict[str, Any]]:
        """Return what was recorded so far."""
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]

    def _put(self, event: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"at": self.now(), **event}) + "\n")


class Witness:
    """Recorder of a test's inputs and of what its tables show; ``truth``: what they show once all of it is in them."""

    def __init__(
        self, path: Path, tables: Mapping[str, str], truth: Callable[[], Mapping[str, Counter[Any]]]
    ):
        self._recorder, self._truth = Recorder(path, tables), truth
        self._before = truth()

    def arrives(self) -> None:
        """Record what is in the truth since the last input; its rows cannot be read yet."""
        after = self._truth()
        self._recorder.write({name: (after[name] - self._before[name]).elements() for name in after})
        self._before = after

    def sees(self, read: Callable[[], Mapping[str, Counter[Any]]], **more: Any) -> None:
        """Read, and insist that nothing may not be seen; ``settled``: all that has arrived must be."""
        began = self._recorder.now()
        self._recorder.read(began, {name: rows.elements() for name, rows in read().items()}, **more)
        found = check(self._recorder.events())
        assert not found, [*map(str, found)]

    def killed(self) -> None:
        """Record that a process was ended, which must change nothing."""
        self._recorder.did("kill")


def _plain(tables: Tables) -> dict[str, list[list[Any]]]:
    return {table: [list(row) for row in rows] for table, rows in tables.items()}
