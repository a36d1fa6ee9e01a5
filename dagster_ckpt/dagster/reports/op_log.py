"""Log of a run: the op that events are written to, in this process or in one elsewhere that launched it.

Its lines tell a checkpoint from its trigger to its completion, and how a stream is going between them.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TextIO

import dagster as dg

from dagster_ckpt.core.coordinator.effects import (
    CheckpointCompleted,
    CheckpointDiscarded,
    CheckpointTriggered,
    CoordinatorEvent,
    StageAcknowledged,
)
from dagster_ckpt.core.paths import checkpoint_key
from dagster_ckpt.core.units import duration, milliseconds, size
from dagster_ckpt.dagster.names import LOCATION_TAG

if TYPE_CHECKING:
    from dagster_ckpt.spark.streaming.progress import StreamProgress


RUNS_ASKED = 20
"""Runs of a job that are asked for a code location."""

AssetEvent = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation


class OpLog(Protocol):
    """Op that events are written to."""

    @property
    def location(self) -> str:
        """Code location of its run, for links; empty: of none."""
        ...

    def info(self, message: str) -> None:
        """Say something an operator may want to read."""
        ...

    def warn(self, message: str) -> None:
        """Say something an operator should read."""
        ...

    def event(self, event: AssetEvent) -> None:
        """Write an event."""
        ...

    def add_partition(self, definition: str, key: str) -> None:
        """Add a dynamic partition."""
        ...

    def remove_partition(self, definition: str, key: str) -> None:
        """Remove a dynamic partition."""
        ...


class OpOfRun:
    """Op that runs in this process."""

    def __init__(self, context: dg.OpExecutionContext | dg.AssetExecutionContext) -> None:
        without_locks(context.log)
        self._context = context

    @cached_property
    def location(self) -> str:
        """Code location of its run, or of the newest one of its job that had one."""
        return location_of(self._context.instance, self._context.run)

    def info(self, message: str) -> None:
        """Say something an operator may want to read."""
        self._context.log.info(message)

    def warn(self, message: str) -> None:
        """Say something an operator should read."""
        self._context.log.warning(message)

    def event(self, event: AssetEvent) -> None:
        """Write an event."""
        # Dagster takes check evaluations here too; its annotation does not say so.
        self._context.log_event(event)  # type: ignore[arg-type]

    def add_partition(self, definition: str, key: str) -> None:
        """Add a dynamic partition."""
        self._context.instance.add_dynamic_partitions(definition, [key])

    def remove_partition(self, definition: str, key: str) -> None:
        """Remove a dynamic partition."""
        self._context.instance.delete_dynamic_partition(definition, key)


def location_of(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    """Return the code location that links of a run lead to; of one by ``dg launch``, that of other runs of its job."""
    if found := run.tags.get(LOCATION_TAG):
        return found
    others = instance.get_runs(dg.RunsFilter(job_name=run.job_name), limit=RUNS_ASKED)
    return next((other.tags[LOCATION_TAG] for other in others if LOCATION_TAG in other.tags), "")


class _NoLock:
    """A lock that holds nobody up; a forked process makes a new one for every handler, so it must be one."""

    def acquire(self) -> None: ...

    def release(self) -> None: ...

    def __enter__(self) -> bool:  # logging's own way from Python 3.13 on
        return True

    def __exit__(self, *_: object) -> None: ...

    def _at_fork_reinit(self) -> None: ...


_NO_LOCK = _NoLock()


def without_locks(log: logging.Logger) -> None:
    """Take the locks from the handlers that write a step's events; they keep nothing between two records.

    A run that starts configures logging: Dagster holds logging's own lock then, and asks for every handler's. A handler
    that writes an event holds its own, and the database driver asks for logging's. Two runs in one process would wait
    for each other for ever.
    """
    for handler in log.handlers:
        for held in (handler, *getattr(handler, "_handlers", ())):
            held.lock = _NO_LOCK


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
