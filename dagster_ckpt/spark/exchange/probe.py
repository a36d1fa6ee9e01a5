"""Whether driver and executors reach the object store of a working directory, before anything is started."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dagster_ckpt.errors import CheckpointError, InvalidRequest
from dagster_ckpt.spark.exchange.mounts import Exchange, exchange_of
from dagster_ckpt.spark.exchange.objects import RemoteFolder

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
