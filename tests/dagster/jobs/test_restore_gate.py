"""Jobs that restore refuse what nobody chose, before anything runs; no Spark is needed to see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_ckpt import CheckpointCoordinatorResource, PipelineOptions, build_pipeline_definitions
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.checkpoint.tables import ServingRecord
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.dagster.jobs.build import RunConfig
from dagster_ckpt.dagster.jobs.gate import RestoreGate, lines_of
from dagster_ckpt.operations.restores.parts import TableFate, TablePreview
from dagster_ckpt.operations.restores.preview import Replay, RestorePreview
from dagster_ckpt.operations.snapshots.diff import OffsetStep
from tests.dagster.test_first_day import named

NOT_BACKFILLED = (
    "takes one snapshot at a time and cannot be backfilled, nothing was done: choose one partition in its "
    "Launchpad"
)
SUCH_AS = "such as restore_from: chk-31 of op 'restore'; the job orders goes on from the latest"
NONE_CHOSEN = "restores a snapshot that you choose, and none is chosen"


@pytest.mark.parametrize(
    ("job", "tags", "config", "said"),
    [
        (
            "orders_restore",
            {},
            {},
            f"orders_restore {NONE_CHOSEN}: choose its partition, {SUCH_AS}",
        ),
        (
            "orders_restore",
            {},
            {"restore": {"config": {"mode": "gate"}}},
            f"orders_restore {NONE_CHOSEN}: choose its partition, {SUCH_AS}",
        ),
        (
            "orders",
            {},
            {"restore": {"config": {"mode": "gate"}}},
            f"orders {NONE_CHOSEN}: name it, {SUCH_AS}",
        ),
        (
            "orders",
            {},
            {"restore": {"config": {"mode": "look"}}},
            "Run config of op 'restore': mode must be one of restore, preview, gate, dry_run, got 'look'",
        ),
        (
            "orders_restore",
            {"dagster/backfill": "abc"},
            {"restore": {"config": {"restore_from": "chk-1"}}},
            f"orders_restore {NOT_BACKFILLED}",
        ),
        (
            "orders_restore",
            {"dagster/backfill": "abc"},
            {"restore": {"config": {"restore_from": "chk-1", "mode": "preview"}}},
            f"orders_restore {NOT_BACKFILLED}",
        ),
        (
            "orders_savepoint",
            {},
            {"savepoint": {"config": {"action": "stop", "scope": "full"}}},
            "Run config of op 'savepoint': scope is for action checkpoint, and says nothing to stop: leave it out",
        ),
        (
            "orders_savepoint",
            {},
            {"savepoint": {"config": {"action": "dispose", "savepoint": "savepoint-1"}}},
            "Run config of op 'savepoint': action must be one of savepoint, checkpoint, stop, got 'dispose'",
        ),
        (
            "orders",
            {},
            {"restore": {"config": {"restore_from": "chk-1", "approved": "yes"}}},
            "approved: 'yes' is no approval: launch with mode: gate, without it, and follow its preview's link",
        ),
    ],
)
@pytest.mark.usefixtures("javas_mark")
def test_a_restore_that_nobody_chose_is_refused_before_anything_runs(
    tmp_path: Path, job: str, tags: dict[str, str], config: dict[str, Any], said: str
) -> None:
    made = build_pipeline_definitions(
        named("orders"),
        coordinator=CheckpointCoordinatorResource(base_dir=str(tmp_path)),
        options=PipelineOptions(refused_actions=["dispose"]),
    ).resolve_job_def(job)
    with dg.instance_for_test() as instance:
        done = made.execute_in_process(
            instance=instance, tags=tags, run_config={"ops": config}, raise_on_error=False
        )
    [failed] = done.get_step_failure_events()
    assert failed.step_failure_data.user_failure_data is not None
    assert failed.step_failure_data.user_failure_data.description == said
    assert not (tmp_path / "work").exists()


def test_the_log_of_a_restore_says_what_moves() -> None:
    preview = RestorePreview(
        pipeline=PipelineId("shop"),
        snapshot="checkpoint 31 of shop",
        uri="file:///c/shop/chk-31",
        refusals=(),
        warnings=(),
        compared_with="its newest snapshot, chk-000040",
        stages=(),
        replay=(
            Replay(stage="orders", step=OffsetStep(source="0", start="3", end="9", units=6), batches=2),
            Replay(stage="behind", step=OffsetStep(source="0", start="3", end=None, units=-1), batches=None),
            Replay(stage="rates", step=OffsetStep(source="0", start="1", end="1", units=0), batches=0),
        ),
        tables=(
            TablePreview(stage="totals", uri="/t", mode="append", fate=TableFate.MOVES, rows_leaving=1500),
            TablePreview(stage="lines", uri="/l", mode="append", fate=TableFate.UNCHANGED),
        ),
        schemas=(),
    )
    assert lines_of(preview) == [
        "source orders: from 9 back to 3, 6 units are read again",
        "source behind: from its beginning forward to 3, 1 unit is passed over",
        "table /t of totals: 1,500 rows leave",
        "table /l of lines: unchanged",
    ]


@pytest.mark.parametrize("serving", [None, "orders_green"])
def test_whoever_changes_tables_that_readers_of_another_name_find_is_told(
    tmp_path: Path, serving: str | None
) -> None:
    fork = named("orders").fork("orders_green", table_dir=str(tmp_path / "green"))
    resource = CheckpointCoordinatorResource(base_dir=str(tmp_path))
    by = serving and ServingRecord(pipeline=serving, table_dir="/t", since=1.0, before="orders")
    record = CoordinatorRecord(pipeline="orders", serving=by or None)
    resource.store().compare_and_set(PipelineId("orders"), 0, record.model_dump_json())

    @dg.op(required_resource_keys={"checkpoint_coordinator"})
    def restore(context) -> None:  # type: ignore[no-untyped-def]
        assert RestoreGate(context, fork, RunConfig(restore_from="none")).is_open()

    with dg.instance_for_test() as instance:
        graph = dg.GraphDefinition(name="orders_green", node_defs=[restore])
        job = graph.to_job(resource_defs={"checkpoint_coordinator": resource})
        done = job.execute_in_process(instance=instance)
        said = [line.message for line in instance.all_logs(done.run_id) if line.user_message]
    warned = [line for line in said if "readers of orders find the tables of orders_green" in line]
    assert len(warned) == (0 if serving is None else 1)
