"""Port of what takes part in a stage's batches: it writes them for the channel log, and may keep rows in a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dagster_ckpt.authoring.stages import StageDefinition
from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.files import DataFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class BatchFiles(Protocol):
    """Writer of a stage's micro-batches into files for its channel log."""

    def write(self, frame: DataFrame, folder: Path, root: Path, batch_id: BatchId) -> tuple[DataFile, ...]:
        """Write a batch below a new folder; return the files that readers get, named relative to ``root``.

        Called again for a batch whose entry is not in the log: what the first try has kept is not there then.
        """


@dataclass(frozen=True, kw_only=True)
class ParticipantContext:
    """Context in which a participant is opened, each time its stage's query starts."""

    stage: StageDefinition
    directory: StageDirectory
    frame: DataFrame
    """The rows that the stage returns."""
    keep: Callable[[DataFrame], Callable[[DataFrame, int], None]]
    """Return, for rows of this schema, the function that prepares a batch of them for the participant's table."""
