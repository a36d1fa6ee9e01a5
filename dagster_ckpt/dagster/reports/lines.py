"""Lines of a run's log: a checkpoint from its trigger to its completion, and how a stream is going between them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from dagster_ckpt.core.coordinator.events import (
    CheckpointCompleted,
    CheckpointDiscarded,
    CheckpointTriggered,
    CoordinatorEvent,
    StageAcknowledged,
)
from dagster_ckpt.core.paths import checkpoint_key
from dagster_ckpt.core.units import duration, milliseconds, size

if TYPE_CHECKING:
    from dagster_ckpt.spark.streaming.progress import StreamProgress

log = logging.getLogger("dagster_ckpt.stream")

QUIET_EVERY = 30.0
"""Seconds between two lines of a stream in which nothing happens."""
BUSY_EVERY = 5.0
"""The same while rows arrive or a checkpoint is pending."""


def line_of(event: CoordinatorEvent) -> str:
    """Return a checkpoint's step in words; empty for steps that others tell."""
    match event:
        case CheckpointTriggered():
            return f"{event.kind.noun} {event.checkpoint_id} triggered"
        case StageAcknowledged(metrics=m):
            return (
                f"checkpoint {event.checkpoint_id}: {event.uid} acknowledged ({event.acknowledged}/{event.expected}) "
                f"after {duration(event.after)}: {size(m.bytes_new)} new of {size(m.bytes_full)}, alignment "
                f"{milliseconds(m.alignment_ms)}, sync {milliseconds(m.sync_ms)}, async {milliseconds(m.async_ms)}"
            )
        case CheckpointCompleted(statistics=numbers):
            return (
                f"{event.kind.noun} {event.checkpoint_id} completed in {duration(numbers.duration)}: "
                f"{size(numbers.bytes_new)} new of {size(numbers.bytes_full)}"
            )
        case CheckpointDiscarded():
            return f"{checkpoint_key(event.checkpoint_id)} is no longer retained: its files are deleted"
        case _:
            return ""


class _OnStderr(logging.StreamHandler[Any]):
    """Writes to what is standard error at the moment: Dagster puts a file in its place while an op runs."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    @property
    def stream(self) -> TextIO:
        """Standard error."""
        return sys.stderr

    @stream.setter
    def stream(self, _: Any) -> None: ...


@contextmanager
def on_stderr() -> Iterator[None]:
    """Write a stream's lines to standard error, which Dagster keeps as the op's log file: they cost no event."""
    handler, before = _OnStderr(), log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


class ProgressLines:
    """Says how a stream is going: every few seconds while something happens, and never silent for a minute."""

    def __init__(self) -> None:
        self._said_at: float | None = None
        self._rows = -1

    def __call__(self, seen: StreamProgress) -> None:
        """Say the progress if it is time."""
        rows = sum(stage.rows for stage in seen.stages)
        is_busy = bool(seen.pending) or rows != self._rows
        pause = BUSY_EVERY if is_busy else QUIET_EVERY
        if self._said_at is not None and seen.at - self._said_at < pause:
            return
        self._said_at, self._rows = seen.at, rows
        log.info("%s", seen.line())
