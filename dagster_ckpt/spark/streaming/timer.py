"""Runs something due again and again in the background, even while one of its calls hangs in storage."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

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
