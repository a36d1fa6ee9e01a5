"""Hooks in epoch runs: their state goes from run to run, and a hook that breaks never breaks the pipeline."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_ckpt import (
    HookContext,
    build_pipeline_definitions,
    pipeline_hook,
)
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.operations.restores.preview import preview_restore
from tests.lab.child import begin_epoch
from tests.lab.lab import Lab, failure_text
from tests.lab.pipelines import wired
from tests.progress import exit_code
from tests.spark.hooked import Diary, hooked
from tests.spark.streaming.pipelines import Numbers, read_rows, straight

HOOKED = PipelineId("hooked")


@pytest.fixture
def numbers(tmp_path: Path) -> Numbers:
    made = Numbers(tmp_path / "numbers")
    made.put(5)
    return made


@pytest.fixture
def diary(tmp_path: Path) -> Diary:
    return Diary(tmp_path)


def all_rows(numbers: Numbers) -> Counter[tuple[int, str]]:
    return Counter((n, "fast") for n in range(numbers.count))


def test_the_state_of_a_hook_goes_from_run_to_run_into_savepoints_and_forks(
    lab: Lab, tmp_path: Path, numbers: Numbers, diary: Diary
) -> None:
    pipeline = hooked(tmp_path)
    lab.succeeds(pipeline)
    assert diary.read() == [["reset"], ["source", 0], ["trigger", 1], ["complete", 1], ["close"]]
    diary.clear()
    numbers.put(5)
    lab.succeeds(pipeline)
    heard = diary.read()
    assert heard[0] == ["restore", 1, 1]
    assert ["source", 1] in heard, "a stage finds the hook in context.hooks"
    assert heard[-3:] == [["trigger", 2], ["complete", 2], ["close"]]
    assert read_rows(lab.tables) == all_rows(numbers), (
        "a restore from the checkpoint loses and doubles nothing"
    )
    assert lab.metadata(pipeline, 2).master_states.keys() == {"ledger"}
    diary.clear()
    target = str(tmp_path / "savepoints")
    lab.succeeds(pipeline, "hooked_savepoint", ops={"savepoint": {"target": target}})
    heard = diary.read()
    assert heard[0] == ["restore", 2, 2]
    assert heard[-2:] == [["trigger", 3], ["close"]], (
        "a plain savepoint is a side branch: nothing is completed"
    )
    diary.clear()
    fork = pipeline.fork("forked", table_dir=str(tmp_path / "fork"))
    lab.succeeds(fork, restore_from=lab.record(pipeline).savepoints[0].location.uri, fork=True)
    heard = diary.read()
    assert heard[0] == ["restore", 3, 3]
    assert heard[-3:] == [["trigger", 4], ["complete", 4], ["close"]]


@pytest.mark.parametrize("lab", [{"tolerable_failed_checkpoints": 1}], indirect=True)
def test_a_hook_that_fails_or_hangs_costs_the_run_its_checkpoint_only(
    lab: Lab, tmp_path: Path, numbers: Numbers, diary: Diary
) -> None:
    pipeline = hooked(tmp_path, patience=5.0)
    for order, why in (("fail", "the ledger is closed"), ("hang", "did not answer within 5 s")):
        diary.say(order)
        result = lab.run(pipeline)
        diary.say("")
        assert result.success, failure_text(result)
        assert lab.record(pipeline).completed == ()
        failed = lab.record(pipeline).failed[-1]
        assert failed.reason == "TRIGGER_CHECKPOINT_FAILURE"
        assert "'ledger'" in failed.message
        assert why in failed.message
    assert read_rows(lab.tables) == {}
    lab.succeeds(pipeline)
    assert read_rows(lab.tables) == all_rows(numbers)


@pytest.mark.nightly
def test_the_state_of_a_hook_that_is_gone_is_dropped_only_on_request_and_previews_say_so(
    lab: Lab, tmp_path: Path, numbers: Numbers, diary: Diary
) -> None:
    lab.succeeds(hooked(tmp_path))
    without = hooked(tmp_path, with_hook=False)
    found = preview(lab, without.hook_uids)
    assert [(h.uid, h.fate) for h in found.hooks] == [("ledger", "dropped")]
    (refusal,) = found.refusals
    assert "hook 'ledger'" in refusal
    lab.fails(without, refusal)
    assert [(h.uid, h.fate) for h in preview(lab, ("other", "ledger")).hooks] == [
        ("ledger", "restored"),
        ("other", "new"),
    ]
    assert preview(lab, (), allow_non_restored_state=True).is_possible
    lab.succeeds(without, allow_non_restored_state=True)
    lab.succeeds(without)


def preview(lab: Lab, hooks: tuple[str, ...], **options: Any) -> Any:
    resource = lab.coordinator.model_copy()
    with_options = RestoreOptions.of(restore_from="chk-1", **options)
    return preview_restore(resource.deployment(), with_options, HOOKED, hooks=hooks)


def test_a_hook_gets_the_resources_it_names(lab: Lab, tmp_path: Path, numbers: Numbers) -> None:
    heard: list[tuple[str, int]] = []

    @pipeline_hook(required_resource_keys=["bell"])
    class Ring:
        def __init__(self, context: HookContext) -> None:
            self.bell, self.pipeline = context.resources.bell, context.pipeline

        def complete(self, checkpoint_id: int) -> None:
            self.bell(self.pipeline, checkpoint_id)

    ringing = wired("ringing", *straight(numbers.folder).stages.values(), hooks=[Ring])
    bell = dg.ResourceDefinition(lambda _: lambda *call: heard.append(call))
    definitions = build_pipeline_definitions(ringing, coordinator=lab.coordinator)
    with_bell = dg.Definitions.merge(definitions, dg.Definitions(resources={"bell": bell}))
    result = with_bell.resolve_job_def("ringing").execute_in_process(
        instance=lab.instance, raise_on_error=False
    )
    assert result.success, failure_text(result)
    assert heard == [("ringing", 1)]


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_run_killed_within_a_hook_is_made_good_and_its_completion_is_told_again(
    lab: Lab, tmp_path: Path, numbers: Numbers, diary: Diary
) -> None:
    pipeline = hooked(tmp_path)
    lab.succeeds(pipeline)
    diary.clear()
    numbers.put(5)
    diary.say("die")
    _killed(tmp_path)
    assert diary.read()[0] == ["restore", 1, 1]
    diary.clear()
    taken = lab.record(pipeline).next_id
    diary.say(f"die in complete({taken})")
    _killed(tmp_path)
    assert lab.record(pipeline).completed[-1].checkpoint_id == taken
    assert diary.read()[-1] == ["trigger", taken]
    assert ["aborted", taken - 1] in diary.read(), "what the first kill left pending"
    diary.clear()
    diary.say("")
    lab.succeeds(pipeline, concurrent_runs="take_over")
    heard = [entry for entry in diary.read() if entry[0] != "source"]
    assert heard == [
        ["restore", taken, 2],
        ["complete", taken],
        ["trigger", taken + 1],
        ["complete", taken + 1],
        ["close"],
    ]
    assert read_rows(lab.tables) == all_rows(numbers)


def _killed(folder: Path) -> None:
    """Run an epoch in a process that kills itself within its hook."""
    child = begin_epoch(folder, "tests.spark.hooked:hooked")
    code = exit_code(child, "the run kills itself in its hook")
    assert code == -signal.SIGKILL, (folder / "child.log").read_text()[-3000:]
