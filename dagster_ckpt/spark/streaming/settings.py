"""Settings of a streaming run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingSettings:
    """Settings of a streaming run; durations in seconds."""

    trigger_interval: float = 0.0
    """Least time between the beginnings of two batches of a stage; 0: as fast as there is data."""
    snapshot_retries: int = 2
    """How often storing a stage's part is tried again on transient storage errors."""
    starting_at_once: int = 2
    """Stages whose readers start at the same time."""
    start_timeout: float = 60.0
    stop_timeout: float = 30.0
    """How long a stop waits for the batches being written."""
    tidy_tables_every: float = 60.0
