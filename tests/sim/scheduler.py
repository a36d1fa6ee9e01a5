"""One seeded scheduler for all processes of a simulated world: threads are greenlets, time is a number.

Modules of the library see ``threading``, ``time``, ``queue`` and what else differs from run to run as the world has
them (``simulated``). A thread goes on only when the scheduler delivers it an event: something it waited for, the end of
a sleep, an answer from outside. Between two events any other thread may run, and a process may die or be suspended.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet

EPOCH = 1_800_000_000.0
"""Time of day at which every world begins."""


class Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


class Process:
    """A process of the world: threads that die together."""

    def __init__(self, name: str, skew: float, *, is_run: bool = False) -> None:
        self.name = name
        self.skew = skew
        """Seconds by which its wall clock is wrong."""
        self.is_run = is_run
        """It is of the run of this name."""
        self.is_dead = False
        self.stands_until = 0.0
        """It is suspended up to this moment (SIGSTOP)."""
        self.threads: dict[int, Thread] = {}


class Scheduler:
    """Delivers events in an order that its seed alone decides."""

    def __init__(self, seed: int, folder: str) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        """Left out of what is told: no two runs of a seed have the same."""
        self.now = 0.0
        self.events = 0
        """Delivered so far."""
        self.trace: deque[str] = deque(maxlen=400)
        self.digest = hashlib.blake2b(digest_size=16)
        """Of all that was delivered."""
        self.on_point: Callable[[Process, str], None] = lambda process, what: None
        """Called at every step of a process; may kill it."""
        self._due: list[tuple[float, float, int, Thread, int]] = []
        self._pushed = 0
        self._hub = getcurrent()
        self._made = 0

    def run(self, until: float, *, is_over: Callable[[], bool] = lambda: False) -> None:
        """Deliver what is due up to a moment, or until something is so. Raises what a thread's own end raises."""
        while self._due and self._due[0][0] <= until and not is_over():
            at, _, _, thread, token = heapq.heappop(self._due)
            process = thread.process
            if thread.token != token or process.is_dead:
                continue
            if process.stands_until > at:
                self._push(thread, process.stands_until, token)
                continue
            self.now = max(self.now, at)
            self.events += 1
            self.note(f"{process.name} {thread.name} {thread.waits_for}")
            thread.token += 1
            thread.go()
        self.now = max(self.now, until) if not is_over() else self.now

    def note(self, line: str) -> None:
        """Remember what happens."""
        text = f"{self.now:.4f} {line.replace(self.folder, '')}"
        self.digest.update(text.encode())
        self.trace.append(text)

    def spawn(self, process: Process, name: str, work: Callable[[], Any], after: float = 0.0) -> Thread:
        """Begin a thread."""
        thread = Thread(target=work, name=name)
        thread.scheduler, thread.process = self, process
        thread.begin(after)
        return thread

    def kill(self, process: Process) -> None:
        """End a process wherever its threads are."""
        process.is_dead = True
        self.note(f"{process.name} is killed")
        here = current()
        for thread in [*process.threads.values()]:
            if thread is not here:
                thread.end()
        process.threads = {number: one for number, one in process.threads.items() if one is here}
        if here is not None and here.process is process:
            raise Killed

    def point(self, what: str, delay: float = 0.0) -> None:
        """Let others go on before the thread does ``what``; here its process may die."""
        thread = current()
        if thread is None:
            return
        thread.refuse_dead()
        self.on_point(thread.process, what)
        self.wait(what, delay + self.random.random() * 1e-3)

    def wait(self, what: str, timeout: float | None = None) -> bool:
        """Wait until woken, or for so long; True: it was woken."""
        thread = current()
        assert thread is not None, f"nobody waits for {what}"
        thread.refuse_dead()
        thread.waits_for, thread.woken = what, False
        if timeout is not None:
            self._push(thread, self.now + max(timeout, 0.0), thread.token)
        self._hub.switch()
        thread.refuse_dead()
        return thread.woken

    def wake(self, thread: Thread) -> None:
        """Let a thread go on that waits."""
        thread.woken = True
        self._push(thread, self.now + self.random.random() * 1e-4, thread.token)

    def _push(self, thread: Thread, at: float, token: int) -> None:
        self._pushed += 1
        heapq.heappush(self._due, (at, self.random.random(), self._pushed, thread, token))


# --- what modules see ---------------------------------------------------------------------------------------------

_running: dict[int, Thread] = {}
"""The thread of each greenlet, by its identity as long as it lives: nothing depends on these numbers."""


def current() -> Thread | None:
    """Return the simulated thread that runs; None: the scheduler itself does."""
    return _running.get(id(getcurrent()))


class Thread:
    """``threading.Thread``."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., Any] = lambda: None,
        name: str = "thread",
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool = True,
    ) -> None:
        self.name, self._work = name, lambda: target(*args, **(kwargs or {}))
        self.token, self.waits_for, self.woken = 0, "start", False
        self.error: Exception | None = None
        self._greenlet: greenlet | None = None
        self._joining: list[Thread] = []
        self._is_over = False
        here = current()
        if here is not None:
            self.scheduler, self.process = here.scheduler, here.process

    def begin(self, after: float = 0.0) -> None:
        self.ident = self.scheduler._made = self.scheduler._made + 1
        self.process.threads[self.ident] = self
        self.scheduler._push(self, self.scheduler.now + after, self.token)

    def start(self) -> None:
        self.refuse_dead()
        self.begin()

    def refuse_dead(self) -> None:
        if self.process.is_dead:
            raise Killed

    def go(self) -> None:
        """Run up to its next wait; by the scheduler."""
        if self._greenlet is None:
            self._greenlet = greenlet(self._run)
            _running[id(self._greenlet)] = self
        self._greenlet.switch()

    def end(self) -> None:
        """Unwind it; by whoever has killed its process."""
        for _ in range(20):
            if self._greenlet is None or self._greenlet.dead:
                break
            self._greenlet.parent = getcurrent()
            self._greenlet.throw(Killed)
        self._leave()

    def _run(self) -> None:
        try:
            self._work()
        except Killed:
            pass
        except Exception as error:  # as a thread that ends with it
            self.error = error
            self.scheduler.note(f"{self.process.name} {self.name} died: {error!r}"[:300])
        finally:
            self._is_over = True
            self.process.threads.pop(self.ident, None)
            if not self.process.is_dead:
                for thread in self._joining:
                    self.scheduler.wake(thread)
            self._leave()

    def _leave(self) -> None:
        _running.pop(id(self._greenlet), None)

    def is_alive(self) -> bool:
        return hasattr(self, "ident") and not self._is_over

    def join(self, timeout: float | None = None) -> None:
        here = current()
        assert here is not None
        if self.is_alive():
            self._joining.append(here)
            self.scheduler.wait(f"join {self.name}", timeout)
