"""The one thread in which all barrier decisions of a run are taken, and the gateway by which stages are told.

It looks often while barriers flow and seldom otherwise: nothing is aligned then.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, assert_never

from dagster_ckpt.core.checkpoint.tables import ShownTables
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.messages import NotifyAborted, NotifyComplete, TriggerStages
from dagster_ckpt.core.units import duration
from dagster_ckpt.errors import Declined
from dagster_ckpt.ports import Clock, SystemClock
from dagster_ckpt.spark.attempt.pipeline_setup import StageGateway
from dagster_ckpt.spark.directories import AttemptDirectory
from dagster_ckpt.spark.streaming.instant_cut import InstantCuts
from dagster_ckpt.spark.streaming.stage_worker import StageWorker

WARN_EVERY = 60.0
"""Seconds between two warnings of commits that are slow."""


@dataclass
class StreamingGateway(StageGateway):
    """Hands messages to the barrier loop; publishes tables before anybody is told of a completion."""

    runs_what_finished: ClassVar[bool] = False
    loop: BarrierLoop | None = None
    """Set once the stages run."""
    after_completion: Callable[[], None] | None = None
    """Called after a checkpoint's tables are published."""
    interval: float | None = None
    """Seconds between periodic checkpoints: publishing is to take less. None: there are none."""
    clock: Clock = field(default_factory=SystemClock)
    _warn_from: float = 0.0
    """Monotonic time before which slow commits were told of already."""

    def trigger(self, message: TriggerStages) -> None:
        """Let the source stages put the barrier behind their last batch. Raises Declined before they run."""
        if self.loop is None:
            raise Declined("the stages are not running yet")
        self.loop.post(BegunCheckpoint(message))

    def notify_complete(self, message: NotifyComplete) -> None:
        """Publish what the checkpoint contains, then tell the stages."""
        super().notify_complete(message)
        if self.loop is not None:
            self.loop.post(IsComplete(message.checkpoint_id))
        if self.after_completion is not None:
            self.after_completion()

    def publish(self, attempt: AttemptDirectory, message: NotifyComplete) -> ShownTables | None:
        """Publish; say so where that takes longer than the next checkpoint is away, because then it has to wait."""
        began = self.clock.monotonic()
        shown = super().publish(attempt, message)
        now = self.clock.monotonic()
        took = now - began
        if self.interval is not None and took > self.interval and now >= self._warn_from:
            self._warn_from = now + WARN_EVERY
            self.reporter.warn(
                f"publishing the tables of checkpoint {message.checkpoint_id} took {duration(took)}, and checkpoints "
                f"are {duration(self.interval)} apart: they wait for it. Raise interval"
            )
        return shown

    def notify_aborted(self, message: NotifyAborted) -> None:
        """Tell the stages: alignments of this checkpoint end, snapshots of it stop, no local copy is kept."""
        super().notify_aborted(message)
        if self.loop is not None:
            self.loop.post(IsAborted(message.checkpoint_id, message.latest_completed))


LOOK_WHILE_PENDING = 0.005
LOOK_OTHERWISE = 0.1
LOOK_WITHOUT_CHANNELS = 1.0
_MAX_MESSAGES_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class BegunCheckpoint:
    """The coordinator triggered a checkpoint."""

    message: TriggerStages


@dataclass(frozen=True, slots=True)
class IsComplete:
    """A checkpoint is complete."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class IsAborted:
    """A checkpoint is over without completing."""

    checkpoint_id: CheckpointId
    latest_completed: CheckpointId | None


@dataclass(frozen=True, slots=True)
class JobEnded:
    """A snapshot's thread has ended."""

    uid: StageUid
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class _Wake:
    """Look now."""


Message = BegunCheckpoint | IsComplete | IsAborted | JobEnded | _Wake


class BarrierLoop:
    """Runs the workers of all stages; ``post`` may be called from any thread."""

    def __init__(
        self,
        workers: Mapping[StageUid, StageWorker],
        order: Sequence[StageUid],
        *,
        clock: Clock,
        on_error: Callable[[StageUid, Exception], None],
        cuts: InstantCuts,
        still: AbstractContextManager[Any] | None = None,
    ) -> None:
        """``order``: stages after their inputs, so that a barrier may pass the whole graph in one look.

        ``still``: held while anything is decided, by a query as well while it commits for others (``FanOut``).
        """
        self.workers = workers
        for worker in workers.values():
            worker.feeders = [workers[upstream] for upstream in worker.inputs]
        self._cuts = cuts
        self._still = still or nullcontext()
        self._order = tuple(order)
        self._has_channels = any(worker.inputs for worker in workers.values())
        self._clock = clock
        self._on_error = on_error
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._pending_since: dict[CheckpointId, float] = {}
        self._walking: set[CheckpointId] = set()
        """Those of them whose barriers flow."""
        self.newest_complete: CheckpointId | None = None
        """Newest checkpoint the stages were told is complete."""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look, in a thread."""
        self._thread = threading.Thread(target=self._run, name="barriers", daemon=True)
        self._thread.start()

    def post(self, message: Message) -> None:
        """Hand a message over."""
        self._messages.put(message)

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread; snapshots that run are told to stop."""
        self._stopping.set()
        self.post(_Wake())
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)
        for worker in self.workers.values():
            worker.close(self._clock.now())

    @property
    def pending(self) -> Mapping[CheckpointId, float]:
        """Checkpoints that were triggered and are not over, and when."""
        return dict(self._pending_since)

    def step(self, *, wait: float = 0.0) -> bool:
        """Take the messages that are there and look once; True when something was decided.

        No query commits for others in between: a barrier that is in one log is in those of its readers then.
        """
        first = self._next_message(wait)
        with self._still:
            took = self._take_messages(first)
            return self._look() or took

    def _look(self) -> bool:
        now = self._clock.now()
        decided = False
        for uid in self._order:
            try:
                decided |= self.workers[uid].sweep(now)
            except (
                Exception
            ) as error:  # a stage that cannot align fails the run; its supervisor decides what follows
                self._on_error(uid, error)
                self._stopping.set()
                return True
        return decided

    def _run(self) -> None:
        decided = False
        while not self._stopping.is_set():
            decided = self.step(wait=0.0 if decided else self._pause())

    def _pause(self) -> float:
        """Without channels there are no barriers to look for: whatever happens comes as a message."""
        if self._walking:
            return LOOK_WHILE_PENDING
        return LOOK_OTHERWISE if self._has_channels else LOOK_WITHOUT_CHANNELS

    def _next_message(self, wait: float) -> Message | None:
        try:
            return self._messages.get(block=wait > 0, timeout=wait if wait > 0 else None)
        except queue.Empty:
            return None

    def _take_messages(self, message: Message | None) -> bool:
        """Take a message and those behind it; True where there was one."""
        took, left = message is not None, _MAX_MESSAGES_AT_ONCE
        while message is not None:
            self._take(message)
            left -= 1
            message = self._next_message(0.0) if left else None
        return took

    def _take(self, message: Message) -> None:
        now = self._clock.now()
        match message:
            case BegunCheckpoint(trigger):
                self._begin(trigger)
            case IsComplete(number):
                self._forget(number)
                self.newest_complete = max(number, self.newest_complete or number)
                self._each(lambda worker: worker.completed(number, now))
            case IsAborted(number, latest):
                self._forget(number)
                self._each(lambda worker: worker.aborted(number, latest, now))
            case JobEnded(uid, number):
                self._guarded(self.workers[uid], lambda worker: worker.job_done(number, now))
                if all(worker.has_passed(number) for worker in self.workers.values()):
                    self._walking.discard(number)  # nobody is told of the completion of a savepoint
            case _Wake():
                pass
            case _:
                assert_never(message)

    def _begin(self, trigger: TriggerStages) -> None:
        self._pending_since[trigger.checkpoint_id] = trigger.timestamp
        for uid in self._without_instant_cut(trigger):
            self._walking.add(trigger.checkpoint_id)
            self._guarded(
                self.workers[uid],
                lambda worker: worker.trigger(trigger.checkpoint_id, trigger.timestamp, trigger.options),
            )

    def _without_instant_cut(self, trigger: TriggerStages) -> list[StageUid]:
        """Cut at once what can be; return the sources whose barriers are to flow, through finished stages as well.

        While other barriers flow these do too: they must come behind them at every stage.
        """
        workers = {uid: self.workers[uid] for uid in self._order}
        cut: frozenset[StageUid] = frozenset()
        if not self._walking:
            try:
                cut = self._cuts.take(trigger, workers)
            except Exception as error:  # as in ``step``
                self._on_error(self._order[0], error)
                self._stopping.set()
        return [uid for uid, worker in workers.items() if not worker.inputs and uid not in cut]

    def _forget(self, number: CheckpointId) -> None:
        self._pending_since.pop(number, None)
        self._walking.discard(number)

    def _each(self, what: Callable[[StageWorker], None]) -> None:
        for uid in self._order:
            self._guarded(self.workers[uid], what)

    def _guarded(self, worker: StageWorker, what: Callable[[StageWorker], None]) -> None:
        try:
            what(worker)
        except Exception as error:  # as in ``step``
            self._on_error(worker.uid, error)
            self._stopping.set()
