"""The coordinator store in SQL (SQLite for one machine, PostgreSQL for many), and a checkpoint storage in it.

Everything hangs on one rule: a failure before COMMIT was sent certainly changed nothing; a failure of COMMIT
itself is looked into, by waiting for the row's lock and comparing the id of the write, before anything is said.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, delete, insert, select, update

from dagster_ckpt.adapters.local_keys import partial_name
from dagster_ckpt.adapters.sql_database import (
    CommitFailed,
    SqlDatabase,
    checkpoint_history,
    checkpoint_object,
    commit,
    coordinator_record,
    insert_unless_there,
    operator_audit,
)
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId
from dagster_ckpt.core.paths import (
    CHECKPOINTS_IN_STORE,
    LARGEST_OBJECT,
    SCHEME,
    AlreadyExists,
    Digest,
    StoredObject,
    checked_relative,
    size_text,
)
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound, OutcomeUnknown, Unavailable, way_out
from dagster_ckpt.ports import AuditRow, Committed, Conflict, HistoryRow, StoredRecord

_AT_ONCE = 500
"""Keys a statement names: databases bound the number of parameters."""

_OBJECT = checkpoint_object.c


class SqlCheckpointStorage:
    """A CheckpointStorage in the database of a coordinator store; ``uri`` is ``store://<name>[/<folder>]``.

    A key appears whole, by COMMIT, and is exclusive: the primary key sees to it. Constructing one does no I/O.
    """

    def __init__(self, database: SqlDatabase, uri: str = CHECKPOINTS_IN_STORE) -> None:
        self._database = database
        self.base_uri = _normalized(uri)
        self._root = self.base_uri.removeprefix(SCHEME)

    def __repr__(self) -> str:
        return f"SqlCheckpointStorage({self.base_uri!r}, {self._database.shown!r})"

    def create(self, key: str, source: bytes | Path) -> Digest | AlreadyExists:
        """Store bytes, or a local file's content, under a new key.

        Raises FileNotFoundError where the local file itself is gone, InvalidRequest for an object no row may hold,
        Unavailable, OutcomeUnknown.
        """
        path = self._path(key)
        _refuse_too_large(key, source.stat().st_size if isinstance(source, Path) else len(source))
        content = source.read_bytes() if isinstance(source, Path) else source
        row = {"path": path, "write_id": uuid.uuid4().hex, "size": len(content), "content": content}
        try:
            with self._database.write() as connection:
                if not insert_unless_there(connection, checkpoint_object, row):
                    return AlreadyExists(key)
                commit(connection)
        except CommitFailed as failure:
            return self._read_back(key, row, failure)
        return digest_bytes(content)

    def read(self, key: str) -> bytes:
        """Return the whole content. Raises NotFound, Unavailable."""
        query = select(_OBJECT.content).where(_OBJECT.path == self._path(key))
        content = self._database.read(lambda connection: connection.execute(query).scalar())
        if content is None:
            raise NotFound(f"{key!r} does not exist in checkpoint storage {self.base_uri}")
        return bytes(content)

    def fetch(self, key: str, target: Path, expected: Digest) -> None:
        """Bring the content to a local file, verified. Raises NotFound, Unavailable, Corrupt; then none is left."""
        content = self.read(key)
        found = digest_bytes(content)
        if found != expected:
            raise Corrupt(
                f"{key!r} in checkpoint storage {self.base_uri} is damaged: {expected.size} bytes with "
                f"{expected.checksum} were stored, {found.size} bytes with {found.checksum} are there; "
                "restore from another checkpoint or savepoint"
            )
        beside = target.with_name(partial_name())
        try:
            beside.write_bytes(content)
            os.replace(beside, target)
        finally:
            beside.unlink(missing_ok=True)

    def list(self, prefix: str) -> Iterable[StoredObject]:
        """Yield every object below ``prefix`` (``""``: every object), in no particular order."""
        folder = self._path(prefix) if prefix else self._root
        query = _below(folder)
        rows = self._database.read(lambda connection: connection.execute(query).all())
        return [StoredObject(row.path.removeprefix(f"{self._root}/"), row.size) for row in rows]

    def delete(self, keys: Sequence[str]) -> None:
        """Remove exactly these keys, all or none of each five hundred; missing ones are no error."""
        paths = [self._path(key) for key in keys]
        for start in range(0, len(paths), _AT_ONCE):
            self._delete(paths[start : start + _AT_ONCE])

    def _delete(self, paths: Sequence[str]) -> None:
        try:
            with self._database.write() as connection:
                connection.execute(delete(checkpoint_object).where(_OBJECT.path.in_(paths)))
                commit(connection)
        except CommitFailed as failure:
            raise OutcomeUnknown(
                f"whether {len(paths)} objects of {self.base_uri} were removed from the coordinator store at "
                f"{self._database.shown} is not known ({failure}): remove them again"
            ) from failure

    def _read_back(self, key: str, row: dict[str, Any], failure: CommitFailed) -> Digest | AlreadyExists:
        try:
            writer = self._database.settled(lambda connection: _writer_of(connection, row["path"]))
        except Unavailable:
            raise OutcomeUnknown(
                f"whether {key!r} reached the coordinator store at {self._database.shown} could not be found "
                f"out ({failure}): treat the key as taken"
            ) from failure
        if writer is None:
            raise Unavailable(
                f"{key!r} was not committed to the coordinator store at {self._database.shown} ({failure}); "
                f"nothing was changed: {way_out(str(failure))}"
            ) from failure
        return digest_bytes(row["content"]) if writer == row["write_id"] else AlreadyExists(key)

    def _path(self, key: str) -> str:
        return f"{self._root}/{checked_relative(key)}"


def _below(folder: str) -> Select[Any]:
    # '0' follows '/': what lies between is what begins with 'folder/', and the primary key finds it.
    return select(_OBJECT.path, _OBJECT.size).where(_OBJECT.path > f"{folder}/", _OBJECT.path < f"{folder}0")


def _writer_of(connection: Connection, path: str) -> str | None:
    """Return whose write the object is, once nobody is writing it; None: it is not there. The caller rolls back."""
    placeholder = {"path": path, "write_id": "", "size": 0, "content": b""}
    if insert_unless_there(connection, checkpoint_object, placeholder):
        return None
    query = select(_OBJECT.write_id).where(_OBJECT.path == path)
    return connection.execute(query).scalar()


def _normalized(uri: str) -> str:
    name = uri.removeprefix(SCHEME).rstrip("/")
    if not uri.startswith(SCHEME) or not name:
        raise InvalidRequest(
            f"{uri!r} names no folder of the coordinator store: write {CHECKPOINTS_IN_STORE}"
        )
    return f"{SCHEME}{checked_relative(name)}"


def _refuse_too_large(key: str, size: int) -> None:
    if size > LARGEST_OBJECT:
        raise InvalidRequest(
            f"{key!r} has {size_text(size)}, and one object in the coordinator store {size_text(LARGEST_OBJECT)} "
            "at most: set checkpoint_storage to filesystem and checkpoint_dir to a folder or bucket"
        )


_RECORD = coordinator_record.c
_HISTORY = checkpoint_history.c


class SqlCoordinatorStore:
    """A CoordinatorStore in a SQLite file or a PostgreSQL database, given by its SQLAlchemy URL.

    Constructing one does no I/O. The first call in a process creates folder, file and tables where they are
    missing (``migrate`` does it explicitly). Safe to share among threads; a forked child opens connections of
    its own.
    """

    def __init__(self, url: str) -> None:
        self._database = SqlDatabase(url)

    def __repr__(self) -> str:
        return f"SqlCoordinatorStore({self._database.shown!r})"

    @property
    def place(self) -> str:
        """Place of the database, which tells a copy from the original."""
        return self._database.place

    # --- the port -------------------------------------------------------------------------------------------

    def load(self, pipeline: PipelineId) -> StoredRecord | None:
        """Return the latest record, or None. Raises Unavailable."""
        return self._database.read(lambda connection: _stored(_current_row(connection, pipeline)))

    def compare_and_set(
        self,
        pipeline: PipelineId,
        expected: int,
        body: str,
        history: Sequence[HistoryRow] = (),
        audit: Sequence[AuditRow] = (),
        *,
        forgotten: Collection[CheckpointId] = (),
    ) -> Committed | Conflict:
        """Write ``body`` as version ``expected + 1`` if the stored version is ``expected`` (0: no record).

        Raises Unavailable when nothing changed, OutcomeUnknown when even reading back did not tell.
        """
        _check_history(pipeline, history)
        write_id = uuid.uuid4().hex
        try:
            with self._database.write() as connection:
                if not _put(connection, pipeline, expected, body, write_id):
                    return Conflict(_stored(_current_row(connection, pipeline)))
                _put_history(connection, history)
                _remove_history(connection, pipeline, forgotten)
                if audit:
                    connection.execute(insert(operator_audit), [asdict(row) for row in audit])
                commit(connection)
            return Committed(expected + 1)
        except CommitFailed as failure:
            return self._read_back(pipeline, expected, write_id, failure)

    def history(
        self, pipeline: PipelineId, *, limit: int, before: CheckpointId | None = None
    ) -> list[HistoryRow]:
        """Return at most ``limit`` rows, newest id first, with ids below ``before`` when it is given."""
        query = select(checkpoint_history).where(_HISTORY.pipeline == pipeline)
        if before is not None:
            query = query.where(_HISTORY.checkpoint_id < before)
        query = query.order_by(_HISTORY.checkpoint_id.desc()).limit(max(limit, 0))
        return self._database.read(
            lambda connection: [_history_row(row) for row in connection.execute(query)]
        )

    def audited(self, pipeline: PipelineId, *, limit: int) -> list[AuditRow]:
        """Return at most ``limit`` of the rows ``compare_and_set`` has added, newest first."""
        columns = [column for column in operator_audit.c if column.name != "number"]
        query = select(*columns).where(operator_audit.c.pipeline == pipeline)
        query = query.order_by(operator_audit.c.number.desc()).limit(max(limit, 0))
        return self._database.read(lambda c: [AuditRow(**row) for row in c.execute(query).mappings()])

    def pipelines(self) -> list[PipelineId]:
        """Return the pipelines that have a record, sorted."""
        query = select(_RECORD.pipeline)
        return sorted(
            PipelineId(name) for name in self._database.read(lambda c: list(c.execute(query).scalars()))
        )

    # --- administration -------------------------------------------------------------------------------------

    def migrate(self) -> None:
        """Bring the database to this version's schema; returns at once when it is there already.

        Raises InvalidRequest when the database is newer than this version of the library.
        """
        self._database.migrate()

    def close(self) -> None:
        """Close pooled connections; the store stays usable and opens new ones at need."""
        self._database.close()

    def checkpoint_storage(self, uri: str = CHECKPOINTS_IN_STORE) -> SqlCheckpointStorage:
        """Return the checkpoint storage inside this store, over the same connections. Does no I/O."""
        return SqlCheckpointStorage(self._database, uri)

    # --- after a COMMIT without an answer -------------------------------------------------------------------

    def _read_back(
        self, pipeline: PipelineId, expected: int, write_id: str, failure: CommitFailed
    ) -> Committed | Conflict:
        try:
            row = self._database.settled(lambda connection: _settled_row(connection, pipeline))
        except Unavailable:
            raise self._unknown(pipeline, expected, failure) from None
        return self._judged(row, pipeline, expected, write_id, failure)

    def _judged(
        self, row: Row[Any] | None, pipeline: PipelineId, expected: int, write_id: str, failure: CommitFailed
    ) -> Committed | Conflict:
        version = row.version if row else 0
        if row and row.write_id == write_id:
            return Committed(expected + 1)
        if version == expected:
            raise Unavailable(
                f"version {expected + 1} of pipeline {pipeline!r} was not committed to the coordinator store "
                f"at {self._database.shown} ({failure}); nothing was changed: {way_out(str(failure))}"
            ) from failure
        if version == expected + 1:
            return Conflict(_stored(row))
        # Later versions hide who wrote ours: it may have landed and been replaced since.
        raise self._unknown(pipeline, expected, failure)

    def _unknown(self, pipeline: PipelineId, expected: int, failure: CommitFailed) -> OutcomeUnknown:
        error = OutcomeUnknown(
            f"whether version {expected + 1} of pipeline {pipeline!r} reached the coordinator store at "
            f"{self._database.shown} could not be found out ({failure}): load the record before acting on it"
        )
        error.__cause__ = failure
        return error


# --- statements ---------------------------------------------------------------------------------------------

# Made once: making one takes as long as SQLite takes for it.
_CURRENT = select(coordinator_record).where(_RECORD.pipeline == bindparam("its"))
_REPLACE = update(coordinator_record).where(
    _RECORD.pipeline == bindparam("its"), _RECORD.version == bindparam("expected")
)
_ADD_HISTORY = insert(checkpoint_history)
_REMOVE_HISTORY = delete(checkpoint_history).where(
    _HISTORY.pipeline == bindparam("its"), _HISTORY.checkpoint_id.in_(bindparam("ids", expanding=True))
)


def _put(connection: Connection, pipeline: PipelineId, expected: int, body: str, write_id: str) -> bool:
    """Write the new version in the open transaction; False when the stored version is another one."""
    values = {"version": expected + 1, "write_id": write_id, "body": body}
    if expected == 0:
        return insert_unless_there(connection, coordinator_record, {"pipeline": pipeline, **values})
    return connection.execute(_REPLACE, {"its": pipeline, "expected": expected, **values}).rowcount == 1


def _put_history(connection: Connection, history: Sequence[HistoryRow]) -> None:
    if not history:
        return
    rows = {row.checkpoint_id: asdict(row) for row in history}
    # Delete and insert: the same statements for both databases, and a retried id simply wins.
    _remove_history(connection, history[0].pipeline, rows)
    connection.execute(_ADD_HISTORY, list(rows.values()))


def _remove_history(connection: Connection, pipeline: PipelineId, ids: Collection[CheckpointId]) -> None:
    if ids:
        connection.execute(_REMOVE_HISTORY, {"its": pipeline, "ids": list(ids)})


def _current_row(connection: Connection, pipeline: PipelineId) -> Row[Any] | None:
    return connection.execute(_CURRENT, {"its": pipeline}).first()


def _settled_row(connection: Connection, pipeline: PipelineId) -> Row[Any] | None:
    """Return the record after every transaction that was writing it has ended; the caller rolls back.

    SUBTLE: the server may still be carrying out a COMMIT whose connection broke. A plain read would see the
    old version now and the new one later. So wait: for the row's lock, or, where there is no row yet, by
    inserting one.
    """
    placeholder = {"pipeline": pipeline, "version": 0, "write_id": "", "body": ""}
    if insert_unless_there(connection, coordinator_record, placeholder):
        return None
    return connection.execute(_CURRENT.with_for_update(), {"its": pipeline}).first()


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
