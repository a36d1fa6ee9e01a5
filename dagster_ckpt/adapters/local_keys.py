"""Keys below a local (or network-mounted) folder: whole or invisible, durable, exclusive where links exist.

Content is copied into a file without a name (``O_TMPFILE``) and linked to its key: ``link`` refuses an
existing name and never shows a partial file, and a killed process leaves nothing behind. Where the file
system knows no nameless files, a temporary name in the same folder stands in; where it knows no hard links, a
rename does.
"""

from __future__ import annotations

import errno
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial
from pathlib import Path

from dagster_ckpt.adapters.local_sync import WriteBehind, sync
from dagster_ckpt.core.storage import AlreadyExists, Digest, StoredObject
from dagster_ckpt.digests import CHUNK_BYTES, RunningDigest, digest_bytes, digest_file

PARTIAL_PREFIX = ".dagster-ckpt-part-"
"""Begins the name of every temporary file; such names are never listed."""

_TRIES = 5
"""How often a folder that a concurrent deletion pruned is made again."""


class Durability(Enum):
    """Durability of stored content."""

    POWER_LOSS = "power_loss"
    """What is created from bytes is on disk before its key is visible, and so are all files stored before it."""
    PROCESS_CRASH = "process_crash"
    """Content is left to the operating system's cache: faster, lost with the machine. A restore notices."""


class LocalKeys:
    """Raw operations below ``root``; every failure is the operating system's OSError."""

    def __init__(self, root: Path, durability: Durability) -> None:
        self._root = root
        self._is_durable = durability is Durability.POWER_LOSS
        self._unsynced = WriteBehind(root)
        self._buffers = threading.local()
        self._open_partial: Callable[[Path], tuple[int, Path | None]] = (
            _open_nameless if hasattr(os, "O_TMPFILE") and os.path.isdir("/proc/self/fd") else _open_named
        )

    def create(self, key: str, source: bytes | Path) -> Digest | AlreadyExists:
        """Store the content; a missing source raises FileNotFoundError with the source's name."""
        target = self._root / key
        if os.path.lexists(target):
            return AlreadyExists(key)
        if isinstance(source, Path):
            return self._create_from_file(key, target, source)
        return self._create_from_bytes(key, target, source)

    def read(self, key: str) -> bytes:
        """Return the whole content."""
        return (self._root / key).read_bytes()

    def fetch(self, key: str, target: Path, expected: Digest) -> Digest:
        """Bring the content to ``target`` if it is as expected; return the digest of what was found."""
        with _partial_beside(target) as beside:
            try:
                os.link(self._root / key, beside)
                digest = digest_file(beside)
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK):
                    raise
                digest = self._copy_to_new(self._root / key, beside)
            if digest == expected:
                os.replace(beside, target)
        return digest

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield every key below ``prefix``; folders that vanish meanwhile are passed over."""
        folders = [prefix]
        while folders:
            folder = folders.pop()
            try:
                entries = list(os.scandir(self._root / folder))
            except (FileNotFoundError, NotADirectoryError):
                continue
            for entry in entries:
                key = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    folders.append(key)
                elif not entry.name.startswith(PARTIAL_PREFIX):
                    with suppress(FileNotFoundError):
                        yield StoredObject(key, entry.stat().st_size)

    def delete(self, keys: Sequence[str]) -> None:
        """Remove these files, then the folders they leave empty, up to and without the root."""
        folders = set()
        for key in keys:
            path = self._root / key
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(path)
            folders.add(path.parent)
        for folder in folders:
            self._prune(folder)

    def _prune(self, folder: Path) -> None:
        while folder != self._root:
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                pass
            except OSError:
                return
            folder = folder.parent

    def _create_from_file(self, key: str, target: Path, source: Path) -> Digest | AlreadyExists:
        reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            result = self._publish(key, target, partial(self._copy, reading))
        finally:
            os.close(reading)
        if self._is_durable:
            self._unsynced.note(target)
        return result

    def _create_from_bytes(self, key: str, target: Path, content: bytes) -> Digest | AlreadyExists:
        if not self._is_durable:
            return self._publish(key, target, partial(_write_bytes, content))
        self._unsynced.flush()
        result = self._publish(key, target, partial(_write_synced, content))
        # A journal is sequential: with this folder's entry on disk, entries made before it are there too.
        with suppress(FileNotFoundError):
            sync(target.parent)
        return result

    # --- writing --------------------------------------------------------------------------------------------

    def _publish(self, key: str, target: Path, fill: Callable[[int], Digest]) -> Digest | AlreadyExists:
        fd, named = self._open_in(target.parent)
        try:
            digest = fill(fd)
            if not self._link(fd, named, target):
                return AlreadyExists(key)
        finally:
            os.close(fd)
            if named is not None:
                named.unlink(missing_ok=True)
        return digest

    def _open_in(self, folder: Path) -> tuple[int, Path | None]:
        for _ in range(_TRIES):
            try:
                return self._open_partial(folder)
            except FileNotFoundError:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                if self._open_partial is _open_named or error.errno not in (
                    errno.EOPNOTSUPP,
                    errno.EISDIR,
                    errno.EINVAL,
                ):
                    raise
                self._open_partial = _open_named
        return self._open_partial(folder)

    def _link(self, fd: int, named: Path | None, target: Path) -> bool:
        """Give the content its key; False when the key is taken."""
        for _ in range(_TRIES):
            try:
                _link_once(fd, named, target)
            except FileNotFoundError:
                target.parent.mkdir(parents=True, exist_ok=True)
                continue
            except FileExistsError:
                # A network file system may report our own link, repeated after a lost answer, as another's.
                if named is None or os.fstat(fd).st_nlink != 2:
                    return False
            return True
        raise FileNotFoundError(errno.ENOENT, "the folder is removed again and again", str(target.parent))

    def _copy(self, reading: int, writing: int) -> Digest:
        if not hasattr(self._buffers, "chunk"):
            self._buffers.chunk = memoryview(bytearray(CHUNK_BYTES))
        buffer: memoryview = self._buffers.chunk
        running = RunningDigest()
        while size := os.readv(reading, [buffer]):
            chunk = buffer[:size]
            running.update(chunk)
            _write_all(writing, chunk)
        return running.result()

    def _copy_to_new(self, source: Path, target: Path) -> Digest:
        reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                return self._copy(reading, writing)
            finally:
                os.close(writing)
        finally:
            os.close(reading)


def partial_name() -> str:
    """Return a fresh temporary file name."""
    return f"{PARTIAL_PREFIX}{uuid.uuid4().hex}"


@contextmanager
def _partial_beside(target: Path) -> Iterator[Path]:
    beside = target.with_name(partial_name())
    try:
        yield beside
    finally:
        beside.unlink(missing_ok=True)


def _open_nameless(folder: Path) -> tuple[int, Path | None]:
    return os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666), None


def _open_named(folder: Path) -> tuple[int, Path | None]:
    named = folder / partial_name()
    return os.open(named, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), named


def _link_once(fd: int, named: Path | None, target: Path) -> None:
    if named is None:
        # A folder descriptor makes Python call linkat(AT_SYMLINK_FOLLOW), which a nameless file needs.
        os.link(f"/proc/self/fd/{fd}", target, src_dir_fd=fd, follow_symlinks=True)
        return
    try:
        os.link(named, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "the key is taken", str(target)) from None
        os.rename(named, target)


def _write_bytes(content: bytes, fd: int) -> Digest:
    _write_all(fd, memoryview(content))
    return digest_bytes(content)


def _write_synced(content: bytes, fd: int) -> Digest:
    digest = _write_bytes(content, fd)
    os.fsync(fd)
    return digest


def _write_all(fd: int, chunk: memoryview) -> None:
    while chunk:
        chunk = chunk[os.write(fd, chunk) :]
