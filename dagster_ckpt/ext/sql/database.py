"""Connections to the database of a sink: accepted URLs, transactions, what driver errors mean."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, exc
from sqlalchemy.engine import URL, make_url
from sqlalchemy.pool import NullPool

from dagster_ckpt.core.paths import refuse_split_password
from dagster_ckpt.errors import (
    CheckpointError,
    InvalidRequest,
    OutcomeUnknown,
    Unavailable,
    install_extra,
    way_out,
)

BUSY_SECONDS = 30
"""How long a call waits for a lock, or for an answer to a connection, before it counts as unavailable."""
_REFUSED = {"DataError", "IntegrityError", "ProgrammingError", "NotSupportedError"}
"""Errors (PEP 249) that come again however often the same is tried."""
_REFUSED_BY_POSTGRES = ("0A", "21", "22", "23", "42", "44", "54", "P0")
"""Classes of SQLSTATE that do: an index row that is too long is an OperationalError, RAISE in a trigger is none."""
_REFUSED_BY_SQLITE = (
    "no such ",
    "cannot ",
    "duplicate ",
    "table ",
    "too many ",
    "string or blob too big",
    "near ",
)
"""Beginnings of its OperationalErrors that do."""

T = TypeVar("T")
_OPEN: ContextVar[tuple[URL, Connection] | None] = ContextVar("_OPEN", default=None)
"""Transaction of the step in which this thread changes several tables."""


def resolved_url(given: Any) -> URL:
    """Return a URL that is given as text, as ``env:NAME``, as Dagster's EnvVar or as SQLAlchemy's URL.

    Raises InvalidRequest, without showing a password.
    """
    if isinstance(given, URL):
        return _served(given)
    name = getattr(given, "env_var_name", None)
    if name is None and given.startswith("env:"):
        name = given.removeprefix("env:")
    if name is not None:
        given = os.environ.get(name)
        if not given:
            raise InvalidRequest(
                f"the sink's database is named by the variable {name}, which is not set: set it"
            )
    try:
        url = make_url(given)
    except (exc.ArgumentError, ValueError):
        raise InvalidRequest(
            "the URL of the sink's database cannot be read: write postgresql://user@host/database or "
            "sqlite:////absolute/path.db"
        ) from None
    refuse_split_password(url.host, "the URL of the sink's database")
    return _served(url)


def _served(url: URL) -> URL:
    match url.get_backend_name():
        case "sqlite":
            if not url.database or url.database == ":memory:" or url.query:
                raise InvalidRequest("name the file of a SQLite database, as in sqlite:////data/shop.db")
            path = os.path.realpath(Path(url.database).expanduser())  # one place, however it is spelled
            return url.set(drivername="sqlite+pysqlite", database=path)
        case "postgresql" | "postgres":
            return url.set(drivername="postgresql+psycopg")
        case other:
            raise InvalidRequest(
                f"a sink cannot write to {other!r}: use postgresql:// or sqlite://, a function of your own "
                "(ForEachCheckpoint), or a sink of your own"
            )


def place_of(url: URL) -> str:
    """Return the database's name for people and checkpoints: no user, no password, no options."""
    backend = url.get_backend_name()
    if backend == "sqlite":
        return f"sqlite:///{url.database}"
    port = f":{url.port}" if url.port else ""
    return f"{backend}://{url.host or url.query.get('host', 'localhost')}{port}/{url.database or ''}"


class Database:
    """The database of one sink. A connection lives for one transaction: nothing is held between checkpoints."""

    def __init__(self, url: URL) -> None:
        self.place, self.backend = place_of(url), url.get_backend_name()
        self._url = url
        self._engine = _engine(url, self.place)

    def __eq__(self, other: object) -> bool:
        """Tell whether it is the same database, reached as the same user."""
        return isinstance(other, Database) and self._url == other._url

    def __hash__(self) -> int:
        """Return the hash of where it is."""
        return hash(self._url)

    why_apart = ""

    def step(self, work: Callable[[], T]) -> T:
        """Carry out all transactions that ``work`` begins as one.

        Foreign keys from one table to another are compared at its end where they may be: the tables come in any order.
        """
        with self.transaction() as connection:
            if self.backend == "postgresql":
                connection.exec_driver_sql("SET CONSTRAINTS ALL DEFERRED")
            begun = _OPEN.set((self._url, connection))
            try:
                return work()
            finally:
                _OPEN.reset(begun)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Give a transaction, committed at the end and rolled back by any error.

        Raises Unavailable when it certainly did not happen, OutcomeUnknown when the answer to COMMIT was lost,
        InvalidRequest for what the database refuses. Within a step it is the step's, which alone commits.
        """
        open_one = self._open()
        if open_one is not None:
            yield open_one
            return
        with self._connected() as connection:
            try:
                if connection.dialect.name == "sqlite":
                    # Take the write lock now: a reader that becomes a writer late may find it gone.
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                yield connection
            except BaseException as error:
                _rolled_back(connection)
                if _is_of_driver(error):
                    raise self._classified(error) from error
                raise
            try:
                connection.commit()
            except exc.DBAPIError as error:
                _rolled_back(connection)
                if _is_refusal(error):
                    raise self._classified(error) from error
                raise OutcomeUnknown(
                    f"{self.place} did not answer to COMMIT ({_cause(error)}): repeat it, what happened is recognized"
                ) from error

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection that changes nothing; within a step it sees what the step has done."""
        open_one = self._open()
        if open_one is not None:
            yield open_one
            return
        with self._connected() as connection, self._classifying():
            yield connection

    def _open(self) -> Connection | None:
        step = _OPEN.get()
        return step[1] if step is not None and step[0] == self._url else None

    @contextmanager
    def at_one_moment(self) -> Iterator[Connection]:
        """Give a connection that changes nothing, and whose statements all find one state of the database."""
        with self._connected() as connection, self._classifying():
            try:
                if connection.dialect.name == "sqlite":
                    connection.exec_driver_sql("BEGIN")
                else:
                    connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                yield connection
            finally:
                _rolled_back(connection)

    @contextmanager
    def _classifying(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if _is_of_driver(error):
                raise self._classified(error) from error
            raise

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        try:
            connection = self._engine.connect()
        except exc.DBAPIError as error:
            cause = _cause(error)
            raise Unavailable(f"{self.place} cannot be reached ({cause}): {way_out(cause)}") from error
        try:
            yield connection
        finally:
            connection.close()

    def _classified(self, error: BaseException) -> CheckpointError:
        if constraint := _constraint(error):
            return InvalidRequest(
                f"{self.place} refuses these rows by {constraint} of the table, nothing was changed: {_cause(error)}. "
                "Their checkpoint is complete, and each publish tries them again: change or drop the constraint, or "
                "restore an older checkpoint with a sink's function that leaves such rows out"
            )
        if _is_refusal(error):
            return InvalidRequest(f"{self.place} refuses these rows, nothing was changed: {_cause(error)}")
        cause = _cause(error)
        return Unavailable(
            f"{self.place} did not carry it out, nothing was changed ({cause}): {way_out(cause)}"
        )


def _engine(url: URL, place: str) -> Engine:
    if url.get_backend_name() == "sqlite":
        engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": BUSY_SECONDS})

        @event.listens_for(engine, "connect")
        def _explicit_transactions(connection: Any, _record: Any) -> None:
            connection.isolation_level = None

        return engine
    defaults = {"connect_timeout": 10, "tcp_user_timeout": BUSY_SECONDS * 1000}
    arguments = {name: value for name, value in defaults.items() if name not in url.query}
    try:
        engine = create_engine(url, poolclass=NullPool, connect_args={**arguments, "prepare_threshold": None})
    except ModuleNotFoundError:
        raise InvalidRequest(f"the sink {place} needs psycopg: {install_extra('postgres')}") from None

    @event.listens_for(engine, "connect")
    def _bounded_waits(connection: Any, _record: Any) -> None:
        connection.autocommit = True
        connection.execute(f"SET lock_timeout = '{BUSY_SECONDS}s'")
        connection.autocommit = False

    return engine


def _rolled_back(connection: Connection) -> None:
    try:
        connection.rollback()
    except exc.DBAPIError:
        connection.invalidate()  # the server rolls back what nobody is connected to


def _is_of_driver(error: BaseException) -> bool:
    return isinstance(error, exc.DBAPIError) or type(error).__module__.startswith("psycopg")


def _is_refusal(error: BaseException) -> bool:
    """Tell whether the database refuses what it was given, however often the same is tried."""
    original: Any = getattr(error, "orig", None) or error
    state = getattr(original, "sqlstate", None)
    if state:
        return str(state).startswith(_REFUSED_BY_POSTGRES)
    is_told = isinstance(original, sqlite3.OperationalError) and str(original).startswith(_REFUSED_BY_SQLITE)
    return is_told or any(cls.__name__ in _REFUSED for cls in type(original).__mro__)


_BY_SQLITE = re.compile(r"(CHECK|UNIQUE|NOT NULL|FOREIGN KEY) constraint failed(?:: (.+))?")
_BY_POSTGRES = {
    "23502": "NOT NULL",
    "23503": "FOREIGN KEY",
    "23505": "UNIQUE",
    "23514": "CHECK",
    "23P01": "EXCLUDE",
}
"""Constraints by SQLSTATE."""


def _constraint(error: BaseException) -> str:
    """Return the kind and name of the constraint that refuses rows; empty: it is something else that does."""
    original: Any = getattr(error, "orig", None) or error
    if kind := _BY_POSTGRES.get(getattr(original, "sqlstate", None) or ""):
        return f"{kind} {original.diag.constraint_name or original.diag.column_name}"
    found = _BY_SQLITE.search(str(original))
    return "" if found is None else f"{found[1]} {found[2] or ''}".strip()


def _cause(error: BaseException) -> str:
    return " ".join(str(getattr(error, "orig", None) or error).split())
