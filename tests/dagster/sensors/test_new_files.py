"""Epochs on a schedule and on arrival of files: asked for once, and not beside a run that is alive."""

from __future__ import annotations

import os
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest

from dagster_ckpt import (
    CheckpointCoordinatorResource,
    EpochSchedule,
    InvalidRequest,
    PipelineOptions,
    build_pipeline_definitions,
)
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.request import RunStatus
from dagster_ckpt.runtime.record_store import RecordStore
from tests.dagster.test_first_day import named


def put(file: Path, when: int) -> None:
    file.write_text("{}")
    os.utime(file, (when, when))


def test_an_epoch_is_asked_for_once_when_files_arrive_and_not_while_a_run_is_alive(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    arrivals = tmp_path / "in"
    arrivals.mkdir()
    coordinator = CheckpointCoordinatorResource(base_dir=str(tmp_path / "base"))
    options = PipelineOptions(new_files=[f"{arrivals}/*.json"])
    definitions = build_pipeline_definitions(named("orders"), coordinator=coordinator, options=options)
    sensor = definitions.resolve_sensor_def("orders_new_files")
    cursor = None

    def tick() -> str:
        nonlocal cursor
        context = dg.build_sensor_context(instance=instance, cursor=cursor, definitions=definitions)
        said = sensor(context)
        cursor = context.cursor
        assert isinstance(said, dg.RunRequest | dg.SkipReason)
        return "asked" if isinstance(said, dg.RunRequest) else str(said.skip_message)

    assert tick() == "no new file among 0"
    put(arrivals / "1.json", 100)
    put(arrivals / "_2.json", 100)
    assert tick() == "asked"
    assert tick() == "no new file among 1"
    put(arrivals / "0.json", 50)
    with closing(coordinator.model_copy().store()) as store:
        alive = CoordinatorRecord(
            pipeline="orders",
            epoch=1,
            owner="a-run",
            status=RunStatus.RUNNING,
            status_epoch=1,
            lease_until=time.time() + 600,
        )
        RecordStore(store).write(PipelineId("orders"), 0, alive, ())
    assert tick() == "new files; waiting for the end of run a-run"
    with closing(coordinator.model_copy().store()) as store:
        over = alive.model_copy(update={"lease_until": None, "status": RunStatus.SUSPENDED})
        RecordStore(store).write(PipelineId("orders"), 1, over, ())
    assert tick() == "asked"
    (arrivals / "1.json").unlink()
    assert tick() == "no new file among 1"
    put(arrivals / "0.json", 200)
    assert tick() == "asked"


def test_an_epoch_on_a_schedule_gives_way_to_a_run_that_is_alive() -> None:
    options = PipelineOptions(epochs=EpochSchedule(cron="0 * * * *"))
    definitions = build_pipeline_definitions(named("orders"), options=options)
    schedule = definitions.resolve_schedule_def("orders_epoch_schedule")
    at = datetime(2026, 1, 2, 3, tzinfo=UTC)
    asked = schedule(dg.build_schedule_context(scheduled_execution_time=at))
    assert isinstance(asked, dg.RunRequest)
    assert asked.run_key == "orders_epoch_schedule-2026-01-02T03:00"
    assert asked.run_config == {"ops": {"restore": {"config": {"concurrent_runs": "skip"}}}}
    assert dg.validate_run_config(definitions.resolve_job_def("orders"), asked.run_config)


def test_schedules_and_places_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="cron='hourly' is no cron schedule"):
        EpochSchedule(cron="hourly")
    with pytest.raises(InvalidRequest, match="did you mean `cron`"):
        EpochSchedule(crom="0 * * * *")  # type: ignore[call-arg]
    with pytest.raises(InvalidRequest, match=r"new_files='/a': give a list, new_files=\['/a'\]"):
        PipelineOptions(new_files="/a")
