"""The process that keeps a warm engine (``python -m dagster_ckpt.ext.warm.keeper``), and its messages with a run.

One folder, one engine. Messages are JSON in frames of ``multiprocessing.connection``, over loopback; the key both must
know lies beside the address in a file that only its owner reads.

It starts the JVM, lends it to one run at a time, and ends it: after a time without a run; when its folder is removed;
when a run asks with other settings; when a borrower dies or leaves a query behind (what it had begun must not go on);
after `MAX_RUNS` runs.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import secrets
import stat
import sys
import threading
import time
from collections.abc import Mapping
from io import TextIOWrapper
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from dagster_ckpt.core.units import counted
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.java.process import of_this_start


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


log = logging.getLogger(__name__)

MAX_RUNS = 100
"""Runs that one JVM serves: whatever a run leaves in it does not add up for ever."""
DONE = b"done"
"""What a borrower says when its session is stopped."""
THERE_IS_ANOTHER = 3
"""Exit code of a keeper whose folder has one."""
_LEFT = {"dag-scheduler-event-loop": "a Spark context", "stream execution thread": "a query"}
"""What threads of Spark's run as long as, by a part of their names."""
_HOST = "127.0.0.1"


class Jvm:
    """A JVM with Spark's gateway; it ends with this process, whose pipe is its standard input."""

    def __init__(self, conf: Mapping[str, str]) -> None:
        from pyspark import SparkConf
        from pyspark.java_gateway import launch_gateway

        chosen = SparkConf(loadDefaults=False)
        for key, value in conf.items():
            chosen.set(key, value)
        with of_this_start(conf):
            self._gateway: Any = launch_gateway(chosen)
        parameters = self._gateway.java_parameters
        self.port: int = parameters.port
        self.secret: str = parameters.auth_token

    def left_behind(self) -> str:
        """Return the objects that a run has left in the JVM; empty where it is as good as new."""
        # In one call, where each of a hundred threads would be asked for its name: runs wait for the answer.
        threads = str(self._gateway.jvm.java.lang.Thread.getAllStackTraces().keySet().toString())
        found = ((what, re.search(rf"{start}[^\]]*", threads)) for start, what in _LEFT.items())
        return next((f"{what} ({thread[0]})" for what, thread in found if thread), "")


class Keeper:
    """Lends a JVM to one borrower at a time."""

    def __init__(self, files: EngineFiles, jvm: Jvm, started_with: Mapping[str, str], *, idle: float) -> None:
        self._files, self._jvm, self._started_with, self._idle = files, jvm, started_with, idle
        self._lent = threading.Lock()
        self._given_back = time.monotonic()
        self._runs = 0
        self._address: KeeperAddress | None = None

    def serve(self) -> None:
        """Answer until the end of the process."""
        key = secrets.token_bytes(32)
        # The handshake of whoever connects is its own thread's business: one that says nothing blocks nobody.
        with Listener((_HOST, 0), authkey=None) as listener:
            host, port = listener.address  # type: ignore[misc, unused-ignore]
            self._address = KeeperAddress(host=host, port=port, key=key.hex(), pid=os.getpid())
            self._files.write(self._address)
            threading.Thread(target=self._end_when_idle, daemon=True).start()
            while True:
                connection = listener.accept()
                threading.Thread(target=self._answer, args=(connection, key), daemon=True).start()

    def _answer(self, connection: Connection, key: bytes) -> None:
        from multiprocessing import AuthenticationError
        from multiprocessing.connection import answer_challenge, deliver_challenge

        with connection:
            try:
                deliver_challenge(connection, key)
                answer_challenge(connection, key)
                self._lend(connection, Ask.model_validate_json(receive(connection)))
            except (EOFError, OSError, ValueError, AuthenticationError) as error:
                log.info("a caller was not answered: %s", error)

    def _lend(self, connection: Connection, ask: Ask) -> None:
        if not self._lent.acquire(blocking=False):
            send(connection, Answer(busy=True))
            return
        # From here on nobody else gets it. The lock is not released but by a borrower that gives it back in order.
        differs = sorted(
            name
            for name in ask.wants.keys() | self._started_with.keys()
            if ask.wants.get(name) != self._started_with.get(name)
        )
        if differs:
            self._withdraw()
            send(connection, Answer(differs=tuple(differs)))
            self._end(f"a run has other settings: {', '.join(differs)}")
        if left := self._left_behind():
            self._end(left)  # the run finds nobody, and starts another engine
        try:
            send(connection, Answer(port=self._jvm.port, secret=self._jvm.secret))
            said = receive(connection)
        except (EOFError, OSError):
            said = b""
        if said != DONE:
            self._end("its borrower ended without giving it back")
        if left := self._left_behind():
            self._end(left)
        self._runs += 1
        if self._runs >= MAX_RUNS:
            self._end(f"it served {counted(self._runs, 'run')}")
        self._given_back = time.monotonic()
        self._lent.release()
        send(connection, Answer())

    def _left_behind(self) -> str:
        """Return why the JVM cannot be lent again; empty where it can."""
        try:
            left = self._jvm.left_behind()
        except Exception as error:  # py4j raises many kinds for a JVM that is gone
            return f"its JVM does not answer ({type(error).__name__})"
        return f"its borrower did not stop {left}" if left else ""

    def _end_when_idle(self) -> None:
        while True:
            time.sleep(min(1.0, self._idle / 4))
            if (why := self._why_end()) and self._lent.acquire(blocking=False):
                if why := self._why_end():  # a run may have had it meanwhile
                    self._end(why)
                self._lent.release()

    def _why_end(self) -> str:
        """Return why an engine that is not lent has no use any more; empty where it has."""
        if time.monotonic() - self._given_back >= self._idle:
            return f"nobody used it for {self._idle:g} s"
        if self._address is not None and not self._files.are_of(self._address):
            return f"its address in {self._files.folder} is gone: no run can find it"
        return ""

    def _withdraw(self) -> None:
        if self._address is not None:
            self._files.withdraw(self._address)

    def _end(self, why: str) -> None:
        """End this process, and with it the JVM, whatever other threads do."""
        log.info("the engine ends: %s", why)
        self._withdraw()
        logging.shutdown()
        os._exit(0)


def main() -> None:
    """Keep an engine. Its settings are a JSON document on standard input: they may be secret."""
    told = json.load(sys.stdin)
    files = EngineFiles(Path(told["folder"]))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    lock = files.take()
    if lock is None:
        log.info("there is a keeper already")
        sys.exit(THERE_IS_ANOTHER)
    with lock:
        Keeper(files, Jvm(told["conf"]), told["started_with"], idle=told["idle"]).serve()


if __name__ == "__main__":
    main()
