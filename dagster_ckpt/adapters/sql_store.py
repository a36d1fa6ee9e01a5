"""The coordinator store in SQL: SQLite for one machine, PostgreSQL for many.

Everything hangs on one rule: a failure before COMMIT was sent certainly changed nothing; a failure of COMMIT
itself is looked into, by waiting for the row's lock and comparing the id of the write, before anything is said.
"""

from __future__ import annotations

import os
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from threading import Lock
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Row, delete, exc, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from dagster_ckpt.adapters.sql_engine import begin_write, build_engine, classified, shown, store_url
from dagster_ckpt.adapters.sql_migrate import ensure_current, upgrade
from dagster_ckpt.adapters.sql_schema import checkpoint_history, coordinator_record
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId
from dagster_ckpt.errors import InvalidRequest, OutcomeUnknown, Unavailable
from dagster_ckpt.ports import Committed, Conflict, HistoryRow, StoredRecord

__all__ = ["SqlCoordinatorStore"]

T = TypeVar("T")

_READ_BACK_PAUSES = (0.0, 0.1, 0.3, 0.6, 1.0)
"""Seconds before each try to find out what became of a COMMIT."""

_RECORD = coordinator_record.c
_HISTORY = checkpoint_history.c


class _CommitFailed(Exception):
    """COMMIT was sent and no clear answer came back."""


class SqlCoordinatorStore:
    """A CoordinatorStore in a SQLite file or a PostgreSQL database, given by its SQLAlchemy URL.

    Constructing one does no I/O. The first call in a process creates folder, file and tables where they are
    missing (``migrate`` does it explicitly). Safe to share among threads; a forked child opens connections of
    its own.
    """

    def __init__(self, url: str) -> None:
        self._url = store_url(url)
        self._engine: Engine | None = None
        self._dispose: Callable[[], object] = lambda: None
        self._pid = 0
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"SqlCoordinatorStore({shown(self._url)!r})"

    # --- the port -------------------------------------------------------------------------------------------

    def load(self, pipeline: PipelineId) -> StoredRecord | None:
        """Return the latest record, or None. Raises Unavailable."""
        return self._read(lambda connection: _stored(_current_row(connection, pipeline)))

    def compare_and_set(
        self, pipeline: PipelineId, expected: int, body: str, history: Sequence[HistoryRow] = ()
    ) -> Committed | Conflict:
        """Write ``body`` as version ``expected + 1`` if the stored version is ``expected`` (0: no record).

        Raises Unavailable when nothing changed, OutcomeUnknown when even reading back did not tell.
        """
        _check_history(pipeline, history)
        write_id = uuid.uuid4().hex
        try:
            with self._write() as connection:
                if not _put(connection, pipeline, expected, body, write_id):
                    return Conflict(_stored(_current_row(connection, pipeline)))
                _put_history(connection, history)
                _commit(connection)
            return Committed(expected + 1)
        except _CommitFailed as failure:
            return self._read_back(pipeline, expected, write_id, failure)

    def history(
        self, pipeline: PipelineId, *, limit: int, before: CheckpointId | None = None
    ) -> list[HistoryRow]:
        """Return at most ``limit`` rows, newest id first, with ids below ``before`` when it is given."""
        query = select(checkpoint_history).where(_HISTORY.pipeline == pipeline)
        if before is not None:
            query = query.where(_HISTORY.checkpoint_id < before)
        query = query.order_by(_HISTORY.checkpoint_id.desc()).limit(max(limit, 0))
        return self._read(lambda connection: [_history_row(row) for row in connection.execute(query)])

    def pipelines(self) -> list[PipelineId]:
        """Return the pipelines that have a record, sorted."""
        query = select(_RECORD.pipeline)
        return sorted(PipelineId(name) for name in self._read(lambda c: list(c.execute(query).scalars())))

    # --- administration -------------------------------------------------------------------------------------

    def migrate(self) -> None:
        """Bring the database to this version's schema; returns at once when it is there already.

        Raises InvalidRequest when the database is newer than this version of the library.
        """
        with self._classifying():
            upgrade(self._connected_engine())

    def close(self) -> None:
        """Close pooled connections; the store stays usable and opens new ones at need."""
        with self._lock:
            self._engine = None
            self._dispose()

    # --- connections ----------------------------------------------------------------------------------------

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

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with self._classifying(), self._connection() as connection:
            begin_write(connection)
            yield connection

    def _read(self, query: Callable[[Connection], T]) -> T:
        with self._classifying(), self._connection() as connection:
            return query(connection)

    # --- after a COMMIT without an answer -------------------------------------------------------------------

    def _read_back(
        self, pipeline: PipelineId, expected: int, write_id: str, failure: _CommitFailed
    ) -> Committed | Conflict:
        for pause in _READ_BACK_PAUSES:
            time.sleep(pause)
            try:
                with self._write() as connection:
                    row = _settled_row(connection, pipeline)
                break
            except Unavailable:
                continue
        else:
            raise self._unknown(pipeline, expected, failure)
        return self._judged(row, pipeline, expected, write_id, failure)

    def _judged(
        self, row: Row[Any] | None, pipeline: PipelineId, expected: int, write_id: str, failure: _CommitFailed
    ) -> Committed | Conflict:
        version = row.version if row else 0
        if row and row.write_id == write_id:
            return Committed(expected + 1)
        if version == expected:
            raise Unavailable(
                f"version {expected + 1} of pipeline {pipeline!r} was not committed to the coordinator store "
                f"at {shown(self._url)} ({failure}); nothing was changed: retry"
            ) from failure
        if version == expected + 1:
            return Conflict(_stored(row))
        # Later versions hide who wrote ours: it may have landed and been replaced since.
        raise self._unknown(pipeline, expected, failure)

    def _unknown(self, pipeline: PipelineId, expected: int, failure: _CommitFailed) -> OutcomeUnknown:
        error = OutcomeUnknown(
            f"whether version {expected + 1} of pipeline {pipeline!r} reached the coordinator store at "
            f"{shown(self._url)} could not be found out ({failure}): load the record before acting on it"
        )
        error.__cause__ = failure
        return error


def _dispose(engine: Engine, pid: int) -> None:
    # In a forked child the sockets are the parent's: forget them, do not say good-bye on them.
    engine.dispose(close=pid == os.getpid())


# --- statements ---------------------------------------------------------------------------------------------


def _insert_unless_there(connection: Connection, values: dict[str, object]) -> bool:
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(coordinator_record).values(values).on_conflict_do_nothing()
    return connection.execute(statement, execution_options={"preserve_rowcount": True}).rowcount == 1


def _put(connection: Connection, pipeline: PipelineId, expected: int, body: str, write_id: str) -> bool:
    """Write the new version in the open transaction; False when the stored version is another one."""
    values = {"version": expected + 1, "write_id": write_id, "body": body}
    if expected == 0:
        return _insert_unless_there(connection, {"pipeline": pipeline, **values})
    statement = (
        update(coordinator_record)
        .where(_RECORD.pipeline == pipeline, _RECORD.version == expected)
        .values(values)
    )
    return connection.execute(statement).rowcount == 1


def _put_history(connection: Connection, history: Sequence[HistoryRow]) -> None:
    if not history:
        return
    rows = {row.checkpoint_id: asdict(row) for row in history}
    # Delete and insert: the same statements for both databases, and a retried id simply wins.
    connection.execute(
        delete(checkpoint_history).where(
            _HISTORY.pipeline == history[0].pipeline, _HISTORY.checkpoint_id.in_(list(rows))
        )
    )
    connection.execute(insert(checkpoint_history), list(rows.values()))


def _commit(connection: Connection) -> None:
    try:
        connection.commit()
    except exc.SQLAlchemyError as error:
        raise _CommitFailed(str(getattr(error, "orig", None) or error).strip()) from error


def _current_row(connection: Connection, pipeline: PipelineId) -> Row[Any] | None:
    return connection.execute(select(coordinator_record).where(_RECORD.pipeline == pipeline)).first()


def _settled_row(connection: Connection, pipeline: PipelineId) -> Row[Any] | None:
    """Return the record after every transaction that was writing it has ended; the caller rolls back.

    SUBTLE: the server may still be carrying out a COMMIT whose connection broke. A plain read would see the
    old version now and the new one later. So wait: for the row's lock, or, where there is no row yet, by
    inserting one.
    """
    placeholder = {"pipeline": pipeline, "version": 0, "write_id": "", "body": ""}
    if _insert_unless_there(connection, placeholder):
        return None
    query = select(coordinator_record).where(_RECORD.pipeline == pipeline).with_for_update()
    return connection.execute(query).first()


def _stored(row: Row[Any] | None) -> StoredRecord | None:
    return StoredRecord(row.version, row.body) if row else None


def _history_row(row: Row[Any]) -> HistoryRow:
    return HistoryRow(
        pipeline=PipelineId(row.pipeline),
        checkpoint_id=CheckpointId(row.checkpoint_id),
        epoch=CoordinatorEpoch(row.epoch),
        kind=row.kind,
        status=row.status,
        triggered_at=row.triggered_at,
        ended_at=row.ended_at,
        body=row.body,
    )


def _check_history(pipeline: PipelineId, history: Sequence[HistoryRow]) -> None:
    foreign = [row.pipeline for row in history if row.pipeline != pipeline]
    if foreign:
        raise InvalidRequest(f"a history row of {foreign[0]!r} was written with the record of {pipeline!r}")
