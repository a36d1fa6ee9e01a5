"""How the checkpoints asset shows in the catalog, and what a materialization of it says."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import dagster as dg
import pytest

from dagster_ckpt import PipelineOptions, checkpoints_asset_key
from dagster_ckpt.core.checkpoint.record import TriggerRecord
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics, CheckpointStatus
from dagster_ckpt.core.model import CheckpointKind, CheckpointMetadata, SnapshotMetrics, StageSnapshot
from dagster_ckpt.dagster.reports.asset import completed_metadata, history_metadata
from tests.dagster.conftest import Site

NO_BREAK = "\u00a0"
OPTIONS = PipelineOptions(
    group_name="streams",
    owners=["team:shop", "ann@example.com"],
    tags={"tier": "1"},
    max_checkpoint_age=timedelta(hours=2),
    report="all",
)


@pytest.fixture
def site(site: Site) -> Site:
    return replace(site, options=OPTIONS)


def test_it_has_kinds_tags_owners_group_and_freshness(site: Site) -> None:
    specs = {spec.key: spec for spec in site.definitions.resolve_all_asset_specs()}
    spec = specs[checkpoints_asset_key(site.pipeline.name)]
    assert spec.kinds == {"spark", "checkpoint"}
    assert spec.tags["dagster_ckpt/pipeline"] == "shop"
    assert spec.tags["tier"] == "1"
    assert list(spec.owners) == ["team:shop", "ann@example.com"]
    assert spec.group_name == "streams"
    assert spec.freshness_policy == dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=2))
    assert isinstance(spec.partitions_def, dg.DynamicPartitionsDefinition)


def test_freshness_is_for_those_whose_every_checkpoint_is_a_materialization(site: Site) -> None:
    """Dagster takes it from materializations, and an idle pipeline's checkpoints are none."""
    quiet = replace(site, options=replace(OPTIONS, report="changed"))
    specs = {spec.key: spec for spec in quiet.definitions.resolve_all_asset_specs()}
    assert specs[checkpoints_asset_key(site.pipeline.name)].freshness_policy is None


def test_numbers_are_numbers_so_that_they_plot_and_the_worst_stage_counts() -> None:
    stages = tuple(
        StageSnapshot(
            uid=uid,
            parallelism=2,
            batch_id=7,
            metrics=SnapshotMetrics(
                bytes_full=100, bytes_new=10, alignment_ms=wait, sync_ms=1.0, async_ms=9.0
            ),
        )
        for uid, wait in (("orders", 0.0), ("totals", 42.04))
    )
    metadata = CheckpointMetadata(
        pipeline="shop",
        checkpoint_id=31,
        kind=CheckpointKind.SAVEPOINT,
        epoch=2,
        triggered_at=100.0,
        completed_at=100.25,
        stages=stages,
        run_id="r",
        name="before",
        note="Spark 4.4",
        labels={"ticket": "118"},
    )
    shown = completed_metadata(metadata, location="file:///x", link="/go", page="http://pages/shop")
    plain = {name: value.value for name, value in shown.items() if name not in ("stages", "run")}
    assert plain == {
        "restore": "[Restore from savepoint-000031 →](/go)",
        "snapshot": "savepoint-000031 · before · 1970-01-01 00:01:40 UTC",
        "took": "250 ms (alignment 42 ms, sync 1 ms, async 9 ms)",
        "size": "200 B, 20 B of it new",
        "name": "before",
        "note": "Spark 4.4",
        "labels": {"ticket": "118"},
        "restorable": "not yet verified",
        "kind": "savepoint",
        "attempt": "2",
        "location": "file:///x",
        "duration_s": 0.25,
        "alignment_s": 0.042,
        "bytes_full": 200,
        "bytes_new": 20,
    }
    assert list(shown)[:5] == ["restore", "snapshot", "took", "size", "name"], "the most important first"
    assert str(shown["stages"].value).replace(NO_BREAK, "_").splitlines() == [
        "|stage|batch|subtasks|size|new|alignment|sync|async|",
        "|---|---|---|---|---|---|---|---|",
        "|`orders`|7|2|100_B|10_B|0_ms|1_ms|9_ms|",
        "|`totals`|7|2|100_B|10_B|42_ms|1_ms|9_ms|",
    ]
    assert isinstance(shown["run"], dg.DagsterRunMetadataValue)


def test_the_history_is_one_table_with_a_link_to_the_page() -> None:
    rows = [
        CheckpointStatistics(
            checkpoint_id=number,
            kind=kind,
            status=status,
            trigger=TriggerRecord(periodic=not name, name=name),
            triggered_at=100.0 + number,
            ended_at=100.5 + number,
            failure_reason="CHECKPOINT_DECLINED" if status is CheckpointStatus.FAILED else "",
            failure_message="a | b\nc" if status is CheckpointStatus.FAILED else "",
        )
        for number, kind, status, name in (
            (8, CheckpointKind.CHECKPOINT, CheckpointStatus.FAILED, ""),
            (7, CheckpointKind.SAVEPOINT, CheckpointStatus.COMPLETED, "before Tuesday"),
        )
    ]
    shown = history_metadata(rows, page="http://pages/shop", now=168.0)
    assert str(shown["history"].value).replace(NO_BREAK, " ").splitlines() == [
        "|snapshot|triggered|status|took|size|new|what went wrong|",
        "|---|---|---|---|---|---|---|",
        "|`chk-000008`|00:01:48, 1 min ago|failed|500 ms|0 B|0 B|CHECKPOINT_DECLINED a \\| b c|",
        "|`savepoint-000007` before Tuesday|00:01:47, 1 min ago|completed|500 ms|0 B|0 B||",
    ]
    assert shown["page"].value == "http://pages/shop"
    assert history_metadata([]) == {}
