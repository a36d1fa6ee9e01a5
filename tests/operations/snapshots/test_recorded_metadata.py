"""A ``_metadata`` that says something else than when it was recorded is refused by whoever reads it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dagster_ckpt.core.metadata_text import decode_metadata, encode_metadata
from dagster_ckpt.core.model import CheckpointMetadata, LabelChanges, StageSnapshot, TableSnapshot
from dagster_ckpt.errors import Corrupt
from dagster_ckpt.operations.care.clean import plan_cleaning
from dagster_ckpt.operations.care.doctor import FindingKind, diagnose
from dagster_ckpt.operations.care.repair import repair_store
from dagster_ckpt.operations.snapshots.catalog import find_snapshot, list_storage
from dagster_ckpt.operations.snapshots.contents import verify_snapshot
from dagster_ckpt.operations.snapshots.export import export_snapshot
from dagster_ckpt.operations.snapshots.registration import ImportMode, import_snapshot
from dagster_ckpt.spark.snapshot.stored import open_snapshot
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness
from tests.operations.world import SALES, SAVEPOINTS, World

Contents = dict[str, bytes]
Change = Callable[[CheckpointMetadata], CheckpointMetadata]


def rewritten(contents: Contents, key: str, change: Change) -> None:
    """Change ``_metadata`` as somebody who knows the format would: its own checksum is right again."""
    contents[key] = encode_metadata(change(decode_metadata(contents[key], name=key)))


def other_head(metadata: CheckpointMetadata) -> CheckpointMetadata:
    table = TableSnapshot(uri="/data/totals", head=1)
    stages = tuple(s.model_copy(update={"table": table}) for s in metadata.stages)
    return metadata.model_copy(update={"stages": stages})


def without_files(metadata: CheckpointMetadata) -> CheckpointMetadata:
    bare = tuple(StageSnapshot(uid=s.uid, parallelism=s.parallelism) for s in metadata.stages)
    return metadata.model_copy(update={"stages": bare})


def test_an_edited_number_is_refused_by_name_whoever_opens_the_snapshot(world: World) -> None:
    table = TableSnapshot(uri="/data/totals", head=2)
    stored = world.checkpoint(1, table=table)
    key = f"{stored.folder}/_metadata"
    text = world.storage.contents[key]
    world.storage.contents[key] = text.replace(b'"head": 2', b'"head": 1')
    assert world.storage.contents[key] != text
    with pytest.raises(Corrupt, match=f"{key} is not as it was written"):
        find_snapshot(world.deployment, "latest")
    (finding,) = diagnose(world.deployment, now=0.0).findings
    assert finding.kind is FindingKind.DAMAGED
    assert not diagnose(world.deployment, now=0.0).is_healthy
    (folder,) = list_storage(world.storage)
    assert "is not as it was written" in folder.problem


@pytest.mark.parametrize("name", ["chk-1", "memory://checkpoints/sales/chk-1"])
def test_metadata_that_was_rewritten_whole_is_not_the_recorded_one(world: World, name: str) -> None:
    stored = world.checkpoint(1)
    rewritten(world.storage.contents, f"{stored.folder}/_metadata", other_head)
    with pytest.raises(Corrupt, match="chk-1/_metadata is not the one that the coordinator recorded"):
        find_snapshot(world.deployment, name, SALES)
    (finding,) = diagnose(world.deployment, now=0.0).findings
    assert finding.kind is FindingKind.DAMAGED


def test_files_are_not_called_left_over_because_the_metadata_was_rewritten(world: World) -> None:
    stored = world.checkpoint(1)
    rewritten(world.storage.contents, f"{stored.folder}/_metadata", without_files)
    plan = plan_cleaning(world.deployment, SALES)
    assert plan.removable == ()
    assert "is not the one that the coordinator recorded" in plan.obstacles[0]


@pytest.mark.parametrize("mode", list(ImportMode))
def test_an_imported_snapshot_is_recorded_as_it_was_read(world: World, mode: ImportMode) -> None:
    exported = export_snapshot(world.savepoint(2), world.open("memory://other"))
    fresh = World(world.folder / "fresh", storages=world.storages)
    done = import_snapshot(
        fresh.deployment, exported.uri, mode=mode, target=SAVEPOINTS, label=LabelChanges(note="moved")
    )
    assert find_snapshot(fresh.deployment, done.key, SALES).known is not None
    key = f"{done.location.folder}/_metadata"
    rewritten(world.open(done.location.base_uri).contents, key, other_head)
    with pytest.raises(Corrupt, match="is not the one that the coordinator recorded"):
        find_snapshot(fresh.deployment, done.key, SALES)


def test_a_run_does_not_start_from_metadata_that_was_rewritten() -> None:
    h = CoordinatorHarness(stages={"a": 1})
    cp = h.completed_checkpoint()
    contents = h.memory_storages["memory://checkpoints"].contents
    rewritten(contents, f"pipeline/chk-{cp}/_metadata", other_head)
    with pytest.raises(Corrupt, match="is not the one that the coordinator recorded"):
        h.next_attempt()


def test_what_a_run_restored_from_outside_is_recorded_as_it_was_read() -> None:
    h = CoordinatorHarness(stages={"a": 1})
    number = h.savepoint(target="memory://savepoints")
    h.acknowledge_all(number)
    (uri,) = [s.location.uri for s in h.record.savepoints]
    n = h.next_attempt(restore_from=uri)
    assert n.restored == number
    contents = h.memory_storages["memory://savepoints"].contents
    rewritten(contents, f"{uri.removeprefix('memory://savepoints/')}/_metadata", other_head)
    with pytest.raises(Corrupt, match="is not the one that the coordinator recorded"):
        n.next_attempt("run-3")


def test_verifying_says_that_metadata_of_before_carries_no_checksum(world: World) -> None:
    stored = world.checkpoint(1)
    assert verify_snapshot(stored).remarks == ()
    before = stored.metadata.model_dump_json(indent=2).encode()
    world.storage.contents[f"{stored.folder}/_metadata"] = before
    verified = verify_snapshot(open_snapshot(world.storage, stored.folder))
    assert verified.is_intact
    (remark,) = verified.remarks
    assert "before it carried a checksum" in remark


def test_a_store_that_is_built_again_from_the_storage_records_what_it_has_read(world: World) -> None:
    stored = world.checkpoint(1)
    empty = World(world.folder, storages=world.storages)
    repair_store(empty.deployment)
    assert [c.metadata_checksum for c in empty.record().completed] == [stored.metadata_checksum]
