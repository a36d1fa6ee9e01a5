"""Keys below a local (or network-mounted) folder: whole or invisible, durable, exclusive where links exist.

Content is copied into a file without a name (``O_TMPFILE``) and linked to its key: ``link`` refuses an
existing name and never shows a partial file, and a killed process leaves nothing behind. Where the file
system knows no nameless files, a temporary name in the same folder stands in; where it knows no hard links, a
rename does.

Below the root no symbolic link is followed: whoever may make one there could have anything read, or deleted.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial
from itertools import accumulate
from pathlib import Path

from dagster_ckpt.adapters.local_sync import WriteBehind, sync
from dagster_ckpt.core.paths import AlreadyExists, Digest, StoredObject
from dagster_ckpt.core.units import size as size_text
from dagster_ckpt.digests import CHUNK_BYTES, RunningDigest, digest_bytes, digest_file
from dagster_ckpt.errors import Corrupt

PARTIAL_PREFIX = ".dagster-ckpt-part-"
"""Begins the name of every temporary file; such names are never listed."""

LARGEST_READ = 256 * 1024 * 1024
"""So many bytes may an object have that is read whole."""

_READ_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_ENTER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_TRIES = 50
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
        self._open_partial: Callable[[str], tuple[int, Path | None]] = (
            _open_nameless if hasattr(os, "O_TMPFILE") and os.path.isdir("/proc/self/fd") else _open_named
        )

    def create(self, key: str, source: bytes | Path) -> Digest | AlreadyExists:
        """Store the content; a missing source raises FileNotFoundError with the source's name."""
        target = f"{self._root}/{key}"
        missing = self._refuse_links(key.rpartition("/")[0])
        if not missing and os.path.lexists(target):
            return AlreadyExists(key)
        if isinstance(source, Path):
            return self._create_from_file(key, target, source, missing)
        _make_folders(missing)
        return self._create_from_bytes(key, target, source)

    def read(self, key: str) -> bytes:
        """Return the whole content. Raises Corrupt where it is no file, or has more than ``LARGEST_READ``."""
        with open(self._opened(key), "rb") as file:
            if _size_of_file(os.fstat(file.fileno()), key) > LARGEST_READ:
                raise Corrupt(
                    f"{key!r} has more than {size_text(LARGEST_READ)}: nothing that is read whole has"
                )
            return file.read(LARGEST_READ)

    def fetch(self, key: str, target: Path, expected: Digest) -> Digest:
        """Bring the content to ``target`` if it is as expected; return the digest of what was found."""
        with _partial_beside(target) as beside:
            reading = self._opened(key)
            try:
                found = os.fstat(reading)
                if _size_of_file(found, key) != expected.size:
                    return Digest(found.st_size, "other content")
                digest = self._linked_or_copied(reading, found, self._root / key, beside)
            finally:
                os.close(reading)
            if digest == expected:
                os.replace(beside, target)
        return digest

    def _linked_or_copied(self, reading: int, found: os.stat_result, source: Path, beside: Path) -> Digest:
        """Bring an open file beside its target; a link only to one that nobody else may write to afterwards."""
        if found.st_uid == os.geteuid() and not found.st_mode & stat.S_IWOTH:
            try:
                os.link(source, beside, follow_symlinks=False)
                if os.path.samestat(os.lstat(beside), found):
                    return digest_file(beside)
                os.unlink(beside)  # another one took its name meanwhile
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK):
                    raise
        return self._copy_to_new(reading, beside)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield every key below ``prefix``; folders that vanish meanwhile are passed over."""
        self._refuse_links(prefix)
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
        folders: dict[str, list[str]] = {}
        for key in keys:
            folder, _, name = key.rpartition("/")
            folders.setdefault(folder, []).append(name)
        for folder, names in folders.items():
            with suppress(FileNotFoundError, NotADirectoryError), self._folder(folder) as opened:
                for name in names:
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=opened)
        for folder in folders:
            self._prune(folder)

    def _prune(self, folder: str) -> None:
        while folder:
            try:
                os.rmdir(f"{self._root}/{folder}")
            except FileNotFoundError:
                pass
            except OSError:
                return
            folder = folder.rpartition("/")[0]

    @contextmanager
    def _folder(self, folder: str) -> Iterator[int]:
        """Open a folder below the root, through no symbolic link, whatever is exchanged meanwhile."""
        opened = os.open(self._root, _ENTER)
        try:
            for part in folder.split("/") if folder else ():
                try:
                    inner = os.open(part, _ENTER | os.O_NOFOLLOW, dir_fd=opened)
                except NotADirectoryError:
                    self._refuse_links(folder)
                    raise
                os.close(opened)
                opened = inner
            yield opened
        finally:
            os.close(opened)

    def _opened(self, key: str) -> int:
        """Open a file to be read; a pipe without a writer is not waited for."""
        folder, _, name = key.rpartition("/")
        try:
            with self._folder(folder) as opened:
                return os.open(name, _READ_FILE, dir_fd=opened)
        except OSError as error:
            if error.errno == errno.ELOOP:
                self._refuse_links(key)
            raise

    def _refuse_links(self, key: str) -> Sequence[str]:
        """Raise Corrupt where an object or one of its folders is a symbolic link; return what is not there, if so."""
        path = str(self._root)
        parts = [part for part in key.split("/") if part]
        for number, part in enumerate(parts):
            path = f"{path}/{part}"
            try:
                is_link = stat.S_ISLNK(os.lstat(path).st_mode)
            except (FileNotFoundError, NotADirectoryError):
                return [*accumulate(parts[number + 1 :], "{}/{}".format, initial=path)]
            if is_link:
                raise Corrupt(
                    f"{path} is a symbolic link, and checkpoint storage follows none below its folder {self._root}: "
                    "remove it, or name the place it leads to"
                )
        return []

    def _create_from_file(
        self, key: str, target: str, source: Path, missing: Sequence[str]
    ) -> Digest | AlreadyExists:
        reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _make_folders(missing)
            result = self._publish(key, target, partial(self._copy, reading))
        finally:
            os.close(reading)
        if self._is_durable:
            self._unsynced.note(Path(target))
        return result

    def _create_from_bytes(self, key: str, target: str, content: bytes) -> Digest | AlreadyExists:
        if not self._is_durable:
            return self._publish(key, target, partial(_write_bytes, content))
        self._unsynced.flush()
        result = self._publish(key, target, partial(_write_synced, content))
        # A journal is sequential: with this folder's entry on disk, entries made before it are there too.
        with suppress(FileNotFoundError):
            sync(Path(target).parent)
        return result

    # --- writing --------------------------------------------------------------------------------------------

    def _publish(self, key: str, target: str, fill: Callable[[int], Digest]) -> Digest | AlreadyExists:
        fd, named = self._open_in(target.rpartition("/")[0])
        try:
            digest = fill(fd)
            if not self._link(fd, named, target):
                return AlreadyExists(key)
        finally:
            os.close(fd)
            if named is not None:
                named.unlink(missing_ok=True)
        return digest

    def _open_in(self, folder: str) -> tuple[int, Path | None]:
        for _ in range(_TRIES):
            try:
                return self._open_partial(folder)
            except FileNotFoundError:
                os.makedirs(folder, exist_ok=True)
            except OSError as error:
                if self._open_partial is _open_named or error.errno not in (
                    errno.EOPNOTSUPP,
                    errno.EISDIR,
                    errno.EINVAL,
                ):
                    raise
                self._open_partial = _open_named
        return self._open_partial(folder)

    def _link(self, fd: int, named: Path | None, target: str) -> bool:
        """Give the content its key; False when the key is taken."""
        for _ in range(_TRIES):
            try:
                _link_once(fd, named, target)
            except FileNotFoundError:
                os.makedirs(target.rpartition("/")[0], exist_ok=True)
                continue
            except FileExistsError:
                # A network file system may report our own link, repeated after a lost answer, as another's.
                if named is None or os.fstat(fd).st_nlink != 2:
                    return False
            return True
        raise FileNotFoundError(errno.ENOENT, "the folder is removed again and again", target)

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

    def _copy_to_new(self, reading: int, target: Path) -> Digest:
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            return self._copy(reading, writing)
        finally:
            os.close(writing)


def _make_folders(missing: Sequence[str]) -> None:
    """Make folders that were not there a moment ago, inner ones last; whoever opens one that still is not makes all."""
    for folder in missing:
        with suppress(FileExistsError, FileNotFoundError):
            os.mkdir(folder)


def _size_of_file(found: os.stat_result, key: str) -> int:
    """Return the size of a file. Raises Corrupt for a pipe or a device, IsADirectoryError for a folder."""
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "this is a folder", key)
    if not stat.S_ISREG(found.st_mode):
        raise Corrupt(f"{key!r} is no file: a pipe or a device was put there; remove it")
    return found.st_size


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


def _open_nameless(folder: str) -> tuple[int, Path | None]:
    return os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666), None


def _open_named(folder: str) -> tuple[int, Path | None]:
    named = Path(folder, partial_name())
    return os.open(named, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), named


def _link_once(fd: int, named: Path | None, target: str) -> None:
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
            raise FileExistsError(errno.EEXIST, "the key is taken", target) from None
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
