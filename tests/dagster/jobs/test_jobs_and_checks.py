"""Restore, savepoint and dispose jobs, and the checks that read what is stored, on real Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from dagster_ckpt import (
    CheckpointedPipeline,
    find_snapshot,
    open_state,
    verify_snapshot,
)
from dagster_ckpt.dagster.names import RESTORE_TAG
from tests.lab.lab import Lab, failure_text, lab
from tests.spark.epoch.small_pipeline import Feed, feed, read_lines, read_totals, shop

__all__ = ["feed", "lab"]

KEY = dg.AssetKey(["shop", "checkpoints"])


def check(lab: Lab, pipeline: CheckpointedPipeline, name: str, **config: Any) -> dg.AssetCheckEvaluation:
    """Execute one asset check as the UI's button does."""
    selection = dg.AssetSelection.checks(dg.AssetCheckKey(KEY, name))
    job = dg.define_asset_job("one_check", selection=selection, executor_def=dg.in_process_executor)
    merged = dg.Definitions.merge(lab.definitions(pipeline), dg.Definitions(jobs=[job]))
    ops = {f"shop__checkpoints_{name}": {"config": config}} if config else {}
    result = merged.resolve_job_def("one_check").execute_in_process(
        instance=lab.instance, run_config={"ops": ops}, raise_on_error=False
    )
    assert result.success, failure_text(result)
    [evaluation] = result.get_asset_check_evaluations()
    return evaluation


def restorable(lab: Lab) -> dict[str, str]:
    """What the newest observation of each partition says."""
    records = lab.instance.fetch_observations(KEY, limit=50, ascending=True).records
    found = [(r.partition_key, r.asset_observation) for r in records]
    return {
        key: str(seen.metadata["restorable"].value)
        for key, seen in found
        if key and seen is not None and "restorable" in seen.metadata
    }


def test_the_restore_job_runs_from_the_partition_chosen(lab: Lab, feed: Feed) -> None:
    pipeline = shop(feed.folder)
    lab.succeeds(pipeline)
    feed.order(("ann", 100))
    lab.succeeds(pipeline)

    result = lab.succeeds(pipeline, "shop_restore", partition="chk-000001", tags={"user": "ann"})
    [deed] = lab.audited(pipeline)
    assert (deed.what, deed.key, deed.who, deed.run_id) == ("restored", "chk-000001", "ann", result.run_id)
    assert deed.shown.startswith("restoring chk-000001, completed ")
    assert "1 row leaves" in deed.shown
    assert result.dagster_run.tags[RESTORE_TAG] == "chk-000001"
    assert result.dagster_run.tags["dagster_ckpt/pipeline"] == "shop"
    assert lab.record(pipeline).restored_id == 1
    feed.check(lab.tables)


def test_a_preview_shows_on_the_partition_what_a_restore_would_do_and_changes_nothing(
    lab: Lab, feed: Feed
) -> None:
    pipeline = shop(feed.folder)
    lab.succeeds(pipeline)
    feed.order(("ann", 100))
    lab.succeeds(pipeline)
    before = lab.record(pipeline)

    chosen = {"partition": "chk-000001", "restore_from": "chk-000001", "mode": "preview"}
    lab.succeeds(pipeline, "shop_restore", **chosen)
    [record] = lab.instance.fetch_observations(KEY, limit=5).records
    seen = record.asset_observation
    assert record.partition_key == "chk-000001"
    assert seen is not None
    assert seen.metadata["possible"].value is True
    tables = {r.data["stage"]: r.data for r in seen.metadata["tables"].value.records}  # type: ignore[union-attr]
    assert tables["lines"]["rows_leaving"] == 1
    stages = {r.data["stage"]: r.data for r in seen.metadata["stages"].value.records}  # type: ignore[union-attr]
    assert stages["matched"]["gets"] == "restored"
    assert lab.record(pipeline) == before
    assert read_lines(lab.tables) == feed.expected_lines()


def test_scheduled_savepoints_beyond_their_bounds_go_after_the_next_one_completed(
    lab: Lab, feed: Feed
) -> None:
    pipeline = shop(feed.folder)
    lab.succeeds(pipeline)
    config = {"labels": {"schedule": "nightly"}, "keep_last": 2}
    for _ in range(3):
        lab.succeeds(pipeline, job="shop_savepoint", ops={"savepoint": config})
    assert lab.partitions(pipeline) == ["chk-000001", "savepoint-000003", "savepoint-000004"]
    assert [s.checkpoint_id for s in lab.record(pipeline).savepoints] == [3, 4]


def disposed(**config: Any) -> dict[str, Any]:
    """Config of the job's op."""
    return {"savepoint": {"action": "dispose", **config}}


def test_the_savepoint_job_removes_a_savepoint_and_refuses_a_checkpoint(lab: Lab, feed: Feed) -> None:
    pipeline = shop(feed.folder)
    lab.succeeds(pipeline)
    lab.succeeds(pipeline, job="shop_savepoint")
    location = Path(str(lab.materializations(pipeline)[0].metadata["location"].value).removeprefix("file://"))
    assert (location / "_metadata").exists()

    lab.fails(pipeline, "is a checkpoint", job="shop_savepoint", ops=disposed(savepoint="chk-1"))
    tried = disposed(savepoint="savepoint-2", dry_run=True)
    lab.succeeds(pipeline, job="shop_savepoint", ops=tried)
    assert location.exists()
    lab.succeeds(pipeline, job="shop_savepoint", ops=disposed(savepoint="savepoint-2"))
    assert not location.exists()
    assert lab.partitions(pipeline) == ["chk-000001"]


# --- checks -----------------------------------------------------------------------------------------------------


def test_checks_pass_before_the_first_run(lab: Lab, feed: Feed) -> None:
    pipeline = shop(feed.folder)
    for name in ("succeeded", "age", "verified", "restorable"):
        assert check(lab, pipeline, f"checkpoint_{name}").passed


@pytest.mark.nightly
def test_a_checkpoint_is_restorable_when_spark_reads_all_of_it_and_starts_every_stage(
    lab: Lab, feed: Feed, spark: SparkSession
) -> None:
    pipeline = shop(feed.folder)
    lab.succeeds(pipeline)
    before = lab.record(pipeline)
    feed.order(("bob", 3))
    evaluation = check(lab, pipeline, "checkpoint_restorable")
    assert evaluation.passed, evaluation.description
    table = {r.data["stage"]: r.data for r in evaluation.metadata["stages"].records}
    assert table["matched"]["state_rows"] == 4, "two orders and two customers, kept by the join"
    assert table["totals"]["state_rows"] == 2
    assert table["matched"]["batches"] == 1, "the order that arrived since, read by the chain of both sources"
    assert restorable(lab) == {"chk-000001": "verified"}
    assert lab.record(pipeline) == before, "nothing of the pipeline was touched"
    assert not list(lab.coordinator.resolved_work_dir.glob("dry-run-*"))

    # the same state, as a notebook reads it with public names alone
    found = find_snapshot(lab.coordinator.deployment(), "latest", pipeline.name)
    assert verify_snapshot(found.stored).is_intact
    with open_state(spark, found.stored, "totals") as state:
        countries = {row["key"]["country"] for row in state.frame().collect()}
    assert countries == {"fr", "de"}

    assert lab.run(pipeline).success, "and it runs on"
    assert read_totals(lab.tables) == feed.expected_totals()


@pytest.mark.usefixtures("nothing_inlined")
def test_a_damaged_file_fails_both_checks_and_the_checkpoint_shows_as_broken(lab: Lab, feed: Feed) -> None:
    pipeline = shop(feed.folder)
    lab.succeeds(pipeline)
    assert check(lab, pipeline, "checkpoint_verified").passed
    storage = Path(lab.coordinator.resolved_checkpoint_dir)
    victim = max(
        (
            p
            for p in storage.rglob("*")
            if p.is_file() and "/matched/" in str(p) and p.name != "manifest.parquet"
        ),
        key=lambda p: p.stat().st_size,
    )
    content = victim.read_bytes()
    victim.unlink()
    victim.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    verified = check(lab, pipeline, "checkpoint_verified", checkpoint="chk-1")
    assert not verified.passed
    assert verified.metadata["problems"].value == 1
    [problem] = verified.metadata["broken_files"].records
    assert (problem.data["stage"], problem.data["problem"]) == ("matched", "damaged")
    tried = check(lab, pipeline, "checkpoint_restorable")
    assert not tried.passed
    assert victim.name in (tried.description or "")
    assert restorable(lab) == {"chk-000001": "broken"}


def test_every_check_shows_what_runs_reported(lab: Lab, feed: Feed) -> None:
    pipeline = shop(feed.folder)
    lab.succeeds(pipeline)
    succeeded = check(lab, pipeline, "checkpoint_succeeded")
    assert succeeded.passed
    assert succeeded.metadata["latest_completed"].value == 1
    age = check(lab, pipeline, "checkpoint_age")
    assert 0 <= float(age.metadata["age_s"].value) < 300  # type: ignore[arg-type]
