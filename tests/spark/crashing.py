"""Stops the program at its n-th change of the file system, as a kill would: nothing after it happens either."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dagster_ckpt.testing.faults import SimulatedCrash

_CHANGES = {"os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"}


@dataclass
class _Armed:
    below: str = ""
    remaining: int | None = None
    in_threads: type[BaseException] = SimulatedCrash
    is_full: bool = False
    """The disk has no room from then on; nobody dies of it."""
    seen: list[str] = field(default_factory=list)


_armed = _Armed()


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if not _armed.below or not _is_change(event, arguments):
        return
    if not any(str(argument).startswith(_armed.below) for argument in arguments[:2]):
        return
    _armed.seen.append(f"{event} {arguments[:2]}")
    if _armed.remaining is not None:
        _armed.remaining -= 1
        if _armed.remaining < 0 and _armed.is_full:
            if event == "open":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(arguments[0]))
            return
        if _armed.remaining < 0:
            kind = (
                SimulatedCrash if threading.current_thread() is threading.main_thread() else _armed.in_threads
            )
            raise kind(f"before {event} {arguments[:2]}")


def _is_change(event: str, arguments: tuple[object, ...]) -> bool:
    if event == "open":
        flags = arguments[2]
        return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    return event in _CHANGES


sys.addaudithook(_hook)


@contextmanager
def crash_before_change(
    number: int | None, below: object, *, in_threads: type[BaseException] = SimulatedCrash
) -> Iterator[list[str]]:
    """Raise SimulatedCrash before change ``number`` (0: the first) of files below a folder, and before every
    later one.

    None only records: the list yielded names the changes in order. ``in_threads``: raised in other threads than the
    main one; where a callback of Java's is to die, an Exception: Java waits for ever for a thread that is gone.
    """
    _armed.below, _armed.remaining, _armed.seen = str(below), number, []
    _armed.in_threads = in_threads
    try:
        yield _armed.seen
    finally:
        _armed.below, _armed.remaining = "", None


@contextmanager
def full_disk(number: int, below: object) -> Iterator[None]:
    """Leave no room for a new file below a folder from change ``number`` on."""
    with crash_before_change(number, below):
        _armed.is_full = True
        try:
            yield
        finally:
            _armed.is_full = False


def crashes_at_every_change(
    below: object, prepare: Callable[[], object], act: Callable[[], object]
) -> Iterator[int]:
    """For every change that ``act`` makes: prepare afresh, crash there, and yield its number for the check."""
    prepare()
    with crash_before_change(None, below) as seen:
        act()
    for number in range(len(seen)):
        prepare()
        with crash_before_change(number, below):
            try:
                act()
            except SimulatedCrash:
                pass
            else:
                raise AssertionError(f"change {number} of {seen} did not happen in the second run")
        yield number
