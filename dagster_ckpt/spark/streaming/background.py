"""Background work of a streaming run: in daemon threads, so that a storage that hangs never keeps the process alive.

Now and then it removes log entries and table files that nothing restorable needs any more.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from dagster_ckpt.errors import CheckpointError

if TYPE_CHECKING:
    from dagster_ckpt.core.ids import CheckpointId, LogPosition, StageUid
    from dagster_ckpt.spark.attempt.earlier_attempts import TableCleanUp
    from dagster_ckpt.spark.channel.log import ChannelLog
    from dagster_ckpt.spark.stage_report import Reporter
    from dagster_ckpt.spark.streaming.stage_worker import StageWorker

log = logging.getLogger("dagster_ckpt.stage")

THREADS = 2
DRAIN_TIMEOUT = 10.0


class DaemonBackground:
    """Runs work in a few threads that the end of the process does not wait for."""

    def __init__(self, *, drain_timeout: float = DRAIN_TIMEOUT) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._drain_timeout = drain_timeout
        self._idle = threading.Condition()
        self._open = 0
        self._started = False

    def submit(self, work: Callable[[], None]) -> None:
        """Run ``work`` soon, in another thread."""
        with self._idle:
            self._open += 1
            if not self._started:
                self._started = True
                for number in range(THREADS):
                    threading.Thread(target=self._run, name=f"cleaner-{number}", daemon=True).start()
        self._work.put(work)

    def drain(self) -> None:
        """Return when everything submitted has ended, or when it takes too long."""
        with self._idle:
            self._idle.wait_for(lambda: self._open == 0, timeout=self._drain_timeout)

    def _run(self) -> None:
        while True:
            work = self._work.get()
            try:
                work()
            finally:
                with self._idle:
                    self._open -= 1
                    self._idle.notify_all()


class ReusedThreads:
    """Runs each piece of work in a thread of its own at once; threads whose work has ended are used again.

    Starting a thread waits until it runs, which takes milliseconds where rows keep all cores busy.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._free = 0
        self._is_closed = False

    def submit(self, work: Callable[[], None]) -> None:
        """Run ``work`` now, in another thread."""
        with self._lock:
            is_free = self._free > 0
            self._free -= is_free
        if is_free:
            self._work.put(work)
        else:
            threading.Thread(target=self._run, args=(work,), name=self._name, daemon=True).start()

    def close(self) -> None:
        """End the threads as soon as they have nothing to do."""
        with self._lock:
            self._is_closed = True
            free, self._free = self._free, 0
        for _ in range(free):
            self._work.put(None)

    def _run(self, work: Callable[[], None] | None) -> None:
        while work is not None:
            try:
                work()
            except Exception:  # as in a thread that ends with it
                log.exception("%s failed", self._name)
            with self._lock:
                if self._is_closed:
                    return
                self._free += 1
            work = self._work.get()


MAX_HANGING = 8


class Poller:
    """Calls ``poll`` when it is due; it returns the monotonic time of the next call, or None.

    Each call has a thread of its own only when the one before hangs longer than ``patience`` seconds, so that
    timeouts fire while a trigger waits for a dead storage. At most MAX_HANGING calls hang.
    """

    def __init__(
        self,
        poll: Callable[[], float | None],
        *,
        longest: float = 0.25,
        patience: float = 1.0,
        on_error: Callable[[Exception], None],
    ) -> None:
        self._poll = poll
        self._longest = longest
        self._patience = patience
        self._on_error = on_error
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._beat = time.monotonic()
        self._hanging = 0
        self._lock = threading.Lock()
        self._current: object | None = None

    def start(self) -> None:
        """Begin to poll."""
        self._beat = time.monotonic()
        self._start_caller()
        threading.Thread(target=self._watch, name="poll-watch", daemon=True).start()

    def stop(self) -> None:
        """Poll no more; a call that hangs is left to itself."""
        self._stopping.set()
        self._woken.set()

    def _start_caller(self) -> None:
        token = object()
        with self._lock:
            self._current = token
        threading.Thread(target=self._call, args=(token,), name="poll", daemon=True).start()

    def _call(self, token: object) -> None:
        while not self._stopping.is_set() and self._current is token:
            try:
                due = self._poll()
            except Exception as error:  # told to the supervisor, which decides whether the run goes on
                due = None
                if not self._stopping.is_set():
                    self._on_error(error)
            now = time.monotonic()
            if self._current is not token:
                with self._lock:
                    self._hanging -= 1
                return
            self._beat = now
            pause = self._longest if due is None else min(self._longest, max(0.0, due - now))
            self._beat = now + pause
            self._woken.wait(pause)
            self._woken.clear()

    def _watch(self) -> None:
        while not self._stopping.wait(self._patience / 2):
            if time.monotonic() - self._beat > self._patience and self._hanging < MAX_HANGING:
                with self._lock:
                    self._hanging += 1
                self._beat = time.monotonic()
                self._start_caller()


class TableGarbage:
    """Told of every completion; collects in a thread of its own, rarely, and only between two checkpoints."""

    def __init__(
        self,
        *,
        clean_up: TableCleanUp,
        reporter: Reporter,
        every: float,
    ) -> None:
        """``every``: seconds between two collections."""
        self._clean_up = clean_up
        self._reporter = reporter
        self._every = every
        self._due_at = time.monotonic() + every
        self._collecting = threading.Lock()

    def collect_if_due(self) -> None:
        """Begin a collection if it is time for one."""
        if time.monotonic() >= self._due_at and self._collecting.acquire(blocking=False):
            threading.Thread(target=self._collect, name="table-garbage", daemon=True).start()

    def _collect(self) -> None:
        try:
            removed = self._clean_up.collect()
        except CheckpointError as error:
            self._reporter.info(f"table files no longer needed are kept for now: {error}")
            self._due_at = time.monotonic() + self._every
        else:
            if removed is not None:
                self._due_at = time.monotonic() + self._every
        finally:
            self._collecting.release()


MIN_ENTRIES_TO_TRUNCATE = 32
"""Entries that must be removable before a log is cut: each cut waits for the disk twice."""


def cut_point(
    log: ChannelLog,
    *,
    readers: Iterable[LogPosition],
    pending: Sequence[CheckpointId],
) -> LogPosition:
    """Return the first entry to keep: readers may return to it, or a pending checkpoint's barrier lies there."""
    barriers = (log.find_barrier(number) for number in pending)
    wanted = [*readers, *(at for at in barriers if at is not None)]
    return min(wanted, default=log.end)


def cut_logs(workers: Mapping[StageUid, StageWorker], pending: Sequence[CheckpointId]) -> int:
    """Cut every log as far as possible; return how many entries went. Safe while everything runs."""
    read = {upstream for worker in workers.values() for upstream in worker.inputs}
    needed = {uid: worker.needed_from(may_be_cut_back=uid in read) for uid, worker in workers.items()}
    removed = 0
    for uid, worker in workers.items():
        readers = [positions[uid] for positions in needed.values() if uid in positions]
        point = cut_point(worker.log, readers=readers, pending=pending)
        if point - worker.log.start < MIN_ENTRIES_TO_TRUNCATE:
            continue
        try:
            removed += worker.log.truncate_before(point)
        except CheckpointError:
            continue  # a full or read-only disk: the next cut tries again
    return removed
