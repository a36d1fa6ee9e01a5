"""Checkpoint storage inside the coordinator store: one row per object, for checkpoints of a few megabytes."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Select, delete, select

from dagster_ckpt.adapters.local_keys import partial_name
from dagster_ckpt.adapters.sql_database import CommitFailed, SqlDatabase, commit, insert_unless_there
from dagster_ckpt.adapters.sql_schema import checkpoint_object
from dagster_ckpt.core.location import CHECKPOINTS_IN_STORE, LARGEST_OBJECT, SCHEME, size_text
from dagster_ckpt.core.paths import AlreadyExists, Digest, StoredObject, checked_relative
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound, OutcomeUnknown, Unavailable

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
                "nothing was changed: retry"
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
