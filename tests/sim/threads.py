"""What modules of the library find in ``threading`` and ``queue``: the same, of threads that the scheduler runs."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.sim.scheduler import Process, Thread, current


def _wait(what: str, timeout: float | None = None) -> bool:
    here = current()
    assert here is not None, what
    return here.scheduler.wait(what, timeout)


def _wake_all(threads: list[Thread], number: int | None = None) -> None:
    woken, threads[:] = threads[:number], threads[len(threads[:number]) :]
    for thread in woken:
        thread.scheduler.wake(thread)


class Lock:
    """``threading.Lock`` and, where the one who has it may take it again, ``RLock``."""

    again = False

    def __init__(self) -> None:
        self._owner: Thread | None = None
        self._count = 0
        self._waiting: list[Thread] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        here = current()
        if here is None:
            assert self._owner is None or self._owner.process.is_dead, "the world itself never waits"
            return True
        if here.scheduler.random.random() < 0.02:
            here.scheduler.point("lock")
        while self._owner is not None and not (self.again and self._owner is here):
            if not blocking:
                return False
            self._waiting.append(here)
            if not here.scheduler.wait("lock", timeout if timeout >= 0 else None) and timeout >= 0:
                self._waiting.remove(here)
                return False
        self._owner, self._count = here, self._count + 1
        return True

    def release(self) -> None:
        if current() is None:
            return
        self._count -= 1
        if self._count == 0:
            self._owner = None
            self._waiting = [one for one in self._waiting if not one.process.is_dead]
            _wake_all(self._waiting, 1)

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    again = True


class ModuleLock:
    """A lock of a module: each process has its own."""

    def __init__(self) -> None:
        self._of: dict[Process, RLock] = {}

    def __enter__(self) -> bool:
        here = current()
        return here is None or self._of.setdefault(here.process, RLock()).acquire()

    def __exit__(self, *_: object) -> None:
        here = current()
        if here is not None:
            self._of[here.process].release()


class Condition:
    """``threading.Condition``."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or RLock()
        self._waiting: list[Thread] = []

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        here = current()
        assert here is not None
        self._waiting.append(here)
        self._lock.release()
        try:
            return here.scheduler.wait("condition", timeout)
        finally:
            if not here.process.is_dead:
                self._lock.acquire()

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        while not predicate():
            if not self.wait(timeout) and timeout is not None:
                return predicate()
        return True

    def notify(self, n: int = 1) -> None:
        _wake_all(self._waiting, n)

    def notify_all(self) -> None:
        _wake_all(self._waiting)


class Event:
    """``threading.Event``."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[Thread] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        _wake_all(self._waiting)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            here = current()
            assert here is not None
            self._waiting.append(here)
            _wait("event", timeout)
        return self._is_set


class Queue:
    """``queue.SimpleQueue`` and ``queue.Queue``."""

    def __init__(self, maxsize: int = 0) -> None:
        self._items: deque[Any] = deque()
        self._waiting: list[Thread] = []

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._items.append(item)
        _wake_all(self._waiting, 1)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        while not self._items:
            here = current()
            if not block or here is None:
                raise queue.Empty
            self._waiting.append(here)
            if not _wait("message", timeout) and timeout is not None and not self._items:
                raise queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self._items


class Inline:
    """``ThreadPoolExecutor``, in the thread that asks."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, work: Callable[..., Any], *args: Any) -> Any:
        result = work(*args)
        return SimpleNamespace(result=lambda timeout=None: result)

    def map(self, work: Callable[..., Any], *items: Any) -> Any:
        return [work(*item) for item in zip(*items, strict=False)]

    def shutdown(self, **_: Any) -> None:
        pass
