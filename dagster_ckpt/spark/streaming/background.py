"""Deletions of a streaming run: in daemon threads, so that a storage that hangs never keeps the process alive."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

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
