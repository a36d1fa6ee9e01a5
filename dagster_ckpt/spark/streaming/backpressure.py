"""Backpressure of tables: sources wait where commits are slower than the stream for long.

In Flink a committer holds the operator it runs in, so a slow table slows the job down from the first second. Here
rows are staged while an earlier checkpoint is published, and a commit of more rows takes longer: without a bound a
stream that is faster than its table would have ever longer commits. See decision 47.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dagster_ckpt.core.checkpoint.requests import effective_interval
from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.units import duration
from dagster_ckpt.ports import Clock
from dagster_ckpt.spark.stage_report import Reporter
from dagster_ckpt.spark.streaming.gate import BatchGate, Hold

LEAST = 60.0
"""Seconds that a commit may always take."""
INTERVALS = 10
"""It may take as long as so many checkpoints are apart, too: who takes them seldom commits much at once."""


def longest_commit(config: CheckpointConfig) -> float | None:
    """Return after how many seconds of a commit the sources wait; None: never, as nothing grows without a timer."""
    interval = effective_interval(config)
    if interval is None:
        return None
    return max(LEAST, INTERVALS * interval, INTERVALS * (config.interval_during_backlog or 0.0))


@dataclass(kw_only=True)
class CommitBackpressure:
    """Holds the sources of a run while a completed checkpoint has waited for its tables for ``longest`` seconds."""

    longest: float | None
    reporter: Reporter
    clock: Clock
    _since: float | None = None
    """Monotonic time since when they wait."""

    def look(self, sources: Iterable[BatchGate], publishing: Mapping[CheckpointId, float]) -> None:
        """Hold or let go; ``publishing``: checkpoints whose tables are not committed yet, since when (monotonic)."""
        if self.longest is None:
            return
        now = self.clock.monotonic()
        oldest = min(publishing.items(), key=lambda item: item[1], default=None)
        if oldest is not None and now - oldest[1] >= self.longest:
            self._hold(sources, now, *oldest)
        elif self._since is not None:
            for gate in sources:
                gate.open(Hold.SLOW_COMMIT)
            self.reporter.info(
                f"sources go on: they have waited {duration(now - self._since)} for tables' commits"
            )
            self._since = None

    def _hold(self, sources: Iterable[BatchGate], now: float, number: CheckpointId, since: float) -> None:
        for gate in sources:
            gate.hold(Hold.SLOW_COMMIT)
        if self._since is None:
            self._since = now
            self.reporter.warn(
                f"sources wait: the tables of checkpoint {number} have been published for {duration(now - since)}, "
                "and rows would come faster than the tables take them. Look at the table's service, or raise interval"
            )
