"""Maintenance of a Delta table: small files merged, old ones and staged ones that nothing needs removed.

Merges and removals are Delta's own commits, so a publish at the same time is decided by the table: whoever comes second
reads again. What retained cuts go back to is named to VACUUM, which keeps it whatever its age.

VACUUM never looks below an underscore, so rows that left the table stay there until we remove them: once they have
been out of it for ``delta.deletedFileRetentionDuration``, as VACUUM does with the others.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.ext.delta.backend import DeltaBackend, names_of
from dagster_ckpt.ext.delta.lake import Outside, committing, properties_of, reading
from dagster_ckpt.ext.delta.upsert import adds, files_of_log, write_files
from dagster_ckpt.ext.delta.version import Commit, DeltaVersion, retention_hours
from dagster_ckpt.ext.tables.engine import (
    LATE,
    MERGED,
    TARGET,
    AttemptGarbage,
    Raced,
    nothing_is_old,
)
from dagster_ckpt.ext.tables.rewrite import gathered, small_alike
from dagster_ckpt.ext.tables.staged_files import StagedFolder
from dagster_ckpt.spark.files import batch_folder_name
from dagster_ckpt.spark.sink.port import AttemptId, Upkeep

if TYPE_CHECKING:
    from deltalake.transaction import AddAction, RemoveAction


def pinned_versions(version: DeltaVersion, needed: Sequence[TableSnapshot]) -> list[int]:
    """Return the versions that these cuts go back to: what ``vacuum(keep_versions=...)`` must keep."""
    heads = {snapshot.head for snapshot in needed if snapshot.head is not None}
    found = (version.showing(head) for head in heads)
    return sorted(state.number for state in found if state is not None)


class Garbage(AttemptGarbage[DeltaVersion]):
    """Staged folders that nothing needs."""

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
                if self.is_over(version, folder) and (is_whole or self._is_old(version, folder)):
                    doomed.append(folder)
            elif version is not None and self._is_expired(version, folder.path, commit):
                doomed.append(folder)
        return doomed

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
            if number == version.number:
                continue  # its files are live
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


_KEPT_VERSIONS = 1000
"""Newest versions of a table of our own whose entries the log keeps, whatever cuts need."""
_AT_ONCE = 512
"""Entries that are removed in one step."""
LOG_IS_OURS = {"delta.enableExpiredLogCleanup": "false"}
"""Of a table of our own: whoever cleans up by age does not know the cuts."""
_REMOVED = "files removed that left the table before its retention"


def planned(backend: DeltaBackend, needed: Sequence[TableSnapshot]) -> list[Upkeep]:
    """Return the upkeep that ``maintained`` would do."""
    version = backend.load()
    if version is None:
        return []
    small, size = _small_files(version)
    keep = kept_versions(version, needed)
    found = [Upkeep(what=MERGED, files=small, bytes=size)]
    if keep is None:
        return [*found, nothing_is_old(_REMOVED)]
    with reading(backend.place):
        old = version.table.vacuum(dry_run=True, keep_versions=keep)
    return [*found, Upkeep(what=_REMOVED, files=len(old))]


def maintained(backend: DeltaBackend, needed: Sequence[TableSnapshot]) -> list[Upkeep]:
    """Merge small files, and remove what neither readers nor these cuts can need."""
    version = backend.load()
    if version is None:
        return []
    done = [_merge(version)]
    version = backend.load() or version
    keep = kept_versions(version, needed)
    if keep is None:
        return [*done, nothing_is_old(_REMOVED)]
    with committing(backend.place):
        removed = Outside.vacuum(version.table, keep)
    return [*done, Upkeep(what=_REMOVED, files=len(removed))]


def vacuumed(version: DeltaVersion, needed: Sequence[TableSnapshot]) -> int:
    """Remove files that a table of our own has replaced, beside publishing; return how many went.

    A table with a key, or of all rows, replaces files with each checkpoint: without this it would grow by as much.
    """
    keep = kept_versions(version, needed) if is_alone(version) else None
    if keep is None:
        return 0
    is_local = version.lake.root is not None
    if is_local:  # elsewhere asking costs more than two commits for nothing
        with reading(version.place):
            if not version.table.vacuum(dry_run=True, keep_versions=keep, full=True):
                return 0
    try:
        with committing(version.place):
            return len(Outside.vacuum(version.table, keep, is_full=is_local))
    except Raced:
        return 0  # a publish was faster: the next time


def trimmed(version: DeltaVersion, needed: Sequence[TableSnapshot]) -> int:
    """Remove the oldest entries of the log of a table of our own, beside publishing; return how many went.

    Those above the checkpoint of the log below which neither these cuts nor the newest versions begin stay. Each commit
    lists the log twice, so with each entry the next one would cost more.
    """
    configuration, root = version.table.metadata().configuration, version.lake.root
    is_ours = configuration.items() >= LOG_IS_OURS.items() and is_alone(version)
    keep = kept_versions(version, needed) if is_ours else None
    oldest = 0 if keep is None else min([*keep, version.number - _KEPT_VERSIONS])
    if root is None or oldest <= 0:
        return 0
    entries = sorted(
        (int(found[0]), path)
        for path in (root / "_delta_log").iterdir()
        if (found := re.match(r"\d{20}(?=\.)", path.name)) is not None
    )
    whole = (number for number, path in entries if path.name == f"{number:020d}.checkpoint.parquet")
    begin = max((number for number in whole if number <= oldest), default=0)
    gone = [path for number, path in entries if number < begin][:_AT_ONCE]
    for path in gone:
        path.unlink(missing_ok=True)
    version.forget_before(begin)
    return len(gone)


def is_alone(version: DeltaVersion) -> bool:
    """Tell whether a table is the sink's own, and no other's cuts go back to a version of it."""
    is_ours = version.mark is not None and version.mark.base is None
    return is_ours and all(state.mark is None or version.is_ours(state) for state in version.history)


def kept_versions(version: DeltaVersion, needed: Sequence[TableSnapshot]) -> list[int] | None:
    """Return the versions that VACUUM must keep beside this one; None: nobody can say, so it must not run.

    A checkpoint in progress may go back to any version since the newest retained one. Each is read from the log.
    """
    pinned = pinned_versions(version, needed)
    if not pinned:
        return None
    return sorted({*pinned, *range(max(pinned), version.number)} - {version.number})


def _small_files(version: DeltaVersion) -> tuple[int, int]:
    with reading(version.place):
        actions = version.table.get_add_actions(flatten=True)
    partitions = [name for name in actions.schema.names if name.startswith("partition.")]
    keys = list(zip(*(actions.column(name).to_pylist() for name in partitions), strict=True)) or None
    sizes = actions.column("size_bytes").to_pylist()
    small = [(keys[i] if keys else (), size) for i, size in enumerate(sizes) if size < TARGET]
    count = Counter(key for key, _ in small)
    merged = [size for key, size in small if count[key] > 1]
    return len(merged), sum(merged)


def _merge(version: DeltaVersion) -> Upkeep:
    small, size = _small_files(version)
    if not small:
        return Upkeep(what=MERGED)
    try:
        with committing(version.place):
            metrics = Outside.compact(version.table)
    except Raced:
        return Upkeep(what=MERGED, note=LATE)
    return Upkeep(what=MERGED, files=int(metrics.get("numFilesRemoved", 0)), bytes=size)


def merge_small(backend: DeltaBackend, version: DeltaVersion, attempt: AttemptId) -> int:
    """Merge some files into one, in one commit; return how many, 0 where there are too few or others were faster."""
    mark = version.mark
    if mark is None or mark.head is None or not _may_be_arranged(backend, version):
        return 0
    with reading(backend.place):
        files = small_alike(
            files_of_log(version.table), lambda file: file.bytes, lambda file: sorted(file.partition.items())
        )
    if not files:
        return 0
    staged, schema = backend.staged, pa.schema(version.table.schema().to_arrow())
    name = batch_folder_name(mark.through_batch or 0)
    folder = f"{staged.area}/{int(attempt.epoch)}/{name}"
    parts = (file.read(staged, schema, schema.names) for file in files)
    partition_by = version.table.metadata().partition_columns
    written = [
        file
        for rows in gathered(parts)
        for file in write_files(staged, rows, partition_by, key=backend.key, below=folder)
    ]
    actions: list[AddAction | RemoveAction] = [
        *(replace(action, data_change=False) for action in adds(version.table, written)),
        *(file.removed(changes_rows=False) for file in files),
    ]
    left = {staged.folder_of(file.path) for file in files}
    said = version.next_mark(attempt, staged=(folder,), rearranges=True, left=tuple(sorted(left)))
    try:
        with committing(backend.place):
            Outside.write(version.table, actions, properties_of(said))
        version.lake.leave_committed(version.table, version.number + 1, said, actions)
    except Raced:
        return 0  # what was written is no commit's, and goes with the attempt's garbage
    return len(files)


def _may_be_arranged(backend: DeltaBackend, version: DeltaVersion) -> bool:
    """Tell whether files are all there is of the rows: nothing hides some of them, or forbids that files leave."""
    try:
        backend.refuse_unfit(version, [])
    except InvalidRequest:
        return False
    return version.table.metadata().configuration.get("delta.appendOnly") != "true"
