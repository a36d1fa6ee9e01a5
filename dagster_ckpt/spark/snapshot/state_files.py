"""Files of ``state/`` that a restart at one version needs, for both providers and both name formats.

A state store partition of batch N is version V = N + 1. It is rebuilt from the newest snapshot at or below V
and every change file after it. Under format 2 the names carry unique ids, and a version may exist more than
once (a failed try of a task leaves an orphan): the commit log, and where it is already purged the change
file's own lineage, say which one counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from dagster_ckpt.core.model import FileKind
from dagster_ckpt.spark.snapshot.checkpoint_files import (
    CommitRecord,
    lineage_of,
    read_commit,
    referenced_files,
)

_VERSION_FILE = re.compile(
    r"(?P<version>\d+)(?:_(?P<uid>[0-9a-f-]{36}))?\.(?P<extension>delta|snapshot|zip|changelog)"
)
_SNAPSHOTS = ("zip", "snapshot")
_CHANGES = ("changelog", "delta")
_BATCH_PREFIX = re.compile(r"(\d+)(?:_|$)")


class Vanished(Exception):
    """A file the batch needs is not (or no longer) there; the text names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFile:
    """A file that a restart needs, as it stood when the capture was planned."""

    path: str
    """Relative to the stage's working directory, '/'-separated."""
    size: int
    """Bytes."""
    kind: FileKind
    operator: str | None = None
    partition: int | None = None
    store_name: str | None = None
    """State store within the operator (``default``, ``left-keyToNumValues``, …)."""
    content_named: bool = False
    """The path identifies the content: an equal path and size in an earlier checkpoint is the same file."""
    stamp: tuple[int, int] | None = None
    """Inode, and time of change in nanoseconds: a file that has kept both was not replaced since."""
    source: str | None = None
    """Absolute path to read instead of ``path`` below the working directory (in-flight data, pinned files).
    """


def planned(
    root: Path | str,
    path: str,
    kind: FileKind,
    *,
    operator: str | None = None,
    partition: int | None = None,
    store_name: str | None = None,
    content_named: bool = False,
    expected_size: int | None = None,
) -> PlannedFile:
    """Return ``path`` below ``root`` as a PlannedFile. Raises Vanished when it is missing or of another
    size.
    """
    try:
        seen = os.stat(f"{root}/{path}")
    except FileNotFoundError as error:
        raise Vanished(f"{path} is gone") from error
    size = seen.st_size
    if expected_size is not None and size != expected_size:
        raise Vanished(f"{path} has {size} bytes where its snapshot names {expected_size}")
    return PlannedFile(
        path=path,
        size=size,
        kind=kind,
        operator=operator,
        partition=partition,
        store_name=store_name,
        content_named=content_named,
        stamp=(seen.st_ino, seen.st_mtime_ns),
    )


@dataclass(frozen=True, slots=True)
class _Store:
    """One state store partition: where its files lie."""

    root: str
    folder: str
    operator: str
    partition: int
    name: str


class _VersionFile(NamedTuple):
    name: str
    version: int
    uid: str | None
    extension: str


def state_files(stage_dir: Path, batch: int, commit: CommitRecord, partitions: int) -> list[PlannedFile]:
    """List the files below ``<stage_dir>/query/state`` that a restart after ``batch`` needs.

    ``partitions`` is the query's number of shuffle partitions. Raises Vanished, Unreadable.
    """
    root = str(stage_dir)
    files: list[PlannedFile] = []
    ids = _ids_by_version(root, commit, batch)
    operators = _numbered(f"{root}/query/state")
    lost = sorted(
        operator for operator, count in commit.partitions.items() if count and operator not in operators
    )
    if lost:
        raise Vanished(f"query/state/{lost[0]} is gone")  # else it would pass for a query without state
    for operator in sorted(operators):
        base = f"query/state/{operator}"
        files += _schema_files(root, base, batch, operator=operator, partition=None)
        present = sorted(int(name) for name in _numbered(f"{root}/{base}"))
        for partition in _partitions_of(operator, present, commit, partitions):
            for store in _stores(root, f"{base}/{partition}", operator, partition):
                files += _schema_files(root, store.folder, batch, operator=operator, partition=partition)
                files += _store_files(store, batch + 1, ids)
    return files


def _numbered(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.isdecimal()]
    except FileNotFoundError:
        return []


def _partitions_of(operator: str, present: list[int], commit: CommitRecord, shuffled: int) -> list[int]:
    """Decide which partitions the batch has; a rescale leaves folders of a larger number behind.

    Format 2 says it in the commit log. Format 1 does not: an operator has the query's shuffle partitions or,
    for a global aggregate, only one folder ever.
    """
    deduced = 1 if present == [0] else shuffled
    count = commit.partitions.get(operator, 0) if commit.unique_ids else deduced
    missing = sorted(set(range(count)) - set(present))
    if missing:
        raise Vanished(f"query/state/{operator}/{missing[0]} is gone")
    return list(range(count))


def _stores(root: str, folder: str, operator: str, partition: int) -> list[_Store]:
    with os.scandir(f"{root}/{folder}") as entries:
        names = [e.name for e in entries if e.name[0] not in "_." and e.is_dir()]
    named = sorted(name for name in names if name not in ("SSTs", "logs"))
    return [
        _Store(root, folder, operator, partition, "default"),
        *(_Store(root, f"{folder}/{name}", operator, partition, name) for name in named),
    ]


def _schema_files(
    root: str, folder: str, batch: int, *, operator: str, partition: int | None
) -> Iterator[PlannedFile]:
    """Yield operator metadata and schemas; those numbered by a batch only up to ``batch``."""
    for name in ("_metadata", "_stateSchema"):
        for where, _, names in os.walk(f"{root}/{folder}/{name}"):
            for file in names:
                born = _BATCH_PREFIX.match(file)
                if file.startswith(".") or (born and int(born[1]) > batch):
                    continue
                path = f"{where.removeprefix(f'{root}/')}/{file}"
                yield planned(root, path, FileKind.STATE_SCHEMA, operator=operator, partition=partition)


def _version_files(store: _Store) -> Iterator[_VersionFile]:
    for name in os.listdir(f"{store.root}/{store.folder}"):
        match = _VERSION_FILE.fullmatch(name)
        if match:
            yield _VersionFile(name, int(match["version"]), match["uid"], match["extension"])


def _ids_by_version(root: str, commit: CommitRecord, batch: int) -> Callable[[int], frozenset[str]]:
    """Return a lookup of the unique ids that count for a state version; empty where the commit log is
    purged.
    """

    @cache
    def lookup(version: int) -> frozenset[str]:
        if version == batch + 1 or not commit.unique_ids:
            return commit.unique_ids
        try:
            return read_commit(f"{root}/query/commits/{version - 1}").unique_ids
        except FileNotFoundError:
            return frozenset()

    return lookup


def _store_files(store: _Store, target: int, ids: Callable[[int], frozenset[str]]) -> list[PlannedFile]:
    """Walk down from version ``target`` to the newest snapshot; raises Vanished when a version is missing."""
    by_version: dict[int, list[_VersionFile]] = {}
    for file in _version_files(store):
        by_version.setdefault(file.version, []).append(file)
    if not by_version and store.name == "default":
        return []  # the operator keeps its files in named stores only
    chosen: list[_VersionFile] = []
    lineage: dict[int, str] = {}
    for version in range(target, 0, -1):
        candidates = _that_count(store, by_version.get(version, []), ids(version), chosen, lineage)
        snapshot = next((f for f in candidates if f.extension in _SNAPSHOTS), None)
        if snapshot is not None:
            return _planned_state(store, [*chosen, snapshot])
        change = next((f for f in candidates if f.extension in _CHANGES), None)
        if change is None:
            raise Vanished(f"version {version} of {store.folder} is gone (needed for version {target})")
        chosen.append(change)
    return _planned_state(store, chosen)


def _that_count(
    store: _Store,
    candidates: list[_VersionFile],
    known: frozenset[str],
    chosen: list[_VersionFile],
    lineage: dict[int, str],
) -> list[_VersionFile]:
    """Leave out orphans: by the commit log, else by the lineage of the change file that follows."""
    if known:
        return [f for f in candidates if f.uid in known]
    if len({f.uid for f in candidates}) <= 1 or not chosen:
        return candidates
    if not lineage:
        lineage.update(lineage_of(Path(store.root, store.folder, chosen[-1].name)))
    return [f for f in candidates if f.uid == lineage.get(f.version)]


def _planned_state(store: _Store, chosen: list[_VersionFile]) -> list[PlannedFile]:
    files: list[PlannedFile] = []
    for file in chosen:
        kind = FileKind.STATE_SNAPSHOT if file.extension in _SNAPSHOTS else FileKind.STATE_DELTA
        files.append(_of_store(store, file.name, kind, content_named=file.uid is not None))
        if file.extension == "zip":
            files += _snapshot_parts(store, file.name)
    return files


def _snapshot_parts(store: _Store, archive: str) -> Iterator[PlannedFile]:
    path = f"{store.root}/{store.folder}/{archive}"
    try:
        seen = os.stat(path)
        parts = referenced_files(path, seen.st_mtime_ns, seen.st_size)
    except FileNotFoundError as error:
        raise Vanished(f"{store.folder}/{archive} is gone") from error
    for name, size in parts:
        yield _of_store(store, name, FileKind.STATE_SST, content_named=True, expected_size=size)


def _of_store(
    store: _Store, name: str, kind: FileKind, *, content_named: bool, expected_size: int | None = None
) -> PlannedFile:
    return planned(
        store.root,
        f"{store.folder}/{name}",
        kind,
        operator=store.operator,
        partition=store.partition,
        store_name=store.name,
        content_named=content_named,
        expected_size=expected_size,
    )
