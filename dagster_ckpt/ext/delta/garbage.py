"""Garbage of a Delta table: staged files that no version, no cut and no waiting batch needs.

VACUUM never looks below an underscore, so rows that left the table stay there until we remove them: once they have
been out of it for ``delta.deletedFileRetentionDuration``, as VACUUM does with the others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.errors import Corrupt
from dagster_ckpt.ext.delta.backend import names_of
from dagster_ckpt.ext.delta.version import Commit, DeltaVersion, retention_hours
from dagster_ckpt.spark.sink.committables import PreparedBatch
from dagster_ckpt.spark.sink.port import AttemptId
from dagster_ckpt.spark.sink.table_files import StagedFolder
from dagster_ckpt.spark.sink.versioned.engine import Engine


def pinned_versions(version: DeltaVersion, needed: Sequence[TableSnapshot]) -> list[int]:
    """Return the versions that these cuts go back to: what ``vacuum(keep_versions=...)`` must keep."""
    heads = {snapshot.head for snapshot in needed if snapshot.head is not None}
    found = (version.showing(head) for head in heads)
    return sorted(state.number for state in found if state is not None)


@dataclass(frozen=True)
class Garbage:
    """Garbage that an attempt removes, at a moment."""

    engine: Engine[DeltaVersion]
    attempt: AttemptId
    now: float
    needed: Sequence[TableSnapshot]
    waiting: Sequence[PreparedBatch]

    def collect(self) -> int:
        """Remove it; return how many folders went."""
        version = self.engine.newest(self.attempt, reads_on=True)
        candidates = self.engine.staged.not_waiting(self.needed, self.waiting)
        if version is not None:
            live = {self.engine.staged.folder_of(name) for name in names_of(version.table)}
            candidates = [folder for folder in candidates if folder.path not in live]
        doomed = self._doomed(version, candidates) if candidates else []
        for folder in doomed:
            self.engine.staged.remove(folder)
        if version is not None:
            version.let_go()
        return len(doomed)

    def _doomed(self, version: DeltaVersion | None, folders: Sequence[StagedFolder]) -> list[StagedFolder]:
        history = version.commits if version is not None else []
        committed = {path: c for c in reversed(history) if c.mark is not None for path in c.mark.staged}
        pinned = self._pinned_folders(version) if version is not None else set()
        is_whole = not history or history[-1].number == 0
        doomed = []
        for folder in folders:
            commit = committed.get(folder.path)
            if folder.path in pinned:
                continue
            if commit is None:  # of an attempt that was aborted, or the log no longer reaches back to it
                if self._is_over(version, folder) and (is_whole or self._is_old(version, folder)):
                    doomed.append(folder)
            elif version is not None and self._is_expired(version, folder.path, commit):
                doomed.append(folder)
        return doomed

    def _is_over(self, version: DeltaVersion | None, folder: StagedFolder) -> bool:
        """True where nothing of a folder is to be published any more."""
        mark = version.mark if version is not None else None
        through = -1 if mark is None or mark.through_batch is None else mark.through_batch
        is_shown = folder.epoch == self.attempt.epoch and folder.batch_id <= through
        return folder.epoch < self.attempt.epoch or is_shown

    def _is_old(self, version: DeltaVersion | None, folder: StagedFolder) -> bool:
        hours = 0.0 if version is None else retention_hours(version.table.metadata().configuration)
        return self.now - self.engine.staged.written_at(folder) > hours * 3600

    def _pinned_folders(self, version: DeltaVersion) -> set[str]:
        """Return the folders of files that cuts go back to; some more, where merging alone took files away since."""
        pinned = pinned_versions(version, self.needed)
        since = [commit for commit in version.commits if pinned and commit.number > pinned[0]]
        if all(c.only_adds or (c.mark is not None and c.mark.rearranges) for c in since):
            return {path for c in since if c.mark is not None for path in c.mark.left}  # what stayed is live
        folders: set[str] = set()
        for number in pinned:
            try:
                old = version.lake.at(number)
            except Corrupt:
                continue
            folders.update(self.engine.staged.folder_of(name) for name in names_of(old))
        return folders

    def _is_expired(self, version: DeltaVersion, path: str, commit: Commit) -> bool:
        """True where the rows of a commit have been out of the table for long, or went into other files at once."""
        if commit.mark is not None and commit.mark.rewrites:
            return True
        hours = retention_hours(version.table.metadata().configuration)
        left = self._left_at(version, path, commit)
        return left is not None and self.now - left / 1000 > hours * 3600

    def _left_at(self, version: DeltaVersion, path: str, commit: Commit) -> int | None:
        """Return when a folder's files left the table, in milliseconds; None: they have not."""
        restored = next((c for c in version.commits if c.did == "RESTORE"), None)
        is_restored = restored is not None and restored.number > commit.number
        merged = version.left_at.get(path)
        if merged is not None:
            return max(merged, restored.timestamp_ms) if restored is not None and is_restored else merged
        since = restored.number if restored is not None and is_restored else commit.number + 1
        numbers, times = version.removals
        place = bisect_left(numbers, since)
        return times[place] if place < len(times) else None
