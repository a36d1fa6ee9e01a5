"""Flushing of stored files: bulk files together, at the latest before the object that makes them count.

Syncing file by file costs a journal commit each, which halves the speed of a savepoint. So a file copied from disk is
only noted here, and the next object created from bytes (a manifest, the metadata: what makes files count) first
brings all noted files to disk: a few one by one, many by one ``syncfs``.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path
from threading import Lock

FEW = 16
"""Up to this many files are synced one by one; ``syncfs`` also waits for what others are writing to that disk."""


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
        for path in noted:
            with suppress(FileNotFoundError):  # deleted meanwhile
                sync(path)


def sync(path: Path) -> None:
    """Return when a file's content, or a folder's entries, are on disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


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
