"""Programs as they are, attached: cut together, killed, put back, and compared with what nobody has disturbed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dagster_ckpt.ext.attach.sinks import SINK_LOG, named_files
from tests.progress import wait_until
from tests.root import ROOT

JOB = Path(__file__).with_name("job.py")


def put_orders(folder: Path, number: int) -> None:
    """Let a file of ten orders arrive, one of which is bad."""
    rows = [{"key": f"k{(number + i) % 3}", "amount": i if i else -1} for i in range(10)]
    (folder / "in").mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{number}.tmp"
    temporary.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    os.replace(temporary, folder / "in" / f"{number}.json")


def expected_totals(files: int) -> dict[str, int]:
    found: Counter[str] = Counter()
    for number in range(files):
        for i in range(1, 10):
            found[f"k{(number + i) % 3}"] += i
    return dict(found)


def totals(folder: Path) -> dict[str, int]:
    path = folder / "totals.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def rows_of(table: Path) -> int:
    """Rows as Spark reads them: of the files that the table's log names."""
    return sum(pq.ParquetFile(file).metadata.num_rows for file in named_files(table / SINK_LOG))


def command(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "dagster_ckpt.cli", *arguments]


def cli(folder: Path, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [*command(folder, *arguments), "--base", str(folder / "ckpt")],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@contextmanager
def running(folder: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """Run the program attached until the block ends, then kill it; what it says is in ``FOLDER/said``."""
    (folder / "running").unlink(missing_ok=True)
    line = command(
        folder, "run", str(JOB), str(folder), "-p", "orders", "--base-dir", str(folder / "ckpt"), *more
    )
    with (folder / "said").open("a") as said:
        process = subprocess.Popen(line, stdout=said, stderr=said, text=True, cwd=ROOT)

        def check() -> None:
            assert process.poll() is None, (folder / "said").read_text()

        try:
            until((folder / "running").exists, check)
            yield process
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def until(holds: Callable[[], object], check: Callable[[], object] = lambda: None) -> None:
    wait_until(holds, "the program has come so far", check=check, every=0.1)


@pytest.mark.spark
def test_a_killed_program_goes_on_and_a_savepoint_takes_state_and_tables_back(tmp_path: Path) -> None:
    for number in range(2):
        put_orders(tmp_path, number)
    with running(tmp_path, "--interval", "1 s"):
        until(lambda: totals(tmp_path) == expected_totals(2))
        savepoint = cli(tmp_path, "savepoint", "orders", "--name", "before")
        key = savepoint.split(":")[0].strip()
        put_orders(tmp_path, 2)
        until(lambda: totals(tmp_path) == expected_totals(3))
    # Killed, and started again: its directories are adopted, nothing is read again.
    put_orders(tmp_path, 3)
    with running(tmp_path):
        until(lambda: totals(tmp_path) == expected_totals(4))
        second = cli(tmp_path, "savepoint", "orders").split(":")[0].strip()
    assert rows_of(tmp_path / "clean") == 4 * 9
    # Put back: the table shows what it did at the savepoint, and both queries read on from there together.
    said = cli(tmp_path, "restore", key, "-p", "orders")
    assert "is back" in said
    assert rows_of(tmp_path / "clean") == 2 * 9
    (tmp_path / "totals.json").write_text(json.dumps(expected_totals(2)))
    for number in (2, 3):
        (tmp_path / "in" / f"{number}.json").unlink()
    for number in (4, 5):
        os.replace(_written(tmp_path, number - 2), tmp_path / "in" / f"{number}.json")
    with running(tmp_path):
        until(lambda: totals(tmp_path) == expected_totals(4))
    assert rows_of(tmp_path / "clean") == 4 * 9
    # And forward again: files of the later savepoint were set aside, not deleted.
    cli(tmp_path, "restore", second, "-p", "orders")
    assert rows_of(tmp_path / "clean") == 4 * 9
    assert key in cli(tmp_path, "list", "-p", "orders")


def _written(folder: Path, number: int) -> Path:
    put_orders(folder / "later", number)
    return folder / "later" / "in" / f"{number}.json"
