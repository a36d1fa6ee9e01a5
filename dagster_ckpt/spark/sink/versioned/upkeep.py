"""Upkeep of tables with versions, as far as it is one for all formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.spark.sink.committables import PreparedBatch
from dagster_ckpt.spark.sink.port import AttemptId, Upkeep
from dagster_ckpt.spark.sink.table_files import StagedFolder
from dagster_ckpt.spark.sink.versioned.backend import V
from dagster_ckpt.spark.sink.versioned.engine import Engine

TARGET = 100 * 1024 * 1024
"""Bytes from which a file is left as it is."""
MERGED = "small files merged"
LATE = "a publish was faster: the next time"


def nothing_is_old(what: str) -> Upkeep:
    """Return the note on work that is left alone while no cut goes back to the table."""
    return Upkeep(
        what=what,
        note="no retained checkpoint or savepoint has published to this table: nothing can be called old",
    )


@dataclass(frozen=True)
class AttemptGarbage(Generic[V]):
    """Garbage that an attempt removes, at a moment."""

    engine: Engine[V]
    attempt: AttemptId
    now: float
    needed: Sequence[TableSnapshot]
    waiting: Sequence[PreparedBatch]

    def is_over(self, version: V | None, folder: StagedFolder) -> bool:
        """True where nothing of a folder is to be published any more, whether it was or not."""
        mark = version.mark if version is not None else None
        through = mark.through_batch if mark is not None else None
        is_shown = through is not None and folder.batch_id <= through
        return folder.epoch < self.attempt.epoch or (folder.epoch == self.attempt.epoch and is_shown)
