"""What is there, and which snapshot a person means."""

from __future__ import annotations

import pytest

from dagster_ckpt.core.checkpoint.record import OperationRecord
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatus
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound
from dagster_ckpt.operations.snapshots.catalog import (
    SnapshotStatus,
    find_snapshot,
    list_history,
    list_snapshots,
    list_storage,
    pipeline_summary,
    snapshot_of_run,
)
from dagster_ckpt.spark.snapshot.upload import UploadMode
from tests.operations.world import BASE, SALES, SAVEPOINTS, World


def test_a_list_names_what_can_be_restored_newest_first(world: World) -> None:
    world.checkpoint(1)
    world.savepoint(2, name="before the release", note="ask first")
    world.checkpoint(3)
    found = list_snapshots(world.deployment, SALES)
    assert [(s.key, s.status) for s in found] == [
        ("chk-000003", SnapshotStatus.RETAINED),
        ("savepoint-000002", SnapshotStatus.SAVEPOINT),
        ("chk-000001", SnapshotStatus.RETAINED),
    ]
    assert found[1].name == "before the release"
    assert found[0].uri == f"{BASE}/sales/chk-3"
    assert found[0].duration == 0.5
    assert found[0].bytes_full > 0


def test_the_savepoint_of_a_run_is_also_the_one_a_stream_took_for_it(world: World) -> None:
    world.savepoint(1)
    world.savepoint(2, suffix="stream")
    first, second = world.record().savepoints
    world.change(
        savepoints=(
            first.model_copy(update={"run_id": "resting"}),
            second.model_copy(update={"run_id": "stream"}),
        ),
        operations=(OperationRecord(request_id="stop-asker", checkpoint_id=2),),
    )
    found = {run: snapshot_of_run(world.deployment, SALES, run) for run in ("resting", "asker", "another")}
    assert {run: taken and taken.key for run, taken in found.items()} == {
        "resting": "savepoint-000001",
        "asker": "savepoint-000002",
        "another": None,
    }


def test_a_history_names_failed_and_subsumed_ones_with_their_cause(world: World) -> None:
    world.checkpoint(1)
    world.checkpoint(2)
    world.over(1, CheckpointStatus.SUBSUMED)
    world.over(3, CheckpointStatus.FAILED)
    found = list_history(world.deployment, SALES)
    assert [(s.checkpoint_id, s.status.value, s.message) for s in found] == [
        (3, "failed", "disk full"),
        (2, "retained", ""),
        (1, "subsumed", ""),
    ]
    assert [s.checkpoint_id for s in list_history(world.deployment, SALES, limit=1)] == [3]


def test_a_pipeline_is_summed_up_with_its_latest_checkpoint(world: World) -> None:
    world.checkpoint(1)
    world.savepoint(2)
    only = pipeline_summary(world.deployment, SALES)
    assert (only.pipeline, only.latest, only.retained, only.savepoints) == (SALES, "chk-000001", 1, 1)


@pytest.mark.parametrize(
    "text", ["latest", "chk-3", "chk-000003", "3", f"{BASE}/sales/chk-3", f"{BASE}/sales/chk-3/_metadata"]
)
def test_a_checkpoint_is_found_by_every_name_it_has(world: World, text: str) -> None:
    world.checkpoint(1)
    world.checkpoint(3)
    found = find_snapshot(world.deployment, text, SALES)
    assert found.stored.metadata.checkpoint_id == 3
    assert found.key == "chk-000003"
    assert found.known is not None


def test_the_only_pipeline_need_not_be_named(world: World) -> None:
    world.checkpoint(1)
    assert find_snapshot(world.deployment, "latest").pipeline == SALES


def test_with_several_pipelines_a_key_without_one_is_refused_and_they_are_named(world: World) -> None:
    world.checkpoint(1)
    world.change(PipelineId("other"), epoch=1)
    with pytest.raises(InvalidRequest, match="other, sales"):
        find_snapshot(world.deployment, "latest")


def test_a_savepoint_is_found_by_its_folder_name_and_by_its_place(world: World) -> None:
    world.savepoint(7, suffix="ab12cd")
    for text in ("savepoint-sales-ab12cd", f"{SAVEPOINTS}/savepoint-sales-ab12cd", "savepoint-7"):
        assert find_snapshot(world.deployment, text, SALES).key == "savepoint-000007"


def test_a_snapshot_the_store_does_not_know_is_found_by_its_place(world: World) -> None:
    world.query().commit(2)
    folder = "savepoint-sales-zzzzzz"
    elsewhere = world.open("memory://elsewhere")
    world.take(9, folder, elsewhere, UploadMode.SELF_CONTAINED, CheckpointKind.SAVEPOINT)
    found = find_snapshot(world.deployment, f"memory://elsewhere/{folder}")
    assert found.known is None
    assert found.stored.metadata.checkpoint_id == 9


def test_an_unknown_key_says_what_there_is_and_what_became_of_it(world: World) -> None:
    world.checkpoint(1)
    world.checkpoint(2)
    world.over(1, CheckpointStatus.SUBSUMED)
    with pytest.raises(NotFound, match=r"There are: chk-000002\. 1 was a checkpoint and is subsumed"):
        find_snapshot(world.deployment, "chk-1", SALES)


def test_none_names_no_snapshot(world: World) -> None:
    with pytest.raises(InvalidRequest, match="names no snapshot"):
        find_snapshot(world.deployment, "none", SALES)


def test_latest_of_a_pipeline_without_snapshots_is_not_found(world: World) -> None:
    world.change(epoch=1)
    with pytest.raises(NotFound, match="nothing to restore"):
        find_snapshot(world.deployment, "latest", SALES)


def test_a_folder_that_holds_another_snapshot_than_the_record_says_is_corrupt(world: World) -> None:
    first = world.checkpoint(1)
    second = world.checkpoint(2)
    world.storage.contents[f"{second.folder}/_metadata"] = world.storage.contents[f"{first.folder}/_metadata"]
    forgotten = [c.model_copy(update={"metadata_checksum": ""}) for c in world.record().completed]
    world.change(completed=tuple(forgotten))  # as a record of before has it
    with pytest.raises(Corrupt, match="should hold chk-000002"):
        find_snapshot(world.deployment, "chk-2", SALES)


def test_the_storage_alone_tells_which_snapshots_are_complete(world: World) -> None:
    world.checkpoint(1)
    second = world.checkpoint(2)
    world.storage.contents["sales/chk-3/totals/manifest.parquet"] = b"never completed"
    world.damage(world.storage, f"{second.folder}/_metadata")
    found = list_storage(world.storage)
    assert [f.uri for f in found] == [f"{BASE}/sales/chk-1", f"{BASE}/sales/chk-2"]
    assert found[0].metadata is not None
    assert found[1].metadata is None
    assert "not complete JSON" in found[1].problem
