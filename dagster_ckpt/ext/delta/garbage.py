"""Garbage of a Delta table: staged files that no version, no cut and no waiting batch needs.

VACUUM never looks below an underscore, so rows that left the table stay there until we remove them: once they have
been out of it for ``delta.deletedFileRetentionDuration``, as VACUUM does with the others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.errors import Corrupt
from dagster_ckpt.ext.delta.lake import Version
from dagster_ckpt.ext.delta.marks import Commit, version_of
from dagster_ckpt.ext.delta.publish import Writer
from dagster_ckpt.spark.sink.committables import PreparedBatch
from dagster_ckpt.spark.sink.port import AttemptId
from dagster_ckpt.spark.sink.table_files import StagedFolder, folder_of

if TYPE_CHECKING:
    from deltalake import DeltaTable

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


def pinned_versions(version: Version, needed: Sequence[TableSnapshot]) -> list[int]:
    """Return the versions that these cuts go back to: what ``vacuum(keep_versions=...)`` must keep."""
    heads = {snapshot.head for snapshot in needed if snapshot.head is not None}
    found = (version_of(version.history, head) for head in heads)
    return sorted(commit.version for commit in found if commit is not None)


@dataclass(frozen=True)
class Garbage:
    """What an attempt removes, at a moment."""

    writer: Writer
    attempt: AttemptId
    now: float
    needed: Sequence[TableSnapshot]
    waiting: Sequence[PreparedBatch]

    def collect(self) -> int:
        """Remove it; return how many folders went."""
        version = self.writer.newest(self.attempt)
        candidates = [folder for folder in self.writer.staged.folders() if not self._is_waiting(folder)]
        if version is not None:
            live = {folder_of(name, self._area) for name in _names_of(version.table)}
            candidates = [folder for folder in candidates if folder.path not in live]
        doomed = self._doomed(version, candidates) if candidates else []
        for folder in doomed:
            self.writer.staged.remove(folder)
        return len(doomed)

    @property
    def _area(self) -> str:
        return self.writer.staged.area

    def _is_waiting(self, folder: StagedFolder) -> bool:
        """True where a batch of this folder may still be published."""
        if any(folder.batch_id in snapshot.prepared for snapshot in self.needed):
            return True
        return any(
            folder_of(file.staged, self._area) == folder.path
            for batch in self.waiting
            for file in batch.files
        )

    def _doomed(self, version: Version | None, folders: Sequence[StagedFolder]) -> list[StagedFolder]:
        history = version.history if version is not None else []
        committed = {path: c for c in reversed(history) if c.mark is not None for path in c.mark.staged}
        pinned = self._pinned_folders(version) if version is not None else set()
        doomed = []
        for folder in folders:
            commit = committed.get(folder.path)
            if folder.path in pinned:
                continue
            if commit is None:  # of an attempt that was aborted, or the log no longer reaches back to it
                if folder.epoch < self.attempt.epoch:
                    doomed.append(folder)
            elif version is not None and self._is_expired(version, commit):
                doomed.append(folder)
        return doomed

    def _pinned_folders(self, version: Version) -> set[str]:
        folders: set[str] = set()
        for number in pinned_versions(version, self.needed):
            try:
                old = version.lake.at(number)
            except Corrupt:
                continue
            folders.update(folder_of(name, self._area) for name in _names_of(old))
        return folders

    def _is_expired(self, version: Version, commit: Commit) -> bool:
        """True where the rows of a commit have been out of the table for long, or went into other files at once."""
        if commit.mark is not None and commit.mark.rewrites:
            return True
        later = [c for c in version.history if c.version > commit.version]
        restored = next((c.version for c in later if c.operation == "RESTORE"), commit.version)
        removals = [c for c in later if c.version >= restored and not c.only_adds]
        if not removals:
            return False
        hours = retention_hours(version.table.metadata().configuration)
        return self.now - removals[-1].timestamp_ms / 1000 > hours * 3600


def retention_hours(configuration: dict[str, str]) -> float:
    """Return for how long a table keeps files that left it."""
    return _hours(configuration, "delta.deletedFileRetentionDuration", _DEFAULT_RETENTION)


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


def _names_of(table: DeltaTable) -> list[str]:
    """Return the names of a version's files, relative to the table."""
    return [str(name) for name in table.get_add_actions(flatten=True).column("path").to_pylist()]
