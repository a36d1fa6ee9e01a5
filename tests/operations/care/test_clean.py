"""Only what is surely left over goes; what anybody may still need stays, whatever the store forgot."""

from __future__ import annotations

import pytest

from dagster_ckpt.core.checkpoint.record import CleanupRecord, ForgottenHistory
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatus
from dagster_ckpt.core.files.cleaning import Disposition
from dagster_ckpt.core.ids import CheckpointId, PipelineId
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.paths import SnapshotLocation
from dagster_ckpt.errors import Corrupt
from dagster_ckpt.operations.care.clean import carry_out_cleaning, plan_cleaning
from dagster_ckpt.operations.snapshots.contents import files_of, verify_snapshot
from dagster_ckpt.spark.snapshot.stored import open_snapshot
from dagster_ckpt.testing.faults import CrashAt
from dagster_ckpt.testing.faulty import FaultyStorage, SimulatedCrash
from tests.operations.world import BASE, SALES, SAVEPOINTS, World


def three_checkpoints(world: World) -> World:
    """chk-1 is subsumed, chk-2 and chk-3 are retained and share files with it."""
    world.query().commit(2).snapshot(2)
    world.checkpoint(1)
    world.checkpoint(2)
    world.checkpoint(3)
    world.over(1, CheckpointStatus.SUBSUMED)
    return world


def test_planning_changes_nothing(world: World) -> None:
    three_checkpoints(world)
    before = dict(world.storage.contents)
    plan = plan_cleaning(world.deployment, SALES)
    assert plan.files > 0
    assert world.storage.contents == before


def test_leftovers_of_a_subsumed_checkpoint_go_and_its_files_that_newer_ones_share_stay(world: World) -> None:
    three_checkpoints(world)
    plan = plan_cleaning(world.deployment, SALES)
    shared = {c.key for c in plan.classified if "/shared/totals/1/" in c.key}
    done = carry_out_cleaning(world.deployment, plan)
    assert done.files == plan.files
    assert done.bytes == plan.bytes > 0
    assert not [key for key in world.storage.contents if key.startswith("sales/chk-1/")]
    assert shared, "the first checkpoint uploaded files that later ones name again"
    for number in (2, 3):
        assert verify_snapshot(open_snapshot(world.storage, f"sales/chk-{number}")).is_intact
    assert plan_cleaning(world.deployment, SALES).files == 0


def test_leftovers_of_a_checkpoint_whose_row_has_left_the_history_go_too(world: World) -> None:
    three_checkpoints(world)
    planned = plan_cleaning(world.deployment, SALES).files
    version = world.store.load(SALES)
    assert version is not None
    record = world.record().model_copy(update={"forgotten": ForgottenHistory(rows=1, spans=((1, 2),))})
    world.store.compare_and_set(SALES, version.version, record.model_dump_json(), forgotten=[CheckpointId(1)])
    plan = plan_cleaning(world.deployment, SALES)
    assert plan.files == planned > 0
    carry_out_cleaning(world.deployment, plan)
    for number in (2, 3):
        assert verify_snapshot(open_snapshot(world.storage, f"sales/chk-{number}")).is_intact


def test_shared_files_go_with_the_last_checkpoint_that_named_them(world: World) -> None:
    three_checkpoints(world)
    world.query().snapshot(world.query().batches)
    world.checkpoint(4)
    world.over(2, CheckpointStatus.SUBSUMED)
    world.over(3, CheckpointStatus.DISCARDED)
    assert [key for key in world.storage.contents if "/shared/totals/1/" in key]
    carry_out_cleaning(world.deployment, plan_cleaning(world.deployment, SALES))
    assert not [key for key in world.storage.contents if "/shared/totals/1/" in key]
    assert verify_snapshot(open_snapshot(world.storage, "sales/chk-4")).is_intact


def test_metadata_goes_last(world: World) -> None:
    three_checkpoints(world)
    carry_out_cleaning(world.deployment, plan_cleaning(world.deployment, SALES))
    assert world.storage.deleted[-1] == "sales/chk-1/_metadata"


def test_the_verdicts_add_up_to_everything_that_is_stored(world: World) -> None:
    three_checkpoints(world)
    totals = plan_cleaning(world.deployment, SALES).totals()
    assert sum(files for files, _ in totals.values()) == len(world.storage.contents)
    assert sum(size for _, size in totals.values()) == sum(map(len, world.storage.contents.values()))


def test_unknown_files_and_those_of_unknown_checkpoints_stay(world: World) -> None:
    three_checkpoints(world)
    strange = ["sales/notes.txt", "sales/chk-99/totals/query/offsets/7", "sales/shared/totals/99/x"]
    for key in strange:
        world.storage.create(key, b"?")
    plan = plan_cleaning(world.deployment, SALES)
    carry_out_cleaning(world.deployment, plan)
    assert all(key in world.storage.contents for key in strange)
    verdicts = {c.key: c.disposition for c in plan.classified}
    assert {verdicts[key] for key in strange} == {Disposition.KEEP_UNKNOWN}


def test_a_failed_checkpoint_that_a_stage_may_still_write_stays(world: World) -> None:
    world.checkpoint(1)
    world.over(2, CheckpointStatus.FAILED)
    world.storage.create("sales/chk-2/totals/query/offsets/4", b"late")
    location = SnapshotLocation(base_uri=BASE, folder="sales/chk-2")
    cleanup = CleanupRecord(checkpoint_id=2, location=location, complete=False, writers=("totals",))
    world.change(cleanup=(cleanup,))
    assert plan_cleaning(world.deployment, SALES).files == 0
    world.change(cleanup=(cleanup.model_copy(update={"writers": ()}),))
    assert [c.key for c in plan_cleaning(world.deployment, SALES).removable] == [
        "sales/chk-2/totals/query/offsets/4"
    ]


def test_a_checkpoint_whose_completion_is_in_doubt_stays(world: World) -> None:
    world.checkpoint(1)
    world.over(2, CheckpointStatus.FAILED)
    world.storage.create("sales/chk-2/_metadata", b"{}")
    location = SnapshotLocation(base_uri=BASE, folder="sales/chk-2")
    world.change(
        cleanup=(CleanupRecord(checkpoint_id=2, location=location, complete=False, keep_files=True),)
    )
    plan = plan_cleaning(world.deployment, SALES)
    assert plan.files == 0


def test_a_complete_checkpoint_that_the_record_forgot_keeps_the_files_it_shares(world: World) -> None:
    """Retained on cancellation and forgotten: it can still be restored by its URI."""
    world.checkpoint(1)
    forgotten = world.checkpoint(2)
    world.over(1, CheckpointStatus.SUBSUMED)
    world.change(completed=())
    plan = plan_cleaning(world.deployment, SALES)
    assert [location.folder for location in plan.unrecorded] == ["sales/chk-2"]
    carry_out_cleaning(world.deployment, plan)
    assert verify_snapshot(forgotten).is_intact


def test_a_snapshot_whose_file_list_is_damaged_keeps_everything(world: World) -> None:
    three_checkpoints(world)
    world.damage(world.storage, "sales/chk-3/totals/manifest.parquet")
    plan = plan_cleaning(world.deployment, SALES)
    assert plan.files == 0
    assert "chk-3" in plan.obstacles[0]


def test_the_checkpoint_another_pipeline_was_forked_from_stays(world: World) -> None:
    world.checkpoint(1)
    entry = world.record().completed[0]
    world.over(1, CheckpointStatus.SUBSUMED)
    world.change(PipelineId("fork"), completed=(entry,))
    plan = plan_cleaning(world.deployment, SALES)
    assert plan.files == 0
    assert {c.disposition for c in plan.classified} == {Disposition.KEEP_REFERENCED}


def test_files_of_a_checkpoint_that_was_not_claimed_and_of_older_ones_stay(world: World) -> None:
    three_checkpoints(world)
    world.change(highest_not_claimed=1)
    assert plan_cleaning(world.deployment, SALES).files == 0


def test_an_unreadable_record_of_another_pipeline_forbids_cleaning(world: World) -> None:
    three_checkpoints(world)
    world.store.compare_and_set(PipelineId("other"), 0, '{"format_version": 99}')
    with pytest.raises(Corrupt):
        plan_cleaning(world.deployment, SALES)


def test_a_checkpoint_retained_since_the_plan_was_made_stays(world: World) -> None:
    three_checkpoints(world)
    entry = world.record().completed[0]
    plan = plan_cleaning(world.deployment, SALES)
    again = entry.model_copy(
        update={"checkpoint_id": 1, "location": SnapshotLocation(base_uri=BASE, folder="sales/chk-1")}
    )
    world.change(completed=(again, *world.record().completed))
    assert carry_out_cleaning(world.deployment, plan).files == 0


def test_the_folder_of_a_failed_savepoint_goes_and_that_of_a_complete_one_stays(world: World) -> None:
    whole = world.savepoint(1, suffix="aaaaaa")
    world.savepoints.create("savepoint-sales-bbbbbb/totals/query/offsets/1", b"half")
    world.over(
        2,
        CheckpointStatus.FAILED,
        kind=CheckpointKind.SAVEPOINT,
        path=f"{SAVEPOINTS}/savepoint-sales-bbbbbb",
    )
    world.over(
        3, CheckpointStatus.FAILED, kind=CheckpointKind.SAVEPOINT, path=f"{SAVEPOINTS}/savepoint-sales-aaaaaa"
    )
    plan = plan_cleaning(world.deployment, SALES)
    assert [f.folder for f in plan.folders] == ["savepoint-sales-bbbbbb"]
    assert carry_out_cleaning(world.deployment, plan).bytes == len(b"half")
    assert verify_snapshot(whole).is_intact


def test_killed_at_any_call_a_cleaning_harms_no_snapshot_and_the_next_one_finishes(world: World) -> None:
    calls = 1
    while True:
        one = three_checkpoints(World(world.folder / str(calls)))
        crash = CrashAt(calls)
        real = one.storage
        one.storages[BASE] = FaultyStorage(real, crash)
        try:
            carry_out_cleaning(one.deployment, plan_cleaning(one.deployment, SALES))
        except SimulatedCrash:
            one.storages[BASE] = real
        for number in (2, 3):
            stored = open_snapshot(real, f"sales/chk-{number}")
            assert verify_snapshot(stored).is_intact
            assert files_of(stored).keys <= real.contents.keys()
        one.storages[BASE] = real
        carry_out_cleaning(one.deployment, plan_cleaning(one.deployment, SALES))
        assert not [key for key in real.contents if key.startswith("sales/chk-1/")]
        if not crash.crashed:
            break
        calls += 1
    assert calls > 5
