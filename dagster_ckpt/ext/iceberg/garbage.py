"""Garbage of an Iceberg table: snapshots of ours that nothing needs, and files that no snapshot shows."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.ext.iceberg.expiry import Expiry, ReadManifests
from dagster_ckpt.ext.iceberg.lake import Raced
from dagster_ckpt.ext.iceberg.publish import Writer
from dagster_ckpt.ext.iceberg.version import Version
from dagster_ckpt.spark.sink.committables import PreparedBatch
from dagster_ckpt.spark.sink.port import AttemptId
from dagster_ckpt.spark.sink.table_files import StagedFiles, StagedFolder, folder_of


@dataclass(frozen=True)
class Garbage:
    """What an attempt removes, at a moment."""

    writer: Writer
    attempt: AttemptId
    now: float
    needed: Sequence[TableSnapshot]
    waiting: Sequence[PreparedBatch]
    read: ReadManifests = field(default_factory=ReadManifests)

    @property
    def _expiry(self) -> Expiry:
        return Expiry(self.needed, self.now, self.read)

    def collect(self) -> int:
        """Remove it; return how many snapshots and folders went."""
        version = self.writer.newest(self.attempt)
        removed = 0
        if version is not None:
            with contextlib.suppress(Raced):  # others committed: next time
                removed = self._expiry.carry_out(version)
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
            for path in self.read.manifests(version, snapshot):
                folders |= self.read.folders[path]
        return {folder_of(name, staged.area) for name in folders if name.startswith(staged.area)}
