"""A Spark session on the warm engine of a folder, or on a JVM of its own where that one cannot be had.

The engine is found or started, borrowed, and given back.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.warm.class_archive import with_archive
from dagster_ckpt.ext.warm.keeper import (
    DONE,
    THERE_IS_ANOTHER,
    Answer,
    Ask,
    EngineFiles,
    fingerprint,
    receive,
    send,
)
from dagster_ckpt.spark.java.process import detach, number_functions_from, stop_session
from dagster_ckpt.spark.session import build_session, launch_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


log = logging.getLogger(__name__)

_PATIENCE = 120.0
"""Seconds that a JVM may take to start; a run has one of its own then."""
_PATIENCE_WITH_ANOTHER = 10.0
"""Seconds that a keeper which answers nobody may take to end."""


class Borrowed:
    """An engine that is this run's until it is given back. A run that dies takes the engine with it."""

    def __init__(self, connection: Connection, answer: Answer) -> None:
        self._connection = connection
        self._answer = answer

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Let PySpark connect to the engine instead of starting a JVM."""
        ours = {"PYSPARK_GATEWAY_PORT": str(self._answer.port), "PYSPARK_GATEWAY_SECRET": self._answer.secret}
        os.environ.update(ours)
        try:
            yield
        finally:
            for name in ours:
                del os.environ[name]

    def own_numbers(self) -> None:
        """Number the Python functions that Java will call as no run before has. To be called once there is a session.

        Java says of each function it has thrown away that it may go, by its number alone, and says it to whoever has
        the engine: numbers from nought, as py4j gives them, are those of the runs before.
        """
        number_functions_from(secrets.randbits(60))

    def give_back(self) -> None:
        """Cut PySpark's connections to the engine, and say that it is free. The session is stopped before."""
        detach()
        with self._connection, contextlib.suppress(EOFError, OSError):  # the keeper ends it by its own rules
            self._connection.send_bytes(DONE)
            receive(self._connection)


def borrow(folder: Path, conf: Mapping[str, str], *, idle: float) -> Borrowed | None:
    """Return the engine of ``folder``, started where there is none for these settings; None where it is in use.

    ``idle`` seconds after the last run an engine that is started here ends. Raises OSError for a folder that cannot be
    made.
    """
    files = EngineFiles(folder.absolute())
    files.make()
    wants = fingerprint(conf)
    answer = _ask(files, wants)
    if isinstance(answer, Answer) and answer.differs:
        log.info("the warm engine had other settings and ends: %s", ", ".join(answer.differs))
        answer = None
    if answer is None:
        answer = _start(files, conf, wants, idle)
    if isinstance(answer, Borrowed):
        return answer
    if answer is not None and answer.busy:
        log.info("another run uses the warm engine in %s: this one starts a JVM of its own", files.folder)
    return None


def _ask(files: EngineFiles, wants: Mapping[str, str]) -> Borrowed | Answer | None:
    """Return the engine, or the keeper's answer; None where no keeper answers."""
    address = files.read()
    if address is None:
        return None
    try:
        connection = Client((address.host, address.port), authkey=bytes.fromhex(address.key))
    except (OSError, EOFError, ValueError, AuthenticationError):
        return None  # what is written there is of a keeper that is gone
    try:
        send(connection, Ask(wants=wants))
        answer = Answer.model_validate_json(receive(connection))
    except (OSError, EOFError, ValueError):
        connection.close()
        return None
    if answer.port:
        return Borrowed(connection, answer)
    connection.close()
    return answer


def _start(
    files: EngineFiles, conf: Mapping[str, str], wants: Mapping[str, str], idle: float
) -> Borrowed | Answer | None:
    """Start a keeper and ask it; None where none can be had."""
    told = {"folder": str(files.folder), "conf": dict(conf), "started_with": dict(wants), "idle": idle}
    began = time.monotonic()
    keeper = _spawn(files, told)
    while (waited := time.monotonic() - began) < _PATIENCE:
        if (answer := _ask(files, wants)) is not None:
            return answer
        ended = keeper.poll()
        if ended == THERE_IS_ANOTHER and waited < _PATIENCE_WITH_ANOTHER:
            keeper = _spawn(files, told)  # the one before may still be ending
        elif ended is not None:
            break
        time.sleep(0.05)
    log.warning("the warm engine did not start (see %s): this run starts a JVM of its own", files.log)
    return None


def _spawn(files: EngineFiles, told: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    with files.log.open("ab") as output:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "dagster_ckpt.ext.warm.keeper"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,  # it outlives this run, and what stops this run's group
        )
    assert keeper.stdin is not None
    with keeper.stdin as stdin, contextlib.suppress(BrokenPipeError):
        stdin.write(json.dumps(told).encode())
    return keeper


@contextlib.contextmanager
def session_sooner(
    app_name: str,
    *,
    folder: str,
    idle: float,
    class_archive: str,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Yield a session with the archive of classes of a folder, on the warm engine of ``folder`` if it names one."""
    how: dict[str, Any] = {"master": master, "conf": with_archive(conf or {}, class_archive)}
    if folder:
        with warm_session(app_name, folder=folder, idle=idle, **how) as session:
            yield session
        return
    session = build_session(app_name, **how)
    try:
        yield session
    finally:
        stop_session(session)


@contextlib.contextmanager
def warm_session(
    app_name: str,
    *,
    folder: str,
    idle: float,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Yield a session of one's own: a new Spark context in a JVM that has run before. Stopped at the end.

    ``idle`` is in seconds. Raises InvalidRequest for a master that is not local, or a folder that cannot be made.
    """
    if master is not None and not master.startswith("local"):
        raise InvalidRequest(
            f"a warm engine is a Spark on this machine: `master` is {master!r}, not local[…]"
        )
    settings = launch_settings(master=master, conf=conf)
    try:
        engine = borrow(Path(folder), settings, idle=idle)
    except OSError as error:
        raise InvalidRequest(f"`warm_engine`: the folder {folder} cannot be used: {error}") from error
    with contextlib.ExitStack() as opened:
        if engine is not None:
            opened.callback(engine.give_back)
        with engine.attached() if engine is not None else contextlib.nullcontext():
            session = build_session(app_name, master=master, conf=conf)
        opened.callback(session.stop)
        if engine is not None:
            engine.own_numbers()
        yield session
