"""The examples of the page on testing run as they stand."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import get_type_hints

import pytest

from dagster_ckpt import testing
from dagster_ckpt.core.config import CheckpointConfig, RestoreOptions
from dagster_ckpt.core.subtask.checkpoints import TaskPhase
from dagster_ckpt.testing import barriers
from dagster_ckpt.testing.barriers import BarrierHarness
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness
from dagster_ckpt.testing.coordinator.settings import HarnessOptions, Settings
from dagster_ckpt.testing.sink_contract import SinkContract
from dagster_ckpt.testing.sinks.run import SinkRun
from dagster_ckpt.testing.subtask import SubtaskHarness
from tests.root import ROOT

PAGE = (ROOT / "docs" / "reference" / "testing.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_an_example_runs(number: int) -> None:
    exec(compile(BLOCKS[number], f"testing.md, example {number + 1}", "exec"), {})


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 3


def test_every_call_the_page_names_exists() -> None:
    reading = PAGE.split("## Reading it")[1].split("\n## ")[0]
    named = set(re.findall(r"`([a-z_]+)\(", PAGE)) | set(re.findall(r"`([a-z_]+)`[,:]? ", reading))
    harnesses = (CoordinatorHarness(), BarrierHarness(), SubtaskHarness(), SinkContract, SinkRun)
    known = {"h", "timeoutable"}.union(*(dir(harness) for harness in harnesses))
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


def test_type_checkers_know_every_setting_and_option_of_the_harness() -> None:
    settings = CheckpointConfig.model_fields.keys() | RestoreOptions.model_fields.keys()
    assert get_type_hints(Settings).keys() == settings - {"restore_from"}
    arguments = set(signature(CoordinatorHarness.__init__).parameters) - {"self", "settings"}
    assert get_type_hints(HarnessOptions).keys() == arguments | get_type_hints(Settings).keys()


HERE = [row.split("|")[2] for row in PAGE.splitlines() if re.match(r"\| `[A-Z]\w+Test", row)]
PIECES = PAGE.split("## The smaller pieces")[1]
IMPORTED = sorted(
    {
        *re.findall(r"`dagster_ckpt\.testing\.([A-Za-z_]+)", PAGE),
        *re.findall(r"`([A-Z][A-Za-z]+)(?:\(\w+\))?`", "".join([*HERE, PIECES])),
    }
    - {"CheckpointStorage"}  # a port, whose contract suite is meant
)


@pytest.mark.parametrize("name", IMPORTED)
def test_a_name_of_the_page_is_imported_from_the_facade(name: str) -> None:
    scenario: dict[str, object] = {}
    exec(f"from dagster_ckpt.testing import {name}", scenario)
    assert scenario[name] is not None


def test_everything_the_facade_lists_is_there() -> None:
    assert [name for name in testing.__all__ if getattr(testing, name, None) is None] == []


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
