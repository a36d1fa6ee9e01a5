"""Adds up what Spark reports of a query's batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class BatchMeter:
    """Adds up what Spark reports of one query's batches."""

    rows: int = 0
    last_batch: int = -1
    last_batch_ms: float = 0.0
    _rows_before: int = 0
    _busy_ms: float = 0.0

    def take(self, recent: Sequence[Mapping[str, Any]]) -> None:
        """Count the batches that were not counted yet."""
        for progress in recent:
            if progress["batchId"] <= self.last_batch:
                continue
            duration = float(progress.get("durationMs", {}).get("triggerExecution", 0.0))
            self.last_batch = progress["batchId"]
            self.last_batch_ms = duration
            self.rows += int(progress.get("numInputRows") or 0)
            self._busy_ms += duration

    def rates(self, seconds: float) -> tuple[float, float]:
        """Return (rows per second, busy share) since the last call, ``seconds`` ago."""
        rate = (self.rows - self._rows_before) / seconds if seconds > 0 else 0.0
        busy = min(1.0, self._busy_ms / 1e3 / seconds) if seconds > 0 else 0.0
        self._rows_before, self._busy_ms = self.rows, 0.0
        return rate, busy
