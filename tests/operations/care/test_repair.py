"""A coordinator store that was lost or put back, built again from the storage."""

from __future__ import annotations

import pytest

from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.operations.care.doctor import FindingKind, diagnose
from dagster_ckpt.operations.care.repair import repair_store
from dagster_ckpt.operations.snapshots.catalog import find_snapshot, list_snapshots
from dagster_ckpt.testing.memory import MemoryCoordinatorStore
from tests.operations.world import SALES, World
from tests.records import find_record


def kinds(world: World) -> list[FindingKind]:
    return [finding.kind for finding in diagnose(world.deployment, now=0.0).findings]


def test_a_lost_store_is_told_and_built_again_with_every_snapshot(world: World) -> None:
    for number in (1, 2):
        world.checkpoint(number)
    world.savepoint(3)
    before = {one.key for one in list_snapshots(world.deployment, SALES)}
    world.store = MemoryCoordinatorStore()
    (finding,) = [
        f for f in diagnose(world.deployment, now=0.0).findings if f.kind is FindingKind.LOST_RECORD
    ]
    assert "doctor sales --repair" in finding.advice
    (done,) = repair_store(world.deployment)
    assert set(done.added) == before == {one.key for one in list_snapshots(world.deployment, SALES)}
    assert done.next_id == 4
    assert find_snapshot(world.deployment, "latest", SALES).key == "chk-000002"
    record = find_record(world.store, SALES)
    assert record is not None
    assert (record.is_rebuilt, record.epoch, record.working_directory) == (True, 1, "")
    assert kinds(world) == []
    assert repair_store(world.deployment) == ()


def test_a_store_that_was_put_back_is_told_and_brought_up_to_the_storage(world: World) -> None:
    world.checkpoint(1)
    stored = world.store.load(SALES)
    assert stored is not None
    world.checkpoint(2)
    world.store = MemoryCoordinatorStore()
    world.store.compare_and_set(SALES, 0, stored.body, ())
    assert FindingKind.BEHIND in kinds(world)
    (done,) = repair_store(world.deployment, SALES)
    assert (done.added, done.next_id) == (("chk-000002",), 3)
    assert FindingKind.BEHIND not in kinds(world)


def test_nothing_can_be_built_from_an_empty_storage(world: World) -> None:
    with pytest.raises(InvalidRequest, match="holds no readable snapshot of pipeline 'other'"):
        repair_store(world.deployment, PipelineId("other"))
