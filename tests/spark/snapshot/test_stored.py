"""Files of a snapshot are read in one place: compared with what was recorded, or refused by name."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt.core.ids import BatchId, CheckpointId, StageUid
from dagster_ckpt.core.messages import StateHandle
from dagster_ckpt.core.model import CheckpointKind, FileEntry, FileKind, ObjectRef, StageSnapshot
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.errors import Corrupt
from dagster_ckpt.operations.snapshots.contents import (
    ProblemKind,
    batch_conf,
    files_of,
    operators_of,
    verify_snapshot,
)
from dagster_ckpt.operations.snapshots.export import export_snapshot
from dagster_ckpt.runtime.files import handles_of_subtasks, write_subtask_handles
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.snapshot import upload
from dagster_ckpt.spark.snapshot.manifest import decode_manifest, encode_manifest
from dagster_ckpt.spark.snapshot.restore import build_stage_directory
from dagster_ckpt.spark.snapshot.state_files import PlannedFile
from dagster_ckpt.spark.snapshot.stored import MissingFile, StoredSnapshot
from dagster_ckpt.spark.snapshot.take import Cut, StageSnapshotter
from dagster_ckpt.spark.snapshot.upload import UploadMode, handles_in_manifest
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness
from dagster_ckpt.testing.memory import MemoryCheckpointStorage
from tests.spark.snapshot.fake_checkpoint import FakeQuery
from tests.spark.snapshot.snapshot_help import UID, Taken, take

Read = Callable[[StoredSnapshot, StageSnapshot, Path], object]


@pytest.fixture
def query(tmp_path: Path) -> FakeQuery:
    return FakeQuery(tmp_path / "stage").commit(5).snapshot(3)


@pytest.fixture
def storage() -> MemoryCheckpointStorage:
    return MemoryCheckpointStorage()


def with_rows(
    one: Taken, storage: MemoryCheckpointStorage, change: Callable[[FileEntry], FileEntry]
) -> tuple[StoredSnapshot, StageSnapshot]:
    """Return the snapshot with other rows in its manifest, whose checksum is right."""
    content = encode_manifest([change(entry) for entry in one.upload.entries])
    reference = one.upload.manifest
    storage.contents[one.stored.key(reference.key)] = content
    digest = digest_bytes(content)
    changed = reference.model_copy(update={"size": digest.size, "checksum": digest.checksum})
    stage = one.snapshot.model_copy(update={"manifest": changed})
    metadata = one.stored.metadata.model_copy(update={"stages": (stage,)})
    return replace(one.stored, metadata=metadata), stage


# --- one file -----------------------------------------------------------------------------------------------

READERS: dict[str, tuple[str, Read]] = {
    "restore": (
        "query/metadata",
        lambda s, stage, tmp: build_stage_directory(s, stage, target_dir=tmp / "restored"),
    ),
    "export": (
        "query/metadata",
        lambda s, stage, tmp: export_snapshot(s, MemoryCheckpointStorage("memory://x")),
    ),
    "settings of the batch": ("query/offsets/4", lambda s, stage, tmp: batch_conf(s, stage)),
    "operators": ("query/state/0/_metadata/metadata", lambda s, stage, tmp: operators_of(s, stage)),
}
MODES = [UploadMode.INCREMENTAL, UploadMode.SELF_CONTAINED]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reader", list(READERS))
def test_an_entry_with_neither_content_nor_a_key_is_refused_by_whoever_reads_it(
    query: FakeQuery, storage: MemoryCheckpointStorage, tmp_path: Path, reader: str, mode: UploadMode
) -> None:
    path, read = READERS[reader]
    one = take(storage, query.root, 7, mode=mode)
    stored, stage = with_rows(
        one, storage, lambda e: replace(e, key=None, inline=None) if e.path == path else e
    )
    told = rf"{path} of stage totals has neither content nor a key; it belongs to \w+ 7 of sales"
    with pytest.raises(Corrupt, match=told):
        read(stored, stage, tmp_path)
    (problem,) = verify_snapshot(stored).problems
    assert (problem.path, problem.problem) == (path, ProblemKind.DAMAGED)


@pytest.mark.parametrize("threshold", [0, 20_000], ids=["stored", "inline"])
@pytest.mark.parametrize("reader", list(READERS))
def test_damage_is_told_in_the_same_words_by_whoever_reads_it(
    query: FakeQuery, storage: MemoryCheckpointStorage, tmp_path: Path, reader: str, threshold: int
) -> None:
    path, read = READERS[reader]
    one = take(storage, query.root, 7, inline_threshold=threshold)

    def lie(entry: FileEntry) -> FileEntry:
        return replace(entry, checksum=digest_bytes(b"other").checksum) if entry.path == path else entry

    stored, stage = with_rows(one, storage, lie)
    with pytest.raises(
        Corrupt, match=rf"{path} of stage totals .* it belongs to checkpoint 7 of sales .*: restore"
    ):
        read(stored, stage, tmp_path)
    (problem,) = verify_snapshot(stored).problems
    assert (problem.path, problem.problem) == (path, ProblemKind.DAMAGED)


@pytest.mark.parametrize("reader", list(READERS))
def test_a_file_that_is_gone_is_told_apart_from_a_damaged_one(
    query: FakeQuery, storage: MemoryCheckpointStorage, tmp_path: Path, reader: str
) -> None:
    path, read = READERS[reader]
    one = take(storage, query.root, 7, inline_threshold=0)
    key = next(e.key for e in one.upload.entries if e.path == path)
    del storage.contents[key or ""]
    with pytest.raises(MissingFile, match=rf"{path} of stage totals is missing from storage \({key}\)"):
        read(one.stored, one.snapshot, tmp_path)
    (problem,) = verify_snapshot(one.stored).problems
    assert (problem.path, problem.problem) == (path, ProblemKind.MISSING)


# --- manifests ----------------------------------------------------------------------------------------------


def swapped(content: bytes) -> bytes:
    """Return a manifest that can be read, and names other files than were written."""
    return encode_manifest([e for e in decode_manifest(content, name="m") if e.kind is FileKind.QUERY])


def test_a_manifest_that_was_replaced_frees_no_shared_file(
    query: FakeQuery, storage: MemoryCheckpointStorage
) -> None:
    """What it does not name would count as unused, and be deleted under the checkpoint that needs it."""
    one = take(storage, query.root, 7, inline_threshold=0)
    key = one.upload.manifest.key
    assert {h.key for h in handles_in_manifest(storage, one.snapshot)} > {key}
    storage.contents[key] = swapped(storage.contents[key])
    with pytest.raises(Corrupt, match=f"manifest {key} of stage totals is damaged"):
        list(handles_in_manifest(storage, one.snapshot))


@pytest.mark.usefixtures("nothing_inlined")
@pytest.mark.parametrize("damage", ["swapped", "flipped", "gone"])
def test_a_checkpoint_builds_on_no_manifest_but_the_one_that_was_written(
    query: FakeQuery, damage: str
) -> None:
    h = CoordinatorHarness(stages={"totals": 2}, incremental=True, num_retained=2)
    contents = h.memory_storages["memory://checkpoints"].contents  # type: ignore[attr-defined]
    first = taken(h, query)
    key = f"pipeline/chk-{first}/totals/manifest.parquet"
    match damage:
        case "swapped":
            contents[key] = encode_manifest(
                [
                    e if e.key is None else replace(e, key="pipeline/somebody/elses")
                    for e in decode_manifest(contents[key], name="m")
                ]
            )
        case "flipped":
            contents[key] = contents[key][:-1] + b"?"
        case _:
            del contents[key]
    second = taken(h, query)
    assert h.completed == [first, second]
    stored = StoredSnapshot(storage=h.storage, folder=f"pipeline/chk-{second}", metadata=h.metadata(second))
    assert verify_snapshot(stored).is_intact
    assert stored.metadata.stages[0].metrics.files_new == stored.metadata.stages[0].metrics.files_full


def test_rows_that_take_long_to_reach_their_store_do_not_cost_the_checkpoint_its_batch(
    query: FakeQuery,
) -> None:
    h = CoordinatorHarness(stages={"totals": 2})
    removed_by_spark = query.root / "query/commits/4"
    number = taken(h, query, flush=removed_by_spark.unlink)
    assert h.completed == [number]
    stored = StoredSnapshot(storage=h.storage, folder=f"pipeline/chk-{number}", metadata=h.metadata(number))
    assert "query/commits/4" in {entry.path for entry in stored.entries(stored.metadata.stages[0])}


@pytest.mark.parametrize("is_settled", [True, False])
def test_a_file_is_read_again_once_it_was_replaced_or_may_have_been(
    query: FakeQuery, monkeypatch: pytest.MonkeyPatch, is_settled: bool
) -> None:
    """Of the same name and size: nothing but the time and place of its writing tells it apart."""
    h = CoordinatorHarness(stages={"totals": 2}, incremental=True, num_retained=3)
    for file in (path for path in query.root.rglob("*") if path.is_file()):
        os.utime(file, (time.time() - is_settled * 60,) * 2)
    stage, path = snapshotter(h, query), "query/offsets/4"
    file = query.root / path
    before = file.read_bytes()
    taken(h, query, stage=stage)
    read: list[str] = []
    original = upload._Upload._read

    def noted(self: Any, planned: PlannedFile) -> bytes:
        read.append(planned.path)
        return original(self, planned)

    monkeypatch.setattr(upload._Upload, "_read", noted)
    second = taken(h, query, stage=stage)
    assert (path not in read) is is_settled
    beside = file.with_name("beside")
    beside.write_bytes(before.replace(b"1", b"2"))
    assert beside.stat().st_size == len(before)
    beside.replace(file)
    third = taken(h, query, stage=stage)
    for number, content in ((second, before), (third, file.read_bytes())):
        stored = StoredSnapshot(
            storage=h.storage, folder=f"pipeline/chk-{number}", metadata=h.metadata(number)
        )
        [entry] = [one for one in stored.entries(stored.metadata.stages[0]) if one.path == path]
        assert entry.inline == content, number


def snapshotter(h: CoordinatorHarness, query: FakeQuery) -> StageSnapshotter:
    coordinator: Any = h.coordinator
    return StageSnapshotter(uid=UID, directory=StageDirectory(query.root), coordinator=coordinator)


def taken(
    h: CoordinatorHarness,
    query: FakeQuery,
    flush: Callable[[], None] = lambda: None,
    stage: StageSnapshotter | None = None,
) -> int:
    """Take a checkpoint of the query as its stage does."""
    number = h.checkpoint()
    stage = stage or snapshotter(h, query)
    cut = Cut(
        checkpoint_id=CheckpointId(number),
        batch_id=BatchId(4),
        input_positions={},
        output_position=None,
        flush=flush,
    )
    assert stage.take(cut).text == "acknowledged"
    return number


# --- lists of subtasks --------------------------------------------------------------------------------------

HANDLES = {
    0: (StateHandle("sales/chk-7/totals/state-0", 5),),
    1: (StateHandle("sales/shared/totals/7/b", 6),),
}


def acknowledged_by_subtasks(storage: MemoryCheckpointStorage) -> StageSnapshot:
    listed = write_subtask_handles(storage, "sales/chk-7", "totals", HANDLES)
    return StageSnapshot(uid="totals", parallelism=2, subtask_handles=listed)


def test_the_list_of_subtasks_is_compared_with_its_checksum(storage: MemoryCheckpointStorage) -> None:
    stage = acknowledged_by_subtasks(storage)
    key = stage.subtask_handles.key if stage.subtask_handles else ""
    assert handles_of_subtasks(storage, stage) == [h for found in HANDLES.values() for h in found]
    storage.contents[key] = storage.contents[key].replace(b"state-0", b"state-1")
    with pytest.raises(Corrupt, match=f"manifest {key} of stage totals is damaged"):
        handles_of_subtasks(storage, stage)
    del storage.contents[key]
    with pytest.raises(MissingFile, match=f"manifest {key} of stage totals is missing"):
        handles_of_subtasks(storage, stage)


def test_a_list_that_an_earlier_try_had_written_is_recorded_with_its_checksum(
    storage: MemoryCheckpointStorage,
) -> None:
    first = acknowledged_by_subtasks(storage)
    assert acknowledged_by_subtasks(storage) == first


def test_a_list_recorded_without_a_checksum_can_still_be_read(storage: MemoryCheckpointStorage) -> None:
    """As coordinators before this version recorded one that an earlier try had written."""
    stage = acknowledged_by_subtasks(storage)
    assert stage.subtask_handles is not None
    bare = stage.subtask_handles.model_copy(update={"checksum": ""})
    assert len(handles_of_subtasks(storage, stage.model_copy(update={"subtask_handles": bare}))) == 2
    shorter = bare.model_copy(update={"size": bare.size - 1})
    with pytest.raises(Corrupt, match="damaged"):
        handles_of_subtasks(storage, stage.model_copy(update={"subtask_handles": shorter}))


def test_the_list_of_a_savepoints_subtasks_is_found_below_its_folder(
    query: FakeQuery, storage: MemoryCheckpointStorage
) -> None:
    one = take(storage, query.root, 7, mode=UploadMode.SELF_CONTAINED)
    assert one.stored.metadata.kind is CheckpointKind.SAVEPOINT
    listed = write_subtask_handles(storage, one.folder, "totals", HANDLES)
    relative = ObjectRef(
        key=listed.key.removeprefix(f"{one.folder}/"), size=listed.size, checksum=listed.checksum
    )
    stage = StageSnapshot(uid=StageUid("totals"), parallelism=2, subtask_handles=relative)
    stored = replace(one.stored, metadata=one.stored.metadata.model_copy(update={"stages": (stage,)}))
    assert {o.key for o in files_of(stored).objects} == {
        listed.key,
        *(h.key for found in HANDLES.values() for h in found),
    }
