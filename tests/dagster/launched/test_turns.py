"""What a launched program is told, and when nothing is launched; the program here notes its order and runs nothing."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_ckpt import Launch, PipelineOptions
from dagster_ckpt.core.supervision.ownership import OwnerState
from dagster_ckpt.dagster.launched.messages import Order, RunKind
from dagster_ckpt.dagster.names import LOCATION_TAG, SKIPPED_TAG, USER_TAG
from tests.dagster.conftest import Site, shop

NOTES = """
import json, sys
from dagster_pipes import open_dagster_pipes
with open_dagster_pipes() as pipes:
    with open(sys.argv[1], "w") as file:
        json.dump(dict(pipes.extras), file)
"""


@pytest.fixture
def noted(tmp_path: Path) -> Path:
    return tmp_path / "order.json"


@pytest.fixture
def elsewhere(tmp_path: Path, instance: dg.DagsterInstance, noted: Path) -> Site:
    """A site whose pipeline is launched elsewhere."""
    command = [sys.executable, "-c", NOTES, str(noted)]
    launch = Launch(client=dg.PipesSubprocessClient(), arguments={"command": command})
    options = PipelineOptions(launch=launch, report="every: 10")
    return Site(tmp_path / "site", instance, shop(tmp_path / "feed"), options=options)


def execute(site: Site, job: str = "shop", **ops: Any) -> dg.ExecuteInProcessResult:
    return site.definitions.resolve_job_def(job).execute_in_process(
        instance=site.instance,
        run_config={"ops": {op: {"config": config} for op, config in ops.items()}},
        tags={LOCATION_TAG: "here", USER_TAG: "ann"},
        raise_on_error=False,
    )


def order_of(noted: Path) -> Order:
    return Order.of(json.loads(noted.read_text()))


@pytest.mark.parametrize("job", ["shop", "shop_streaming"])
def test_a_run_that_gives_way_launches_nothing(elsewhere: Site, noted: Path, job: str) -> None:
    elsewhere.attempt(elsewhere.start_run()).coordinator.renew_lease(time.time() + 600.0)
    before = elsewhere.record
    op = "stream" if job.endswith("streaming") else "restore"
    result = execute(elsewhere, job, **{op: {"concurrent_runs": "skip"}})
    assert result.success
    assert not noted.exists()
    assert elsewhere.record == before
    run = elsewhere.instance.get_run_by_id(result.run_id)
    assert run is not None
    assert run.tags[SKIPPED_TAG] == "true"


def test_an_epoch_is_ordered_with_all_that_its_run_says(elsewhere: Site, noted: Path) -> None:
    dead = elsewhere.start_run()
    elsewhere.attempt(dead).coordinator.renew_lease(time.time() + 60.0)
    elsewhere.instance.report_run_failed(dead)
    result = execute(
        elsewhere,
        restore={"restore_from": "chk-7", "checkpointing": {"num_retained": 9}},
        launch={"stages": {next(iter(elsewhere.pipeline.stages)): {"x": 1}}},
    )
    assert not result.success, "the program ran nothing"
    order = order_of(noted)
    assert (order.work, order.run_id, order.root) == (RunKind.EPOCH, result.run_id, result.run_id)
    assert order.restore == {"restore_from": "chk-7"}
    assert order.settings == {"num_retained": 9}
    assert list(order.stage_config.values()) == [{"x": 1}]
    assert (order.job_name, order.restore_op, order.location) == ("shop", "restore", "here")
    assert order.who == "ann"
    assert (order.ended_run, order.ended_state) == (dead.run_id, OwnerState.FAILED)
    assert str(elsewhere.folder) not in noted.read_text(), "no place is sent"


def test_a_stream_is_ordered_with_its_restarts_and_reports(elsewhere: Site, noted: Path) -> None:
    result = execute(
        elsewhere, "shop_streaming", stream={"restart_strategy": "none", "progress_interval": 5.0}
    )
    assert not result.success
    order = order_of(noted)
    assert (order.work, order.restore_op, order.report) == (RunKind.STREAM, "stream", "every: 10")
    assert order.stream["restart_strategy"] == "none"
    assert order.stream["progress_interval"] == 5.0


@pytest.mark.parametrize(
    ("job", "ops", "said"),
    [
        ("shop", {"launch": {"stages": {"no_such": {}}}}, "config of stage 'no_such'"),
        ("shop", {"restore": {"claim_mode": "mine"}}, "claim_mode"),
        ("shop_streaming", {"stream": {"restart_strategy": "often"}}, "restart_strategy must be"),
        ("shop_streaming", {"stream": {"report": "never"}}, "report"),
        ("shop_restore", {}, "partition"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_launched(
    elsewhere: Site, noted: Path, job: str, ops: dict[str, Any], said: str
) -> None:
    try:
        result = execute(elsewhere, job, **ops)
    except dg.DagsterInvariantViolationError as error:  # Dagster asks for the partition itself
        text = str(error)
    else:
        assert not result.success
        text = " ".join(
            str(e.step_failure_data.user_failure_data or e.step_failure_data.error)
            for e in result.get_step_failure_events()
        )
    assert said in text
    assert not noted.exists()
