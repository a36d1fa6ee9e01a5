"""The restart sensor as the daemon evaluates it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

from dagster_ckpt import PipelineOptions, RestartPolicy
from dagster_ckpt.core.request import RunStatus
from dagster_ckpt.dagster.names import LOCATION_TAG, SKIPPED_TAG
from dagster_ckpt.dagster.sensors.runs import build_restart_sensor, left_to_others, restart_config
from tests.dagster.conftest import Site

RESTART = "shop_restart"
AT_ONCE = PipelineOptions(restart=RestartPolicy(max_restarts=2, delay=0.0))


@pytest.fixture
def site(site: Site) -> Site:
    return replace(site, options=AT_ONCE)


def test_a_failed_run_is_answered_with_one_that_restores_the_latest_checkpoint(site: Site) -> None:
    config = {"ops": {"restore": {"config": {"restore_from": "chk-1"}}}}
    run = site.start_run(config=config)
    site.attempt(run).completed_checkpoint()
    site.instance.report_run_failed(run)
    [request] = site.tick(RESTART).requests
    assert request.run_config == {"ops": {"restore": {"config": {"restore_from": "latest"}}}}
    assert request.run_key == f"restart-{run.run_id}"
    assert request.tags["dagster_ckpt/restarts"] == "1"
    dg.validate_run_config(site.definitions.resolve_job_def("shop"), request.run_config)


def test_a_run_is_answered_once(site: Site) -> None:
    run = site.start_run()
    site.attempt(run)
    site.instance.report_run_failed(run)
    first = site.tick(RESTART)
    assert len(first.requests) == 1
    assert "was restarted" in site.tick(RESTART, first.cursor).said
    [again] = site.tick(RESTART, "corrupt").requests
    assert again.run_key == first.requests[0].run_key, "Dagster launches one run per key"


def test_a_run_that_failed_before_it_took_over_keeps_what_it_was_to_start_from(site: Site) -> None:
    config = {"ops": {"restore": {"config": {"restore_from": "chk-1"}}}}
    run = site.start_run(config=config)
    site.instance.report_run_failed(run)
    [request] = site.tick(RESTART).requests
    assert request.run_config == config


def test_other_ops_keep_their_config_in_a_restart() -> None:
    config = {
        "ops": {"orders": {"config": {"days": 3}}, "restore": {"config": {"fork": True}}},
        "loggers": {},
    }
    assert restart_config(config, op="restore", claimed=True) == {
        "ops": {"orders": {"config": {"days": 3}}, "restore": {"config": {"restore_from": "latest"}}},
        "loggers": {},
    }


def test_a_stream_keeps_its_own_settings_and_goes_on_from_the_latest_checkpoint() -> None:
    config = {
        "ops": {"stream": {"config": {"restore_from": "chk-3", "fork": True, "restart_strategy": "none"}}}
    }
    assert restart_config(config, op="stream", claimed=True) == {
        "ops": {"stream": {"config": {"restore_from": "latest", "restart_strategy": "none"}}}
    }


def test_a_failed_stream_is_restarted_as_a_stream(site: Site) -> None:
    run = site.start_run(job="shop_streaming")
    site.attempt(run)
    site.instance.report_run_failed(run)
    [request] = site.tick("shop_streaming_restart").requests
    assert request.run_config == {"ops": {"stream": {"config": {"restore_from": "latest"}}}}
    dg.validate_run_config(site.definitions.resolve_job_def("shop_streaming"), request.run_config)
    assert "is one of shop_streaming" in site.tick(RESTART).said


def test_after_the_restore_job_failed_the_epoch_job_goes_on(site: Site) -> None:
    site.instance.add_dynamic_partitions("shop/checkpoints", ["chk-000001"])
    run = site.start_run(job="shop_restore", tags={"dagster/partition": "chk-000001"})
    site.attempt(run)
    site.instance.report_run_failed(run)
    [request] = site.tick(RESTART).requests
    assert request.run_key == f"restart-{run.run_id}"


def test_runs_that_go_on_succeeded_or_are_retried_by_dagster_are_let_be(site: Site) -> None:
    assert site.tick(RESTART).said == "the pipeline has not run yet"
    run = site.start_run()
    assert "is going on" in site.tick(RESTART).said
    site.instance.report_run_canceled(run)
    assert "did not fail" in site.tick(RESTART).said
    retried = site.start_run(tags={"dagster/will_retry": "true"})
    site.instance.report_run_failed(retried)
    assert "Dagster retries" in site.tick(RESTART).said


def test_a_failed_savepoint_run_restarts_nothing(site: Site) -> None:
    run = site.start_run()
    site.instance.report_run_canceled(run)
    savepoint = site.start_run(job="shop_savepoint")
    site.instance.report_run_failed(savepoint)
    assert "did not fail" in site.tick(RESTART).said


def test_it_gives_up_after_restarts_without_a_checkpoint_and_counts_anew_after_one(site: Site) -> None:
    run = site.start_run(tags={"dagster_ckpt/restarts": "2"})
    attempt = site.attempt(run)
    site.instance.report_run_failed(run)
    assert "2 restarts in a row completed no checkpoint" in site.tick(RESTART).said
    attempt.completed_checkpoint()
    [request] = site.tick(RESTART).requests
    assert request.tags["dagster_ckpt/restarts"] == "1"


def test_it_waits_for_its_delay(site: Site, tmp_path: Path) -> None:
    patient = Site(
        tmp_path / "site",
        site.instance,
        site.pipeline,
        options=PipelineOptions(restart=RestartPolicy(delay=500.0)),
    )
    run = patient.start_run()
    patient.instance.report_run_failed(run)
    assert "restart 1 in" in patient.tick(RESTART).said


def test_a_run_of_another_job_is_left_to_that_jobs_sensor(site: Site) -> None:
    site.instance.report_run_failed(site.start_run())
    other = build_restart_sensor(
        site.pipeline, coordinator=site.resource, policy=RestartPolicy(delay=0.0), job_name="shop_streaming"
    )
    with site.context() as context:
        data = other.evaluate_tick(context)
    assert data.skip_message == "the newest run is one of shop: not this sensor's"


def test_a_run_whose_lease_is_long_over_is_restarted_though_dagster_believes_it_running(site: Site) -> None:
    run = site.start_run()
    coordinator = site.attempt(run).coordinator
    assert "is going on" in site.tick(RESTART).said
    coordinator.renew_lease(site.clock.now() + 10)
    [request] = site.tick(RESTART).requests
    assert request.run_key == f"restart-{run.run_id}"
    cursor = site.tick("shop_safety_net").cursor
    site.tick("shop_safety_net", cursor)
    assert site.record.status is RunStatus.SUSPENDED
    assert site.tick(RESTART).requests, "also where the safety net has ended its attempt by then"


def test_a_run_that_was_skipped_does_not_hide_the_failed_one_it_gave_way_to(site: Site) -> None:
    failed = site.start_run()
    site.attempt(failed)
    skipped = site.start_run(tags={SKIPPED_TAG: "true"})
    site.instance.report_run_failed(failed)
    assert skipped.status is dg.DagsterRunStatus.STARTED
    [request] = site.tick(RESTART).requests
    assert request.run_key == f"restart-{failed.run_id}"


@pytest.mark.parametrize("mode", ["preview", "gate", "dry_run"])
def test_a_run_that_only_says_what_a_restore_would_do_hides_no_failed_run(site: Site, mode: str) -> None:
    failed = site.start_run()
    site.attempt(failed)
    site.instance.report_run_failed(failed)
    config = {"ops": {"restore": {"config": {"restore_from": "chk-1", "mode": mode}}}}
    site.instance.report_run_failed(site.start_run(job="shop_restore", config=config))
    [request] = site.tick(RESTART).requests
    assert request.run_key == f"restart-{failed.run_id}"


def test_the_run_of_another_code_location_is_left_to_the_sensor_there() -> None:
    ours, theirs = (
        create_run_for_test(dg.DagsterInstance.ephemeral(), job_name="shop", tags={LOCATION_TAG: name})
        for name in ("here", "there")
    )
    assert left_to_others(ours, "here", {"shop"}) == ""
    assert left_to_others(ours, None, {"shop"}) == ""
    assert left_to_others(theirs, "here", {"shop"}) == (
        "the newest run is of code location there: left to the sensor there"
    )
    assert "not this sensor's" in left_to_others(ours, "here", {"shop_streaming"})
