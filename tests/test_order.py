"""The longest files begin first; they and what runs at night are there."""

from __future__ import annotations

import subprocess
import sys

from tests.order import LONGEST
from tests.root import ROOT
from tests.sweeps import AT_NIGHT


def test_files_that_begin_first_are_there_and_are_handed_out_first() -> None:
    assert [name for name in LONGEST if not (ROOT / "tests" / name).is_file()] == []
    assert len(set(LONGEST)) == len(LONGEST)
    short, long = "tests/core/test_label.py", f"tests/{LONGEST[0]}"
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", short, long]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    named = [line.partition("::")[0] for line in said.splitlines() if "::" in line]
    assert list(dict.fromkeys(named)) == [long, short]


def test_what_runs_at_night_is_there() -> None:
    contracts = "".join(file.read_text() for file in (ROOT / "dagster_ckpt/testing/sinks").glob("*.py"))
    for file, names in AT_NIGHT.items():
        there = (ROOT / "tests" / file).read_text() + contracts
        sought = {part.partition("[")[0] for name in names for part in name.split("::")}
        assert [name for name in sought if name not in there] == [], file
