"""Flushing of stored files: bulk files together, at the latest before the object that makes them count.

Syncing file by file costs a journal commit each, which halves the speed of a savepoint. So a file copied from disk is
only noted here, and the next object created from bytes (a manifest, the metadata: what makes files count) first
brings all noted files to disk: a few side by side, many by one ``syncfs``.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock, Semaphore

FEW = 16
"""Up to this many files are synced file by file; ``syncfs`` also waits for what others are writing to that disk."""
SIDE_BY_SIDE = 4
"""So many of them at once: one commit of the file system's journal then serves several."""


class WriteBehind:
    """Files below ``root`` that are stored and may not be on disk yet."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = Lock()
        self._flushing = Lock()
        self._noted: list[Path] = []

    def note(self, path: Path) -> None:
        """Remember a file to sync later."""
        with self._lock:
            self._noted.append(path)

    def flush(self) -> None:
        """Return when everything noted so far is on disk. Raises OSError; the next flush then tries these again.

        One at a time: whoever finds nothing noted must not go on while another still brings it to disk.
        """
        with self._flushing:
            with self._lock:
                noted, self._noted = self._noted, []
            try:
                self._sync(noted)
            except OSError:
                with self._lock:
                    self._noted = noted + self._noted
                raise

    def _sync(self, noted: list[Path]) -> None:
        if len(noted) > FEW and _sync_file_system(self._root):
            return
        _sync_each(noted)


def sync(path: Path) -> None:
    """Return when a file's content, or a folder's entries, are on disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@cache
def _helpers(_process: int) -> ThreadPoolExecutor:
    """Return the threads of a process: a fork has none of its parent's."""
    return ThreadPoolExecutor(SIDE_BY_SIDE - 1, thread_name_prefix="ckpt-sync")


def _sync_each(paths: Sequence[Path]) -> None:
    """Return when all files are on disk; one that was deleted meanwhile is passed over. Raises the first failure.

    Whoever calls takes part: helpers that are busy, or that the end of the process has ended, are not waited for.
    """
    left, failed, ended = [*paths], list[BaseException](), Semaphore(0)

    def take_part() -> None:
        while True:
            try:
                path = left.pop()
            except IndexError:
                return
            try:
                sync(path)
            except FileNotFoundError:
                pass
            except BaseException as error:  # in a helper nobody else would hear of it
                failed.append(error)
            finally:
                ended.release()

    for _ in range(min(SIDE_BY_SIDE, len(paths)) - 1):
        with suppress(RuntimeError):  # the process ends, or may have no more threads
            _helpers(os.getpid()).submit(take_part)
    take_part()
    for _ in paths:
        ended.acquire()
    if failed:
        raise failed[0]


def _sync_file_system(folder: Path) -> bool:
    """Sync the whole file system of ``folder``; False where the platform cannot."""
    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None) if sys.platform == "linux" else None
    if syncfs is None:
        return False
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if syncfs(fd) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(folder))
    finally:
        os.close(fd)
    return True
