"""Verification and dry runs on a schedule."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest

from dagster_ckpt import PipelineOptions
from dagster_ckpt.dagster.checks import dry_run
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound
from dagster_ckpt.operations.care.clean import dispose_savepoint, plan_disposal
from dagster_ckpt.operations.snapshots import contents
from dagster_ckpt.operations.snapshots.contents import Verified, not_opened, verify_snapshot
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness
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


def checked(site: Site, request: dg.RunRequest, job: str = "shop_care") -> dg.AssetCheckEvaluation:
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


def test_where_there_is_no_savepoint_the_latest_checkpoint_counts_once(site: Site) -> None:
    site.attempt(site.start_run()).completed_checkpoint()
    [request] = requested(site, "shop_verify_schedule")
    assert checked(site, request).metadata["checkpoint"].value == "chk-000001"


def asked_for(site: Site, checkpoint: str) -> dg.AssetCheckEvaluation:
    [request] = requested(site, "shop_verify_schedule")[-1:]
    [op] = request.run_config["ops"].values()
    op["config"]["checkpoint"] = checkpoint
    return checked(site, request)


@pytest.mark.parametrize(
    ("asked", "times", "said"),
    [
        ("latest", 1, "chk-000002: "),
        ("newest_savepoint", 1, "chk-000002: "),
        ("latest", 9, "latest was subsumed"),
        ("chk-1", 1, "chk-000001 was subsumed"),
    ],
)
def test_a_checkpoint_that_is_subsumed_while_it_is_read_is_not_broken(
    site: Site, monkeypatch: pytest.MonkeyPatch, asked: str, times: int, said: str
) -> None:
    stream = site.attempt(site.start_run(), num_retained=1)
    stream.completed_checkpoint()
    left = [times]

    def overtaken(source: StoredSnapshot) -> Verified:
        left[0] -= 1
        if left[0] >= 0:
            stream.completed_checkpoint()
            assert source.metadata.checkpoint_id not in stream.completed
            return not_opened("it", "there", NotFound("its files are gone"))
        return verify_snapshot(source)

    monkeypatch.setattr(contents, "verify_snapshot", overtaken)
    result = asked_for(site, asked)
    assert result.passed
    assert result.description is not None
    assert result.description.startswith(said)
    assert not site.observations(), "no partition shows as broken"


@pytest.mark.usefixtures("javas_mark")
def test_a_checkpoint_that_is_subsumed_while_its_restore_is_tried_is_not_broken(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = site.attempt(site.start_run(), num_retained=1)
    stream.completed_checkpoint()

    def overtaken(*_: object) -> None:
        stream.completed_checkpoint()
        raise Corrupt("a file is gone")

    monkeypatch.setattr(dry_run, "try_restore", overtaken)
    [request] = requested(site, "shop_dry_run_schedule")
    result = checked(site, request, job="shop_restore")
    assert result.passed
    assert result.metadata["checkpoint"].value == "chk-000001"
    assert not site.observations(), "no partition shows as broken"


def test_a_checkpoint_that_is_retained_and_has_lost_a_file_is_broken(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.attempt(site.start_run()).completed_checkpoint()
    monkeypatch.setattr(
        contents, "verify_snapshot", lambda source: not_opened("it", "there", NotFound("gone"))
    )
    assert not asked_for(site, "latest").passed
    assert len(site.observations()) == 1


def test_a_pipeline_that_has_not_run_has_nothing_to_verify(site: Site) -> None:
    assert all(checked(site, request).passed for request in requested(site, "shop_verify_schedule"))


def test_a_dry_run_is_asked_for_the_newest_savepoint_in_the_config_its_job_takes(site: Site) -> None:
    [request] = requested(site, "shop_dry_run_schedule")
    assert dg.validate_run_config(site.definitions.resolve_job_def("shop_restore"), request.run_config)
    [op] = request.run_config["ops"].values()
    assert op == {"config": {"mode": "dry_run", "restore_from": "newest savepoint"}}


def test_without_the_options_there_is_no_schedule_and_a_bad_cron_is_refused(site: Site) -> None:
    plain = replace(site, options=PipelineOptions())
    assert not plain.definitions.get_repository_def().schedule_defs
    with pytest.raises(InvalidRequest, match="verify_every='daily at 4' is no cron schedule"):
        PipelineOptions(verify_every="daily at 4")


def broken_savepoint(site: Site, monkeypatch: pytest.MonkeyPatch) -> CoordinatorHarness:
    """A savepoint that is read back as broken, and a checkpoint that is well."""
    attempt = site.attempt(site.start_run())
    attempt.completed_savepoint(name="nightly", target=f"{site.resource.storage().base_uri}/sp")
    attempt.completed_checkpoint()

    def verified(source: StoredSnapshot) -> Verified:
        if source.metadata.kind.is_savepoint:
            return not_opened("it", "there", NotFound("gone"))
        return verify_snapshot(source)

    monkeypatch.setattr(contents, "verify_snapshot", verified)
    return attempt


def test_a_savepoint_that_was_found_broken_stays_red_beside_a_checkpoint_that_is_well(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_savepoint(site, monkeypatch)
    first, second = (checked(site, request) for request in requested(site, "shop_verify_schedule"))
    assert not first.passed
    assert second.metadata["checkpoint"].value == "chk-000002"
    assert not second.passed
    assert second.description is not None
    assert second.description.startswith("chk-000002: ")
    assert "; savepoint-000001 is still broken: savepoint-000001: 0 files, 1 of them" in second.description
    assert not asked_for(site, "chk-2").passed, "also the third time"

    monkeypatch.undo()
    assert asked_for(site, "savepoint-1").passed, "it is found well"
    assert asked_for(site, "latest").passed


def test_a_savepoint_that_was_found_broken_is_forgotten_once_it_is_disposed_of(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_savepoint(site, monkeypatch)
    assert not asked_for(site, "newest savepoint").passed
    assert not asked_for(site, "latest").passed
    deployment = site.resource.deployment()
    dispose_savepoint(deployment, plan_disposal(deployment, "savepoint-1", site.pipeline.name))
    assert asked_for(site, "latest").passed


def test_a_savepoint_whose_metadata_is_damaged_stays_red_under_its_key(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = site.attempt(site.start_run())
    attempt.completed_savepoint(name="nightly", target=f"{site.resource.storage().base_uri}/sp")
    attempt.completed_checkpoint()
    [entry] = site.record.savepoints
    file = Path(entry.location.uri.removeprefix("file://")) / "_metadata"
    file.write_bytes(b"not what was written")
    first = asked_for(site, "newest savepoint")
    assert not first.passed
    assert first.metadata["checkpoint"].value == "savepoint-000001"
    assert not asked_for(site, "latest").passed
