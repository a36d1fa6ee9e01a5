"""Garbage of an Iceberg table: snapshots of ours that nothing needs, and files that no snapshot shows."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.ext.iceberg.expiry import Expiry, ReadManifests
from dagster_ckpt.ext.iceberg.version import IcebergVersion
from dagster_ckpt.spark.sink.committables import PreparedBatch
from dagster_ckpt.spark.sink.port import AttemptId
from dagster_ckpt.spark.sink.table_files import StagedFolder
from dagster_ckpt.spark.sink.versioned.backend import Raced
from dagster_ckpt.spark.sink.versioned.engine import Engine

STAYS = 3600
"""Seconds that files stay which left the table: readers of before may be at them."""


@dataclass(frozen=True)
class Garbage:
    """Garbage that an attempt removes, at a moment."""

    engine: Engine[IcebergVersion]
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
        version = self.engine.newest(self.attempt)
        removed = 0
        if version is not None:
            with contextlib.suppress(Raced):  # others committed: next time
                removed = self._expiry.carry_out(version)
            version = self.engine.newest(self.attempt)
        staged = self.engine.staged
        folders = [f for f in staged.not_waiting(self.needed, self.waiting) if self._may_go(version, f)]
        if version is not None:
            shown = {staged.folder_of(name) for name in self.read.shown(version, self.now)}
            left = {staged.folder_of(name): time for name, time in self.read.left.items()}
            folders = [f for f in folders if f.path not in shown and self.now - left.get(f.path, 0) > STAYS]
        for folder in folders:
            staged.remove(folder)
        return removed + len(folders)

    # --- files ------------------------------------------------------------------------------------------------

    def _may_go(self, version: IcebergVersion | None, folder: StagedFolder) -> bool:
        """True where nothing of a folder is to be published any more, whether it was or not."""
        mark = version.mark if version is not None else None
        through = mark.through_batch if mark is not None else None
        is_over = through is not None and folder.batch_id <= through
        return folder.epoch < self.attempt.epoch or (folder.epoch == self.attempt.epoch and is_over)
