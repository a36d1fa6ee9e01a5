"""Messages between a run and the keeper of a warm engine, and the place where they find one another.

One folder, one engine. Messages are JSON in frames of ``multiprocessing.connection``, over loopback; the key both must
know lies beside the address in a file that only its owner reads.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import sys
from collections.abc import Mapping
from io import TextIOWrapper
from multiprocessing.connection import Connection
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from dagster_ckpt.errors import InvalidRequest


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class KeeperAddress(_Message):
    """Where a keeper listens."""

    host: str
    port: int
    key: str
    """Hexadecimal; the one whom the keeper answers knows it."""
    pid: int


class Ask(_Message):
    """A run asks for the engine."""

    wants: Mapping[str, str]
    """What the JVM must have been started with: name of setting or variable, digest of its value."""


class Answer(_Message):
    """The keeper's answer: the gateway of the JVM, or why there is none."""

    port: int = 0
    secret: str = ""
    busy: bool = False
    """Another run uses the engine."""
    differs: tuple[str, ...] = ()
    """The engine was started with other values of these; it ends."""


class EngineFiles:
    """Files of the engine in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = folder / "engine.json"
        self.lock = folder / "engine.lock"
        """Locked as long as the keeper lives."""
        self.log = folder / "engine.log"
        """What Spark and the keeper print."""

    def make(self) -> None:
        """Make the folder, which only its owner may enter. Raises InvalidRequest for one that others may."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = self.folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise InvalidRequest(
                f"the folder of the warm engine, {self.folder}, is not this user's alone, so whoever may write there "
                "could put an engine of their own into it: remove it, or chmod 700 it and own it"
            )

    def take(self) -> TextIOWrapper | None:
        """Lock the folder for a keeper, as long as the file is open; None where it has one."""
        lock = self.lock.open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return None
        self.address.unlink(missing_ok=True)  # of a keeper that was killed: its port may be anybody's now
        return lock

    def read(self) -> KeeperAddress | None:
        """Return where the keeper listens; None where there is none, or it has not said so yet."""
        try:
            with self.lock.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None  # nobody holds it
        except BlockingIOError:
            pass
        except OSError:
            return None
        return self._address()

    def write(self, address: KeeperAddress) -> None:
        """Say where the keeper listens."""
        fresh = self.address.with_suffix(f".{os.getpid()}")
        fresh.unlink(missing_ok=True)  # of a process that was killed, and had this number
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(address.model_dump_json())
        fresh.replace(self.address)

    def are_of(self, address: KeeperAddress) -> bool:
        """Say whether runs find this keeper here; not so where somebody removed the folder or its files."""
        return self._address() == address

    def withdraw(self, address: KeeperAddress) -> None:
        """Let no run find this keeper any more. The address of one that came after it stays."""
        if self.are_of(address):
            self.address.unlink(missing_ok=True)

    def _address(self) -> KeeperAddress | None:
        try:
            return KeeperAddress.model_validate_json(self.address.read_bytes())
        except (OSError, ValueError):
            return None


_OF_ONE_RUN = frozenset({"_", "OLDPWD", "PWD", "SHLVL", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"})
"""Variables that differ from run to run and mean nothing to a JVM: of the shell, and those PySpark sets itself."""


def fingerprint(conf: Mapping[str, str]) -> dict[str, str]:
    """Return digests of all that a JVM takes over when it starts: settings, environment, Python, folder."""
    environment = {
        f"variable {name}": value
        for name, value in os.environ.items()
        if name not in _OF_ONE_RUN and not name.startswith("DAGSTER_")
    }
    settings = {f"setting {name}": value for name, value in conf.items() if name != "spark.app.name"}
    known = {**environment, **settings, "Python": sys.executable, "working directory": str(Path.cwd())}
    return {name: hashlib.sha256(value.encode()).hexdigest()[:16] for name, value in known.items()}


def send(connection: Connection, message: _Message) -> None:
    """Send a message. Raises OSError."""
    connection.send_bytes(message.model_dump_json().encode())


def receive(connection: Connection) -> bytes:
    """Wait for the next frame. Raises EOFError where the other side is gone, OSError."""
    return connection.recv_bytes()
