"""A Delta table as it was read: its log as states, with the marks of our commits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote

from dagster_ckpt.errors import Corrupt
from dagster_ckpt.ext.delta.lake import Lake, app_id, reading
from dagster_ckpt.ext.tables.marks import SinkNames
from dagster_ckpt.ext.tables.staged_files import STAGED
from dagster_ckpt.ext.tables.version import State, Version
from dagster_ckpt.spark.sink.port import AttemptId
from dagster_ckpt.spark.sink.rows import FilesOfPartition, PlainFiles

if TYPE_CHECKING:
    from deltalake import DeltaTable


RETENTION = "delta.deletedFileRetentionDuration"
REPLACED_FILES_STAY = "interval 1 hour"
"""In tables that a pipeline keeps small, for readers that began before: its own VACUUM keeps what snapshots need."""
_DEFAULT_RETENTION = "interval 1 week"
_DEFAULT_LOG_RETENTION = "interval 30 days"
_HOURS = {
    "millisecond": 1 / 3_600_000,
    "second": 1 / 3600,
    "minute": 1 / 60,
    "hour": 1,
    "day": 24,
    "week": 168,
}


def retention_hours(configuration: dict[str, str]) -> float:
    """Return for how long a table keeps files that left it."""
    return _hours(configuration, RETENTION, _DEFAULT_RETENTION)


def log_retention_hours(configuration: dict[str, str]) -> float:
    """Return for how long a table keeps its log's entries, and so its older versions."""
    return _hours(configuration, "delta.logRetentionDuration", _DEFAULT_LOG_RETENTION)


def _hours(configuration: dict[str, str], name: str, default: str) -> float:
    text = configuration.get(name, default)
    found = re.fullmatch(r"(?:interval )?(\d+) ([a-z]+?)s?", text.strip().lower())
    if found is None or found[2] not in _HOURS:
        found = re.fullmatch(r"(?:interval )?(\d+) ([a-z]+?)s?", default)
    assert found is not None
    return int(found[1]) * _HOURS[found[2]]


_SAME_ROWS = ("OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES")
"""Operations after which the table has the same rows."""
_RULES = ("ADD CONSTRAINT", "DROP CONSTRAINT", "ADD FEATURE", "UPGRADE PROTOCOL", "UNSET TBLPROPERTIES")
"""Operations that leave the rows as they are, and which going back would undo."""
_PLAIN_FEATURES = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
"""Names of reader features under which a version's files are its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit(State):
    """One version of the table."""

    only_adds: bool
    """No file left the table by it."""


@dataclass(frozen=True)
class Known:
    """The log of a table as far as it was read before."""

    states: list[Commit] = field(default_factory=list)
    """Newest first."""
    entries: list[dict[str, Any]] = field(default_factory=list)
    """The newest of them, as the log has it."""

    def follow(self, entry: dict[str, Any], names: SinkNames) -> None:
        """Add what the log says of a version, where that is the next one; what a commit was to say tells no time."""
        is_whole = "timestamp" in entry
        if is_whole and self.states and self.states[0].number + 1 == entry["version"]:
            self.states.insert(0, _commit(entry, names))
            self.entries[:] = [entry]


@dataclass(frozen=True)
class DeltaVersion(Version):
    """The table as of one version."""

    lake: Lake
    table: DeltaTable
    entry: dict[str, Any] = field(default_factory=dict, compare=False)
    """What the log says of it, where a later caller may read on from it."""
    known: Known = field(default_factory=Known, repr=False, compare=False)

    word: ClassVar[str] = "version"
    expires: ClassVar[str] = "is older than delta.logRetentionDuration"
    aside_word: ClassVar[str] = "version"
    is_line: ClassVar[bool] = True

    @cached_property
    def number(self) -> int:
        """The version."""
        return self.table.version()

    def states(self, limit: int | None) -> Sequence[Commit]:
        """Return the states in the log, newest first; entries that were read before are not read again."""
        if limit is None:
            return self._all()
        if limit == 1 and self.entry:
            return [_commit(self.entry, self.names)]
        return [_commit(entry, self.names) for entry in self.lake.history(self.table, limit)]

    def _all(self) -> list[Commit]:
        """Return all of them; what was read before is read again only where the log is another one since."""
        known, entries = self.known.states, self.known.entries
        new = self.number - known[0].number if known else -1
        found = self.lake.history(self.table, new + 1) if new >= 0 else []
        if not found or found[new:] != entries:  # the table was put back, or removed and made again
            known.clear()
            found = self.lake.history(self.table, None)
            new = len(found)
        known[:0] = [_commit(entry, self.names) for entry in found[:new]]
        entries[:] = found[:1]
        return list(known)

    @cached_property
    def commits(self) -> list[Commit]:
        """All versions that the log tells of, newest first."""
        return [state for state in self.history if isinstance(state, Commit)]

    def let_go(self) -> None:
        """Let the next caller read on from here."""
        if self.entry:
            self.lake.leave(self.table, self.number, self.entry)

    def forget_before(self, number: int) -> None:
        """Forget what was read of entries that the log has no more."""
        self.known.states[:] = [state for state in self.known.states if state.number >= number]

    @cached_property
    def removals(self) -> tuple[list[int], list[int]]:
        """Numbers and times of the versions by which any file left the table, oldest first, but by merging."""
        found = [
            c for c in reversed(self.commits) if not (c.only_adds or (c.mark is not None and c.mark.left))
        ]
        return [commit.number for commit in found], [commit.timestamp_ms for commit in found]

    @cached_property
    def left_at(self) -> dict[str, int]:
        """When the files of a staged folder were last merged into others."""
        marks = ((commit.timestamp_ms, commit.mark) for commit in reversed(self.commits))
        return {path: time for time, mark in marks if mark is not None for path in mark.left}

    def has_rows(self) -> bool:
        """Tell whether the table has a file."""
        return bool(self.table.file_uris())

    def rows_at(self, number: int) -> int | None:
        """Return the rows of a version by the log. Raises Corrupt where a file in a folder is gone or cut short."""
        actions = self._files(number)
        if self.lake.root is not None:
            for path, size in zip(
                *(actions.column(name).to_pylist() for name in ("path", "size_bytes")), strict=True
            ):
                _refuse_other_size(self.lake.root / unquote(str(path)), size)
        counts = actions.column("num_records").to_pylist()
        return None if None in counts else sum(counts)

    def files_at(self, number: int) -> PlainFiles | None:
        """Return the version's files in a folder, where no feature of Delta says more of their rows."""
        table, root = self._table_at(number), self.lake.root
        configuration = table.metadata().configuration
        is_mapped = configuration.get("delta.columnMapping.mode", "none") != "none"
        if root is None or is_mapped or set(table.protocol().reader_features or ()) - _PLAIN_FEATURES:
            return None
        actions = self._files(number)
        partitions = {
            name: actions.column(f"partition.{name}").to_pylist()
            for name in table.metadata().partition_columns
        }
        parts: dict[tuple[Any, ...], list[Path]] = {}
        for path, *values in zip(actions.column("path").to_pylist(), *partitions.values(), strict=True):
            parts.setdefault(tuple(values), []).append(root / unquote(str(path)))
        return PlainFiles(
            folder=root,
            row_schema=table.schema().to_json(),
            parts=tuple(
                FilesOfPartition(
                    paths=tuple(paths), values=dict(zip(partitions, map(_text, values), strict=True))
                )
                for values, paths in parts.items()
            ),
        )

    def _table_at(self, number: int) -> DeltaTable:
        return self.table if number == self.number else self.lake.at(number)

    def _files(self, number: int) -> Any:
        with reading(self.place):
            return self._table_at(number).get_add_actions(flatten=True)

    def aside(self, attempt: AttemptId) -> str:
        """Return the version."""
        return str(self.number)

    def is_forgotten(self, lineage: str) -> bool:
        """Tell whether Delta's own list of transactions knows the history."""
        return any(self.table.transaction_version(app_id(label, lineage)) for label in self.names.labels)

    def kept_until(self, state: State) -> float | None:
        """Return when an older version goes: its log entry, or files that left the table since."""
        if state.number == self.number:
            return None
        configuration = self.table.metadata().configuration
        times = []
        if configuration.get("delta.enableExpiredLogCleanup", "true") != "false":
            times.append(state.timestamp_ms / 1000 + 3600 * log_retention_hours(configuration))
        now = set(self.table.file_uris())
        gone = [uri for uri in self.lake.at(state.number).file_uris() if uri not in now and STAGED not in uri]
        left = [c for c in self.commits if c.number > state.number and not c.only_adds]
        if gone and left and configuration.get(RETENTION) != REPLACED_FILES_STAY:
            times.append(left[-1].timestamp_ms / 1000 + 3600 * retention_hours(configuration))
        return min(times, default=None)


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else str(value).lower()


def _refuse_other_size(path: Path, size: int) -> None:
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        raise Corrupt(f"{path} is gone: choose a later checkpoint, or bring it back from a backup") from None
    if found != size:
        raise Corrupt(
            f"{path} has {found} bytes and had {size}: choose a later checkpoint, or bring it back from a backup"
        )


def _commit(entry: dict[str, Any], names: SinkNames) -> Commit:
    number: int = entry["version"]
    mark = names.read(entry, f"version {number}")
    operation = entry.get("operation") or ""
    parameters = entry.get("operationParameters") or {}
    parent: int | None = number - 1 if number else None
    named = str(parameters.get("version")) if operation == "RESTORE" else ""
    brings = int(named) if named.isdecimal() else None
    if operation == "RESTORE" and mark is None:
        parent = brings
    is_appended = parameters.get("mode") == "Append" and not (mark and (mark.rewrites or mark.rearranges))
    only_adds = is_appended or operation in ("CREATE TABLE", "ADD COLUMN")
    is_same = operation in _SAME_ROWS or (mark is not None and mark.rearranges)
    return Commit(
        number=number,
        order=number,
        parent=parent,
        timestamp_ms=entry.get("timestamp") or 0,
        did=operation,
        changes_rows=not is_same,
        keeps_rows=only_adds or is_same or operation in ("RESTORE", *_RULES),
        mark=mark,
        brings=brings,
        only_adds=only_adds,
    )
