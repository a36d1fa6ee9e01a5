"""Working directories whose rows lie in an object store: a *mount* tells where the bytes of a local path are.

What only the driver reads and writes (entries of channel logs, positions, committables, pins) stays on its own disk,
below a folder that may be lost at any moment. What executors write (files of channel logs, rows that sinks stage) goes
to the object store under the name it would have had beside that.

Everything that an attempt writes there is below a folder of its own,
``<pipeline>/<history>/attempt-<number>-<random>``, which the attempt's directory names. So neither two
machines nor two histories ever write the same name.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import logging
import os
import queue
import re
import shutil
import stat
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import CheckpointError, Corrupt, InvalidRequest, NotFound
from dagster_ckpt.spark.exchange.objects import RemoteFolder
from dagster_ckpt.spark.files import (
    DataFile,
    link_or_copy,
    remove_batch_files,
    replace_whole,
    run_in_parallel,
)

if TYPE_CHECKING:
    from dagster_ckpt.ports import CheckpointStorage

log = logging.getLogger("dagster_ckpt.exchange")

_AT_ONCE = 256
"""Keys that are handed to the storage in one call."""


@dataclass
class Deletions:
    """Keys to delete, by one thread that is there from the first of them on: nobody waits for them.

    What cannot be deleted now stays until the attempt that wrote it is over: the next one removes what is left of it.
    """

    storage: CheckpointStorage
    _todo: queue.Queue[Callable[[], Sequence[str]]] = field(default_factory=queue.Queue)
    _starting: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None

    def add(self, keys: Sequence[str]) -> None:
        """Delete these keys soon."""
        self._put(lambda: keys)

    def add_listed(self, prefix: str, chosen: Callable[[str], bool]) -> None:
        """Delete soon what lies below a prefix then and is chosen."""
        self._put(lambda: [found.key for found in self.storage.list(prefix) if chosen(found.key)])

    def wait(self) -> None:
        """Return once all that was added is done."""
        self._todo.join()

    def _put(self, keys: Callable[[], Sequence[str]]) -> None:
        self._todo.put(keys)
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="ckpt-exchange-garbage", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            keys = self._todo.get()
            try:
                self._delete(list(keys()))
            except CheckpointError as error:
                log.info("rows that are no longer needed stay in the object store for now: %s", error)
            except Exception:
                log.exception("rows that are no longer needed stay in the object store for now")
            finally:
                self._todo.task_done()

    def _delete(self, keys: list[str]) -> None:
        for start in range(0, len(keys), _AT_ONCE):
            self.storage.delete(keys[start : start + _AT_ONCE])


PLACE = "exchange.json"
"""In an attempt's directory: the folder of what it has in the object store."""
_ATTEMPT = re.compile(r"attempt-(\d+)-[0-9a-f]{16}")
_TRANSFERS = 8


@dataclass(frozen=True)
class Exchange:
    """A working directory's part in an object store."""

    scratch: Path
    """The driver's own folder."""
    remote: RemoteFolder
    storage: CheckpointStorage
    """The same folder as the driver lists and deletes in it."""
    deletions: Deletions
    current: dict[str, str] = field(default_factory=dict)
    """Folder of the attempt that works now, by pipeline."""

    def key_of(self, path: Path) -> str:
        """Return the key that a local path's bytes have. Raises Corrupt where an attempt has lost its note."""
        parts = path.absolute().relative_to(self.scratch).parts
        if len(parts) > 1 and parts[1].startswith("attempt-"):
            return "/".join([_place_of(self.scratch / parts[0] / parts[1]), *parts[2:]])
        return "/".join([*([self.current[parts[0]]] if parts[0] in self.current else []), *parts])

    def below(self, path: Path) -> RemoteFolder:
        """Return the folder in the object store that a local folder stands for."""
        return self.remote.below(self.key_of(path))


_mounting = threading.Lock()
_mounted: dict[Path, Exchange] = {}


def mount(scratch: Path, remote: RemoteFolder, storage: CheckpointStorage) -> Exchange:
    """Let the rows below ``scratch`` lie in an object store, for as long as this process lives."""
    scratch = scratch.absolute()
    with _mounting:
        known = _mounted.get(scratch)
        if known is None or known.remote != remote:
            current = {} if known is None else known.current
            _mounted[scratch] = known = Exchange(scratch, remote, storage, Deletions(storage), current)
        return known


def exchange_of(path: Path) -> Exchange | None:
    """Return the exchange that holds the rows below a local path; None: they are on the disk."""
    if not _mounted:
        return None
    path = path.absolute()
    return next((_mounted[above] for above in (path, *path.parents) if above in _mounted), None)


def scratch_of(uri: str) -> Path:
    """Return the driver's own folder for a working directory in an object store: below the system's temporary one.

    Another one for each user; made so that only its owner reads it.
    """
    name = f"dagster-ckpt-{_user()}"
    top = Path(tempfile.gettempdir()) / name
    try:
        top.mkdir(mode=0o700, exist_ok=True)
        found = top.lstat()
        theirs = found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode) or bool(found.st_mode & 0o022)
    except OSError as error:
        raise InvalidRequest(f"the driver's own folder {top} cannot be made: {error}. Set TMPDIR") from error
    if theirs:
        raise InvalidRequest(
            f"the driver's own folder {top} belongs to another user, or others may write there: set TMPDIR to another "
            "folder"
        )
    return top / hashlib.sha256(uri.rstrip("/").encode()).hexdigest()[:16]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, in a container
        return str(os.getuid())


# --- attempts ---------------------------------------------------------------------------------------------------


def begin(directory: Path, lineage: str) -> None:
    """Give an attempt's new directory its folder in the object store, where it has one."""
    exchange = exchange_of(directory)
    if exchange is None:
        return
    pipeline, attempt = directory.absolute().relative_to(exchange.scratch).parts
    place = f"{pipeline}/{lineage or 'history'}/{attempt}-{uuid.uuid4().hex[:16]}"
    directory.mkdir(parents=True, exist_ok=True)
    replace_whole(directory / PLACE, json.dumps({"format_version": 1, "place": place}).encode())


def is_reached(directory: Path) -> bool:
    """Tell whether the rows of an attempt's directory are where this process looks for them.

    They are not, where ``work_dir`` has become an object store since, or is none any more.
    """
    return (exchange_of(directory) is not None) is (directory / PLACE).exists()


def work_in(directory: Path) -> None:
    """Say that an attempt's directory is the one that works now: rows that sinks stage go there too."""
    exchange = exchange_of(directory)
    if exchange is not None:
        exchange.current[directory.parent.name] = _place_of(directory)


def sweep_older(directory: Path) -> None:
    """Remove what earlier attempts of the same history have left in the object store, while work goes on."""
    exchange = exchange_of(directory)
    if exchange is None:
        return
    folder, _, own = _place_of(directory).rpartition("/")
    match = _ATTEMPT.fullmatch(own)
    number = int(match[1]) if match else 0

    def is_older(key: str) -> bool:
        name = key[len(folder) + 1 :].partition("/")[0]
        found = _ATTEMPT.fullmatch(name)
        return found is not None and name != own and int(found[1]) <= number

    exchange.deletions.add_listed(folder, is_older)


def discard(directory: Path) -> None:
    """Remove, by and by, what an attempt that was only tried has written to the object store."""
    exchange = exchange_of(directory)
    if exchange is not None:
        exchange.deletions.add_listed(_place_of(directory), lambda key: True)


def _place_of(attempt: Path) -> str:
    try:
        document = parse_json((attempt / PLACE).read_bytes())
        if document["format_version"] != 1:
            raise ValueError(f"format version {document['format_version']}")
        return str(document["place"])
    except FileNotFoundError:
        raise NotFound(f"{attempt} does not say where its rows are: restore the latest checkpoint") from None
    except (ValueError, LookupError, TypeError) as error:
        raise Corrupt(f"{attempt / PLACE} is damaged ({error}): restore the latest checkpoint") from error


# --- files ------------------------------------------------------------------------------------------------------


def bring_here(root: Path, files: Iterable[DataFile]) -> None:
    """Let these files lie where their names say, also where executors have written them to an object store."""
    exchange = exchange_of(root)
    missing = [file for file in files if not (root / file.name).exists()] if exchange is not None else []
    if exchange is None or not missing:
        return
    remote = exchange.below(root)
    for folder in {(root / file.name).parent for file in missing}:
        folder.mkdir(parents=True, exist_ok=True)
    run_in_parallel(
        lambda file: remote.download(file.name, root / file.name, size=file.bytes),
        missing,
        parallelism=_TRANSFERS,
    )


def put_file(source: Path, target: Path) -> None:
    """Put a local file where readers of ``target`` find it: there, or in the object store that holds its rows."""
    exchange = exchange_of(target)
    if exchange is None:
        link_or_copy(source, target)
    else:
        exchange.remote.upload(source, exchange.key_of(target))


def remove_folder(folder: Path) -> None:
    """Remove a folder, and what executors have written below it: nobody writes there meanwhile."""
    shutil.rmtree(folder, ignore_errors=True)
    exchange = exchange_of(folder)
    if exchange is not None:
        exchange.deletions.add_listed(exchange.key_of(folder), lambda key: True)
        exchange.deletions.wait()


def remove_rows(root: Path, names: Sequence[str]) -> None:
    """Remove files named relative to ``root``, with the batch folders that held them; remote ones by and by."""
    remove_batch_files(root, names)
    forget_remote(root, names)


def forget_remote(root: Path, names: Sequence[str]) -> None:
    """Remove files from the object store only, by and by."""
    exchange = exchange_of(root)
    if exchange is not None and names:
        key = exchange.key_of(root)
        exchange.deletions.add([f"{key}/{name}" for name in names])


FOLDER = ".probe"
_proven: set[str] = set()
_lock = threading.Lock()


def prove_reached(exchange: Exchange, name: str) -> None:
    """Write, list, read and delete a small object, once in a process. Raises InvalidRequest, in one sentence.

    Executors' client writes and reads, the driver's lists and deletes: they must mean the same place.
    """
    remote = exchange.remote
    with _lock:
        if remote.text in _proven:
            return
        token = uuid.uuid4().hex
        key = f"{FOLDER}/{token}"
        try:
            with remote.write(key) as stream:
                stream.write(token.encode())
            listed = [found.key for found in exchange.storage.list(FOLDER) if found.key == key]
            read = remote.read(key) if listed else b""
            exchange.storage.delete([key])
            gone = not any(found.key == key for found in exchange.storage.list(FOLDER))
        except (CheckpointError, OSError) as error:
            why = " ".join(str(error).split())
            raise InvalidRequest(
                f"{name} ({remote.uri}) cannot be used: {why}. Check the bucket, its permissions (put, get, list, "
                "delete) and the credentials (storage_options, or the environment)"
            ) from error
        if not listed or read.decode(errors="replace") != token or not gone:
            raise InvalidRequest(
                f"{name} ({remote.uri}) does not show at once what was written or deleted there: rows that stages hand "
                "to one another could be lost. Use a store that is consistent, or a folder that all machines mount"
            )
        _proven.add(remote.text)


@contextmanager
def probe_objects(places: Mapping[str, Path], token: str) -> Iterator[dict[str, RemoteFolder]]:
    """Yield a new folder in the object store of every place that has one, by name, with an object ``driver``."""
    exchanges = {name: exchange_of(path) for name, path in places.items()}
    folders = {}
    try:
        for name, exchange in exchanges.items():
            if exchange is not None:
                prove_reached(exchange, name)
                folders[name] = exchange.remote.below(f"{FOLDER}/{token[:12]}")
                with folders[name].write("driver") as stream:
                    stream.write(token.encode())
        yield folders
    finally:
        for exchange in exchanges.values():
            if exchange is not None:
                exchange.deletions.add_listed(f"{FOLDER}/{token[:12]}", lambda key: True)


def answer(text: str, token: str, number: int) -> str:
    """Read, on an executor, what the driver has written to a folder, and write an object; return its name."""
    folder = RemoteFolder.parse(text)
    found = folder.read("driver").decode(errors="replace")
    if found != token:
        raise InvalidRequest("the driver's object holds something else")
    name = f"executor-{number}-{uuid.uuid4().hex[:12]}"
    with folder.write(name) as stream:
        stream.write((token + name).encode())
    return name


def refuse_unreached(name: str, folder: RemoteFolder, who: str, seen: Mapping[str, str], token: str) -> None:
    """Raise InvalidRequest for an executor that cannot use the object store, or another one of that name."""
    why = " ".join(seen.get("unreached", "").split())
    if not why:
        try:
            content = folder.read(seen["wrote"]).decode(errors="replace")
        except OSError as error:
            content, why = "", f"the driver does not find what it has written ({error})"
        if not why and content != token + seen["wrote"]:
            why = "the driver finds something else there than it has written"
    if why:
        raise InvalidRequest(
            f"{who} cannot use {name} ({folder.uri.partition('/' + FOLDER)[0]}): {why}. Its rows go through that "
            "object store: give executors access to it (storage_options, their environment, a role of their machines) "
            "and the network to reach it"
        )
