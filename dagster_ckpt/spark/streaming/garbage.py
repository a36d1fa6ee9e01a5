"""Removes, now and then, table files that neither the table nor a restorable snapshot needs any more."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.outcomes import Completed
from dagster_ckpt.errors import CheckpointError

if TYPE_CHECKING:
    from dagster_ckpt.core.model import CheckpointMetadata
    from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
    from dagster_ckpt.spark.directories import AttemptDirectory
    from dagster_ckpt.spark.reporting import Reporter
    from dagster_ckpt.spark.tables import PipelineTables


class TableGarbage:
    """Told of every completion; collects in a thread of its own, rarely, and only between two checkpoints."""

    def __init__(
        self,
        *,
        coordinator: CheckpointCoordinator,
        tables: PipelineTables,
        attempt: AttemptDirectory,
        publishing: threading.Lock,
        reporter: Reporter,
        every: float,
    ) -> None:
        """``publishing`` is held while tables are published; ``every``: seconds between two collections."""
        self._coordinator = coordinator
        self._tables = tables
        self._attempt = attempt
        self._publishing = publishing
        self._reporter = reporter
        self._every = every
        self._due_at = time.monotonic() + every
        self._collecting = threading.Lock()
        self._read: dict[CheckpointId, CheckpointMetadata] = {}

    def collect_if_due(self) -> None:
        """Begin a collection if it is time for one."""
        if time.monotonic() >= self._due_at and self._collecting.acquire(blocking=False):
            threading.Thread(target=self._collect, name="table-garbage", daemon=True).start()

    def _collect(self) -> None:
        try:
            removed = self.collect()
        except CheckpointError as error:
            self._reporter.info(f"table files no longer needed are kept for now: {error}")
            self._due_at = time.monotonic() + self._every
        else:
            if removed is not None:
                self._due_at = time.monotonic() + self._every
        finally:
            self._collecting.release()

    def collect(self) -> int | None:
        """Remove what nothing needs; return how many files went, None when this is not the moment.

        A pending checkpoint may hold rows that were prepared before the latest publish: nobody else knows of them, so
        none may be pending. A cut taken later holds later rows only, and no publish can come in between.
        """
        self._read_missing()
        with self._publishing:
            record = self._coordinator.record
            restorable = [CheckpointId(k.checkpoint_id) for k in (*record.completed, *record.savepoints)]
            if record.pending or any(number not in self._read for number in restorable):
                return None
            self._read = {number: self._read[number] for number in restorable}
            return self._tables.collect_garbage(self._attempt, list(self._read.values()))

    def _read_missing(self) -> None:
        """What a snapshot holds never changes, so each is read once. Raises what keeps one from being read."""
        record = self._coordinator.record
        for known in (*record.completed, *record.savepoints):
            number = CheckpointId(known.checkpoint_id)
            if number not in self._read:
                outcome = self._coordinator.status_of(number)
                if isinstance(outcome, Completed):
                    self._read[number] = outcome.metadata
