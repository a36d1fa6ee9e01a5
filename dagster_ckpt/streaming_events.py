"""A streaming run's news in Dagster: one event per checkpoint, live, written beside the run and not in its way."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

import dagster as dg

from dagster_ckpt.assets import checkpoints_asset_key
from dagster_ckpt.core.events import (
    CheckpointSubsumed,
    CheckpointTriggered,
    CoordinatorEvent,
    StageAcknowledged,
)
from dagster_ckpt.dagster_events import DagsterEvents
from dagster_ckpt.spark.streaming.progress import StreamProgress

if TYPE_CHECKING:
    from dagster_ckpt.core.ids import PipelineId

_QUIET = (CheckpointTriggered, StageAcknowledged, CheckpointSubsumed)
"""Told per checkpoint and stage: at a checkpoint a second they would bury the event log."""


class StreamingEvents:
    """A listener, reporter and watcher; Dagster's event log is written by a thread of its own."""

    def __init__(self, events: DagsterEvents, pipeline: PipelineId, context: dg.OpExecutionContext) -> None:
        self._events = events
        self._pipeline = pipeline
        self._context = context
        self._queue: queue.SimpleQueue[CoordinatorEvent | tuple[str, str] | StreamProgress | None] = (
            queue.SimpleQueue()
        )
        events.attach(context)
        self._thread = threading.Thread(target=self._write, name="dagster-events", daemon=True)
        self._thread.start()

    def __call__(self, event: CoordinatorEvent) -> None:
        """Hear one event of the coordinator."""
        if not isinstance(event, _QUIET):
            self._queue.put(event)

    def info(self, message: str) -> None:
        """Say something an operator may want to read."""
        self._queue.put(("info", message))

    def warn(self, message: str) -> None:
        """Say something an operator should read."""
        self._queue.put(("warn", message))

    def progress(self, seen: StreamProgress) -> None:
        """Show how the run is going, as an observation of the checkpoints asset."""
        self._queue.put(seen)

    def close(self, timeout: float = 10.0) -> None:
        """Write what is left."""
        self._queue.put(None)
        self._thread.join(timeout)

    def _write(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                self._write_one(item)
            except Exception as error:  # an event log that cannot be written must not end the stream
                self._context.log.warning(f"an event could not be written: {error}")

    def _write_one(self, item: CoordinatorEvent | tuple[str, str] | StreamProgress) -> None:
        if isinstance(item, tuple):
            level, message = item
            (self._events.warn if level == "warn" else self._events.info)(message)
        elif isinstance(item, StreamProgress):
            self._observe(item)
        else:
            self._events(item)

    def _observe(self, seen: StreamProgress) -> None:
        pending = " ".join(seen.lines()) or "no checkpoint is pending"
        self._context.log_event(
            dg.AssetObservation(
                checkpoints_asset_key(self._pipeline),
                description=f"streaming; {pending}",
                metadata={
                    "stages": dg.MetadataValue.md(seen.table()),
                    "pending": pending,
                    "completed": seen.completed,
                    "failed": seen.failed,
                    "restarts": seen.restarts,
                    "rows_per_second": sum(stage.rows_per_second for stage in seen.stages),
                    "backlog": sum(stage.backlog for stage in seen.stages),
                },
            )
        )
