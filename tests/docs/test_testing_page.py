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


FORMER_PATHS = [
    "testing.harness:CoordinatorHarness",
    "testing.harness:RecordingHook",
    "testing.barriers:BarrierHarness",
    "testing.subtask:SubtaskHarness",
    "testing.memory:MemoryCoordinatorStore",
    "testing.faults:FailNext",
    "testing.clock:ManualClock",
    "testing.gateway:RecordingGateway",
    "testing.background:ManualBackground",
    "core.reasons:AcknowledgeResult",
    "core.failures:FailureDecision",
    "core.outcomes:Triggered",
    "core.requests:RequestQueue",
    "core.requests:Load",
    "core.local_recovery:prioritise",  # codespell:ignore prioritise
    "core.statistics:summarise",  # codespell:ignore summarise
    "core.failures:FailureCounter",
    "core.plan:calculate_plan",
    "core.retention:CompletedStore",
    "core.cleaning:Cleanups",
    "core.shared_state:SharedStateRegistry",
    "core.properties:CheckpointProperties",
    "core.statistics:snapshot_of",
    "core.config:CheckpointConfig",
    "core.metadata_text:decode_metadata",
    "core.matching:match_stages",
    "core.finished_state:check_finished_states",
    "core.assignment:redistribute",
    "core.key_groups:KeyGroupRange",
    "core.alignment:options_for",
    "core.local_recovery:LocalCopies",
    "core.graph:StageSpec",
    "core.ids:stage_uid",
    "core.model:CheckpointKind",
    "core.tasks:StageStatus",
    "core.events:CheckpointCompleted",
    "core.stop_with_savepoint:Stopped",
]


@pytest.mark.parametrize("path", FORMER_PATHS)
def test_scenarios_of_0_1_find_every_name_where_it_was(path: str) -> None:
    module, name = path.split(":")
    assert getattr(import_module(f"dagster_ckpt.{module}"), name)


def test_everything_the_facade_lists_is_there() -> None:
    assert [name for name in testing.__all__ if getattr(testing, name, None) is None] == []


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
