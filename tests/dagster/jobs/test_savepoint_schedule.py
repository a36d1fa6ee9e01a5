"""Scheduled savepoints and by a condition; bounds."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest

from dagster_ckpt import (
    InvalidRequest,
    PipelineOptions,
    SavepointSchedule,
    build_savepoint_schedule,
    build_savepoint_sensor,
)
from dagster_ckpt.dagster.jobs.snapshots import SCHEDULE_LABEL, dispose_expired, expired_savepoints
from dagster_ckpt.dagster.sensors.runs import SavepointWanted, after_checkpoints
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness
from tests.dagster.conftest import Site

DAILY = SavepointSchedule(
    cron_schedule="0 3 * * *",
    keep_last=7,
    keep_for=timedelta(days=30),
    labels={"team": "shop"},
    note="nightly",
)
THREE = datetime(2026, 3, 1, 3, 0, tzinfo=UTC)


def evaluate(schedule: dg.ScheduleDefinition, at: datetime = THREE) -> dg.RunRequest:
    context = dg.build_schedule_context(scheduled_execution_time=at)
    [request] = schedule.evaluate_tick(context).run_requests or []
    return request


def test_a_tick_launches_the_savepoint_job_with_name_labels_and_bounds(site: Site) -> None:
    request = evaluate(build_savepoint_schedule(site.pipeline, DAILY))
    assert request.run_config["ops"]["savepoint"]["config"] == {
        "name": "shop_savepoint_schedule 2026-03-01T03:00",
        "note": "nightly",
        "labels": {"team": "shop", SCHEDULE_LABEL: "shop_savepoint_schedule"},
        "target": "",
        "keep_last": 7,
        "keep_for": 30 * 86400.0,
        "wait_for_run": 3600.0,
    }
    dg.validate_run_config(site.definitions.resolve_job_def("shop_savepoint"), request.run_config)


def test_the_same_minute_is_the_same_run_and_another_one_is_not(site: Site) -> None:
    schedule = build_savepoint_schedule(site.pipeline, DAILY)
    assert evaluate(schedule).run_key == evaluate(schedule).run_key
    assert evaluate(schedule).run_key != evaluate(schedule, THREE + timedelta(days=1)).run_key


def test_a_schedule_waits_to_be_enabled_and_is_part_of_the_definitions(site: Site) -> None:
    scheduled = replace(site, options=PipelineOptions(savepoints=DAILY))
    found = scheduled.definitions.resolve_schedule_def("shop_savepoint_schedule")
    assert found.default_status is dg.DefaultScheduleStatus.STOPPED
    assert found.cron_schedule == "0 3 * * *"


@pytest.mark.parametrize("wrong", [{"keep_last": 0}, {"keep_for": timedelta(seconds=-1)}])
def test_bounds_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        SavepointSchedule(cron_schedule="0 3 * * *", **wrong)


# --- bounds -----------------------------------------------------------------------------------------------------


def savepoints(site: Site, attempt: CoordinatorHarness, *labels: str, below: str = "sp") -> list[int]:
    target = f"{site.resource.storage().base_uri}/{below}"
    taken = []
    for label in labels:
        own = {SCHEDULE_LABEL: label} if label else {}
        taken.append(int(attempt.completed_savepoint(labels=own, target=target)))
        site.clock.advance(10)
    return taken


def expired(site: Site, schedule: str, now: float, **bounds: Any) -> list[int]:
    options = SavepointSchedule(cron_schedule="0 3 * * *", **bounds)
    found = expired_savepoints(site.resource, site.pipeline, options.retention, schedule=schedule, now=now)
    return [entry.checkpoint_id for entry in found]


def test_one_goes_only_when_it_is_outside_both_bounds(site: Site) -> None:
    attempt = site.attempt(site.start_run())
    taken = savepoints(site, attempt, "daily", "daily", "daily", "daily")
    now = site.clock.now()
    assert expired(site, "daily", now, keep_last=2) == taken[:2]
    assert expired(site, "daily", now, keep_last=2, keep_for=timedelta(seconds=35)) == taken[:1]
    assert expired(site, "daily", now, keep_last=1, keep_for=timedelta(hours=1)) == []
    assert expired(site, "daily", now) == []


def test_savepoints_of_people_and_of_other_schedules_are_never_touched(site: Site) -> None:
    attempt = site.attempt(site.start_run())
    taken = savepoints(site, attempt, "", "monthly", "daily", "daily", "")
    assert expired(site, "daily", site.clock.now(), keep_last=1) == [taken[2]]


def test_savepoints_elsewhere_are_never_touched_they_may_be_those_of_a_deployment_this_one_is_a_copy_of(
    site: Site,
) -> None:
    attempt = site.attempt(site.start_run())
    savepoints(site, attempt, "daily", "daily", below="of-the-original")
    taken = savepoints(site, attempt, "daily", "daily")
    assert expired(site, "daily", site.clock.now(), keep_last=1) == taken[:1]


def test_what_is_outside_the_bounds_is_removed_with_its_files_and_partition(site: Site) -> None:
    attempt = site.attempt(site.start_run())
    taken = savepoints(site, attempt, "daily", "daily")
    site.tick("shop_safety_net")
    assert site.partitions == ["savepoint-000001", "savepoint-000002"]
    doomed = expired_savepoints(
        site.resource,
        site.pipeline,
        replace(DAILY, keep_last=1, keep_for=None).retention,
        schedule="daily",
        now=site.clock.now(),
    )
    told: list[str] = []
    gone = dispose_expired(site.resource, site.pipeline, doomed, instance=site.instance, tell=told.append)
    assert [g.key for g in gone] == ["savepoint-000001"], told
    assert site.partitions == ["savepoint-000002"]
    assert [s.checkpoint_id for s in site.record.savepoints] == taken[1:]
    assert list(site.resource.storage().list(doomed[0].location.folder)) == []
    assert "removed" in told[0]


# --- on a condition ---------------------------------------------------------------------------------------------


def test_a_condition_takes_one_savepoint_per_occasion(site: Site) -> None:
    run = site.start_run()
    attempt = site.attempt(run)
    sensor = build_savepoint_sensor(site.pipeline, after_checkpoints(3), coordinator=site.resource)

    def tick() -> Any:
        with site.context() as context:
            return sensor.evaluate_tick(context)

    assert tick().skip_message == "the condition does not hold"
    for _ in range(3):
        attempt.completed_checkpoint()
    assert "waiting for the end of run" in tick().skip_message
    attempt.close()
    [first], [second] = tick().run_requests, tick().run_requests
    assert first.run_key == second.run_key == "shop_savepoint_sensor-after-3"
    config = first.run_config["ops"]["savepoint"]["config"]
    assert config["note"] == "3 checkpoints since the last savepoint"


def test_a_condition_of_ones_own_names_the_savepoint(site: Site) -> None:
    sensor = build_savepoint_sensor(
        site.pipeline,
        lambda _context, _record: SavepointWanted(request_key="v2", name="before v2", labels={"v": "2"}),
        coordinator=site.resource,
    )
    with site.context() as context:
        assert "has not run yet" in (sensor.evaluate_tick(context).skip_message or "")
    site.attempt(site.start_run()).close()
    with site.context() as context:
        [request] = sensor.evaluate_tick(context).run_requests or []
    config = request.run_config["ops"]["savepoint"]["config"]
    assert (config["name"], config["labels"]) == ("before v2", {"v": "2"})
    dg.validate_run_config(site.definitions.resolve_job_def("shop_savepoint"), request.run_config)
