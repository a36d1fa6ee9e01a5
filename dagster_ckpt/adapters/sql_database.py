"""One database: its tables, connections made at need, transactions, and a COMMIT without an answer.

A database is brought to the schema of this version once per process, under a lock.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Float,
    Insert,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    exc,
    inspect,
    text,
)
from sqlalchemy.dialects import sqlite

from dagster_ckpt.adapters.sql_engine import (
    BUSY_SECONDS,
    begin_write,
    build_engine,
    classified,
    is_sqlite,
    shown,
    store_url,
)
from dagster_ckpt.errors import InvalidRequest, OutcomeUnknown, Unavailable

HEAD_REVISION = "0003"
"""Newest schema this version of the library knows."""

VERSION_TABLE = "dagster_ckpt_alembic_version"
"""Its own name, so that the store may share a database with Dagster, which uses alembic too."""

metadata = MetaData()

coordinator_record = Table(
    "coordinator_record",
    metadata,
    Column("pipeline", String(100), primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("write_id", String(32), nullable=False),
    Column("body", Text, nullable=False),
)
"""The coordinator's record of each pipeline; ``write_id`` tells whose write the current version was."""

checkpoint_history = Table(
    "checkpoint_history",
    metadata,
    # The primary key is the index that "newest first" reads backwards.
    Column("pipeline", String(100), primary_key=True),
    Column("checkpoint_id", BigInteger, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("kind", String(40), nullable=False),
    Column("status", String(40), nullable=False),
    Column("triggered_at", Float(53), nullable=False),
    Column("ended_at", Float(53)),
    Column("body", Text, nullable=False),
)
"""One row per checkpoint and savepoint that was triggered, until its row is outdated (``runtime.history``)."""

checkpoint_object = Table(
    "checkpoint_object",
    metadata,
    # Compared byte by byte in both databases: a listing is a range of the primary key.
    Column("path", Text().with_variant(Text(collation="C"), "postgresql"), primary_key=True),
    Column("write_id", String(32), nullable=False),
    Column("size", BigInteger, nullable=False),
    # The last: SQLite reads the others without it.
    Column("content", LargeBinary, nullable=False),
)
"""Checkpoints kept in the store itself, one row per object; ``path`` is ``<name>/<key>`` of ``store://<name>``."""

operator_audit = Table(
    "operator_audit",
    metadata,
    # SQLite counts integers only.
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("pipeline", String(100), nullable=False, index=True),
    Column("at", Float(53), nullable=False),
    Column("what", String(40), nullable=False),
    Column("key", String(100), nullable=False),
    Column("uri", Text, nullable=False),
    Column("who", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("shown", Text, nullable=False),
)
"""Who restored, forked and disposed of what, with the preview then shown; rows are only ever added."""


_ADVISORY_LOCK = 0x6461675F636B7074  # "dag_ckpt"
_READ_VERSION = text(f"SELECT version_num FROM {VERSION_TABLE}")

_current: set[tuple[object, ...]] = set()
_current_lock = threading.Lock()


def ensure_current(engine: Engine) -> None:
    """Return when the schema is current; only the first call per process and database looks."""
    key = _identity(engine)
    if key is not None and key in _current:
        return
    with _current_lock:
        upgrade(engine)
        key = _identity(engine)
        if key is not None:
            _current.add(key)


def upgrade(engine: Engine) -> None:
    """Migrate an older database. Raises InvalidRequest when it is newer; driver errors pass through."""
    if is_sqlite(engine.url):
        _create_wal_file(engine)
    with engine.connect() as connection:
        if _revision(connection) == HEAD_REVISION:
            return
    with engine.connect() as connection:
        begin_write(connection)
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})"))
        found = _revision(connection)
        if found != HEAD_REVISION:
            _run(connection, found)
        connection.commit()


def _identity(engine: Engine) -> tuple[object, ...] | None:
    """Process and database; for SQLite the file itself, so that a replaced file is looked at again."""
    url = engine.url
    if not is_sqlite(url):
        return os.getpid(), url
    try:
        status = os.stat(url.database or "")
    except OSError:
        return None
    return os.getpid(), url, status.st_dev, status.st_ino


def _create_wal_file(engine: Engine) -> None:
    _create_private(Path(engine.url.database or ""))
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            with engine.connect() as connection:
                if connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() != "wal":
                    connection.exec_driver_sql("PRAGMA journal_mode=WAL")
                return
        except exc.OperationalError as error:
            # Changing the journal mode does not wait for other connections as statements do.
            if "locked" not in str(error.orig) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _create_private(path: Path) -> None:
    """Make the file and its folder for their owner alone; what is there keeps its mode. Side files get the file's."""
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))


def _revision(connection: Connection) -> str | None:
    """Return the database's revision; None for a database without our tables."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(_READ_VERSION).scalar()


def _run(connection: Connection, found: str | None) -> None:
    # Importing alembic takes longer than a sensor tick may: only a process that migrates pays for it.
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", "dagster_ckpt.adapters:migrations")
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise InvalidRequest(
            f"the coordinator store at {shown(connection.engine.url)} has schema {found!r}, which is newer than "
            f"this dagster_ckpt knows ({HEAD_REVISION!r}): upgrade dagster_ckpt here; nothing was changed"
        )
    command.upgrade(config, "head")


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
