"""The store held against the storage."""

from __future__ import annotations

import pytest

from dagster_ckpt.core.checkpoint.record import CleanupRecord
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatus
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.paths import SnapshotLocation
from dagster_ckpt.errors import NotFound
from dagster_ckpt.operations.care.doctor import FindingKind, diagnose
from tests.operations.world import BASE, SALES, World, data_keys


def kinds(world: World, pipeline: PipelineId | None = None) -> list[FindingKind]:
    return [finding.kind for finding in diagnose(world.deployment, pipeline, now=1000.0).findings]


def test_a_healthy_deployment_has_no_findings(world: World) -> None:
    world.checkpoint(1)
    world.savepoint(2)
    found = diagnose(world.deployment, now=0.0)
    assert found.findings == ()
    assert found.is_healthy
    assert found.snapshots == 2


def test_missing_files_metadata_and_shortened_ones_are_found(world: World) -> None:
    world.query().commit(2).snapshot(2)
    world.checkpoint(1)
    second = world.savepoint(2)
    del world.savepoints.contents[f"{second.folder}/_metadata"]
    first = data_keys(world.checkpoint(3))[0]
    world.storage.contents[first] = b"short"
    found = diagnose(world.deployment, now=0.0)
    assert not found.is_healthy
    assert [(f.kind, f.what.split()[0]) for f in found.findings] == [
        (FindingKind.MISSING, "chk-000001"),
        (FindingKind.MISSING, "chk-000003"),
        (FindingKind.MISSING, "savepoint-000002"),
    ]
    assert "another size" in found.findings[0].message


def test_a_damaged_file_list_is_found(world: World) -> None:
    stored = world.savepoint(1)
    world.damage(world.savepoints, f"{stored.folder}/totals/manifest.parquet")
    assert kinds(world) == [FindingKind.DAMAGED]


def test_leftovers_and_strange_files_are_told_apart(world: World) -> None:
    world.checkpoint(1)
    world.checkpoint(2)
    world.over(1, CheckpointStatus.SUBSUMED)
    world.storage.create("sales/notes.txt", b"?")
    found = diagnose(world.deployment, now=0.0)
    assert [f.kind for f in found.findings] == [FindingKind.ORPHANED, FindingKind.UNKNOWN]
    orphaned = found.findings[0]
    assert orphaned.files > 0
    assert orphaned.bytes > 0
    assert found.is_healthy, "nobody is called for them at night"


def test_complete_snapshots_the_store_does_not_know_are_no_trouble(world: World) -> None:
    world.checkpoint(1)
    world.savepoint(2)
    world.change(completed=(), savepoints=())
    found = diagnose(world.deployment, now=0.0)
    assert [f.kind for f in found.findings] == [FindingKind.UNRECORDED] * 2
    assert found.is_healthy
    assert "dagster-ckpt import" in found.findings[0].advice


def test_a_checkpoint_past_its_deadline_and_waiting_deletions_are_told(world: World) -> None:
    world.checkpoint(1)
    location = SnapshotLocation(base_uri=BASE, folder="sales/chk-9")
    left = CleanupRecord(checkpoint_id=9, location=location, complete=True)
    world.pend(2, at=10.0, deadline=400.0, cleanup=(left,))
    found = diagnose(world.deployment, now=1000.0)
    assert [f.kind for f in found.findings] == [FindingKind.OVERDUE, FindingKind.PENDING_CLEANUP]
    assert "10 min ago" in found.findings[0].message
    assert found.is_healthy, "the next run ends it"
    assert kinds(world) == [f.kind for f in found.findings]
    assert [f.kind for f in diagnose(world.deployment, now=399.0).findings] == [FindingKind.PENDING_CLEANUP]


def test_an_unreadable_record_is_found_and_nothing_is_called_left_over_beside_it(world: World) -> None:
    world.checkpoint(1)
    world.checkpoint(2)
    world.over(1, CheckpointStatus.SUBSUMED)
    world.store.compare_and_set(PipelineId("other"), 0, "{")
    assert kinds(world) == [FindingKind.RECORD_UNREADABLE]
    assert kinds(world, SALES) == [FindingKind.RECORD_UNREADABLE]


def test_one_pipeline_can_be_looked_at_alone_and_an_unknown_one_is_not_found(world: World) -> None:
    world.checkpoint(1)
    assert diagnose(world.deployment, SALES, now=0.0).pipelines == (SALES,)
    with pytest.raises(NotFound, match="There are: sales"):
        diagnose(world.deployment, PipelineId("nobody"), now=0.0)
