"""Two replays at once: what one has finished while the other waited is not moved away; no Spark is needed to see it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_ckpt import CheckpointCoordinatorResource, build_pipeline_definitions
from dagster_ckpt.core.checkpoint.record import CompletedRecord, CoordinatorRecord, TriggerRecord
from dagster_ckpt.core.checkpoint.tables import ServingRecord
from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.paths import SnapshotLocation
from dagster_ckpt.core.request import RunStatus, properties_for
from dagster_ckpt.dagster.runs.turn import OpTurn
from dagster_ckpt.runtime.record_store import RecordChange, RecordStore
from tests.dagster.test_first_day import named

ORDERS, AGAIN = PipelineId("orders"), PipelineId("orders_again")
SERVING = ServingRecord(pipeline=AGAIN, tables={}, table_dir="/again", since=5.0, before=ORDERS)


def snapshot(folder: Path) -> CompletedRecord:
    return CompletedRecord(
        checkpoint_id=1,
        properties=properties_for(CheckpointKind.CHECKPOINT, CheckpointConfig()),
        location=SnapshotLocation(base_uri=folder.as_uri(), folder="orders/chk-1"),
        epoch=1,
        triggered_at=1.0,
        completed_at=2.0,
        trigger=TriggerRecord(periodic=False),
    )


def written(records: RecordStore, record: CoordinatorRecord) -> None:
    records.transact(PipelineId(record.pipeline), lambda _: RecordChange(answer=None, record=record))


def finished(records: RecordStore) -> None:
    """Another replay of the fork finishes."""
    over = CoordinatorRecord(
        pipeline=AGAIN,
        epoch=1,
        owner="theirs",
        root="theirs",
        status=RunStatus.FINISHED,
        status_epoch=1,
        latest_completed=1,
    )
    written(records, over)


def finished_and_serving(records: RecordStore) -> None:
    """Another replay of the fork finishes, and readers are swapped to its tables."""
    finished(records)
    origin = records.record(ORDERS)
    assert origin is not None
    written(records, origin.model_copy(update={"serving": SERVING}))


@pytest.mark.parametrize(
    ("again", "meanwhile", "said"),
    [
        (False, finished, "'orders_again' has run before, and its tables hold what it has written"),
        (True, finished_and_serving, "'orders_again' serves readers of 'orders'"),
    ],
)
def test_a_replay_that_has_waited_for_another_leaves_its_tables_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    again: bool,
    meanwhile: Callable[[RecordStore], None],
    said: str,
) -> None:
    coordinator = CheckpointCoordinatorResource(base_dir=str(tmp_path))
    pipeline = named("orders")
    fork = pipeline.fork(AGAIN, table_dir=str(tmp_path / "again"))
    records = RecordStore(coordinator.deployment(pipeline).store)
    written(records, CoordinatorRecord(pipeline=ORDERS, completed=(snapshot(tmp_path),), next_id=2))
    take = OpTurn.take

    def waited(turn: OpTurn, begin: Any) -> Any:
        meanwhile(records)
        return take(turn, begin)

    monkeypatch.setattr(OpTurn, "take", waited)
    job = build_pipeline_definitions(pipeline, fork, coordinator=coordinator).resolve_job_def(
        "orders_again_care"
    )
    config = {"ops": {"care": {"config": {"action": "replay", "since": "2026-11-17", "again": again}}}}
    with dg.instance_for_test() as instance:
        done = job.execute_in_process(instance=instance, run_config=config, raise_on_error=False)
    [failed] = done.get_step_failure_events()
    assert said in str(failed.step_failure_data.error)
    theirs = records.record(AGAIN)
    assert theirs is not None
    assert (theirs.owner, theirs.epoch) == ("theirs", 1), "nothing was claimed"
