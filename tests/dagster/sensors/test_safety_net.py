"""What the safety net and the run-status mirror do for runs that died."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from dagster_ckpt import checkpoints_asset_key
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.metadata_text import encode_metadata
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.paths import SnapshotLocation
from dagster_ckpt.core.request import RunStatus
from dagster_ckpt.dagster.sensors.safety_net import SafetyNetCursor, Supervisor
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.operations.snapshots.registration import register_savepoint, reserve_id
from dagster_ckpt.spark.snapshot.stored import open_snapshot
from dagster_ckpt.testing.memory import ManualClock
from tests.dagster.conftest import Site

NET = "shop_safety_net"


def test_a_pipeline_that_never_ran_is_let_be(site: Site) -> None:
    assert site.tick(NET).said == "the pipeline has not run yet"


def test_a_checkpoint_whose_run_died_before_reporting_it_gets_its_partition_and_event(site: Site) -> None:
    run = site.start_run()
    site.attempt(run).completed_checkpoint()
    assert site.partitions == []
    site.tick(NET)
    assert site.partitions == ["chk-000001"]
    assert site.materialized() == ["chk-000001"]
    [event] = site.instance.fetch_materializations(checkpoints_asset_key(PipelineId("shop")), limit=1).records
    told = event.asset_materialization
    assert told is not None
    assert "has not said whether tables show its rows" in str(told.metadata["not_published"].value)


def test_a_live_run_is_left_to_report_its_own_fresh_checkpoint(site: Site) -> None:
    run = site.start_run()
    site.clock.advance(995)
    site.attempt(run).completed_checkpoint()
    assert "is alive" in site.tick(NET).said
    assert site.partitions == []


def test_nothing_is_reported_twice_even_with_the_cursor_lost(site: Site) -> None:
    run = site.start_run()
    attempt = site.attempt(run)
    attempt.completed_checkpoint()
    first = site.tick(NET)
    for cursor in (first.cursor, None, "", "not json", '{"compared": "x"}', "[]"):
        assert "is alive" in site.tick(NET, cursor).said
    assert site.materialized() == ["chk-000001"]


def test_a_partition_without_an_event_gets_the_event(site: Site) -> None:
    """The run died between adding the partition and writing the event."""
    run = site.start_run()
    site.attempt(run).completed_checkpoint()
    site.instance.add_dynamic_partitions("shop/checkpoints", ["chk-000001"])
    result = site.tick(NET)
    assert site.materialized() == ["chk-000001"]
    assert SafetyNetCursor.model_validate_json(result.cursor or "").compared == {"chk-000001"}


def test_an_import_that_took_long_gets_its_event_though_newer_checkpoints_have_theirs(
    site: Site, tmp_path: Path
) -> None:
    """Its number is taken first and registered last; the command line has added its partition by then."""
    run = site.start_run()
    attempt = site.attempt(run)
    deployment = site.resource.deployment()
    number = reserve_id(deployment, site.pipeline.name)
    attempt.crash()
    attempt.recover()
    newer = attempt.completed_checkpoint()
    assert newer > number
    cursor = site.tick(NET).cursor

    stored = open_snapshot(site.resource.storage(), attempt.coordinator.record.completed[-1].location.folder)
    imported = stored.metadata.model_copy(
        update={"checkpoint_id": number, "kind": CheckpointKind.SAVEPOINT, "name": "brought"}
    )
    storage = site.resource.open_storage(str(tmp_path / "brought"))
    body = encode_metadata(imported)
    storage.create("sp/_metadata", body)
    place = SnapshotLocation(base_uri=storage.base_uri, folder="sp")
    register_savepoint(deployment, imported, place, 1, metadata_checksum=digest_bytes(body).checksum)
    site.instance.add_dynamic_partitions("shop/checkpoints", [f"savepoint-{number:06d}"])
    site.tick(NET, cursor)
    assert site.materialized() == [f"chk-{newer:06d}", f"savepoint-{number:06d}"]


def test_what_a_stream_holds_back_of_older_hours_is_not_told_after_newer_ones(site: Site) -> None:
    run = site.start_run("shop_streaming")
    site = replace(site, clock=ManualClock(now=time.time() - 20 * 3600))
    attempt = site.attempt(run, num_retained=1, retention={"hourly": 6})
    for _ in range(4):
        attempt.completed_checkpoint()
        site.clock.advance(3600)
    site.instance.report_runless_asset_event(
        dg.AssetMaterialization(checkpoints_asset_key(PipelineId("shop")), partition="chk-000004")
    )
    first = site.tick(NET)
    assert site.partitions == [f"chk-00000{number}" for number in range(1, 5)]
    assert site.materialized() == ["chk-000004"]
    assert site.observations() == []
    attempt.close("suspended")
    site.instance.report_run_canceled(run)
    for cursor in (first.cursor, None):
        site.tick(NET, cursor)
        assert site.materialized() == ["chk-000004"], "the latest materialization stays the newest checkpoint"
        assert [told.partition for told in site.observations()] == ["chk-000001", "chk-000002", "chk-000003"]


def test_of_a_living_stream_the_newest_is_told_for_it_and_no_other(site: Site) -> None:
    site = replace(site, clock=ManualClock(now=time.time() - 20 * 3600))
    attempt = site.attempt(site.start_run("shop_streaming"), num_retained=1, retention={"hourly": 6})
    for _ in range(3):
        attempt.completed_checkpoint()
        site.clock.advance(3600)
    site.tick(NET)
    assert site.materialized() == ["chk-000003"]


def test_the_link_goes_on_as_the_run_did_that_took_the_checkpoint(site: Site) -> None:
    links = {}
    for job in ("shop", "shop_streaming"):
        run = site.start_run(job)
        site.attempt(run).completed_checkpoint()
        record = site.record
        care = Supervisor(
            pipeline=site.pipeline, resource=site.resource, instance=site.instance, location="shop.py"
        )
        [event] = care.missing_events(record.completed[-1:], of=record)
        links[job] = str(event.metadata["restore"].value)
    assert "/locations/shop.py/jobs/shop/playground" in links["shop"]
    assert "/locations/shop.py/jobs/shop_streaming/playground" in links["shop_streaming"]
    assert "ops%3A%0A%20%20stream%3A" in links["shop_streaming"]


def test_partitions_of_subsumed_checkpoints_go_and_those_of_others_stay(site: Site) -> None:
    run = site.start_run()
    attempt = site.attempt(run)
    site.instance.add_dynamic_partitions("shop/checkpoints", ["chk-000001", "somebody-elses"])
    for _ in range(5):
        attempt.completed_checkpoint()
    site.tick(NET)
    assert site.partitions == ["chk-000003", "chk-000004", "chk-000005", "somebody-elses"]


def test_a_savepoint_is_mirrored_with_its_name_and_a_disposed_one_loses_its_partition(site: Site) -> None:
    run = site.start_run()
    attempt = site.attempt(run)
    target = f"{site.resource.storage().base_uri}/sp"
    number = attempt.completed_savepoint(name="before the upgrade", note="see ticket", target=target)
    site.tick(NET)
    assert site.partitions == ["savepoint-000001"]
    attempt.coordinator.dispose_savepoint(number)
    site.tick(NET)
    assert site.partitions == []


def test_an_unreadable_checkpoint_shows_as_broken(site: Site) -> None:
    run = site.start_run()
    attempt = site.attempt(run)
    number = attempt.completed_checkpoint()
    location = attempt.coordinator.record.completed[-1].location
    attempt.storage.delete([f"{location.folder}/_metadata"])
    site.tick(NET)
    assert site.partitions == [f"chk-{number:06d}"]
    [record] = site.instance.fetch_materializations(dg.AssetKey(["shop", "checkpoints"]), limit=5).records
    assert record.asset_materialization is not None
    assert record.asset_materialization.metadata["restorable"].value == "broken"


# --- dead attempts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "status"),
    [("failed", RunStatus.FAILED), ("canceled", RunStatus.CANCELED), ("succeeded", RunStatus.SUSPENDED)],
)
def test_a_run_that_ended_without_saying_so_is_ended_for_it(site: Site, end: str, status: RunStatus) -> None:
    run = site.start_run()
    pending = site.attempt(run).checkpoint()
    _end(site, run, end)
    site.tick(NET)
    record = site.record
    assert record.status is status
    assert not record.clean
    assert record.pending == ()
    assert [f.checkpoint_id for f in record.failed] == [pending]
    assert "no run is in progress" in site.tick(NET).said


def test_the_failed_checkpoint_of_a_dead_run_is_observed_with_reason_and_stage(site: Site) -> None:
    run = site.start_run()
    attempt = site.attempt(run)
    number = attempt.checkpoint()
    attempt.acknowledge_stage(number, "orders")
    attempt.acknowledge_stage(number, "customers")
    _end(site, run, "failed")
    site.tick(NET)
    [seen] = site.observations()
    assert seen.metadata["checkpoint"].value == number
    assert seen.metadata["reason"].value == "CHECKPOINT_COORDINATOR_SHUTDOWN"
    assert seen.metadata["stage"].value == "matched, lines, totals"


def test_a_failed_run_that_dagster_retries_stays_continuable(site: Site) -> None:
    run = site.start_run(tags={"dagster/will_retry": "true"})
    attempt = site.attempt(run, externalized_checkpoint_retention="no_externalized_checkpoints")
    attempt.completed_checkpoint()
    _end(site, run, "failed")
    site.tick(NET)
    assert site.record.status is RunStatus.SUSPENDED
    assert len(site.record.completed) == 1


def test_a_run_that_is_alive_keeps_what_is_pending(site: Site) -> None:
    run = site.start_run()
    attempt = site.attempt(run, timeout=5000.0)
    number = attempt.checkpoint()
    assert "1 checkpoint pending" in site.tick(NET).said
    attempt.acknowledge_all(number)
    assert attempt.completed == [number]


def test_a_checkpoint_nobody_expires_is_expired_after_its_timeout_and_a_minute(site: Site) -> None:
    run = site.start_run()
    attempt = site.attempt(run, timeout=100.0)
    number = attempt.checkpoint()
    site.tick(NET)
    record = site.record
    assert record.pending == ()
    assert record.failed[-1].reason == "CHECKPOINT_EXPIRED"
    assert record.failed[-1].checkpoint_id == number
    assert record.status is RunStatus.RUNNING, "the attempt itself goes on: its run may be alive after all"


def test_a_newer_attempt_is_never_touched_on_account_of_an_older_run(site: Site) -> None:
    first = site.start_run()
    site.attempt(first)
    second = site.start_run()
    attempt = site.attempt(second, timeout=5000.0)
    number = attempt.checkpoint()
    _end(site, first, "failed")
    site.tick(NET)
    assert site.record.epoch == 2
    assert site.record.pending_of(number) is not None


def _end(site: Site, run: dg.DagsterRun, how: str) -> None:
    match how:
        case "failed":
            site.instance.report_run_failed(run)
        case "canceled":
            site.instance.report_run_canceled(run)
        case _:
            site.instance.report_dagster_event(_success(run), run_id=run.run_id)


def _success(run: dg.DagsterRun) -> dg.DagsterEvent:
    return dg.DagsterEvent(
        event_type_value=dg.DagsterEventType.RUN_SUCCESS.value, job_name=run.job_name, message="ended"
    )


# --- the run-status mirror --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "event_type", "status"),
    [
        ("failed", dg.DagsterEventType.RUN_FAILURE, RunStatus.FAILED),
        ("canceled", dg.DagsterEventType.RUN_CANCELED, RunStatus.CANCELED),
    ],
)
def test_the_mirror_settles_a_killed_run_as_soon_as_dagster_knows(
    site: Site, end: str, event_type: dg.DagsterEventType, status: RunStatus
) -> None:
    run = site.start_run()
    number = site.attempt(run).checkpoint()
    _end(site, run, end)
    sensor = site.definitions.resolve_sensor_def(f"shop_run_{end}")
    event = dg.DagsterEvent(event_type_value=event_type.value, job_name=run.job_name, message="killed")
    failed = site.instance.get_run_by_id(run.run_id)
    assert failed is not None
    with dg.build_run_status_sensor_context(
        sensor_name=sensor.name,
        dagster_event=event,
        dagster_instance=site.instance,
        dagster_run=failed,
    ) as context:
        sensor(context)
    assert site.record.status is status
    assert site.record.failed[-1].checkpoint_id == number
    assert len(site.observations()) == 1


def test_sensors_that_are_a_safety_net_run_by_default_and_those_that_act_wait_to_be_enabled(
    site: Site,
) -> None:
    running = {
        s.name for s in site.definitions.sensors or () if s.default_status is dg.DefaultSensorStatus.RUNNING
    }
    assert running == {
        "shop_safety_net",
        "shop_failure_alarm",
        "shop_horizon_alarm",
        "shop_run_failed",
        "shop_run_canceled",
    }


def test_a_killed_run_that_dagster_believes_running_is_ended_by_its_lease_after_two_looks(site: Site) -> None:
    run = site.start_run()
    coordinator = site.attempt(run).coordinator
    coordinator.renew_lease(site.clock.now() + 10)
    first = site.tick(NET)
    assert "taken for dead unless it does so before the next tick" in first.said
    coordinator.renew_lease(site.clock.now() + 20)
    second = site.tick(NET, first.cursor)
    assert site.record.status is RunStatus.RUNNING, "it renewed its lease: its machine was asleep"
    assert "never said that it ended and its lease is over; settled" in site.tick(NET, second.cursor).said
    assert site.record.status is RunStatus.SUSPENDED
