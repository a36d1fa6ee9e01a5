"""What is restored is what was captured, verified; or nothing is visible and the message names the file."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_ckpt.adapters.fsspec_storage import FsspecCheckpointStorage
from dagster_ckpt.core.chains import QueryPart
from dagster_ckpt.core.ids import BatchId, CheckpointId, StageUid
from dagster_ckpt.core.messages import CheckpointFailureReason, NotifyAborted
from dagster_ckpt.core.metadata_text import decode_metadata, encode_metadata
from dagster_ckpt.core.model import CheckpointKind, FileKind, StageSnapshot
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound, Unavailable
from dagster_ckpt.operations.snapshots.contents import verify_snapshot
from dagster_ckpt.spark.directories import AttemptDirectory, StageDirectory
from dagster_ckpt.spark.epoch.attempt import EpochGateway
from dagster_ckpt.spark.snapshot.manifest import encode_manifest
from dagster_ckpt.spark.snapshot.restore import (
    LocalCopy,
    build_stage_directory,
    drop_local_copies_before,
    drop_local_copy,
    keep_local_copy,
)
from dagster_ckpt.spark.snapshot.rewritten import take_part
from dagster_ckpt.spark.snapshot.stored import open_snapshot, read_metadata
from dagster_ckpt.spark.snapshot.take import Cut, StageSnapshotter
from dagster_ckpt.spark.snapshot.upload import UploadMode
from dagster_ckpt.spark.streaming.loop import StreamingGateway
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness
from dagster_ckpt.testing.faults import FailNext, FaultyStorage, Operation, RecordCalls
from dagster_ckpt.testing.memory import MemoryCheckpointStorage
from tests.spark.snapshot.fake_checkpoint import QUERY_ID, FakeQuery
from tests.spark.snapshot.snapshot_help import Taken, take


@pytest.fixture
def query(tmp_path: Path) -> FakeQuery:
    query = FakeQuery(tmp_path / "stage").commit(5).snapshot(3)
    query.write("sources/0/0", "v1\nstart")
    return query


@pytest.fixture
def storage() -> MemoryCheckpointStorage:
    return MemoryCheckpointStorage()


def _content(root: Path) -> dict[str, bytes]:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def _captured(query: FakeQuery, one: Taken) -> dict[str, bytes]:
    return {f.path: (query.root / f.path).read_bytes() for f in one.plan.files}


@pytest.mark.parametrize("mode", list(UploadMode))
@pytest.mark.parametrize("threshold", [0, 20_000], ids=["stored", "inline"])
def test_the_restored_directory_holds_exactly_the_captured_files(
    query: FakeQuery, storage: MemoryCheckpointStorage, tmp_path: Path, mode: UploadMode, threshold: int
) -> None:
    one = take(storage, query.root, 1, mode=mode, inline_threshold=threshold)
    entries = build_stage_directory(one.stored, one.snapshot, target_dir=tmp_path / "restored")
    assert _content(tmp_path / "restored") == _captured(query, one)
    assert entries == list(one.upload.entries)
    assert not (tmp_path / "restored.inprogress").exists()


def test_an_incremental_checkpoint_restores_from_the_files_of_those_before_it(
    query: FakeQuery, storage: MemoryCheckpointStorage, tmp_path: Path
) -> None:
    one = take(storage, query.root, 1, inline_threshold=0)
    query.commit()
    two = take(storage, query.root, 2, previous=one.upload.entries, inline_threshold=0)
    storage.delete([e.key for e in one.upload.entries if e.key and e.key.startswith("sales/chk-1/")])
    build_stage_directory(two.stored, two.snapshot, target_dir=tmp_path / "restored")
    assert _content(tmp_path / "restored") == _captured(query, two)


def test_a_savepoint_is_restored_from_wherever_it_was_moved(query: FakeQuery, tmp_path: Path) -> None:
    old = FsspecCheckpointStorage((tmp_path / "old").as_uri())
    one = take(old, query.root, 1, mode=UploadMode.SELF_CONTAINED, inline_threshold=100)
    expected = _captured(query, one)
    (tmp_path / "new/deep").mkdir(parents=True)
    shutil.move(tmp_path / "old" / one.folder, tmp_path / "new/deep/renamed")
    moved = open_snapshot(FsspecCheckpointStorage((tmp_path / "new").as_uri()), "deep/renamed/_metadata")
    build_stage_directory(moved, moved.metadata.stages[0], target_dir=tmp_path / "restored")
    assert _content(tmp_path / "restored") == expected


def test_a_fork_gets_its_own_query_id_and_the_stored_file_keeps_the_old_one(
    query: FakeQuery, tmp_path: Path
) -> None:
    storage = FsspecCheckpointStorage((tmp_path / "storage").as_uri())
    one = take(storage, query.root, 1, inline_threshold=0)
    build_stage_directory(one.stored, one.snapshot, target_dir=tmp_path / "fork", new_query_id="fork-1")
    build_stage_directory(one.stored, one.snapshot, target_dir=tmp_path / "same")
    assert json.loads((tmp_path / "fork/query/metadata").read_text()) == {"id": "fork-1"}
    assert json.loads((tmp_path / "same/query/metadata").read_text()) == {"id": QUERY_ID}


def test_on_one_file_system_files_are_linked_not_copied(query: FakeQuery, tmp_path: Path) -> None:
    storage = FsspecCheckpointStorage((tmp_path / "storage").as_uri())
    one = take(storage, query.root, 1, inline_threshold=0)
    build_stage_directory(one.stored, one.snapshot, target_dir=tmp_path / "restored")
    for entry in one.upload.entries:
        assert (tmp_path / "restored" / entry.path).samefile(tmp_path / "storage" / (entry.key or ""))


def test_a_directory_that_exists_is_never_restored_into(
    query: FakeQuery, storage: MemoryCheckpointStorage, tmp_path: Path
) -> None:
    one = take(storage, query.root, 1)
    with pytest.raises(InvalidRequest, match="exists already"):
        build_stage_directory(one.stored, one.snapshot, target_dir=query.root)
    assert _content(query.root)


def test_what_a_killed_restore_left_is_begun_again(
    query: FakeQuery, storage: MemoryCheckpointStorage, tmp_path: Path
) -> None:
    one = take(storage, query.root, 1)
    stale = tmp_path / "restored.inprogress/query/offsets/99"
    stale.parent.mkdir(parents=True)
    stale.write_text("half")
    build_stage_directory(one.stored, one.snapshot, target_dir=tmp_path / "restored")
    assert _content(tmp_path / "restored") == _captured(query, one)


# --- damage -------------------------------------------------------------------------------------------------


def _flip(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


_DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda _: None,
    "truncated": lambda content: content[: len(content) // 2],
    "flipped": _flip,
    "grown": lambda content: content + b"x",
}
_KINDS = [
    FileKind.QUERY,
    FileKind.SOURCE_LOG,
    FileKind.STATE_SNAPSHOT,
    FileKind.STATE_DELTA,
    FileKind.STATE_SST,
    FileKind.STATE_SCHEMA,
]


def _damage(storage: MemoryCheckpointStorage, key: str, how: str) -> None:
    content = _DAMAGE[how](storage.contents[key])
    if content is None:
        del storage.contents[key]
    else:
        storage.contents[key] = content


@pytest.mark.parametrize("how", list(_DAMAGE))
@pytest.mark.parametrize("kind", _KINDS)
def test_damage_of_any_file_is_named_and_nothing_becomes_visible(
    query: FakeQuery, storage: MemoryCheckpointStorage, tmp_path: Path, kind: FileKind, how: str
) -> None:
    one = take(storage, query.root, 7, inline_threshold=0)
    victim = next(e for e in one.upload.entries if e.kind is kind)
    _damage(storage, victim.key or "", how)
    told = rf"{victim.path} of stage totals is (missing|damaged).*checkpoint 7 of sales.*restore from another"
    with pytest.raises(Corrupt, match=told):
        build_stage_directory(one.stored, one.snapshot, target_dir=tmp_path / "restored")
    (problem,) = verify_snapshot(one.stored).problems
    assert re.search(told, problem.message)
    assert not list(tmp_path.glob("restored*"))


@pytest.mark.parametrize("how", list(_DAMAGE))
def test_damage_of_a_manifest_is_named(
    query: FakeQuery, storage: MemoryCheckpointStorage, tmp_path: Path, how: str
) -> None:
    one = take(storage, query.root, 7)
    _damage(storage, one.upload.manifest.key, how)
    told = r"manifest sales/chk-7/totals/manifest\.parquet of stage totals is (missing|damaged)"
    with pytest.raises(Corrupt, match=told):
        build_stage_directory(one.stored, one.snapshot, target_dir=tmp_path / "restored")
    assert not list(tmp_path.glob("restored*"))


def _with_manifest(one: Taken, storage: MemoryCheckpointStorage, **change: object) -> Taken:
    """Return the checkpoint with its first row changed, and a manifest that matches its checksum."""
    rows = [replace(one.upload.entries[0], **change), *one.upload.entries[1:]]  # type: ignore[arg-type]
    content = encode_manifest(rows)
    storage.contents[one.upload.manifest.key] = content
    digest = digest_bytes(content)
    reference = one.upload.manifest.model_copy(update={"size": digest.size, "checksum": digest.checksum})
    return replace(one, snapshot=one.snapshot.model_copy(update={"manifest": reference}))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"inline": b"not it", "key": None}, "query/metadata .*does not match its checksum"),
        ({"inline": None, "key": None}, "query/metadata .*has neither content nor a key"),
        (
            {"path": "query/../../outside"},
            "manifest .* is damaged, or was not written by this library .*outside",
        ),
        ({"path": "/etc/outside"}, "manifest .* is damaged, or was not written by this library .*outside"),
    ],
    ids=["inline content", "nothing", "path upwards", "absolute path"],
)
def test_a_manifest_that_lies_is_refused(
    query: FakeQuery,
    storage: MemoryCheckpointStorage,
    tmp_path: Path,
    change: dict[str, object],
    told: str,
) -> None:
    one = _with_manifest(take(storage, query.root, 7), storage, **change)
    with pytest.raises(Corrupt, match=told):
        build_stage_directory(one.stored, one.snapshot, target_dir=tmp_path / "restored")
    assert not list(tmp_path.glob("**/*outside*"))


def test_an_intact_checkpoint_is_verified(query: FakeQuery, storage: MemoryCheckpointStorage) -> None:
    one = take(storage, query.root, 1, inline_threshold=100)
    found = verify_snapshot(one.stored)
    assert (found.is_intact, found.files) == (True, len(one.upload.entries))


def test_a_storage_that_cannot_be_reached_is_not_called_damage(
    query: FakeQuery, storage: MemoryCheckpointStorage, tmp_path: Path
) -> None:
    one = take(storage, query.root, 1, inline_threshold=0)
    fail = FailNext().arm(Operation.FETCH, Unavailable("no route"))
    unreachable = replace(one.stored, storage=FaultyStorage(storage, fail))
    with pytest.raises(Unavailable, match="no route"):
        build_stage_directory(unreachable, one.snapshot, target_dir=tmp_path / "restored")
    assert not list(tmp_path.glob("restored*"))


# --- the metadata -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelled", ["sales/chk-1", "sales/chk-1/", "sales/chk-1/_metadata"])
def test_metadata_is_read_by_folder_or_by_file(
    query: FakeQuery, storage: MemoryCheckpointStorage, spelled: str
) -> None:
    one = take(storage, query.root, 1)
    assert read_metadata(storage, spelled) == one.stored.metadata
    assert open_snapshot(storage, spelled).folder == "sales/chk-1"


def test_a_folder_without_metadata_is_no_checkpoint(storage: MemoryCheckpointStorage) -> None:
    with pytest.raises(NotFound, match=r"chk-9 is no checkpoint or savepoint: it has no _metadata file"):
        read_metadata(storage, "sales/chk-9")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda text: text[:-40], "is not complete JSON"),
        (lambda _: b"", "is not complete JSON"),
        (lambda _: b"\xff\xfe\x00", "is not complete JSON"),
        (lambda _: b"[1, 2]", "is not checkpoint metadata of dagster_ckpt"),
        (lambda _: b'{"id": "spark"}', "is not checkpoint metadata of dagster_ckpt"),
        (lambda text: text.replace(b'"format_version": 1', b'"format_version": 2'), "has format version 2"),
        (lambda text: text.replace(b'"run_id"', b'"runner_id"'), "runner_id: Extra inputs"),
        (lambda text: text.replace(b'"checkpoint_id": 1', b'"checkpoint_id": 0'), "checkpoint_id: "),
    ],
    ids=["truncated", "empty", "binary", "list", "foreign", "newer", "unknown field", "bad value"],
)
def test_metadata_that_cannot_be_understood_is_refused_with_its_name(
    query: FakeQuery, storage: MemoryCheckpointStorage, change: Callable[[bytes], bytes], told: str
) -> None:
    take(storage, query.root, 1)
    key = "sales/chk-1/_metadata"
    storage.contents[key] = change(storage.contents[key])
    with pytest.raises(Corrupt, match=rf"memory://checkpoints/{key} .*{told}"):
        read_metadata(storage, "sales/chk-1")


def test_metadata_says_again_what_was_written(query: FakeQuery, storage: MemoryCheckpointStorage) -> None:
    metadata = take(storage, query.root, 1).stored.metadata
    assert decode_metadata(encode_metadata(metadata), name="m") == metadata


# --- the local copy -----------------------------------------------------------------------------------------


def _kept(query: FakeQuery, one: Taken, directory: Path) -> LocalCopy:
    return keep_local_copy(
        one.plan.files, stage_dir=query.root, directory=directory, checkpoint_id=one.number
    )


def test_an_intact_local_copy_spares_the_storage(
    query: FakeQuery, storage: MemoryCheckpointStorage, tmp_path: Path
) -> None:
    one = take(storage, query.root, 1, inline_threshold=0)
    copy = _kept(query, one, tmp_path / "local")
    calls = RecordCalls()
    source = replace(one.stored, storage=FaultyStorage(storage, calls))
    build_stage_directory(source, one.snapshot, target_dir=tmp_path / "restored", local_copy=copy)
    assert _content(tmp_path / "restored") == _captured(query, one)
    assert calls.count(Operation.FETCH) == 0


@pytest.mark.parametrize("how", list(_DAMAGE))
def test_a_damaged_local_file_is_taken_from_storage(
    query: FakeQuery, storage: MemoryCheckpointStorage, tmp_path: Path, how: str
) -> None:
    one = take(storage, query.root, 1, inline_threshold=0)
    expected = _captured(query, one)
    copy = _kept(query, one, tmp_path / "local")
    victim = next(e.path for e in one.upload.entries if e.kind is FileKind.STATE_SST)
    content = _DAMAGE[how](expected[victim])
    (copy.folder / victim).unlink()
    if content is not None:
        (copy.folder / victim).write_bytes(content)
    build_stage_directory(one.stored, one.snapshot, target_dir=tmp_path / "restored", local_copy=copy)
    assert _content(tmp_path / "restored") == expected


def test_a_local_copy_that_is_not_there_is_no_error(
    query: FakeQuery, storage: MemoryCheckpointStorage, tmp_path: Path
) -> None:
    one = take(storage, query.root, 1, inline_threshold=0)
    nowhere = LocalCopy.of(tmp_path / "local", CheckpointId(1))
    build_stage_directory(one.stored, one.snapshot, target_dir=tmp_path / "restored", local_copy=nowhere)
    assert _content(tmp_path / "restored") == _captured(query, one)


def test_older_local_copies_go_when_a_newer_checkpoint_is_complete(
    query: FakeQuery, storage: MemoryCheckpointStorage, tmp_path: Path
) -> None:
    for number in (1, 2, 3):
        _kept(query, take(storage, query.root, number), tmp_path / "local")
    drop_local_copies_before(tmp_path / "local", CheckpointId(3))
    assert [path.name for path in (tmp_path / "local").iterdir()] == ["3"]


def test_the_local_copy_of_a_checkpoint_that_failed_goes_and_no_other(
    query: FakeQuery, storage: MemoryCheckpointStorage, tmp_path: Path
) -> None:
    for number in (1, 2, 3):
        _kept(query, take(storage, query.root, number), tmp_path / "local")
    drop_local_copy(tmp_path / "local", CheckpointId(2))
    assert sorted(path.name for path in (tmp_path / "local").iterdir()) == ["1", "3"]


@pytest.mark.parametrize("gateway", [EpochGateway, StreamingGateway])
def test_stages_that_hear_of_a_failed_checkpoint_keep_no_local_copy_of_it(
    gateway: type[EpochGateway] | type[StreamingGateway], tmp_path: Path
) -> None:
    """TaskLocalStateStoreImplTest#abortCheckpoint: while storage is down, copies must not pile up."""
    attempt = AttemptDirectory(tmp_path / "attempt-1")
    copies = attempt.local_copies(StageUid("totals"))
    for number in (1, 2):
        (copies / str(number)).mkdir(parents=True)
    tables: Any = SimpleNamespace(pipeline=SimpleNamespace(stages=[StageUid("totals")]))
    nobody: Any = None
    reason = CheckpointFailureReason.CHECKPOINT_EXPIRED
    gateway(tables=tables, reporter=nobody, attempt=attempt).notify_aborted(
        NotifyAborted(checkpoint_id=CheckpointId(2), reason=reason, message="", latest_completed=None)
    )
    assert [path.name for path in copies.iterdir()] == ["1"]


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        (CheckpointKind.CHECKPOINT, ["1"]),
        (CheckpointKind.SAVEPOINT, []),
        (CheckpointKind.SYNC_SAVEPOINT_SUSPEND, ["1"]),
    ],
)
def test_a_savepoint_beside_the_checkpoints_leaves_no_local_copy(
    query: FakeQuery, tmp_path: Path, kind: CheckpointKind, kept: list[str]
) -> None:
    """Copies are pruned when a completion is heard of; nobody hears of a plain savepoint's."""
    h = CoordinatorHarness(stages={"totals": 2}, local_backup=True)
    if kind.is_synchronous:
        h.stop_with_savepoint()
    else:
        h.trigger(kind)
    local = tmp_path / "local"
    snapshotter_of(h.coordinator, query, local).take(cut_of(1))
    assert [path.name for path in local.glob("*")] == kept


@pytest.mark.parametrize("is_late", [False, True])
def test_a_part_that_comes_too_late_leaves_no_local_copy(
    query: FakeQuery, tmp_path: Path, is_late: bool
) -> None:
    h = CoordinatorHarness(stages={"totals": 2}, local_backup=True, tolerable_failed_checkpoints=9)
    number = h.checkpoint()

    class Coordinator:
        """The coordinator; the checkpoint expires before it hears of the part."""

        def acknowledge_stage(self, part: Any) -> Any:
            if is_late:
                h.expire(number)
            return h.coordinator.acknowledge_stage(part)

        def __getattr__(self, name: str) -> Any:
            return getattr(h.coordinator, name)

    outcome = snapshotter_of(Coordinator(), query, tmp_path / "local").take(cut_of(number))
    kept = [path.name for path in (tmp_path / "local").iterdir()]
    assert (outcome.decision, h.completed, kept) == (None, [] if is_late else [1], [] if is_late else ["1"])


def snapshotter_of(coordinator: Any, query: FakeQuery, local_copies: Path) -> StageSnapshotter:
    return StageSnapshotter(
        uid=StageUid("totals"),
        directory=StageDirectory(query.root),
        coordinator=coordinator,
        local_copies=local_copies,
    )


def cut_of(number: int) -> Cut:
    """The last batch of the query."""
    return Cut(
        checkpoint_id=CheckpointId(number), batch_id=BatchId(4), input_positions={}, output_position=None
    )


@pytest.mark.parametrize(
    ("batch", "error", "said"),
    [
        (None, InvalidRequest, "where each of these begins is known of all"),
        (0, Corrupt, "who read which source"),
    ],
    ids=["before its first batch", "without its plan"],
)
def test_a_source_that_is_parted_from_another_never_begins_where_that_one_stood(
    tmp_path: Path, batch: int | None, error: type[Exception], said: str
) -> None:
    """The second source became the first one of its part, and took up the offsets of the other."""
    stage = StageDirectory(tmp_path / "t")
    for name in ("sources/0/0", "sources/1/0", "offsets/0"):
        (stage.query / name).parent.mkdir(parents=True, exist_ok=True)
        (stage.query / name).write_text('v1\n{}\n{"first": 1}\n{"second": 2}')
    part = QueryPart(
        uid=StageUid("t"),
        is_chain=False,
        inputs=("s", "t"),
        feeds={"t": None},
        readers={"t": StageUid("t")},
        has_state=False,
        has_sink=False,
    )
    with pytest.raises(error, match=said):
        take_part(stage, part, StageSnapshot(uid="t", parallelism=1, batch_id=batch))
