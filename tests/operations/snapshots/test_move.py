"""Savepoints move between storages and deployments: whole, verified, under a number that is free."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from dagster_ckpt.core import paths
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatus
from dagster_ckpt.core.ids import LARGEST_NUMBER, CheckpointId, StageUid
from dagster_ckpt.core.metadata_text import encode_metadata
from dagster_ckpt.core.model import CheckpointKind, LabelChanges, StageSnapshot, TableSnapshot
from dagster_ckpt.errors import Corrupt, InvalidRequest, Unavailable
from dagster_ckpt.operations.care.repair import find_outside
from dagster_ckpt.operations.deployment import ByteProgress
from dagster_ckpt.operations.readers.load_table import cut_of
from dagster_ckpt.operations.snapshots.catalog import SnapshotStatus, find_snapshot, list_history
from dagster_ckpt.operations.snapshots.contents import files_of, verify_snapshot
from dagster_ckpt.operations.snapshots.export import EXPORTED_FROM, CopyChanges, export_snapshot
from dagster_ckpt.operations.snapshots.registration import ImportMode, import_snapshot
from dagster_ckpt.spark.snapshot.restore import build_stage_directory
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot, open_snapshot
from dagster_ckpt.testing.faults import CrashAt
from dagster_ckpt.testing.faulty import FaultyStorage, FaultyStore, SimulatedCrash
from tests.operations.world import BASE, SALES, SAVEPOINTS, World, data_keys

ELSEWHERE = "memory://elsewhere"


def restored_files(stored: StoredSnapshot, world: World, name: str) -> dict[str, bytes]:
    target = world.folder / name
    (stage,) = stored.metadata.stages
    build_stage_directory(stored, stage, target_dir=target)
    return {str(p.relative_to(target)): p.read_bytes() for p in target.rglob("*") if p.is_file()}


def test_an_exported_checkpoint_is_a_savepoint_that_restores_to_the_same_files(world: World) -> None:
    world.checkpoint(1)
    world.query().snapshot(2)
    original = world.checkpoint(2)
    told: list[ByteProgress] = []
    done = export_snapshot(original, world.open(ELSEWHERE), progress=told.append)
    expected = restored_files(original, world, "original")
    world.storage.contents.clear()
    copy = open_snapshot(world.open(ELSEWHERE), done.location.folder)
    assert copy.metadata.kind is CheckpointKind.SAVEPOINT
    assert verify_snapshot(copy).is_intact
    assert restored_files(copy, world, "copy") == expected
    assert told[-1].done == told[-1].total == done.bytes
    assert all(key.startswith(f"{done.location.folder}/") for key in files_of(copy).keys)


def test_a_copy_says_where_it_came_from_and_what_it_was_given(world: World) -> None:
    original = world.savepoint(4, name="old", labels={"team": "a"})
    done = export_snapshot(
        original,
        world.open(ELSEWHERE),
        changes=CopyChanges(label=LabelChanges(note="for the new site", labels={"why": "move"})),
    )
    metadata = done.metadata
    assert (metadata.name, metadata.note) == ("old", "for the new site")
    assert metadata.labels == {
        "team": "a",
        "why": "move",
        EXPORTED_FROM: f"{SAVEPOINTS}/{original.folder}",
    }
    assert metadata.checkpoint_id == 4


def test_a_damaged_original_is_not_copied_and_nothing_of_the_copy_is_left(world: World) -> None:
    world.query().commit(2).snapshot(2)
    original = world.checkpoint(1)
    world.damage(world.storage, data_keys(original)[-1])
    with pytest.raises(Corrupt, match="Nothing was kept of the copy"):
        export_snapshot(original, world.open(ELSEWHERE))
    assert world.open(ELSEWHERE).contents == {}


def test_a_copy_that_was_killed_never_looks_complete(world: World) -> None:
    world.query().commit(2).snapshot(2)
    original = world.checkpoint(1)
    number = 1
    while True:
        target = world.open(f"memory://target-{number}")
        crash = CrashAt(number)
        try:
            export_snapshot(original, FaultyStorage(target, crash), parallelism=1)
        except SimulatedCrash:
            complete = [key for key in target.contents if key.endswith("/_metadata")]
            assert complete == [], f"killed at call {number}"
        if not crash.crashed:
            break
        number += 1
    assert number > 4


def test_taken_names_are_stepped_past_and_ten_of_them_are_too_many(world: World) -> None:
    original = world.savepoint(1)
    target = world.open(ELSEWHERE)
    target.create("savepoint-sales-aaaaaa/x", b"")
    names = iter(["aaaaaa", "bbbbbb"])
    done = export_snapshot(original, target, suffix=lambda: next(names))
    assert done.location.folder == "savepoint-sales-bbbbbb"
    with pytest.raises(Unavailable, match="10 names"):
        export_snapshot(original, target, suffix=lambda: "aaaaaa")


def test_a_stage_that_acknowledged_per_subtask_is_not_copied(world: World) -> None:
    original = world.savepoint(1)
    (stage,) = original.metadata.stages
    foreign = stage.model_copy(update={"subtask_handles": stage.manifest})
    stored = StoredSnapshot(
        storage=original.storage,
        folder=original.folder,
        metadata=original.metadata.model_copy(update={"stages": (foreign,)}),
    )
    with pytest.raises(InvalidRequest, match="subtask by subtask"):
        export_snapshot(stored, world.open(ELSEWHERE))


def test_a_stage_without_files_is_copied_as_it_is(world: World) -> None:
    world.query().commit(1)
    empty = StageSnapshot(uid="idle", parallelism=1)
    original = world.savepoint(1, others=(empty,))
    done = export_snapshot(original, world.open(ELSEWHERE))
    assert done.metadata.stage("idle") == empty


# --- import -------------------------------------------------------------------------------------------------


def exported(world: World, number: int = 7) -> str:
    """URI of a savepoint that another deployment has exported."""
    other = World(world.folder / "other")
    other.storages = world.storages
    return export_snapshot(other.savepoint(number), world.open(ELSEWHERE)).uri


def test_an_imported_savepoint_is_a_copy_the_coordinator_knows(world: World) -> None:
    world.checkpoint(1)
    uri = exported(world)
    done = import_snapshot(world.deployment, uri, label=LabelChanges(name="moved"))
    assert done.key == "savepoint-000007"
    world.open(ELSEWHERE).contents.clear()
    found = find_snapshot(world.deployment, "savepoint-7", SALES)
    assert verify_snapshot(found.stored).is_intact
    assert found.stored.metadata.name == "moved"
    assert world.record().next_id == 8, "its number is never given again"
    newest = list_history(world.deployment, SALES)[0]
    assert (newest.status, newest.key, newest.name) == (SnapshotStatus.SAVEPOINT, done.key, "moved")


def test_latest_does_not_go_to_an_imported_savepoint(world: World) -> None:
    world.checkpoint(1)
    import_snapshot(world.deployment, exported(world))
    assert find_snapshot(world.deployment, "latest", SALES).key == "chk-000001"


def test_a_fresh_store_takes_an_import_as_the_pipelines_first_snapshot(world: World) -> None:
    done = import_snapshot(world.deployment, exported(world))
    assert [s.checkpoint_id for s in world.record().savepoints] == [done.checkpoint_id]


def test_a_number_that_means_another_snapshot_here_is_not_taken_twice(world: World) -> None:
    uri = exported(world, number=1)
    world.checkpoint(1)
    done = import_snapshot(world.deployment, uri)
    assert done.checkpoint_id == 2
    assert find_snapshot(world.deployment, "savepoint-2", SALES).stored.metadata.checkpoint_id == 2
    assert find_snapshot(world.deployment, "chk-1", SALES).stored.metadata.kind is CheckpointKind.CHECKPOINT


def test_a_copy_under_another_number_says_by_which_one_sinks_know_its_rows(world: World) -> None:
    """A restore took what a database had published since for rows of the copy, whose number was higher."""
    original = world.checkpoint(1)
    world.checkpoint(2)
    plain = export_snapshot(original, world.open(ELSEWHERE))
    assert (plain.metadata.checkpoint_id, plain.metadata.first_number) == (1, None)
    content = world.open(ELSEWHERE).read(paths.metadata(plain.location.folder))
    assert b"first_number" not in content, "versions before it read it"
    done = import_snapshot(world.deployment, plain.uri)
    assert done.key == "savepoint-000003"
    stored = find_snapshot(world.deployment, done.key, SALES).stored
    assert stored.metadata.number_at_sinks == 1
    (stage,) = stored.metadata.stages
    cut = cut_of(stored, stage, TableSnapshot(uri="/table", head=None))
    assert cut.checkpoint_id == 1
    again = export_snapshot(
        stored, world.open(ELSEWHERE), changes=CopyChanges(numbered=lambda: CheckpointId(9))
    )
    assert (again.metadata.checkpoint_id, again.metadata.number_at_sinks) == (9, 1)
    back = export_snapshot(
        stored, world.open(ELSEWHERE), changes=CopyChanges(numbered=lambda: CheckpointId(1))
    )
    assert back.metadata.first_number is None


def test_a_savepoint_that_comes_back_keeps_its_number(world: World) -> None:
    uri = export_snapshot(world.savepoint(3), world.open(ELSEWHERE)).uri
    world.checkpoint(4)
    world.change(savepoints=())
    assert import_snapshot(world.deployment, uri).checkpoint_id == 3


def test_a_number_that_failed_here_at_another_time_is_not_taken(world: World) -> None:
    uri = exported(world, number=1)
    world.over(1, CheckpointStatus.FAILED)
    world.write(world.record(), replace(world.row(1, CheckpointStatus.FAILED), triggered_at=99.0))
    assert import_snapshot(world.deployment, uri).checkpoint_id == 2


@pytest.mark.parametrize("number", [LARGEST_NUMBER // 2 + 1, LARGEST_NUMBER])
def test_a_number_without_room_behind_it_is_not_taken_over(world: World, number: int) -> None:
    uri = exported(world)
    storage, folder = world.open(ELSEWHERE), uri.rpartition("/")[2]
    found = open_snapshot(storage, folder).metadata
    given = found.model_copy(update={"checkpoint_id": number, "epoch": LARGEST_NUMBER})
    storage.contents[paths.metadata(folder)] = encode_metadata(given)
    with pytest.raises(InvalidRequest, match="too high to count on from: copy it"):
        import_snapshot(world.deployment, uri, mode=ImportMode.REFERENCE)
    done = import_snapshot(world.deployment, uri)
    assert done.checkpoint_id < 10
    assert world.record().next_id == done.checkpoint_id + 1
    assert find_snapshot(world.deployment, done.key, SALES).stored.metadata.number_at_sinks == number
    for name in (str(number), "9" * 5000):
        world.storage.contents[f"sales/chk-{name}/x"] = b"a folder of any name"
        assert paths.CheckpointPaths(SALES).shared_creator(f"sales/shared/totals/{name}/x") is None
    assert find_outside(world.deployment)[SALES].highest_id == 7


def test_a_copy_that_fails_has_taken_no_number(world: World) -> None:
    uri = exported(world)
    before = world.record().next_id
    storage = world.open(ELSEWHERE)
    world.damage(storage, paths.manifest(uri.rpartition("/")[2], StageUid("totals")))
    with pytest.raises(Corrupt):
        import_snapshot(world.deployment, uri)
    assert world.record().next_id == before


def test_a_referenced_savepoint_stays_where_it_is(world: World) -> None:
    uri = exported(world)
    world.savepoints.contents.clear()
    done = import_snapshot(world.deployment, uri, mode=ImportMode.REFERENCE)
    assert done.location.uri == uri
    assert world.savepoints.contents == {}
    assert find_snapshot(world.deployment, done.key, SALES).location.uri == uri


def test_a_damaged_savepoint_is_not_referenced(world: World) -> None:
    uri = exported(world)
    target = world.open(ELSEWHERE)
    key = next(k for k in target.contents if k.endswith("manifest.parquet"))
    world.damage(target, key)
    with pytest.raises(Corrupt, match="not whole"):
        import_snapshot(world.deployment, uri, mode=ImportMode.REFERENCE)
    assert world.store.load(SALES) is None


def test_a_checkpoint_is_copied_but_never_referenced(world: World) -> None:
    other = World(world.folder / "other", storages={})
    world.storages["memory://theirs"] = other.storage
    other.storage.base_uri = "memory://theirs"
    other.checkpoint(5)
    with pytest.raises(InvalidRequest, match="is a checkpoint"):
        import_snapshot(world.deployment, "memory://theirs/sales/chk-5", mode=ImportMode.REFERENCE)
    assert import_snapshot(world.deployment, "memory://theirs/sales/chk-5").key == "savepoint-000005"


def test_what_the_store_knows_already_is_not_imported(world: World) -> None:
    world.checkpoint(1)
    with pytest.raises(InvalidRequest, match="is chk-000001"):
        import_snapshot(world.deployment, f"{BASE}/sales/chk-1")
    with pytest.raises(InvalidRequest, match="no place"):
        import_snapshot(world.deployment, "chk-1")


def test_killed_at_any_call_an_import_is_whole_or_unknown_to_the_store(world: World) -> None:
    uri = exported(world)
    number = 1
    while True:
        one = World(world.folder / str(number), storages={ELSEWHERE: world.open(ELSEWHERE)})
        crash = CrashAt(number)
        store, storage = one.store, one.savepoints
        one.store, one.storages[SAVEPOINTS] = FaultyStore(store, crash), FaultyStorage(storage, crash)
        with suppress(SimulatedCrash):
            import_snapshot(one.deployment, uri)
        one.store, one.storages[SAVEPOINTS] = store, storage
        for entry in one.record().savepoints:
            assert verify_snapshot(open_snapshot(storage, entry.location.folder)).is_intact
        if not crash.crashed:
            break
        if not one.record().savepoints:
            assert import_snapshot(one.deployment, uri).key in ("savepoint-000007", "savepoint-000008")
        number += 1
    assert number > 6
