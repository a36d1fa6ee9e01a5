"""Removal of table files that nothing restorable needs any more."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.request import Completed

if TYPE_CHECKING:
    from dagster_ckpt.core.model import CheckpointMetadata
    from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
    from dagster_ckpt.spark.attempt.sinks import PipelineSinks
    from dagster_ckpt.spark.directories import AttemptDirectory


class TableCleanUp:
    """Collects when it is told to; a snapshot's metadata is read once."""

    def __init__(
        self,
        *,
        coordinator: CheckpointCoordinator,
        tables: PipelineSinks,
        attempt: AttemptDirectory,
        publishing: threading.Lock,
    ) -> None:
        """``publishing`` is held while tables are published."""
        self._coordinator = coordinator
        self._tables = tables
        self._attempt = attempt
        self._publishing = publishing
        self._read: dict[CheckpointId, CheckpointMetadata] = {}

    def collect(self) -> int | None:
        """Remove what nothing needs; return how many files went, None when this is not the moment.

        A pending checkpoint may hold rows that were prepared before the latest publish: nobody else knows of them, so
        none may be pending. A cut taken later holds later rows only, and no publish can come in between.
        """
        self._read_missing()
        former = self._coordinator.retained_under_former_names()
        with self._publishing:
            record = self._coordinator.record
            restorable = [CheckpointId(k.checkpoint_id) for k in (*record.completed, *record.savepoints)]
            if record.pending or any(number not in self._read for number in restorable):
                return None
            self._read = {number: self._read[number] for number in restorable}
            shown = self._coordinator.stored_record.shown
            return self._tables.collect_garbage(self._attempt, [*self._read.values(), *former], shown)

    def _read_missing(self) -> None:
        """Read snapshots not read yet; each once, because none changes. Raises what keeps one from being read."""
        record = self._coordinator.record
        for known in (*record.completed, *record.savepoints):
            number = CheckpointId(known.checkpoint_id)
            if number not in self._read:
                outcome = self._coordinator.status_of(number)
                if isinstance(outcome, Completed):
                    self._read[number] = outcome.metadata
