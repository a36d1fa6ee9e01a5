"""Programs as they are found, attached: each killed, put back, and compared with a run that nobody has disturbed."""

from __future__ import annotations

import datetime
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from dagster_ckpt.ext.attach.sinks import SINK_LOG, named_files
from tests.ext.attach.test_attach import cli, command, until
from tests.root import ROOT

FOUND = Path(__file__).with_name("found.py")
WITH_ROOT = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
_ALL = re.findall(r"^def (\w+)\(found: Found\) -> Iterator", FOUND.read_text(), flags=re.MULTILINE)
NAMES = [name for name in _ALL if name not in ("chain", "join", "sessions")]  # "together" has these


def put_orders(folder: Path, numbers: range) -> None:
    """Let files of ten orders arrive, a minute each."""
    (folder / "in").mkdir(parents=True, exist_ok=True)
    for number in numbers:
        began = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(minutes=number)
        times = (str(began + datetime.timedelta(seconds=5 * i)) for i in range(10))
        rows = [{"key": f"k{(number + i) % 3}", "amount": i, "at": at} for i, at in enumerate(times)]
        temporary = folder / f"{number}.tmp"
        temporary.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        os.utime(temporary, (1.7e9 + number, 1.7e9 + number))
        temporary.replace(folder / "in" / f"{number}.json")


def results(folder: Path) -> dict[str, list[str]]:
    """What each of the program's sinks shows."""
    found = {}
    for place in sorted((folder / "out").iterdir()):
        found[place.name] = sorted(json.dumps(row, default=str, sort_keys=True) for row in _rows(place))
    return found


def _rows(place: Path) -> list[object]:
    if place.suffix == ".db":
        with closing(sqlite3.connect(place)) as base:
            return list(base.execute("SELECT * FROM totals"))
    if place.is_file():
        return list(json.loads(place.read_text()))
    if (place / "_delta_log").exists():
        return [row for file in DeltaTable(str(place)).file_uris() for row in _parquet(Path(file), place)]
    kept = (
        named_files(place / SINK_LOG, place) if (place / SINK_LOG).exists() else sorted(place.glob("*.json"))
    )
    return [row for file in kept for row in _parquet(file, place)]


def _parquet(file: Path, table: Path) -> list[object]:
    if file.suffix != ".parquet":
        return list(file.read_text().splitlines())
    folders = file.relative_to(table).parts[:-1] if file.is_relative_to(table) else ()
    columns = dict(folder.split("=") for folder in folders)
    return [{**row, **columns} for row in pq.ParquetFile(str(file)).read().to_pylist()]


@contextmanager
def running(folder: Path, name: str, *, attached: bool = True) -> Iterator[subprocess.Popen[str]]:
    """Run the program until the block ends, which kills what has not ended."""
    (folder / "seen").unlink(missing_ok=True)
    line = [sys.executable, str(FOUND), name, str(folder)]
    if attached:
        base = ("-p", "found", "--base-dir", str(folder / "ckpt"), "--interval", "1 s")
        line = command(folder, "run", *line[1:], *base)
    with (folder / "said").open("a") as said:
        process = subprocess.Popen(line, stdout=said, stderr=said, text=True, cwd=ROOT)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def processed(folder: Path, process: subprocess.Popen[str], files: int) -> None:
    def check() -> None:
        assert process.poll() is None, (folder / "said").read_text()

    seen = folder / "seen"
    until(lambda: seen.exists() and int(seen.read_text()) >= files, check)


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_a_program_as_it_is_found_ends_where_nobody_has_disturbed_it(name: str, tmp_path: Path) -> None:
    """Nightly: ``test_attach`` has one program of this kind."""
    folder, undisturbed = tmp_path / "attached", tmp_path / "undisturbed"
    put_orders(undisturbed, range(5))
    with running(undisturbed, name, attached=False) as process:
        processed(undisturbed, process, 5)
    truth = results(undisturbed)
    put_orders(folder, range(2))
    with running(folder, name) as process:
        processed(folder, process, 2)
        savepoint = cli(folder, "savepoint", "found", "--name", "before").split(":")[0].strip()
        put_orders(folder, range(2, 4))
        processed(folder, process, 4)
    put_orders(folder, range(4, 5))
    assert "found is as it was at" in cli(folder, "restore", savepoint, "-p", "found")
    with running(folder, name) as process:
        processed(folder, process, 5)
        (folder / "stop").touch()
        until(lambda: process.poll() is not None)
        assert process.returncode == 0, (folder / "said").read_text()
    assert results(folder) == truth
    assert "Traceback" not in (folder / "said").read_text()


@pytest.mark.spark
@pytest.mark.nightly
def test_a_program_that_starts_its_queries_in_every_way_reads_nothing_again(tmp_path: Path) -> None:
    """In threads, within a batch, in a second session, of one name, in places with blanks; one that fails is caught."""
    put_orders(tmp_path, range(1))
    own = (
        "run",
        str(FOUND.with_name("odd.py")),
        "-p",
        "odd",
        "--base-dir",
        "ckpt",
        "--interval",
        "1 s",
        "--",
    )
    line = command(tmp_path, *own, "--input", str(tmp_path / "in"), "-n", "2")
    for _ in range(2):
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False, env=WITH_ROOT)
        assert done.returncode == 3, done.stderr
    names = ("thread0", "thread1", "outer", "inner", "one", "two", "after")
    expected = [*(f"{name} 0 10" for name in names), "caught -1 0", "caught -1 0"]
    assert sorted((tmp_path / "seen.txt").read_text().splitlines()) == sorted(expected)
