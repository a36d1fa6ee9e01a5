"""The examples of the page on testing run as they stand."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from dagster_ckpt.core.subtask import TaskPhase
from dagster_ckpt.testing import barriers
from dagster_ckpt.testing.barriers import BarrierHarness
from dagster_ckpt.testing.harness import CoordinatorHarness
from dagster_ckpt.testing.subtask import SubtaskHarness

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "testing.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_an_example_runs(number: int) -> None:
    exec(compile(BLOCKS[number], f"testing.md, example {number + 1}", "exec"), {})


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 3


def test_every_call_the_page_names_exists() -> None:
    reading = PAGE.split("## Reading it")[1].split("\n## ")[0]
    named = set(re.findall(r"`([a-z_]+)\(", PAGE)) | set(re.findall(r"`([a-z_]+)`[,:]? ", reading))
    known = {*dir(CoordinatorHarness()), *dir(BarrierHarness()), *dir(SubtaskHarness()), "h", "timeoutable"}
    assert {n for n in named if n not in known} <= {"dagster_ckpt"}


@pytest.mark.parametrize(
    ("section", "there"),
    [
        ("## Barriers at the inputs of a stage", {*dir(BarrierHarness()), *dir(barriers)}),
        (
            "## The steps of one subtask",
            {"SubtaskHarness", *dir(SubtaskHarness()), *(p.value for p in TaskPhase)},
        ),
    ],
)
def test_every_call_and_reading_of_the_smaller_harnesses_exists(section: str, there: set[str]) -> None:
    rows = [r for r in PAGE.split(section)[1].split("\n## ")[0].splitlines() if r.startswith("| `")]
    words = {word for row in rows for word in re.findall(r"`([A-Za-z_]+)[`(]", row)}
    assert len(words) > 15
    assert words <= there


def test_every_module_the_page_names_exists() -> None:
    named = set(re.findall(r"`(dagster_ckpt\.[A-Za-z_.]+)`", PAGE))
    assert len(named) > 12
    for name in named:
        module, _, member = name.rpartition(".")
        assert (
            find_spec(name)
            if member.islower() and _is_module(name)
            else hasattr(import_module(module), member)
        )


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
