"""Verification and dry runs on a schedule."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import dagster as dg
import pytest

from dagster_ckpt import PipelineOptions
from dagster_ckpt.errors import InvalidRequest
from tests.dagster.conftest import Site

OPTIONS = PipelineOptions(verify_every="0 4 * * *", dry_run_every="0 5 * * 0")


@pytest.fixture
def site(site: Site) -> Site:
    return replace(site, options=OPTIONS)


def requested(site: Site, schedule: str) -> list[dg.RunRequest]:
    found = site.definitions.resolve_schedule_def(schedule)
    at = datetime(2026, 11, 22, 4, 0, tzinfo=UTC)
    with dg.build_schedule_context(instance=site.instance, scheduled_execution_time=at) as context:
        return list(found.evaluate_tick(context).run_requests or ())


def checked(site: Site, request: dg.RunRequest, job: str = "shop_verify") -> dg.AssetCheckEvaluation:
    done = site.definitions.resolve_job_def(job).execute_in_process(
        instance=site.instance, run_config=request.run_config
    )
    assert done.success
    [evaluation] = done.get_asset_check_evaluations()
    return evaluation


def test_the_newest_savepoint_is_verified_and_then_the_latest_checkpoint(site: Site) -> None:
    run = site.start_run()
    attempt = site.attempt(run)
    target = f"{site.resource.storage().base_uri}/sp"
    for number in range(2):
        attempt.completed_savepoint(name=f"savepoint {number}", target=target)
        site.clock.advance(5)
    attempt.completed_checkpoint()
    first, second = (checked(site, request) for request in requested(site, "shop_verify_schedule"))
    assert first.metadata["checkpoint"].value == "savepoint-000002"
    assert second.metadata["checkpoint"].value == "chk-000003"
    assert first.passed
    assert second.passed


def test_where_there_is_no_savepoint_the_latest_checkpoint_counts(site: Site) -> None:
    site.attempt(site.start_run()).completed_checkpoint()
    assert [
        checked(site, r).metadata["checkpoint"].value for r in requested(site, "shop_verify_schedule")
    ] == ["chk-000001"] * 2


def test_a_pipeline_that_has_not_run_has_nothing_to_verify(site: Site) -> None:
    assert all(checked(site, request).passed for request in requested(site, "shop_verify_schedule"))


def test_a_dry_run_is_asked_for_the_newest_savepoint_in_the_config_its_job_takes(site: Site) -> None:
    [request] = requested(site, "shop_dry_run_schedule")
    assert dg.validate_run_config(site.definitions.resolve_job_def("shop_dry_run"), request.run_config)
    [op] = request.run_config["ops"].values()
    assert op == {"config": {"checkpoint": "newest savepoint"}}


def test_without_the_options_there_is_no_schedule_and_a_bad_cron_is_refused(site: Site) -> None:
    plain = replace(site, options=PipelineOptions())
    assert not plain.definitions.get_repository_def().schedule_defs
    with pytest.raises(InvalidRequest, match="verify_every='daily at 4' is no cron schedule"):
        PipelineOptions(verify_every="daily at 4")
