"""Names people launch by, and run configs, links and schedules spell: they never change."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.dependency import NodeHandle

from dagster_ckpt import (
    PipelineOptions,
    RestartPolicy,
    SavepointSchedule,
    build_pipeline_definitions,
)
from tests.lab.pipelines import sink, source, wired
from tests.spark.epoch.small_pipeline import shop


@pytest.fixture(scope="module")
def definitions() -> dg.Definitions:
    schedule = SavepointSchedule(cron_schedule="0 3 * * *")
    options = PipelineOptions(restart=RestartPolicy(), savepoints=schedule)
    return build_pipeline_definitions(shop(Path("feed")), options=options)


STAGES = {"orders", "customers", "lines", "matched", "totals"}
JOBS = {
    "shop": {"restore", *STAGES, "complete"},
    "shop_restore": {"restore", *STAGES, "complete"},
    "shop_streaming": {"stream"},
    "shop_savepoint": {"savepoint"},
    "shop_care": {"care"},
}


def test_jobs_and_their_ops_have_the_names_they_always_had(definitions: dg.Definitions) -> None:
    jobs = [job for job in definitions.resolve_all_job_defs() if not job.name.startswith("__")]
    assert {job.name: {node.name for node in job.nodes} for job in jobs} == JOBS
    for job in jobs:
        assert job.tags["dagster_ckpt/pipeline"] == "shop"
        assert {node.definition.name for node in job.nodes} == {f"shop__{op}" for op in JOBS[job.name]}
        assert job.tags["dagster/retry_strategy"] == "ALL_STEPS"


def test_facts_are_published_behind_the_last_op_alone_and_by_the_job_that_restores_too() -> None:
    published = build_pipeline_definitions(
        shop(Path("feed")), options=PipelineOptions(publish_facts="facts.json")
    )
    for name, ops in JOBS.items():
        job = published.resolve_job_def(name)
        hooked = {
            node.name for node in job.nodes if job.get_all_hooks_for_handle(NodeHandle(node.name, None))
        }
        assert hooked == ops & {"complete"}, name


def test_sensors_schedules_and_resources_have_the_names_they_always_had(definitions: dg.Definitions) -> None:
    assert {sensor.name for sensor in definitions.sensors or ()} == {
        *("shop_safety_net", "shop_run_failed", "shop_run_canceled", "shop_failure_alarm"),
        "shop_horizon_alarm",
        *("shop_restart", "shop_streaming_restart"),
    }
    assert {schedule.name for schedule in definitions.schedules or ()} == {"shop_savepoint_schedule"}
    for job in JOBS:  # as run configs spell them
        assert {"checkpoint_coordinator", "spark"} <= definitions.resolve_job_def(job).resource_defs.keys()
    assert set(definitions.resources or ()) == {"shop__checkpoint_coordinator", "shop__spark"}


def test_a_stage_may_be_called_as_a_jobs_op_is() -> None:
    stages = source("savepoint", lambda spark: spark), sink("care", lambda savepoint: savepoint)
    jobs = build_pipeline_definitions(wired("named", *stages)).get_repository_def().get_all_jobs()
    assert {"named", "named_savepoint", "named_care"} <= {job.name for job in jobs}
