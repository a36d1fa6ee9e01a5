"""How long does the first hour of a newcomer take? ``python -m benchmarks.first_hour [--load 8]``

Installs the checkout in a new environment from the package registries, nothing cached; follows the tutorial in a
terminal of 80 columns; then runs a pipeline of its own and restores it in a browser from a list. To the
seconds of the machine come those of a reader: 240 words of prose a minute, three seconds to paste a file or a command.
Processor time is what its programs have taken, with what they leave running, whatever else the machine does.
The bars: installed after 2 minutes, the tutorial done after 8, the first restore of one's own after 12.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import pty
import re
import resource
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from fcntl import ioctl
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect, sync_playwright

from benchmarks.common import scratch, show
from tests.browser.clicking import opened_partitions
from tests.docs.tutorial import FENCE, Reader, Type, Write, steps
from tests.first_day import INSTANCE
from tests.root import ROOT

BUSY: set[int] = set()
"""Numbers of the programs that keep the machine busy."""
WORDS_A_MINUTE = 240
PASTE = 3.0
"""Seconds a reader takes for a file or a command."""
COLUMNS, ROWS = 80, 24
PATIENCE_MS = 900_000
SUBREAPER = 36
"""Option of prctl: programs whose parent has ended become this process's children, as Java does."""
MINE = """
from pathlib import Path

from pyspark.sql import functions as f

from dagster_ckpt import (
    CheckpointCoordinatorResource,
    build_pipeline_definitions,
    checkpointed_pipeline,
    spark_sink,
    spark_source,
)

HERE = Path(__file__).resolve().parent


@spark_source
def readings(spark):
    return spark.readStream.schema("place STRING, degrees DOUBLE").json(str(HERE / "readings"))


@spark_sink(key=["place"])
def warmest(readings):
    return readings.groupBy("place").agg(f.max("degrees").alias("degrees"))


@checkpointed_pipeline(name="weather")
def pipeline():
    warmest(readings())


coordinator = CheckpointCoordinatorResource(base_dir=str(HERE / "state"))
defs = build_pipeline_definitions(pipeline, coordinator=coordinator)
"""
OWN = (
    Type("mkdir weather && cd weather && mkdir readings", ()),
    Write("weather.py", MINE),
    Type("""echo '{"place": "oslo", "degrees": 9}' > readings/1.json""", ()),
    Type("dagster-ckpt check -f weather.py", ("weather: can start",)),
    Type("dg launch --job weather -f weather.py", ()),
    Type("""echo '{"place": "oslo", "degrees": 900}' > readings/2.json""", ()),
    Type("dg launch --job weather -f weather.py", ()),
    Type("python ../look.py state/tables/weather/warmest", ("oslo 900.0",)),
    Type("""echo '{"place": "oslo", "degrees": 10}' > readings/2.json""", ()),
)
LOOK = """import sys

import pyarrow
from deltalake import DeltaTable, QueryBuilder

tables = QueryBuilder().register("t", DeltaTable(sys.argv[1]))
for row in pyarrow.table(tables.execute("select * from t")).to_pylist():
    print(row["place"], row["degrees"])
"""


@dataclass
class Timetable:
    """Steps in order, with the seconds that machine and reader took."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    total: float = 0.0
    processor: float = 0.0

    def add(self, step: str, machine: float, *, words: int = 0, pastes: int = 0, bar: str = "") -> None:
        reader = 60 * words / WORDS_A_MINUTE + PASTE * pastes
        self.total += machine + reader
        minutes, seconds = divmod(round(self.total), 60)
        before, self.processor = self.processor, processor_time()
        self.rows.append(
            {
                "step": step,
                "machine s": machine,
                "processor s": self.processor - before,
                "reader s": reader,
                "done at": f"{minutes}:{seconds:02}",
                "bar": bar,
                "load": os.getloadavg()[0],
            }
        )
        print(self.rows[-1], flush=True)


def processor_time() -> float:
    """Return the processor time of all programs, those that stay, too; those of a step may outlive it by a second."""
    until = time.monotonic() + 3
    while time.monotonic() < until:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.2)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime + sum(_used_by_those_that_stay())


def _used_by_those_that_stay() -> Iterator[float]:
    """Yield what each program below this one has used, those it has waited for too, but not what keeps us busy."""
    below = {os.getpid()}
    found: dict[int, tuple[int, list[str]]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # ended meanwhile
            number, _, rest = stat.read_text().partition(" (")
            fields = rest.rpartition(") ")[2].split()
            found[int(number)] = (int(fields[1]), fields[11:15])
    while new := {at for at in found.keys() - below - BUSY if found[at][0] in below}:
        below |= new
        for at in new:
            ticks = found[at][1]
            yield sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


class Terminal(Reader):
    """A reader whose programs write to a terminal."""

    def _run(self, shell: list[str], named: str) -> tuple[int, str]:
        ours, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        process = subprocess.Popen(
            shell, cwd=self.folder, env=self._environment, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        said = bytearray()
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            if select.select([ours], [], [], 0.2)[0]:
                try:
                    said += os.read(ours, 65536)
                except OSError:  # nobody writes any more
                    break
        os.close(ours)
        return process.wait(), re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode(errors="replace"))

    def _compare(self, step: Type, said: str) -> None:
        """Find what the page shows also where the terminal's width has broken its lines."""
        at, whole = 0, " ".join(said.split())
        for part in (" ".join(one.split()) for line in step.shown for one in line.split("…")):
            at = whole.find(part, at)
            assert at >= 0, f"$ {step.command}\ndoes not show: {part}\nbut:\n{said}"


@contextmanager
def busy(load: int) -> Iterator[None]:
    """Keep so many programs busy beside what is measured, more than those of others that run already."""
    with ExitStack() as stack:
        for _ in range(max(0, load - round(os.getloadavg()[0]))):
            one = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(one.kill)
            BUSY.add(one.pid)
        yield


def timed(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def install(environment: Path) -> None:
    """Do what the README says, for the extras that the tutorial names."""
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    fresh = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PIP_FIND_LINKS")
    }
    programs, nothing_cached = environment / "bin", ("--quiet", "--no-cache-dir")
    packages = [f"{ROOT}[spark]", "dagster-webserver", "dagster-dg-cli"]
    for command in (
        [str(programs / "pip"), "install", *nothing_cached, "uv"],
        [str(programs / "uv"), "pip", "install", *nothing_cached, *packages],
    ):
        subprocess.run(command, check=True, env={**fresh, "VIRTUAL_ENV": str(environment)})


def variables(environment: Path) -> dict[str, str]:
    """Return what the shell of a newcomer has."""
    kept = ("HOME", "LANG", "JAVA_HOME", "TMPDIR", "TERM")
    found = {name: os.environ[name] for name in kept if name in os.environ}
    return {"TERM": "xterm", **found, "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def follow(reader: Terminal, page: str, table: Timetable) -> None:
    """Follow the tutorial, chapter by chapter."""
    chapters = re.split(r"^## ", page, flags=re.MULTILINE)
    last = max(number for number, chapter in enumerate(chapters) if FENCE.search(chapter))
    for number, chapter in enumerate(chapters):
        typed = list(steps(chapter))
        began = time.monotonic()
        for step in typed:
            reader.write(step) if isinstance(step, Write) else reader.type(step)
        table.add(
            f"tutorial: {chapter.splitlines()[0].lstrip('# ')}",
            time.monotonic() - began,
            words=words_of(chapter),
            pastes=len(typed),
            bar="8:00" if number == last else "",
        )


def words_of(text: str) -> int:
    """Count the words of prose: code is pasted."""
    return len(FENCE.sub("", text).split())


@contextmanager
def browser() -> Iterator[Page]:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = chromium.new_page(viewport={"width": 1400, "height": 820})
        page.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        yield page
        chromium.close()


def restored_from_list(page: Page, address: str) -> None:
    """Choose the first checkpoint in the list of the restore job: runs of a terminal leave no link in the UI."""
    page.goto(f"{address}/locations/weather.py/jobs/weather_restore/playground")
    opened_partitions(page, "chk-000001").click()
    expect(page.locator(".CodeMirror-code").first).to_contain_text(re.compile("restore_from: '?chk-000001"))
    page.get_by_role("button", name=re.compile("Launch run", re.IGNORECASE)).click()
    page.wait_for_url(re.compile(r"/runs/[0-9a-f-]{36}"))
    expect(page.get_by_text("Success", exact=True).first).to_be_visible()


def own(reader: Terminal, table: Timetable) -> None:
    """Write a pipeline, run it, and take a wrong reading back in the browser."""
    reader.write(Write("look.py", LOOK))
    began = time.monotonic()
    for step in OWN:
        reader.write(step) if isinstance(step, Write) else reader.type(step)
    table.add("a pipeline of one's own, two runs", time.monotonic() - began, pastes=len(OWN))
    section = (ROOT / "docs" / "how-to" / "restore.md").read_text().split("\n## ")[3]
    began = time.monotonic()
    with reader.serving("dg dev -f weather.py") as address, browser() as page:
        table.add("Dagster's UI serves", time.monotonic() - began, words=words_of(section), pastes=1)
        table.add("restored from the list", timed(lambda: restored_from_list(page, address)), pastes=4)
    shown = Type("python ../look.py state/tables/weather/warmest", ("oslo 10.0",))
    table.add("its table has gone back", timed(lambda: reader.type(shown)), pastes=1, bar="12:00")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--load", type=int, default=0, help="Keep the machine as busy as so many programs.")
    parser.add_argument("--environment", default="", help="Use this one instead of installing.")
    parser.add_argument("--own", action="store_true", help="Leave the tutorial out.")
    chosen = parser.parse_args()
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    table = Timetable()
    with scratch() as folder, busy(chosen.load):
        environment = Path(chosen.environment or folder / "environment")
        if not chosen.environment:
            table.add("install", timed(lambda: install(environment)), pastes=1, bar="2:00")
        shell: Mapping[str, str] = variables(environment)
        for name in ("tutorial", "own"):
            (folder / name).mkdir()
        if not chosen.own:
            follow(Terminal(folder / "tutorial", shell), (ROOT / "docs" / "tutorial.md").read_text(), table)
        (folder / "own" / "home").mkdir()
        (folder / "own" / "home" / "dagster.yaml").write_text(INSTANCE)
        own(Terminal(folder / "own", {**shell, "DAGSTER_HOME": str(folder / "own" / "home")}), table)
        show("the first hour", table.rows)


if __name__ == "__main__":
    main()
