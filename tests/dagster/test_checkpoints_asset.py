"""How the checkpoints asset shows in the catalog, and what a materialization of it says."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import dagster as dg
import pytest

from dagster_ckpt import PipelineOptions, checkpoints_asset_key
from dagster_ckpt.core.model import CheckpointKind, CheckpointMetadata, SnapshotMetrics, StageSnapshot
from dagster_ckpt.dagster.asset import completed_metadata
from tests.dagster.conftest import Site

OPTIONS = PipelineOptions(
    group_name="streams",
    owners=["team:shop", "ann@example.com"],
    tags={"tier": "1"},
    max_checkpoint_age=timedelta(hours=2),
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
    shown = completed_metadata(metadata, location="file:///x", link="/go")
    plain = {name: value.value for name, value in shown.items() if name not in ("stages", "run")}
    assert plain == {
        "checkpoint": 31,
        "kind": "savepoint",
        "restore": "[Restore from savepoint-000031 →](/go)",
        "duration_ms": 250.0,
        "alignment_ms": 42.0,
        "sync_ms": 1.0,
        "async_ms": 9.0,
        "bytes_full": 200,
        "bytes_new": 20,
        "triggered_at": 100.0,
        "completed_at": 100.25,
        "attempt": 2,
        "location": "file:///x",
        "restorable": "not yet verified",
        "name": "before",
        "note": "Spark 4.4",
        "labels": {"ticket": "118"},
    }
    table = shown["stages"]
    assert isinstance(table, dg.TableMetadataValue)
    assert [(r.data["stage"], r.data["batch"], r.data["subtasks"]) for r in table.records] == [
        ("orders", "7", 2),
        ("totals", "7", 2),
    ]
    assert isinstance(shown["run"], dg.DagsterRunMetadataValue)
