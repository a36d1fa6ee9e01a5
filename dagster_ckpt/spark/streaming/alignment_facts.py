"""What a stage's alignment said when it triggered a snapshot: kept until the snapshot is taken."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ckpt.core.alignment import TriggerSnapshot
from dagster_ckpt.core.ids import BatchId, LogPosition, StageUid


@dataclass(slots=True, kw_only=True)
class AlignmentFacts:
    """Times in milliseconds, the timestamp in seconds since the Unix epoch."""

    timestamp: float
    recording: frozenset[StageUid] = frozenset()
    start_delay_ms: float = 0.0
    alignment_ms: float = 0.0
    output: tuple[LogPosition, BatchId | None] | None = None
    """The stage's own barrier, once it is in the log."""

    @classmethod
    def of(cls, trigger: TriggerSnapshot) -> AlignmentFacts:
        """Return what is known when the alignment says that the snapshot is to be taken."""
        return cls(
            timestamp=trigger.timestamp,
            recording=frozenset(StageUid(str(channel)) for channel in trigger.recording),
            start_delay_ms=trigger.start_delay * 1e3,
            alignment_ms=(trigger.alignment or 0.0) * 1e3,
        )
