"""The library's modules, as they see time, threads, chance and the disk while a world is played."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import random
import secrets
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

from tests.sim.scheduler import EPOCH, Scheduler, Thread, current
from tests.sim.threads import Condition, Event, Inline, Lock, ModuleLock, Queue, RLock


class _Module(ModuleType):
    """A module of the standard library, of which some names are the world's."""

    def __init__(self, real: ModuleType, names: dict[str, Any]) -> None:
        super().__init__(real.__name__)
        self.__dict__.update(names)
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _modules(scheduler: Scheduler) -> dict[ModuleType, ModuleType]:
    rng = scheduler.random

    def wall() -> float:
        here = current()
        return EPOCH + scheduler.now + (here.process.skew if here is not None else 0.0)

    def sleep(seconds: float) -> None:
        scheduler.wait("sleep", seconds)

    def identity() -> int:
        here = current()
        return 0 if here is None else here.ident

    names: dict[ModuleType, dict[str, Any]] = {
        threading: {
            "Thread": Thread,
            "Lock": Lock,
            "RLock": RLock,
            "Condition": Condition,
            "Event": Event,
            "current_thread": current,
            "get_ident": identity,
        },
        time: {
            "time": wall,
            "monotonic": lambda: scheduler.now,
            "perf_counter": lambda: scheduler.now,
            "time_ns": lambda: int(wall() * 1e9),
            "sleep": sleep,
        },
        queue: {"SimpleQueue": Queue, "Queue": Queue},
        random: {"random": rng.random, "Random": lambda *_: random.Random(rng.getrandbits(64))},
        secrets: {"token_hex": lambda size=16: rng.randbytes(size).hex()},
        uuid: {"uuid4": lambda: uuid.UUID(bytes=rng.randbytes(16), version=4)},
    }
    return {real: _Module(real, changed) for real, changed in names.items()}


_FACTORIES: dict[Any, Any] = {
    threading.Event: Event,
    threading.Lock: Lock,
    threading.RLock: RLock,
    threading.Condition: Condition,
    queue.SimpleQueue: Queue,
    queue.Queue: Queue,
    random.Random: None,
}
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_FILE_CALLS = ("replace", "link", "unlink", "rename")


@contextlib.contextmanager
def simulated(scheduler: Scheduler) -> Iterator[None]:
    """Let modules of the library, as far as they are imported, see the world's time and threads; then their own."""
    fakes = _modules(scheduler)
    factories = {**_FACTORIES, random.Random: fakes[random].Random}
    with contextlib.ExitStack() as stack:

        def put(place: Any, name: str, value: Any) -> None:
            stack.callback(setattr, place, name, getattr(place, name))
            setattr(place, name, value)

        for module in [
            m for name, m in sorted(sys.modules.items()) if name.startswith(("dagster_ckpt.", "tests.attack"))
        ]:
            for name, value in [*vars(module).items()]:
                if isinstance(value, ModuleType) and value in fakes:
                    put(module, name, fakes[value])
                elif value is ThreadPoolExecutor:
                    put(module, name, Inline)
                elif isinstance(value, _LOCKS):
                    put(module, name, ModuleLock())
                elif (
                    isinstance(value, type)
                    and value.__module__ == module.__name__
                    and dataclasses.is_dataclass(value)
                ):
                    for cell in value.__init__.__closure__ or ():
                        if any(cell.cell_contents is real for real in factories):
                            put(cell, "cell_contents", factories[cell.cell_contents])
        for name in _FILE_CALLS:
            put(os, name, _stepped(scheduler, name, getattr(os, name)))
        yield


def _stepped(scheduler: Scheduler, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """A call that changes the disk: a process may die before it, and now and then others come first."""

    def call(*args: Any, **kwargs: Any) -> Any:
        here = current()
        if here is not None:
            here.refuse_dead()
            scheduler.on_point(here.process, name)
            if scheduler.random.random() < 0.1:
                scheduler.point(name)
        return real(*args, **kwargs)

    return call
