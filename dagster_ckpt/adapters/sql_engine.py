"""Connections to SQLite and PostgreSQL: accepted URLs, how engines are set up, what driver errors mean."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, exc
from sqlalchemy.engine import URL, make_url
from sqlalchemy.pool import NullPool

from dagster_ckpt.core.paths import refuse_split_password
from dagster_ckpt.errors import CheckpointError, Corrupt, InvalidRequest, Unavailable, install_extra, way_out

BUSY_SECONDS = 30
"""How long a call waits for a lock, or a server for an answer, before it counts as unavailable."""


def store_url(text: str) -> URL:
    """Return ``text`` as a URL this library can serve. Raises InvalidRequest, without showing a password."""
    try:
        url = make_url(text)
    except (exc.ArgumentError, ValueError):
        raise InvalidRequest(
            "the store's URL cannot be read: write sqlite:////absolute/path.db or postgresql://user@host/database"
        ) from None
    refuse_split_password(url.host, "the store's URL")
    match url.get_backend_name():
        case "sqlite":
            return _sqlite_url(url)
        case "postgresql" | "postgres":
            return url.set(drivername="postgresql+psycopg")
        case other:
            raise InvalidRequest(
                f"a coordinator store cannot live in {other!r}: use sqlite:///… (one machine) or postgresql://…"
            )


def _sqlite_url(url: URL) -> URL:
    if not url.database or url.database == ":memory:" or url.query:
        raise InvalidRequest(
            f"the store at {shown(url)} would not outlive a connection: name a file without '?' options, "
            "as in sqlite:////data/store.db; tests may use dagster_ckpt.testing.memory instead"
        )
    path = str(Path(url.database).expanduser().absolute())
    return url.set(drivername="sqlite+pysqlite", database=path)


def shown(url: URL) -> str:
    """Return the URL for messages: its password hidden, its options left out (libpq takes a password there too)."""
    return url.set(query={}).render_as_string(hide_password=True)


def is_sqlite(url: URL) -> bool:
    """True for a file on this machine, false for a PostgreSQL server."""
    return url.get_backend_name() == "sqlite"


def build_engine(url: URL) -> Engine:
    """Return an engine that has not connected yet. Raises InvalidRequest when the driver is not installed."""
    return _sqlite_engine(url) if is_sqlite(url) else _postgres_engine(url)


def _sqlite_engine(url: URL) -> Engine:
    # No pool: a connection must not cross a fork, and opening one costs less than a millisecond.
    engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": BUSY_SECONDS})

    @event.listens_for(engine, "connect")
    def _explicit_transactions(connection: Any, _record: Any) -> None:
        # The driver would otherwise begin lazily and take the write lock too late for compare-and-set.
        connection.isolation_level = None

    return engine


def _postgres_engine(url: URL) -> Engine:
    # Options in the URL win over these. No prepared statements: poolers on the way to the server break them.
    defaults = {"connect_timeout": 10, "tcp_user_timeout": BUSY_SECONDS * 1000}
    arguments = {name: value for name, value in defaults.items() if name not in url.query}
    try:
        engine = create_engine(
            url,
            pool_pre_ping=True,
            pool_size=2,
            max_overflow=8,
            pool_timeout=BUSY_SECONDS,
            connect_args={**arguments, "prepare_threshold": None},
        )
    except ModuleNotFoundError:
        raise InvalidRequest(
            f"the store at {shown(url)} needs psycopg: {install_extra('postgres')}"
        ) from None

    @event.listens_for(engine, "connect")
    def _bounded_waits(connection: Any, _record: Any) -> None:
        connection.execute(f"SET lock_timeout = '{BUSY_SECONDS}s'")
        connection.execute(f"SET statement_timeout = '{BUSY_SECONDS}s'")
        connection.commit()

    return engine


def refuse_silent(text: str) -> None:
    """Raise InvalidRequest, Unavailable where the store at a URL cannot be opened; nothing is made, no file either."""
    url = store_url(text)
    if is_sqlite(url) and not Path(str(url.database)).exists():
        return
    engine = build_engine(url)
    try:
        engine.connect().close()
    except (exc.SQLAlchemyError, OSError) as error:
        raise classified(error, url) from error
    finally:
        engine.dispose()


_NOT_LET_IN = re.compile(
    r"password authentication failed|no password supplied|role .* does not exist|database .* does not exist"
    r"|no pg_hba.conf entry|permission denied"
)
_NOT_REACHED = re.compile(
    r"Connection refused|could not translate host name|failed to resolve host|No route to host"
)


def begin_write(connection: Connection) -> None:
    """Begin a transaction that may write; on SQLite it takes the write lock now, not at the first write."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def classified(error: exc.SQLAlchemyError | OSError, url: URL) -> CheckpointError:
    """Return the error that a failure which certainly changed nothing means for the caller."""
    cause = str(getattr(error, "orig", None) or error).strip().replace("\n", " ")
    place = f"the coordinator store at {shown(url)}"
    if isinstance(error, exc.DataError | exc.IntegrityError):
        return InvalidRequest(f"{place} cannot hold this value: {cause}")
    if "file is not a database" in cause or "malformed" in cause:
        return Corrupt(
            f"{place} is damaged ({cause}): restore the file from a backup, or start from a savepoint"
        )
    if _NOT_LET_IN.search(cause):
        return Unavailable(
            f"{place} does not let this user in ({cause}): correct user, password or database of its URL (store_url)"
        )
    if _NOT_REACHED.search(cause):
        return Unavailable(
            f"{place} does not answer ({cause}): correct host and port of its URL (store_url), or start the server"
        )
    return Unavailable(f"{place} did not carry the call out ({cause}); nothing was changed: {way_out(cause)}")
