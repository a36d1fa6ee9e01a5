"""A stream's events in Dagster: few. What changed is told at once, then at most once in a while; failures likewise."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dagster_ckpt.core.coordinator.effects import (
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
from dagster_ckpt.core.messages import CheckpointFailureReason
from dagster_ckpt.core.units import counted
from dagster_ckpt.dagster.reporting import REPORT_PAUSE, Repeats, Untold, kind_of
from dagster_ckpt.dagster.reports.asset import history_metadata, stream_metadata
from dagster_ckpt.dagster.reports.events import DagsterEvents
from dagster_ckpt.dagster.reports.op_log import ProgressLines, line_of, log
from dagster_ckpt.dagster.supervision import outstanding_stages
from dagster_ckpt.spark.stage_report import TableChanged
from dagster_ckpt.spark.streaming.progress import StreamProgress

if TYPE_CHECKING:
    from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics
    from dagster_ckpt.core.ids import StageUid

HANGING = 15.0
"""Seconds after which a pending checkpoint says what it waits for."""

RETRY_AFTER = 15.0
"""Seconds after which an event log that could not be written is tried again."""

LONGEST_SILENCE = 3600.0
"""Seconds after which a stream that does nothing says so."""


@dataclass(frozen=True, slots=True)
class Told:
    """An event of the coordinator, and the tables that were not published when it was told."""

    event: CoordinatorEvent
    unpublished: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StreamMoment:
    """A stream at one moment, and its latest checkpoints."""

    seen: StreamProgress
    history: Sequence[CheckpointStatistics]


@dataclass(frozen=True, slots=True)
class Line:
    """A sentence for people."""

    text: str
    is_warning: bool = False


Item = Told | Line | StreamMoment | TableChanged


class StreamReports:
    """Decides what of a stream becomes an event in Dagster, and when. Not thread-safe; needs no thread of its own."""

    def __init__(
        self,
        events: DagsterEvents,
        *,
        pause: float = REPORT_PAUSE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._events = events
        self._policy = events.report
        self._pause = 0.0 if events.report.is_all else pause
        self._clock = clock
        self._untold = Untold()
        self._newest: tuple[CheckpointCompleted, Mapping[str, str]] | None = None
        self._tables: dict[StageUid, TableChanged] = {}
        self._tables_told: dict[StageUid, float] = {}
        self._repeats = Repeats(self._pause)
        self._succeeded: bool | None = None
        """What the check says; None: nothing yet."""
        self._withheld: tuple[str, Told] | None = None
        """A failure that was no news, while the check says that the last checkpoint completed."""
        self._observed: tuple[float, StreamProgress] | None = None
        self._not_before = float("-inf")
        """When what is due may be written again, after a failure to."""

    def hear(self, item: Item) -> None:
        """Hear one thing, and tell what is due by now."""
        if isinstance(item, Line):
            self._line(item)
        elif isinstance(item, StreamMoment):
            self._progress(item)
        elif isinstance(item, TableChanged):
            self._table(item)
        else:
            self._event(item)
        self.tick()

    def tick(self) -> None:
        """Tell the reports that have become due."""
        now = self._clock()
        if now < self._not_before:
            return
        due = self._untold.due_at(self._policy, pause=self._pause)
        is_due = due is not None and due <= now
        tell: list[Callable[[], None]] = [partial(self._tell_completed, now)] if is_due else []
        if self._withheld is not None and self._repeats.news_at(self._withheld[0]) <= now:
            tell.append(partial(self._tell_failed, *self._withheld))
        all_tables = is_due and self._policy.every
        tables = (uid for uid in self._tables if all_tables or self._table_due_at(uid) <= now)
        self._tell_each([*tell, *(partial(self._tell_table, uid, now) for uid in tables)])

    def due_in(self) -> float | None:
        """Return the seconds after which ``tick`` has something to tell; None: not before something is heard."""
        due = self._untold.due_at(self._policy, pause=self._pause)
        times = [*([] if due is None else [due]), *map(self._table_due_at, self._tables)]
        if self._withheld is not None:
            times.append(self._repeats.news_at(self._withheld[0]))
        finite = [at for at in times if at != float("inf")]
        return max(0.0, max(min(finite), self._not_before) - self._clock()) if finite else None

    def close(self) -> None:
        """Tell the reports that are held back."""
        now = self._clock()
        is_due = self._untold.changed or (self._policy.every and self._untold.checkpoints)
        tell: list[Callable[[], None]] = [partial(self._tell_completed, now)] if is_due else []
        if self._withheld is not None:
            tell.append(partial(self._tell_failed, *self._withheld))
        tables = (partial(self._tell_table, uid, now) for uid in self._tables)
        self._tell_each([*tell, *tables, self._tell_counts])

    def _tell_counts(self) -> None:
        for kind, times in self._repeats.untold().items():
            self._events.info(f"{counted(times, 'time')} more since it was last told: {kind}")

    def _tell_each(self, tell: Sequence[Callable[[], None]]) -> None:
        """Tell each, whatever becomes of the others; what fails is still held, and tried again after a while."""
        failed: list[Exception] = []
        for each in tell:
            try:
                each()
            except Exception as error:
                failed.append(error)
        if failed:
            self._not_before = self._clock() + RETRY_AFTER
            raise failed[0]

    # --- checkpoints -------------------------------------------------------------------------------------------

    def _event(self, told: Told) -> None:
        match told.event:
            case CheckpointTriggered() | StageAcknowledged() | CheckpointSubsumed():
                return  # told per checkpoint and stage: the log file has them
            case CheckpointCompleted() as event:
                self._completed(event, told.unpublished)
            case CheckpointDiscarded() as event:
                self._events.remove_partition(event)
            case CheckpointFailed() as event:
                stages = ", ".join(outstanding_stages(event.statistics))
                self._failed(f"failed: {event.reason.name} {stages}", told)
            case CheckpointRejected(reason=CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS):
                return  # as it is set: the next one comes in its time
            case CheckpointRejected() as event:
                self._failed(f"rejected: {event.reason.name}", told, is_failure=event.reason.counted)
            case JobFailed() | StopEnded():
                self._events.hear(told.event, told.unpublished)

    def _completed(self, event: CheckpointCompleted, unpublished: Mapping[str, str]) -> None:
        self._events.add_partition(event)
        self._untold = self._untold.with_completed(event.metadata)
        self._newest = event, unpublished
        if event.kind.is_savepoint or not event.statistics.trigger.periodic:  # somebody waits for it
            # With what is held back: told later, an older checkpoint would be the newest event.
            self._tell_completed(self._clock(), is_news=True)
        self._withheld = None
        if self._succeeded is not True or self._policy.is_all:
            self._events.tell_succeeded(event, unpublished)
            self._succeeded = True

    def _tell_completed(self, now: float, *, is_news: bool = False) -> None:
        since, newest = self._untold, self._newest
        assert newest is not None, "what is due has completed"
        event, unpublished = newest
        is_news = is_news or self._policy.is_all or since.changed > 0
        self._events.tell_completed(event, unpublished, is_news=is_news, since=since)
        self._untold = since.told(now)

    def _failed(self, kind: str, told: Told, *, is_failure: bool = True) -> None:
        if self._repeats.is_news(kind, now=self._clock()):
            self._tell_failed(kind, told, is_failure=is_failure)
        elif is_failure and self._succeeded:
            # A stream that fails and completes by turns is told of after each pause; one that ends now, as it ends.
            self._withheld = kind, told

    def _tell_failed(self, kind: str, told: Told, *, is_failure: bool = True) -> None:
        self._events.hear(told.event, told.unpublished)
        untold = self._repeats.told(kind, now=self._clock())
        if self._withheld is not None and self._withheld[1] is told:
            untold -= 1  # it was counted
        if is_failure:
            self._succeeded, self._withheld = False, None
        if untold:
            self._events.warn(f"the same was so {counted(untold, 'time')} more since it was last told")

    # --- the rest ----------------------------------------------------------------------------------------------

    def _table_due_at(self, uid: StageUid) -> float:
        if self._policy.every > 1:
            return float("inf")  # with the checkpoint
        told = self._tables_told.get(uid)
        return 0.0 if told is None else told + self._pause

    def _table(self, change: TableChanged) -> None:
        held = self._tables.get(change.uid)
        if change.taken_back:
            if held is not None:
                self._tell_table(change.uid, self._clock())
            self._events.table_changed(change)
            return
        self._tables[change.uid] = change if held is None else change.after(held)

    def _tell_table(self, uid: StageUid, now: float) -> None:
        self._events.table_changed(self._tables[uid])
        self._tables_told[uid] = now
        del self._tables[uid]

    def _line(self, line: Line) -> None:
        now, kind = self._clock(), kind_of(line.text)
        if not self._repeats.is_news(kind, now=now):
            log.log(logging.WARNING if line.is_warning else logging.INFO, "%s", line.text)
            return
        untold = self._repeats.told(kind, now=now)
        text = (
            f"{line.text} (and {counted(untold, 'time')} more since it was last told)"
            if untold
            else line.text
        )
        (self._events.warn if line.is_warning else self._events.info)(text)

    def _progress(self, progress: StreamMoment) -> None:
        now, seen = self._clock(), progress.seen
        if self._observed is not None and not self._policy.is_all:
            at, before = self._observed
            if now - at < LONGEST_SILENCE and seen.is_quiet_since(before):
                return
        self._observed = now, seen
        pending = " ".join(seen.lines()) or "no checkpoint is pending"
        self._events.observe(
            f"streaming; {pending}",
            {**stream_metadata(seen, pending), **history_metadata(progress.history, page=self._events.page)},
        )


class StreamingEvents:
    """A listener, reporter and watcher; Dagster's event log is written by a thread of its own."""

    def __init__(self, reports: StreamReports, *, unpublished: Callable[[], Mapping[str, str]]) -> None:
        self._reports = reports
        self._unpublished = unpublished
        self._say = ProgressLines()
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="dagster-events", daemon=True)
        self._thread.start()

    def __call__(self, event: CoordinatorEvent) -> None:
        """Hear one event of the coordinator."""
        if line := line_of(event):
            log.info("%s", line)
        if not isinstance(event, CheckpointTriggered | StageAcknowledged | CheckpointSubsumed):
            self._queue.put(Told(event, dict(self._unpublished())))

    def info(self, message: str) -> None:
        """Say something an operator may want to read."""
        self._queue.put(Line(message))

    def warn(self, message: str) -> None:
        """Say something an operator should read."""
        self._queue.put(Line(message, is_warning=True))

    def table_changed(self, change: TableChanged) -> None:
        """Materialize the asset of a table that shows other rows now."""
        self._queue.put(change)

    def progress(self, seen: StreamProgress, history: Sequence[CheckpointStatistics]) -> None:
        """Show how the run is going, as an observation of the checkpoints asset."""
        self._queue.put(StreamMoment(seen, history))

    def look_on(self, seen: StreamProgress) -> None:
        """Say how it is going, and which input a checkpoint that hangs waits for, while it does."""
        self._say(seen)
        for sentence in seen.hanging(after=HANGING):
            self.warn(sentence)

    def close(self, timeout: float = 10.0) -> None:
        """Write what is left."""
        self._queue.put(None)
        self._thread.join(timeout)

    def _write(self) -> None:
        while True:
            try:
                item = self._queue.get(timeout=self._reports.due_in())
            except queue.Empty:
                self._safely(self._reports.tick)
                continue
            if item is None:
                self._safely(self._reports.close)
                return
            self._safely(partial(self._reports.hear, item))

    def _safely(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:  # an event log that cannot be written must not end the stream
            log.warning("an event could not be written: %s", error)
