"""The process that keeps a warm engine: ``python -m dagster_ckpt.ext.warm.keeper``, started by the first run.

It starts the JVM, lends it to one run at a time, and ends it: after a time without a run; when its folder is removed;
when a run asks with other settings; when a borrower dies or leaves a query behind (what it had begun must not go on);
after `MAX_RUNS` runs.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import sys
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

from dagster_ckpt.core.units import counted
from dagster_ckpt.ext.warm.messages import Answer, Ask, EngineFiles, KeeperAddress, receive, send
from dagster_ckpt.spark.java.process import of_this_start

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
