"""Progress of a streaming run: per stage and per pending checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dagster_ckpt.core.ids import StageUid

PROGRESS_FILE = "progress.json"
LONG_PENDING = 60.0
"""Seconds after which a pending checkpoint is worth a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProgress:
    """One stage at one moment; times in seconds."""

    uid: StageUid
    status: str
    """running | ended (a bounded source) | held | failed."""
    batch_id: int | None = None
    """Last committed micro-batch."""
    rows_per_second: float = 0.0
    """Input rows, over the batches since the last look."""
    rows: int = 0
    """Input rows since the run started."""
    backlog: int = 0
    """Entries with rows in its inputs' logs that it has not read."""
    busy: float = 0.0
    """Share of the time since the last look in which it worked on batches, 0 to 1."""
    last_batch_ms: float = 0.0
    blocked: Mapping[str, float] = field(default_factory=dict)
    """Inputs that stand on a barrier, and for how long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingProgress:
    """Pending checkpoint."""

    checkpoint_id: int
    age: float
    """Seconds since its trigger."""
    acknowledged: tuple[str, ...] = ()
    outstanding: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamProgress:
    """The run at one moment."""

    at: float
    """Seconds since the Unix epoch."""
    stages: tuple[StageProgress, ...] = ()
    pending: tuple[PendingProgress, ...] = ()
    completed: int = 0
    failed: int = 0
    restarts: int = 0

    def to_json(self) -> str:
        """Return it for programs."""
        return json.dumps(asdict(self), separators=(",", ":"))

    def is_quiet_since(self, before: StreamProgress) -> bool:
        """Return whether nobody misses anything who has seen ``before``: no rows, failures, restarts or long waits."""
        return _standing(self) == _standing(before) and all(p.age < LONG_PENDING for p in self.pending)

    def table(self) -> str:
        """Return it as a Markdown table for people."""
        head = "| stage | batch | rows/s | backlog | busy | last batch | blocked |\n|---|---|---|---|---|---|---|"
        rows = (
            f"| {s.uid} | {'-' if s.batch_id is None else s.batch_id} | {s.rows_per_second:,.0f} | {s.backlog} "
            f"| {s.busy:.0%} | {s.last_batch_ms:.0f} ms | {_blocked(s.blocked)} |"
            for s in self.stages
        )
        return "\n".join([head, *rows])

    def lines(self) -> list[str]:
        """Return one sentence per pending checkpoint."""
        return [
            f"checkpoint {p.checkpoint_id}: {p.age:.1f} s, acknowledged by {', '.join(p.acknowledged) or 'nobody'}, "
            f"outstanding {', '.join(p.outstanding) or 'nothing'}"
            for p in self.pending
        ]


def _standing(seen: StreamProgress) -> tuple[object, ...]:
    stages = tuple((s.uid, s.status, s.rows, s.backlog) for s in seen.stages)
    return stages, seen.failed, seen.restarts


def _blocked(blocked: Mapping[str, float]) -> str:
    return ", ".join(f"{uid} for {seconds:.1f} s" for uid, seconds in blocked.items()) or "-"


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
