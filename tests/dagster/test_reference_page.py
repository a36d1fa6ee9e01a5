"""docs/reference/dagster.md says what there is, and there is what it says."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from dagster_ckpt import (
    EpochSchedule,
    PipelineOptions,
    RestartPolicy,
    SavepointSchedule,
    build_pipeline_definitions,
    checkpointed_pipeline,
    spark_sink,
    spark_source,
)
from tests.root import ROOT

PAGE = (ROOT / "docs" / "reference" / "dagster.md").read_text()


@pytest.fixture(scope="module")
def names() -> set[str]:
    """Names that the definitions of a pipeline ``orders`` bring."""

    @spark_source
    def source(spark):  # type: ignore[no-untyped-def]
        return spark

    @spark_sink
    def sink(source):  # type: ignore[no-untyped-def]
        return source

    @checkpointed_pipeline(name="orders")
    def pipeline() -> None:
        sink(source())

    defs = build_pipeline_definitions(
        pipeline,
        options=PipelineOptions(
            restart=RestartPolicy(),
            savepoints=SavepointSchedule(cron_schedule="0 3 * * *"),
            max_checkpoint_age=timedelta(hours=1),
            epochs=EpochSchedule(cron="0 * * * *"),
            verify_every="0 4 * * *",
            dry_run_every="0 5 * * 0",
            new_files=["/data/*.json"],
        ),
    )
    repository = defs.get_repository_def()
    fork = pipeline.fork("orders_green", table_dir="/data/green")
    beside = build_pipeline_definitions(fork).get_repository_def().get_all_jobs()
    own = {job.name.removeprefix("orders") for job in repository.get_all_jobs()}
    return {
        *(job.name for job in beside if job.name.removeprefix("orders_green") not in own),
        *(job.name for job in repository.get_all_jobs() if not job.name.startswith("__")),
        *(sensor.name for sensor in repository.sensor_defs),
        *(schedule.name for schedule in repository.schedule_defs),
        *(defs.resources or {}),
        *(key.name for check in defs.asset_checks or () for key in check.check_keys),
    }


def test_the_page_names_all_there_is(names: set[str]) -> None:
    assert {name for name in names if f"`{name}`" not in PAGE} == set()


def test_the_page_names_nothing_there_is_not(names: set[str]) -> None:
    settings = {"checkpoint_dir", "checkpoint_coordinator", "orders_green", "orders_green_care"}
    named = set(re.findall(r"`(orders_[a-z_]+|checkpoint_[a-z]+)`", PAGE)) - settings
    assert named <= names
