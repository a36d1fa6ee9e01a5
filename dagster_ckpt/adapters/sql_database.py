"""One database: connections made at need, transactions, and what became of a COMMIT without an answer."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Insert, Table, exc
from sqlalchemy.dialects import sqlite

from dagster_ckpt.adapters.sql_engine import (
    begin_write,
    build_engine,
    classified,
    is_sqlite,
    shown,
    store_url,
)
from dagster_ckpt.adapters.sql_schema import ensure_current, upgrade
from dagster_ckpt.errors import OutcomeUnknown, Unavailable

T = TypeVar("T")

READ_BACK_PAUSES = (0.0, 0.1, 0.3, 0.6, 1.0)
"""Seconds before each try to find out what became of a COMMIT."""


class CommitFailed(Exception):
    """COMMIT was sent and no clear answer came back."""


class SqlDatabase:
    """A SQLite file or a PostgreSQL database. Constructing one does no I/O; safe to share among threads.

    A forked child opens connections of its own. Whatever fails is classified: a failure before COMMIT was sent
    changed nothing.
    """

    def __init__(self, url: str) -> None:
        self._url = store_url(url)
        self._engine: Engine | None = None
        self._dispose: Callable[[], object] = lambda: None
        self._pid = 0
        self._lock = Lock()

    @property
    def shown(self) -> str:
        """The URL for messages, its password hidden."""
        return shown(self._url)

    @property
    def place(self) -> str:
        """Place of this database, which tells a copy from the original. Empty: not known yet."""
        if not is_sqlite(self._url):
            return f"{self._url.host or ''}:{self._url.port or ''}/{self._url.database}"
        try:
            return f"{self._url.database}#{os.stat(str(self._url.database)).st_ino}"
        except OSError:
            return ""

    def migrate(self) -> None:
        """Bring the database to this version's schema; returns at once when it is there already.

        Raises InvalidRequest when the database is newer than this version of the library.
        """
        with self._classifying():
            upgrade(self._connected_engine())

    def close(self) -> None:
        """Close pooled connections; new ones are opened at need."""
        with self._lock:
            self._engine = None
            self._dispose()

    def read(self, query: Callable[[Connection], T]) -> T:
        """Return the answer of a query. Raises Unavailable, Corrupt, InvalidRequest."""
        with self._classifying(), self._connection() as connection:
            return query(connection)

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a transaction that may write; it is rolled back unless ``commit`` is called. Raises as ``read``."""
        with self._classifying(), self._connection() as connection:
            begin_write(connection)
            yield connection

    def settled(self, look: Callable[[Connection], T]) -> T:
        """Return the answer of ``look`` after a COMMIT without an answer, in a transaction that is rolled back.

        SUBTLE: the server may still be carrying out that COMMIT. A plain read would see the old state now and the
        new one later, so ``look`` has to wait for the lock of the row, or insert it. Raises Unavailable when the
        database cannot be reached any more: then nothing is known.
        """
        last: Unavailable | None = None
        for pause in READ_BACK_PAUSES:
            time.sleep(pause)
            try:
                with self.write() as connection:
                    return look(connection)
            except Unavailable as error:
                last = error
        assert last is not None, "there is at least one try"
        raise last

    def _connected_engine(self) -> Engine:
        with self._lock:
            if self._engine is not None and self._pid != os.getpid():
                self._dispose()
                self._engine = None
            if self._engine is None:
                self._engine = build_engine(self._url)
                self._pid = os.getpid()
                self._dispose = weakref.finalize(self, _dispose, self._engine, self._pid)
            return self._engine

    @contextmanager
    def _classifying(self) -> Iterator[None]:
        try:
            yield
        except (exc.SQLAlchemyError, OSError) as error:
            if isinstance(error, Unavailable | OutcomeUnknown):
                raise
            raise classified(error, self._url) from error

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        engine = self._connected_engine()
        ensure_current(engine)
        with engine.connect() as connection:
            yield connection


def _dispose(engine: Engine, pid: int) -> None:
    # In a forked child the sockets are the parent's: forget them, do not say good-bye on them.
    engine.dispose(close=pid == os.getpid())


def commit(connection: Connection) -> None:
    """Commit the open transaction. Raises CommitFailed when no clear answer came back."""
    try:
        connection.commit()
    except exc.SQLAlchemyError as error:
        raise CommitFailed(str(getattr(error, "orig", None) or error).strip()) from error


def insert_unless_there(connection: Connection, table: Table, values: dict[str, Any]) -> bool:
    """Insert a row in the open transaction; False where its key is taken, after whoever is writing it has ended."""
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql  # a quarter of what importing SQLAlchemy takes

        statement: Insert = postgresql.insert(table).values(values).on_conflict_do_nothing()
    else:
        statement = sqlite.insert(table).values(values).on_conflict_do_nothing()
    return connection.execute(statement, execution_options={"preserve_rowcount": True}).rowcount == 1
