"""Rules with one home: what may be called, and which names may be spelt, in one module only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.house import sources, tree_of
from tests.root import ROOT

LIBRARY = ROOT / "dagster_ckpt"
FILES = "spark/files.py"

HOMES = {
    "decode_metadata": {"testing/coordinator/readings.py"},
    "read_metadata_text": {"core/metadata_text.py", "runtime/stored.py"},
    "decode_manifest": {"spark/snapshot/stored.py"},
    "json.loads": {"core/json_text.py", "core/metadata_text.py"},
    "os.replace": {
        FILES,
        "adapters/local_keys.py",
        "adapters/remote_keys.py",
        "adapters/sql_store.py",
        "testing/memory.py",
    },
    "os.link": {FILES, "adapters/local_keys.py", "spark/snapshot/capture.py"},
    "os.fsync": {FILES, "adapters/local_keys.py", "adapters/local_sync.py", "spark/cluster/sent.py"},
    "shutil.copyfile": {FILES},
}
"""Adapters write objects, not files of the working directory, and import nothing of Spark's room. A pin that cannot
be a link must not become a copy, which is why that one links by itself. Scenarios read ``_metadata`` as they please. A
hook's state is parsed back from the text that was just made of it. What visits executors is sent where no module of the
library may be.
"""

OWN_NAMES = ("query", "pins", "in_flight", "released", "sink", "sink/prepared", "_runs")
"""Names in the working directory, as ``spark/directories.py`` lists them."""


def calls(file: Path) -> Iterator[str]:
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


def spelt(file: Path) -> Iterator[str]:
    """Texts that are joined to a path, and those that begin a formatted one."""
    for node in ast.walk(tree_of(file)):
        parts = [node.right] if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) else []
        if isinstance(node, ast.JoinedStr):
            parts = node.values[:1]
        for part in parts:
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


def name_of(file: Path) -> str:
    return file.relative_to(LIBRARY).as_posix()


@pytest.mark.parametrize("call", list(HOMES))
def test_it_is_called_in_its_home_only(call: str) -> None:
    callers = {name_of(file) for file in sources(LIBRARY) if call in calls(file)}
    assert callers == HOMES[call]


def test_a_stored_file_is_fetched_by_its_snapshot_only() -> None:
    fetched = {
        name_of(file)
        for room in ("spark", "operations", "dagster", "cli", "runtime")
        for file in sources(LIBRARY / room)
        if any(call.endswith("storage.fetch") for call in calls(file))
    }
    assert fetched == {"spark/snapshot/stored.py"}


def test_paths_of_the_working_directory_are_spelt_in_one_file() -> None:
    strays = {
        f"{name_of(file)}: {text}"
        for room in ("spark", "operations")
        for file in sources(LIBRARY / room)
        for text in spelt(file)
        if text in OWN_NAMES or text.startswith(("pins/", "in_flight/", "released/", "sink/", "_runs/"))
    }
    assert strays == {"spark/directories.py: _runs"} | {
        f"spark/directories.py: {name}" for name in ("query", "pins", "released", "sink")
    }


PRINTED = re.compile(r"\{[^{}]*:[^{}]*f\} (s|ms|min|h|d|kB|MB|GB)\b|:,\} bytes")
"""A size or a duration that somebody measured, with a unit of its own. A hook's limit is told to the byte."""


def test_sizes_and_durations_are_printed_by_one_module() -> None:
    printed = {
        f"{name_of(file)}: {line.strip()}"
        for file in sources(LIBRARY)
        for line in file.read_text().splitlines()
        if PRINTED.search(line) and name_of(file) not in ("core/units.py", "core/metadata_text.py")
    }
    assert not printed, "dagster_ckpt/core/units.py has duration, milliseconds, ago, size, count, moment"
    assert PRINTED.search((LIBRARY / "core" / "units.py").read_text()), "it looks for what that module does"
