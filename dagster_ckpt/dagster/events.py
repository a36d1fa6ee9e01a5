"""Turns what the coordinator tells into Dagster events: materializations, partitions, checks, log lines."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

import dagster as dg

from dagster_ckpt.core.coordinator.events import (
    CheckpointCompleted,
    CheckpointDiscarded,
    CheckpointFailed,
    CheckpointRejected,
    CheckpointSubsumed,
    CheckpointTriggered,
    CoordinatorEvent,
    JobFailed,
    StageAcknowledged,
    StopEnded,
)
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.paths import checkpoint_key
from dagster_ckpt.dagster.asset import (
    UNPUBLISHED,
    checkpoints_asset_key,
    checkpoints_partitions,
    completed_event,
    failed_events,
    failure_sentence,
    history_metadata,
    partition_key,
    restore_link,
    succeeded_evaluation,
)
from dagster_ckpt.dagster.names import LOCATION_TAG
from dagster_ckpt.dagster.table_assets import changed_event
from dagster_ckpt.spark.source.lag import LagReader
from dagster_ckpt.spark.stage_report import TableChanged, not_published
from dagster_ckpt.spark.streaming.progress import StreamProgress

if TYPE_CHECKING:
    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
    from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics
    from dagster_ckpt.core.ids import CheckpointId
    from dagster_ckpt.core.reasons import CheckpointFailureReason


class DagsterEvents:
    """A listener and reporter that writes to whichever op is running now.

    Events that arrive while no op runs (teardown) go to the run's last op context.
    """

    def __init__(
        self, of: CheckpointedPipeline, *, job_name: str, restore_op: str, ui_base_url: str = ""
    ) -> None:
        self._of = of
        self._lags = LagReader(pipeline=of)
        self._pipeline = of.name
        self._job_name = job_name
        self._restore_op = restore_op
        self._ui_base_url = ui_base_url
        self._context: dg.OpExecutionContext | None = None
        self._held: list[TableChanged] | None = None
        self.unpublished: Callable[[], Mapping[str, str]] = dict
        """Returns the tables that do not show the newest checkpoint's rows, and why; asked when one completed."""

    def attach(self, context: dg.OpExecutionContext) -> None:
        """Write to this op from now on."""
        without_locks(context.log)
        self._context = context

    def info(self, message: str) -> None:
        """Say something an operator may want to read."""
        if self._context is not None:
            self._context.log.info(message)

    def warn(self, message: str) -> None:
        """Say something an operator should read."""
        if self._context is not None:
            self._context.log.warning(message)

    def table_changed(self, change: TableChanged) -> None:
        """Materialize the asset of a table that shows other rows now."""
        if self._held is not None:
            self._held.append(change)
        elif self._context is not None:
            self._context.log_event(changed_event(self._of, change))

    @contextmanager
    def holding_changes(self) -> Iterator[list[TableChanged]]:
        """Keep changes of tables for the caller, whose results tell of them; after an error they are told at once."""
        held: list[TableChanged] = []
        self._held = held
        try:
            yield held
        except BaseException:
            self._held = None
            for change in held:
                self.table_changed(change)
            raise
        finally:
            self._held = None

    def __call__(self, event: CoordinatorEvent) -> None:
        """Hear one event of the coordinator."""
        self.hear(event, self.unpublished())

    def hear(self, event: CoordinatorEvent, unpublished: Mapping[str, str]) -> None:
        """Hear one event, with the tables that were not published when it was told."""
        match event:
            case CheckpointTriggered():
                self.info(f"{event.kind.value} {event.checkpoint_id} triggered")
            case StageAcknowledged():
                self.info(
                    f"checkpoint {event.checkpoint_id}: {event.uid} acknowledged "
                    f"({event.acknowledged}/{event.expected})"
                )
            case CheckpointCompleted():
                self._completed(event, unpublished if event.kind.publishes else {})
            case CheckpointFailed():
                self._failed(event)
            case CheckpointRejected():
                self._rejected(event.reason, event.message)
            case CheckpointDiscarded():
                self._discarded(event.checkpoint_id)
            case CheckpointSubsumed():
                self.info(f"checkpoint {event.checkpoint_id} is subsumed by a newer one")
            case JobFailed():
                self.warn(event.cause)
            case StopEnded():
                self.info("stop-with-savepoint is over")
            case _:
                assert_never(event)

    # --- what each becomes -------------------------------------------------------------------------------------

    def _completed(self, event: CheckpointCompleted, unpublished: Mapping[str, str]) -> None:
        context = self._context
        if context is None:
            return
        key = partition_key(event.metadata)
        context.instance.add_dynamic_partitions(checkpoints_partitions(self._pipeline).name or "", [key])
        link = self._link(context, key)
        context.log_event(
            completed_event(
                self._pipeline,
                event.metadata,
                uri=event.uri,
                link=link,
                late=not_published(unpublished),
                positions=self._lags.read(event.metadata),
            )
        )
        late = {UNPUBLISHED: not_published(unpublished)} if unpublished else {}
        self._check(
            context,
            passed=True,
            metadata={"checkpoint": int(event.checkpoint_id), "consecutive_failures": 0, **late},
        )

    def _failed(self, event: CheckpointFailed) -> None:
        self.warn(failure_sentence(event))
        if self._context is not None:
            for reported in failed_events(self._pipeline, event):
                _log(self._context, reported)

    def _rejected(self, reason: CheckpointFailureReason, message: str) -> None:
        self.warn(f"no checkpoint: {message or reason.text} ({reason.name})")
        if self._context is not None and reason.counted:
            self._check(self._context, passed=False, metadata={"reason": reason.name, "message": message})

    def _discarded(self, number: CheckpointId) -> None:
        context = self._context
        key = checkpoint_key(number)
        self.info(f"{key} is no longer retained: its files are deleted")
        if context is not None:
            context.instance.delete_dynamic_partition(checkpoints_partitions(self._pipeline).name or "", key)

    def _check(self, context: dg.OpExecutionContext, *, passed: bool, metadata: dict[str, str | int]) -> None:
        _log(context, succeeded_evaluation(self._pipeline, passed=passed, metadata=metadata))

    def _link(self, context: dg.OpExecutionContext, key: str) -> str | None:
        location = context.run.tags.get(LOCATION_TAG)
        if not location:
            return None
        return restore_link(
            job_name=self._job_name,
            location=location,
            restore_op=self._restore_op,
            restore_from=key,
            ui_base_url=self._ui_base_url,
        )


class _NoLock:
    """A lock that holds nobody up; a forked process makes a new one for every handler, so it must be one."""

    def acquire(self) -> None: ...

    def release(self) -> None: ...

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


def _log(context: dg.OpExecutionContext, event: dg.AssetObservation | dg.AssetCheckEvaluation) -> None:
    # Dagster takes check evaluations here too; its annotation does not say so.
    context.log_event(event)  # type: ignore[arg-type]


_QUIET = (CheckpointTriggered, StageAcknowledged, CheckpointSubsumed)
"""Told per checkpoint and stage: at a checkpoint a second they would bury the event log."""


@dataclass(frozen=True, slots=True)
class Told:
    """An event of the coordinator, and the tables that were not published when it was told."""

    event: CoordinatorEvent
    unpublished: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Progress:
    """A stream at one moment, and its latest checkpoints."""

    seen: StreamProgress
    history: Sequence[CheckpointStatistics]


_Item = Told | tuple[str, str] | Progress | TableChanged


class StreamingEvents:
    """A listener, reporter and watcher; Dagster's event log is written by a thread of its own."""

    def __init__(self, events: DagsterEvents, pipeline: PipelineId, context: dg.OpExecutionContext) -> None:
        self._events = events
        self._pipeline = pipeline
        self._context = context
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        events.attach(context)
        self._thread = threading.Thread(target=self._write, name="dagster-events", daemon=True)
        self._thread.start()

    def __call__(self, event: CoordinatorEvent) -> None:
        """Hear one event of the coordinator."""
        if not isinstance(event, _QUIET):
            self._queue.put(Told(event, dict(self._events.unpublished())))

    def info(self, message: str) -> None:
        """Say something an operator may want to read."""
        self._queue.put(("info", message))

    def warn(self, message: str) -> None:
        """Say something an operator should read."""
        self._queue.put(("warn", message))

    def table_changed(self, change: TableChanged) -> None:
        """Materialize the asset of a table that shows other rows now."""
        self._queue.put(change)

    def progress(self, seen: StreamProgress, history: Sequence[CheckpointStatistics]) -> None:
        """Show how the run is going, as an observation of the checkpoints asset."""
        self._queue.put(Progress(seen, history))

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

    def _write_one(self, item: _Item) -> None:
        if isinstance(item, tuple):
            level, message = item
            (self._events.warn if level == "warn" else self._events.info)(message)
        elif isinstance(item, Progress):
            self._observe(item.seen, item.history)
        elif isinstance(item, TableChanged):
            self._events.table_changed(item)
        else:
            self._events.hear(item.event, item.unpublished)

    def _observe(self, seen: StreamProgress, history: Sequence[CheckpointStatistics]) -> None:
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
                    **history_metadata(history),
                },
            )
        )
