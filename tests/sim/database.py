"""Databases of a world: the library's sink of SQL tables on files of SQLite, whose locks and faults are the world's.

A transaction waits for another one in the world's time, may be refused, and its COMMIT may stay without an answer; who
dies in one has changed nothing. Sinks that stage their rows are exercised by it: publish, before-images, fencing.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from typing import Any
from unittest import mock

from sqlalchemy import Connection

from dagster_ckpt.errors import Unavailable
from dagster_ckpt.ext.sql import database
from dagster_ckpt.ext.sql.database import BUSY_SECONDS, Database
from dagster_ckpt.ext.sql.target import SqlTable
from dagster_ckpt.ext.tables.marks import Mark
from dagster_ckpt.ext.tables.version import State
from tests.sim.outside import Table, Weather
from tests.sim.threads import Lock


@dataclass
class DatabaseTable(Table):
    """A table of a database: a state for every transaction that changed it."""

    file: Path = Path()

    @property
    def target(self) -> SqlTable:
        """Where a sink finds it."""
        return SqlTable(f"sqlite:///{self.file}", self.name, keep_before_images=True)

    def look(self) -> None:
        """Take down what a transaction has changed, and show it to the world."""
        rows, mark = self._read()
        if mark is None or (self.states and (rows, mark) == (self.rows[-1], self.mark)):
            return
        number = len(self.states)
        self.states.append(
            State(
                number=number,
                order=number,
                parent=number - 1 if number else None,
                timestamp_ms=0,
                did="COMMIT",
                changes_rows=True,
                keeps_rows=False,
                mark=mark,
            )
        )
        self.rows.append(rows)
        self.watch(self)

    def _read(self) -> tuple[list[tuple[int, int]], Mark | None]:
        with contextlib.closing(sqlite3.connect(self.file, timeout=0)) as connection:
            there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            if "dagster_ckpt_positions" not in there:
                return [], None
            found = connection.execute(
                "SELECT pipeline, uid, lineage, epoch, checkpoint_id, head, through_batch "
                "FROM dagster_ckpt_positions WHERE table_name = ?",
                [self.name],
            ).fetchone()
            if found is None:
                return [], None
            columns = ("pipeline", "sink", "lineage", "epoch", "checkpoint", "head", "through_batch")
            rows = [*connection.execute(f"SELECT k, v FROM {self.name}")] if self.name in there else []
            return sorted(rows), Mark(**dict(zip(columns, found, strict=True)))


@contextlib.contextmanager
def databases(weather: Weather, tables: Callable[[], list[Table]]) -> Iterator[None]:
    """Let every transaction pass through the weather, and show each one that was committed to its tables."""
    locks: dict[str, Lock] = {}

    def look(place: str) -> None:
        for table in tables():
            if isinstance(table, DatabaseTable) and place.endswith(str(table.file)):
                table.look()

    @contextlib.contextmanager
    def transaction(self: Database, real: Any) -> Iterator[Connection]:
        if self._open() is not None:
            with real(self) as connection:
                yield connection
            return
        name = self.place.rsplit("/", 1)[1]
        weather.through(f"begin in {name}", lambda: None, writes=False)
        lock = locks.setdefault(self.place, Lock())
        if not lock.acquire(timeout=BUSY_SECONDS):
            raise Unavailable(f"{name} did not carry it out: database is locked")
        try:
            with contextlib.ExitStack() as stack:
                yield stack.enter_context(real(self))

                def commit() -> None:
                    stack.close()
                    look(self.place)

                weather.through(f"commit in {name}", commit, writes=True)
        finally:
            lock.release()

    @contextlib.contextmanager
    def reading(self: Database, real: Any) -> Iterator[Connection]:
        if self._open() is None:
            weather.through(f"query {self.place.rsplit('/', 1)[1]}", lambda: None, writes=False)
        with real(self) as connection:
            yield connection

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(database, "BUSY_SECONDS", 0))
        for name, played in (("transaction", transaction), ("reading", reading)):
            real = getattr(Database, name)
            stack.enter_context(mock.patch.object(Database, name, partialmethod(_with, played, real)))
        yield


def _with(self: Database, played: Any, real: Any) -> Any:
    return played(self, real)
