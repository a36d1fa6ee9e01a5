"""The longest files begin first, and all of them are there."""

from __future__ import annotations

import subprocess
import sys

from tests.order import LONGEST
from tests.root import ROOT


def test_files_that_begin_first_are_there_and_are_handed_out_first() -> None:
    assert [name for name in LONGEST if not (ROOT / "tests" / name).is_file()] == []
    assert len(set(LONGEST)) == len(LONGEST)
    short, long = "tests/core/test_label.py", f"tests/{LONGEST[0]}"
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", short, long]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    named = [line.partition("::")[0] for line in said.splitlines() if "::" in line]
    assert list(dict.fromkeys(named)) == [long, short]
