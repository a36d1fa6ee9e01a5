"""A job that is launched while another run of its pipeline is alive; nothing here starts Spark."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run_iterator

from dagster_ckpt import CheckpointCoordinatorResource, PipelineOptions
from dagster_ckpt.dagster.names import CONCURRENCY_TAG, SKIPPED_TAG
from dagster_ckpt.errors import InvalidRequest
from tests import progress
from tests.dagster.conftest import Site

FAR = 60.0


@pytest.fixture
def busy(site: Site, javas_mark: Path) -> Site:
    """A site whose pipeline a run owns that is alive."""
    site.attempt(site.start_run()).coordinator.renew_lease(time.time() + FAR)
    return site


def execute(site: Site, job: str, **config: Any) -> dg.ExecuteInProcessResult:
    op = "stream" if job.endswith("streaming") else "restore"
    return site.definitions.resolve_job_def(job).execute_in_process(
        instance=site.instance, run_config={"ops": {op: {"config": config}}}, raise_on_error=False
    )


@pytest.mark.parametrize("job", ["shop", "shop_streaming"])
def test_a_skipped_run_succeeds_and_leaves_everything_as_it_was(busy: Site, job: str) -> None:
    before = busy.record
    result = execute(busy, job, concurrent_runs="skip")
    assert result.success
    assert busy.record == before
    done = {e.step_key for e in result.all_events if e.is_step_success}
    skipped = {e.step_key for e in result.all_events if e.is_step_skipped}
    assert done == {"stream"} if job == "shop_streaming" else {"restore"}
    assert skipped == (set() if job == "shop_streaming" else {*busy.pipeline.stages, "complete"})
    run = busy.instance.get_run_by_id(result.run_id)
    assert run is not None
    assert run.tags[SKIPPED_TAG] == "true"


def test_the_pipeline_chooses_and_the_run_overrides(busy: Site) -> None:
    site = replace(busy, options=PipelineOptions(concurrent_runs="skip"))
    assert execute(site, "shop").success
    assert not execute(site, "shop", concurrent_runs="wait").success
    with pytest.raises(InvalidRequest, match="concurrent_runs must be one of"):
        PipelineOptions(concurrent_runs="wait")
    with pytest.raises(InvalidRequest, match="concurrent_runs must be one of"):
        CheckpointCoordinatorResource(concurrent_runs="wait")


def test_a_run_that_is_terminated_while_it_waits_ends_at_once_and_leaves_everything_as_it_was(
    busy: Site,
) -> None:
    before = busy.record
    run = busy.instance.create_run_for_job(busy.definitions.resolve_job_def("shop"))

    def says_that_it_waits() -> bool:
        logs = busy.instance.all_logs(run.run_id)
        return any("waiting: run" in entry.user_message for entry in logs)

    def terminate() -> None:
        progress.wait_until(
            says_that_it_waits, "it waits", moves=lambda: len(busy.instance.all_logs(run.run_id))
        )
        busy.instance.report_run_canceling(run)
        os.kill(os.getpid(), signal.SIGINT)

    terminator = threading.Thread(target=terminate, daemon=True)
    terminator.start()
    job = InMemoryJob(busy.definitions.resolve_job_def("shop"))
    list(execute_run_iterator(job, run, busy.instance))
    terminator.join()
    after = busy.instance.get_run_by_id(run.run_id)
    assert after is not None
    assert after.status is dg.DagsterRunStatus.CANCELED
    assert busy.record == before


def test_dagsters_queue_can_limit_the_runs_of_a_pipeline_and_leaves_those_alone_that_ask_a_stream(
    site: Site,
) -> None:
    jobs = {job.name: job.tags.get(CONCURRENCY_TAG) for job in site.definitions.resolve_all_job_defs()}
    limited = {name for name, tag in jobs.items() if tag == "shop"}
    assert limited == {"shop", "shop_restore", "shop_streaming"}
