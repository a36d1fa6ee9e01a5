"""Garbage of an Iceberg table: snapshots of ours that nothing needs, and files that no snapshot shows.

Snapshots that cuts go back to get tags, so that nobody's expiry takes them; ours that no cut needs are expired once
they are older than the table says (``history.expire.max-snapshot-age-ms``). Others' snapshots are left alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pyiceberg.manifest import ManifestContent
from pyiceberg.table.snapshots import Snapshot

from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.spark.iceberg.lake import Outside, Raced, committing, reading
from dagster_ckpt.spark.iceberg.marks import mark_of
from dagster_ckpt.spark.iceberg.publish import Writer
from dagster_ckpt.spark.iceberg.version import Version
from dagster_ckpt.spark.sink.committables import PreparedBatch
from dagster_ckpt.spark.sink.port import AttemptId
from dagster_ckpt.spark.sink.table_files import StagedFiles, StagedFolder, folder_of

_DEFAULT_AGE_MS = 5 * 86_400_000
_SETTLED_MS = 3_600_000
"""A cut younger than this may be subsumed soon: no tag yet."""
_WORTH_A_COMMIT = 10
"""Snapshots that are expired together."""


@dataclass
class ReadManifests:
    """What was read of manifests, which never change."""

    of_snapshots: dict[int, tuple[str, ...]] = field(default_factory=dict)
    folders: dict[str, frozenset[str]] = field(default_factory=dict)
    """Manifest -> staged folders of the files that it shows."""


@dataclass(frozen=True)
class Garbage:
    """What an attempt removes, at a moment."""

    writer: Writer
    attempt: AttemptId
    now: float
    needed: Sequence[TableSnapshot]
    waiting: Sequence[PreparedBatch]
    read: ReadManifests = field(default_factory=ReadManifests)

    def collect(self) -> int:
        """Remove it; return how many snapshots and folders went."""
        version = self.writer.newest(self.attempt)
        removed = 0
        if version is not None:
            with contextlib.suppress(Raced):  # others committed: next time
                removed = self._expire(version)
            version = self.writer.newest(self.attempt)
        staged = self.writer.staged
        folders = [folder for folder in staged.folders() if self._may_go(version, folder)]
        folders = [folder for folder in folders if not self._is_waiting(staged, folder)]
        if folders and version is not None:
            shown = self._shown_folders(version, staged)
            folders = [folder for folder in folders if folder.path not in shown]
        for folder in folders:
            staged.remove(folder)
        return removed + len(folders)

    # --- snapshots --------------------------------------------------------------------------------------------

    def _expire(self, version: Version) -> int:
        heads = {snapshot.head for snapshot in self.needed if snapshot.head is not None}
        pinned = {head: snapshot for head in heads if (snapshot := version.showing(head)) is not None}
        tags = {
            version.refs.cut(head): snapshot.snapshot_id
            for head, snapshot in pinned.items()
            if self.now * 1000 - snapshot.timestamp_ms > _SETTLED_MS
        }
        tags = {name: number for name, number in tags.items() if version.ref(name) != number}
        kept_tags = {version.refs.cut(head) for head in heads}
        untagged = [n for n in version.table.metadata.refs if version.refs.is_cut(n) and n not in kept_tags]
        kept = {snapshot.snapshot_id for snapshot in pinned.values()}
        expired = [snapshot for snapshot in self._old(version, untagged) if snapshot.snapshot_id not in kept]
        if len(expired) < _WORTH_A_COMMIT:
            expired = []
        if not (tags or untagged or expired):
            return 0
        gone = self._only_in(version, expired)
        numbers = [snapshot.snapshot_id for snapshot in expired]
        with committing(version.place):
            Outside.keep_and_expire(version, tags, untagged, numbers)
        for path in gone:
            with contextlib.suppress(OSError):
                version.table.io.delete(path)
        return len(expired)

    def _old(self, version: Version, untagged: Sequence[str]) -> Iterator[Snapshot]:
        """Yield snapshots of ours that are old enough to go, and that no reference holds."""
        metadata = version.table.metadata
        age = int(metadata.properties.get("history.expire.max-snapshot-age-ms", _DEFAULT_AGE_MS))
        held = {ref.snapshot_id for name, ref in metadata.refs.items() if name not in untagged}
        for snapshot in version.snapshots.values():
            is_old = self.now * 1000 - snapshot.timestamp_ms > age
            if is_old and snapshot.snapshot_id not in held and mark_of(snapshot, version.owner) is not None:
                yield snapshot

    def _only_in(self, version: Version, expired: Sequence[Snapshot]) -> list[str]:
        """Return the files of metadata that only these snapshots have."""
        if not expired or version.table.metadata.properties.get("gc.enabled") == "false":
            return []
        numbers = {snapshot.snapshot_id for snapshot in expired}
        manifests = {path for snapshot in expired for path in self._manifests(version, snapshot)}
        for number, snapshot in version.snapshots.items():
            if number not in numbers:
                manifests -= set(self._manifests(version, snapshot))
        return [*manifests, *(snapshot.manifest_list for snapshot in expired)]

    # --- files ------------------------------------------------------------------------------------------------

    def _may_go(self, version: Version | None, folder: StagedFolder) -> bool:
        """True where nothing of a folder is to be published any more, whether it was or not."""
        mark = version.mark if version is not None else None
        through = mark.through_batch if mark is not None else None
        is_over = through is not None and folder.batch_id <= through
        return folder.epoch < self.attempt.epoch or (folder.epoch == self.attempt.epoch and is_over)

    def _is_waiting(self, staged: StagedFiles, folder: StagedFolder) -> bool:
        """True where a batch of this folder may still be published."""
        if any(folder.batch_id in snapshot.prepared for snapshot in self.needed):
            return True
        files = (file.staged for batch in self.waiting for file in batch.files)
        return any(folder_of(name, staged.area) == folder.path for name in files)

    def _shown_folders(self, version: Version, staged: StagedFiles) -> set[str]:
        """Return the folders whose files some snapshot shows."""
        folders: set[str] = set()
        for snapshot in version.snapshots.values():
            for path in self._manifests(version, snapshot):
                folders |= self.read.folders[path]
        return {folder_of(name, staged.area) for name in folders if name.startswith(staged.area)}

    def _manifests(self, version: Version, snapshot: Snapshot) -> tuple[str, ...]:
        """Return the manifests of a snapshot, each of them read."""
        read, io = self.read, version.table.io
        known = read.of_snapshots.get(snapshot.snapshot_id)
        if known is not None:
            return known
        start = f"{version.table.location().rstrip('/')}/"
        with reading(version.place):
            manifests = snapshot.manifests(io)
            for manifest in manifests:
                if manifest.manifest_path not in read.folders and manifest.content is ManifestContent.DATA:
                    entries = manifest.fetch_manifest_entry(io, discard_deleted=True)
                    names = (entry.data_file.file_path.removeprefix(start) for entry in entries)
                    read.folders[manifest.manifest_path] = frozenset(n.rpartition("/")[0] for n in names)
                read.folders.setdefault(manifest.manifest_path, frozenset())
        read.of_snapshots[snapshot.snapshot_id] = tuple(manifest.manifest_path for manifest in manifests)
        return read.of_snapshots[snapshot.snapshot_id]
