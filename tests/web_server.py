"""A Dagster web server in its own process group: started, waited for until it answers, ended as Ctrl-C ends it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from urllib.request import urlopen

from tests.progress import Sampled, wait_until, work_of

ANSWER_WITHIN = 60.0


@contextmanager
def started(
    command: Sequence[str | Path], log: Path, *, env: Mapping[str, str], cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server, its output in ``log``; end it with all it has started, also when the body fails."""
    with log.open("wb") as output:
        server = _process(command, output, env, cwd)
    try:
        yield server
    finally:
        _end(server)


def _process(
    command: Sequence[str | Path], output: IO[bytes], env: Mapping[str, str], cwd: Path | None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env={**env, "DAGSTER_GRPC_TIMEOUT_SECONDS": "600"},  # webserver and code server share a busy machine
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def wait_until_it_answers(
    url: str, server: subprocess.Popen[bytes], log: Path, path: str = "/server_info"
) -> None:
    """Dagster says that it serves before its port listens: only an answer shows that it does."""

    def answers() -> bool:
        try:
            with urlopen(f"{url}{path}", timeout=ANSWER_WITHIN) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def check() -> None:
        assert server.poll() is None, f"the server has ended:\n{_end_of(log)}"

    wait_until(
        answers,
        f"{url} answers, see {log}",
        moves=Sampled(lambda: (work_of(server.pid), _end_of(log))),
        check=check,
        every=0.3,
    )


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end(server: subprocess.Popen[bytes]) -> None:
    for sent, patience in ((signal.SIGINT, 30), (signal.SIGKILL, 10)):
        if server.poll() is None:
            os.killpg(server.pid, sent)
        try:
            server.wait(patience)
        except subprocess.TimeoutExpired:
            continue
        return


def _end_of(log: Path) -> str:
    return log.read_text()[-3000:]
