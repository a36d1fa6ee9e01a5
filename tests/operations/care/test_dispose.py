"""A savepoint goes only when nobody needs it, and only with the files its own lists name."""

from __future__ import annotations

from contextlib import suppress

import pytest

from dagster_ckpt.core.config import CheckpointConfig, ClaimMode
from dagster_ckpt.core.ids import CoordinatorEpoch, PipelineId
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.request import RunStatus, restored_properties
from dagster_ckpt.core.restore.facts import RestoreLine
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound
from dagster_ckpt.operations.care.clean import dispose_savepoint, plan_disposal
from dagster_ckpt.operations.deployment import InUse
from dagster_ckpt.operations.snapshots.catalog import SnapshotStatus, list_history
from dagster_ckpt.operations.snapshots.contents import verify_snapshot
from dagster_ckpt.testing.faults import CrashAt
from dagster_ckpt.testing.faulty import FaultyStorage, FaultyStore, SimulatedCrash
from tests.operations.world import SALES, SAVEPOINTS, World


def test_a_plan_changes_nothing_and_names_files_and_bytes(world: World) -> None:
    world.savepoint(1)
    before = dict(world.savepoints.contents)
    plan = plan_disposal(world.deployment, "savepoint-1", SALES)
    assert set(plan.keys) == set(before)
    assert plan.bytes == sum(map(len, before.values()))
    assert world.savepoints.contents == before


def test_a_disposed_savepoint_is_gone_from_store_and_storage_and_stays_in_the_history(world: World) -> None:
    world.checkpoint(1)
    world.savepoint(2)
    done = dispose_savepoint(world.deployment, plan_disposal(world.deployment, "savepoint-2", SALES))
    assert done.files > 0
    assert world.savepoints.contents == {}
    assert world.record().savepoints == ()
    assert world.record().cleanup == ()
    assert [s.status for s in list_history(world.deployment, SALES)] == [
        SnapshotStatus.DISCARDED,
        SnapshotStatus.RETAINED,
    ]
    with pytest.raises(NotFound):
        plan_disposal(world.deployment, "savepoint-2", SALES)


def test_the_record_forgets_it_before_its_first_file_goes(world: World) -> None:
    world.savepoint(1)
    plan = plan_disposal(world.deployment, "savepoint-1", SALES)
    crash = CrashAt(2)
    real = world.savepoints
    world.storages[SAVEPOINTS] = FaultyStorage(real, crash)
    with pytest.raises(SimulatedCrash):
        dispose_savepoint(world.deployment, plan)
    assert world.record().savepoints == ()
    assert [c.checkpoint_id for c in world.record().cleanup] == [1], "the next attempt finishes it"
    assert set(real.contents) == set(plan.keys)


def test_files_it_does_not_name_are_left_and_reported(world: World) -> None:
    stored = world.savepoint(1)
    world.savepoints.create(f"{stored.folder}/README", b"mine")
    plan = plan_disposal(world.deployment, "savepoint-1", SALES)
    assert plan.unknown == (f"{stored.folder}/README",)
    dispose_savepoint(world.deployment, plan)
    assert list(world.savepoints.contents) == [f"{stored.folder}/README"]


def test_a_checkpoint_is_not_disposed_of_by_hand(world: World) -> None:
    world.checkpoint(1)
    with pytest.raises(InvalidRequest, match="is a checkpoint: the coordinator deletes it"):
        plan_disposal(world.deployment, "chk-1", SALES)


def test_a_savepoint_whose_file_list_is_damaged_is_not_touched(world: World) -> None:
    stored = world.savepoint(1)
    world.damage(world.savepoints, f"{stored.folder}/totals/manifest.parquet")
    with pytest.raises(Corrupt):
        plan_disposal(world.deployment, "savepoint-1", SALES)


def restored_from(world: World, pipeline: PipelineId, mode: ClaimMode) -> None:
    """What the record of a pipeline holds after it was restored from savepoint 1."""
    entry = world.record().savepoints[0]
    properties = restored_properties(mode, CheckpointConfig())
    taken = entry.model_copy(update={"properties": properties, "taken_as": entry.known.kind, "epoch": 2})
    record = world.record(pipeline)
    world.change(
        pipeline,
        epoch=2,
        completed=(*record.completed, taken),
        line=RestoreLine(since=CoordinatorEpoch(2), base=taken.known),
    )


@pytest.mark.parametrize("pipeline", [SALES, PipelineId("fork")])
def test_a_savepoint_that_a_pipeline_was_just_restored_from_is_in_use(
    world: World, pipeline: PipelineId
) -> None:
    world.savepoint(1)
    restored_from(world, pipeline, ClaimMode.NO_CLAIM)
    with pytest.raises(
        InUse, match=f"'{pipeline}' was restored from it and has completed no checkpoint since"
    ):
        plan_disposal(world.deployment, "savepoint-1", SALES)


def test_it_is_free_when_the_pipeline_has_completed_a_checkpoint_of_its_own(world: World) -> None:
    world.savepoint(1)
    restored_from(world, SALES, ClaimMode.NO_CLAIM)
    world.checkpoint(2)
    world.change(completed=tuple(c.model_copy(update={"epoch": 2}) for c in world.record().completed))
    dispose_savepoint(world.deployment, plan_disposal(world.deployment, "savepoint-1", SALES))
    assert [c.checkpoint_id for c in world.record().completed] == [2]


@pytest.mark.parametrize("status", [RunStatus.FINISHED, RunStatus.FAILED])
def test_the_savepoint_of_a_stop_is_in_use_until_the_run_has_ended(world: World, status: RunStatus) -> None:
    world.savepoint(1)
    [entry] = world.record().savepoints
    kind = CheckpointKind.SYNC_SAVEPOINT_SUSPEND
    stop = entry.model_copy(update={"properties": entry.properties.model_copy(update={"kind": kind})})
    world.change(status=RunStatus.RUNNING, status_epoch=1, savepoints=(stop,))
    with pytest.raises(InUse, match="the run of pipeline 'sales' ends with it"):
        plan_disposal(world.deployment, "savepoint-1", SALES)
    world.change(status=status)
    dispose_savepoint(world.deployment, plan_disposal(world.deployment, "savepoint-1", SALES))
    assert world.savepoints.contents == {}


@pytest.mark.parametrize("mode", [ClaimMode.CLAIM, ClaimMode.LEGACY])
def test_one_that_later_checkpoints_may_build_on_is_in_use_until_it_is_let_go(
    world: World, mode: ClaimMode
) -> None:
    world.savepoint(1)
    restored_from(world, SALES, mode)
    world.checkpoint(2)
    world.change(completed=tuple(c.model_copy(update={"epoch": 2}) for c in world.record().completed))
    with pytest.raises(InUse, match="took it over"):
        plan_disposal(world.deployment, "savepoint-1", SALES)


def test_a_savepoint_restored_between_plan_and_disposal_is_not_touched(world: World) -> None:
    world.savepoint(1)
    plan = plan_disposal(world.deployment, "savepoint-1", SALES)
    restored_from(world, SALES, ClaimMode.NO_CLAIM)
    with pytest.raises(InUse, match="just restored"):
        dispose_savepoint(world.deployment, plan)
    assert set(world.savepoints.contents) == set(plan.keys)


def test_a_savepoint_the_store_does_not_know_goes_by_its_uri(world: World) -> None:
    stored = world.savepoint(1)
    world.change(savepoints=())
    uri = f"{SAVEPOINTS}/{stored.folder}"
    plan = plan_disposal(world.deployment, uri)
    assert not plan.is_recorded
    dispose_savepoint(world.deployment, plan)
    assert world.savepoints.contents == {}


def test_killed_at_any_call_it_is_either_restorable_or_forgotten_and_can_be_finished(world: World) -> None:
    number = 1
    while True:
        one = World(world.folder / str(number))
        stored = one.savepoint(1)
        plan = plan_disposal(one.deployment, "savepoint-1", SALES)
        crash = CrashAt(number)
        store, storage = one.store, one.savepoints
        one.store, one.storages[SAVEPOINTS] = FaultyStore(store, crash), FaultyStorage(storage, crash)
        with suppress(SimulatedCrash):
            dispose_savepoint(one.deployment, plan)
        one.store, one.storages[SAVEPOINTS] = store, storage
        if one.record().savepoints:
            assert verify_snapshot(stored).is_intact
            again = plan_disposal(one.deployment, "savepoint-1", SALES)
        elif f"{stored.folder}/_metadata" in storage.contents:
            again = plan_disposal(one.deployment, f"{SAVEPOINTS}/{stored.folder}")
        else:
            again = None
        if again is not None:
            dispose_savepoint(one.deployment, again)
        assert storage.contents == {}
        if not crash.crashed:
            break
        number += 1
    assert number > 4
