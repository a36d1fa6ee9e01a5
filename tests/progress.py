"""Waiting that goes by progress, not by a clock: a busy machine is waited for, what stands still is given up."""

from __future__ import annotations

import faulthandler
import inspect
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

QUIET = 300.0
"""Seconds in which nothing of what is watched has moved, after which it is given up."""
LOOK_EVERY = 0.02
PROCESSOR_STEP = 3.0
"""Processor seconds that count as a movement: an idle JVM uses less within ``QUIET``, one that works uses more."""


def nothing() -> None:
    """Watch nothing: what is waited for must come within ``quiet`` seconds."""


def wait_until(
    holds: Callable[[], T],
    what: str,
    *,
    moves: Callable[[], object] = nothing,
    check: Callable[[], object] = nothing,
    quiet: float = QUIET,
    every: float = LOOK_EVERY,
) -> T:
    """Return what ``holds`` gives once it is true. Raises AssertionError when ``moves`` has stayed as it is for long.

    ``moves`` returns what progress can be seen in: a count, a size, a state. ``check`` raises when waiting is no use.
    """
    seen, moved_at = moves(), time.monotonic()
    while not (found := holds()):
        check()
        now_seen, now = moves(), time.monotonic()
        if now_seen != seen:
            seen, moved_at = now_seen, now
        elif now - moved_at > quiet:
            faulthandler.dump_traceback(file=sys.__stderr__)
            raise AssertionError(
                f"waited until {what}: nothing has moved for {quiet:.0f} s; seen last: {seen}"
            )
        time.sleep(every)
    return found


class Sampled:
    """Looks at something costly once a second, or more seldom, however often it is asked."""

    def __init__(self, look: Callable[[], object], every: float = 1.0) -> None:
        self._look, self._every, self._seen, self._at = look, every, look(), time.monotonic()

    def __call__(self) -> object:
        if time.monotonic() - self._at > self._every:
            self._seen, self._at = self._look(), time.monotonic()
        return self._seen


def source_of(function: Callable[[], object]) -> str:
    """Return the code of a condition, for what is said when it never holds."""
    with suppress(OSError):
        return " ".join(inspect.getsource(function).split())[:300]
    return function.__qualname__


# --- threads and processes --------------------------------------------------------------------------------------


def join(thread: threading.Thread, what: str, *, moves: Callable[[], object] = nothing) -> None:
    """Wait for a thread's end."""
    wait_until(lambda: not thread.is_alive(), what, moves=moves, every=0.1)


def exit_code(process: subprocess.Popen[bytes] | subprocess.Popen[str], what: str = "") -> int:
    """Wait for a process's end while it or its children work, and return its exit code."""
    what = what or f"{process.args} ends"
    wait_until(lambda: process.poll() is not None, what, moves=Sampled(lambda: work_of(process.pid)))
    return int(process.returncode)


def output_of(process: subprocess.Popen[str], what: str = "") -> str:
    """Read what a process writes until it ends, while it or its children work."""
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.append(process.communicate()[0]), daemon=True)
    reader.start()
    try:
        join(reader, what or f"{process.args} ends", moves=Sampled(lambda: work_of(process.pid)))
    except AssertionError:
        process.kill()
        raise
    return said[0]


def work_of(pid: int) -> int:
    """Processor time so far of a process and everything below it, in steps that an idle JVM does not reach."""
    return int(processor_seconds(pid) / PROCESSOR_STEP)


def processor_seconds(pid: int | None = None) -> float:
    """Processor time so far of a process (this one) and everything below it (Linux)."""
    times: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        times[int(folder.name)] = sum(int(ticks) for ticks in fields[11:15])
        children.setdefault(int(fields[1]), []).append(int(folder.name))
    total, todo = 0.0, [os.getpid() if pid is None else pid]
    while todo:
        number = todo.pop()
        total += times.get(number, 0.0)
        todo += children.get(number, [])
    return total / os.sysconf("SC_CLK_TCK")
