"""A page of files to write and commands to type, done as its reader would do it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests import web_server
from tests.progress import Sampled, output_of, wait_until, work_of

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_TO_WRITE = re.compile(r"[Ww]rite `([\w.]+)`:\s*\Z")
SERVER = "dg dev"
SERVING = re.compile(r"Serving dagster-webserver on (http://\S+)")
KILLED = 128 + signal.SIGKILL


@dataclass(frozen=True)
class Write:
    """A file the reader writes."""

    name: str
    content: str


@dataclass(frozen=True)
class Type:
    """A command, and the lines the page shows below it."""

    command: str
    shown: tuple[str, ...]


def steps(page: str) -> Iterator[Write | Type]:
    """Yield what the page asks for, in order; a block nobody would know what to do with is an error."""
    for block in FENCE.finditer(page):
        language, content = block.groups()
        if language == "console":
            yield from _commands(content)
            continue
        named = FILE_TO_WRITE.search(page[: block.start()])
        assert language == "python", f"a block in {language!r}: neither a file to write nor commands"
        assert named, f"the page does not say which file this is:\n{content}"
        yield Write(named[1], content)


def _commands(content: str) -> Iterator[Type]:
    assert content.startswith("$ "), f"no command in:\n{content}"
    for part in content.removeprefix("$ ").split("\n$ "):
        command, *shown = part.strip().splitlines()
        yield Type(command, tuple(shown))


class Reader:
    """Follows the page in a folder; folder and exported variables last from command to command, as in a shell."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self._start = folder
        self._environment = _environment() if environment is None else environment
        self._log = folder / ".log"
        (folder / ".variables").touch()
        (folder / ".folder").write_text(str(folder))

    @property
    def folder(self) -> Path:
        """Where the reader is."""
        return Path((self._start / ".folder").read_text().strip())

    def write(self, step: Write) -> None:
        """Write a file."""
        (self.folder / step.name).write_text(step.content)

    def type(self, step: Type) -> None:
        """Run a command to its end, and insist on its success and on what the page shows."""
        if step.command.startswith(SERVER):
            self._serve(step)
            return
        code, said = self._run(self._in_shell(step.command), step.command)
        wanted = KILLED if any("Killed" in line for line in step.shown) else 0
        assert code == wanted, f"$ {step.command}\nexit code {code}\n{said}"
        self._compare(step, said)

    def _run(self, shell: list[str], named: str) -> tuple[int, str]:
        """Run a program to its end; return its exit code and what it has shown."""
        process = subprocess.Popen(
            shell,
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        said = output_of(process, f"`{named}` ends")
        return process.returncode, said

    def _compare(self, step: Type, said: str) -> None:
        assert_shown(step, said)

    def _in_shell(self, command: str) -> list[str]:
        keep = f'code=$?; export -p > "{self._start}/.variables"; pwd > "{self._start}/.folder"; exit $code'
        return ["bash", "-c", f"{self._prelude}{command}\n{keep}"]

    @property
    def _prelude(self) -> str:
        return f'source "{self._start}/.variables"; cd "{self.folder}"\n'

    def _serve(self, step: Type) -> None:
        with self.serving(step.command):
            self._compare(step, self._log.read_text())

    @contextmanager
    def serving(self, command: str) -> Iterator[str]:
        """Start a server, yield the address that it serves, and end it as Ctrl-C does."""
        shell = ["bash", "-c", f"{self._prelude}exec {command}"]
        with web_server.started(shell, self._log, env=self._environment) as server:
            address = self._address(server)
            web_server.wait_until_it_answers(address, server, self._log)
            yield address

    def _address(self, server: subprocess.Popen[bytes]) -> str:
        def check() -> None:
            assert server.poll() is None, f"the server has ended:\n{self._log.read_text()}"

        def moves() -> object:
            return work_of(server.pid), self._log.read_text()

        found = wait_until(
            lambda: SERVING.search(self._log.read_text()),
            "the server says where it serves",
            moves=Sampled(moves),
            check=check,
            every=0.2,
        )
        assert found is not None
        return found[1]


def _environment() -> dict[str, str]:
    """What a reader's shell has: the project's programs first, and nothing this test session has set for itself."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DAGSTER_", "PYTEST_", "PYTHON"))
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{ours.get('PATH', '')}"
    # Each JVM lives for seconds: compiling thoroughly would cost more than it brings.
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    return {**ours, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1", "JAVA_TOOL_OPTIONS": quick}


def assert_shown(step: Type, output: str) -> None:
    """The lines the page shows appear in this order; ``…`` stands for anything."""
    lines = [" ".join(line.split()) for line in output.splitlines()]
    at = 0
    for shown in step.shown:
        pattern = re.compile(".*".join(re.escape(part) for part in " ".join(shown.split()).split("…")))
        while at < len(lines) and not pattern.fullmatch(lines[at]):
            at += 1
        assert at < len(lines), f"$ {step.command}\ndoes not show: {shown}\nbut:\n{output}"
        at += 1
