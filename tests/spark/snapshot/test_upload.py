"""What an upload writes, names again, leaves alone and cleans up; on directories in Spark's format."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dagster_ckpt.adapters import local_sync
from dagster_ckpt.adapters.fsspec_storage import FsspecCheckpointStorage
from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.messages import StateScope
from dagster_ckpt.core.model import FileEntry, FileKind
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.errors import Corrupt, Declined, Unavailable
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.snapshot import upload as upload_module
from dagster_ckpt.spark.snapshot.capture import pin_files, plan_capture, sweep_pins, uploaded_already
from dagster_ckpt.spark.snapshot.manifest import decode_manifest, encode_manifest
from dagster_ckpt.spark.snapshot.state_files import PlannedFile
from dagster_ckpt.spark.snapshot.upload import StageUpload, UploadMode, upload_stage
from dagster_ckpt.testing.faults import FailNext, FaultyStorage, Operation, RecordCalls
from dagster_ckpt.testing.memory import MemoryCheckpointStorage
from tests.root import ROOT
from tests.spark.snapshot.fake_checkpoint import FakeQuery
from tests.spark.snapshot.snapshot_help import PIPELINE, UID, take


@pytest.fixture
def query(tmp_path: Path) -> FakeQuery:
    return FakeQuery(tmp_path / "stage").commit(5).snapshot(3)


@pytest.fixture
def storage() -> MemoryCheckpointStorage:
    return MemoryCheckpointStorage()


def _upload(query: FakeQuery, storage: object, number: int = 1, **more: object) -> StageUpload:
    files = more.pop("files") if "files" in more else plan_capture(query.query).files
    settings: dict[str, object] = {
        "files": files,
        "stage_dir": query.root,
        "storage": storage,
        "pipeline": PIPELINE,
        "uid": UID,
        "checkpoint_id": CheckpointId(number),
        "folder": f"sales/chk-{number}",
        "mode": UploadMode.INCREMENTAL,
        "inline_threshold": 0,
        **more,
    }
    return upload_stage(**settings)  # type: ignore[arg-type]


# --- what is written ----------------------------------------------------------------------------------------


def test_the_first_upload_writes_every_file_once(query: FakeQuery, storage: MemoryCheckpointStorage) -> None:
    done = _upload(query, storage)
    assert done.metrics.files_new == done.metrics.files_full == len(done.entries)
    assert done.metrics.bytes_new == done.metrics.bytes_full > 0
    stored = {key: content for key, content in storage.contents.items() if not key.endswith(".parquet")}
    assert {e.key for e in done.entries} == set(stored)
    for entry in done.entries:
        assert entry.key is not None
        assert stored[entry.key] == (query.root / entry.path).read_bytes()
    assert decode_manifest(storage.contents[done.manifest.key], name="m") == list(done.entries)


def test_a_manifest_that_is_put_aside_is_stored_as_it_would_be_otherwise(
    query: FakeQuery, storage: MemoryCheckpointStorage, tmp_path: Path
) -> None:
    at_once = _upload(query, storage)
    aside = _upload(query, storage, 2, manifest_aside=tmp_path / "no links" / "manifest")
    assert decode_manifest(storage.contents[aside.manifest.key], name="m") == list(aside.entries)
    assert aside.manifest.key == at_once.manifest.key.replace("chk-1", "chk-2")
    assert digest_bytes(storage.contents[aside.manifest.key]).checksum == aside.manifest.checksum


def test_a_manifest_that_is_put_aside_is_on_disk_with_the_next_object_that_makes_files_count(
    query: FakeQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(local_sync, "sync", lambda path: synced.append(path.name))
    storage = FsspecCheckpointStorage(str(tmp_path / "storage"))
    done = _upload(query, storage, manifest_aside=tmp_path / "manifest")
    assert synced == []
    storage.create("sales/chk-1/_metadata", b"{}")
    assert Path(done.manifest.key).name in synced


def test_state_goes_to_the_shared_folder_and_logs_to_the_checkpoints_own(
    query: FakeQuery, storage: MemoryCheckpointStorage
) -> None:
    for entry in _upload(query, storage, 4).entries:
        own = entry.kind is FileKind.QUERY
        assert entry.key == (
            f"sales/chk-4/totals/{entry.path}" if own else f"sales/shared/totals/4/{entry.path}"
        )


def test_the_next_upload_writes_only_what_changed(query: FakeQuery, storage: MemoryCheckpointStorage) -> None:
    first = _upload(query, storage)
    query.commit()
    second = _upload(query, storage, 2, previous=first.entries)
    new = {e.path for e in second.entries if e.first_checkpoint == 2}
    changes = {e.path for e in second.entries if "/6_" in e.path}
    logs = {e.path for e in second.entries if e.kind is FileKind.QUERY}
    assert len(changes) == 2
    assert new == changes | logs
    assert second.metrics.files_new == len(new)


def test_content_named_files_are_not_even_read_again(
    query: FakeQuery, storage: MemoryCheckpointStorage
) -> None:
    first = _upload(query, storage)
    plan = plan_capture(query.query)
    for file in plan.files:
        if file.content_named:
            (query.root / file.path).unlink()
    second = _upload(query, storage, 2, files=plan.files, previous=first.entries)
    assert {e.path for e in second.entries if e.first_checkpoint == 1} >= {
        f.path for f in plan.files if f.content_named
    }


@pytest.mark.parametrize("threshold", [0, 100_000], ids=["stored", "inline"])
def test_a_file_replaced_under_its_name_is_told_by_its_checksum(
    tmp_path: Path, storage: MemoryCheckpointStorage, threshold: int
) -> None:
    """State checkpoint format 1: a batch that ran again replaces its file, at times with the same size."""
    query = FakeQuery(tmp_path, unique_ids=False).commit(2)
    first = _upload(query, storage, inline_threshold=threshold)
    path = "query/state/0/0/2.changelog"
    content = bytearray((tmp_path / path).read_bytes())
    content[-1] ^= 1
    query.write("state/0/0/2.changelog", bytes(content))
    second = _upload(query, storage, 2, previous=first.entries, inline_threshold=threshold)
    by_path = {e.path: e for e in second.entries}
    assert by_path[path].first_checkpoint == 2
    assert by_path["query/state/0/1/2.changelog"].first_checkpoint == 1


def test_a_full_upload_builds_on_nothing(query: FakeQuery, storage: MemoryCheckpointStorage) -> None:
    first = _upload(query, storage)
    second = _upload(query, storage, 2, previous=first.entries, mode=UploadMode.FULL)
    assert {e.first_checkpoint for e in second.entries} == {2}
    assert not {e.key for e in first.entries} & {e.key for e in second.entries}
    third = _upload(query, storage, 3, previous=second.entries)
    assert third.metrics.files_new == 4, "a later checkpoint may build on it: only its own logs are new"


def test_a_savepoint_keeps_everything_in_its_folder_under_keys_relative_to_it(
    query: FakeQuery, storage: MemoryCheckpointStorage
) -> None:
    first = _upload(query, storage)
    done = _upload(
        query,
        storage,
        2,
        previous=first.entries,
        mode=UploadMode.SELF_CONTAINED,
        folder="savepoint-sales-abc123",
    )
    assert done.manifest.key == "totals/manifest.parquet"
    for entry in done.entries:
        assert entry.key == f"totals/{entry.path}"
        assert f"savepoint-sales-abc123/{entry.key}" in storage.contents
    assert all(h.key.startswith("savepoint-sales-abc123/") for h in done.handles)
    assert {h.scope for h in done.handles} == {StateScope.EXCLUSIVE}


def test_the_acknowledgement_names_every_stored_object(
    query: FakeQuery, storage: MemoryCheckpointStorage
) -> None:
    first = _upload(query, storage)
    query.commit()
    second = _upload(query, storage, 2, previous=first.entries)
    scopes = {h.key: h.scope for h in second.handles}
    assert scopes.pop(second.manifest.key) is StateScope.EXCLUSIVE
    assert set(scopes) == {e.key for e in second.entries}
    assert (
        scopes[next(e.key for e in second.entries if e.kind is FileKind.QUERY) or ""] is StateScope.EXCLUSIVE
    )
    assert StateScope.SHARED in scopes.values()


def test_a_committable_is_never_taken_over_from_another_checkpoint(
    query: FakeQuery, storage: MemoryCheckpointStorage
) -> None:
    """It is stored for one checkpoint alone and deleted with it."""
    path = query.root / "sink/prepared/4.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    file = PlannedFile(path="sink/prepared/4.json", size=2, kind=FileKind.COMMITTABLE, content_named=True)
    first = _upload(query, storage, files=[file])
    second = _upload(query, storage, 2, files=[file], previous=first.entries)
    assert second.entries[0].key == "sales/chk-2/totals/sink/prepared/4.json"


def test_in_flight_data_is_read_from_where_it_lies(
    query: FakeQuery, storage: MemoryCheckpointStorage, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").write_bytes(b"rows")
    file = PlannedFile(
        path="inflight/up/7.arrow", size=4, kind=FileKind.CHANNEL, source=str(tmp_path / "elsewhere")
    )
    done = _upload(query, storage, files=[file])
    assert storage.contents["sales/chk-1/totals/inflight/up/7.arrow"] == b"rows"
    assert done.entries[0].path == "inflight/up/7.arrow"


# --- small files --------------------------------------------------------------------------------------------


def test_small_files_are_kept_in_the_manifest_alone(
    query: FakeQuery, storage: MemoryCheckpointStorage
) -> None:
    done = _upload(query, storage, inline_threshold=20_000)
    assert set(storage.contents) == {done.manifest.key}
    assert [h.key for h in done.handles] == [done.manifest.key]
    for entry in done.entries:
        assert entry.key is None
        assert entry.inline == (query.root / entry.path).read_bytes()


def test_one_manifest_holds_only_so_much_of_them(query: FakeQuery, storage: MemoryCheckpointStorage) -> None:
    """Else a checkpoint would cost what the state costs, not what changed."""
    for number in range(60):
        query.write(f"sources/0/{number}.x", bytes([number]) * 20_000)
    done = _upload(query, storage, inline_threshold=20_000)
    inlined = sum(len(e.inline or b"") for e in done.entries)
    assert upload_module.INLINE_BUDGET - 20_000 < inlined <= upload_module.INLINE_BUDGET
    assert all(e.inline is not None for e in done.entries if e.kind is FileKind.QUERY)
    again = _upload(query, storage, 2, inline_threshold=20_000, previous=done.entries)
    assert sum(len(e.inline or b"") for e in again.entries) <= upload_module.INLINE_BUDGET


# --- failures -----------------------------------------------------------------------------------------------


def test_an_upload_that_fails_removes_what_it_wrote_and_nothing_else(
    query: FakeQuery, storage: MemoryCheckpointStorage
) -> None:
    before = _upload(query, storage)
    kept = dict(storage.contents)
    fail = FailNext().arm(Operation.CREATE, Unavailable("disk is full"), matching="*/manifest.parquet")
    query.commit()
    with pytest.raises(Unavailable, match="disk is full"):
        _upload(query, FaultyStorage(storage, fail), 2, previous=before.entries)
    assert storage.contents == kept
    assert storage.deleted, "it had written before"


def test_a_cancelled_upload_stops_and_removes_what_it_wrote(
    query: FakeQuery, storage: MemoryCheckpointStorage
) -> None:
    with pytest.raises(Declined, match="canceled"):
        _upload(query, storage, canceled=lambda: len(storage.contents) >= 3, parallelism=1)
    assert storage.contents == {}
    assert len(storage.deleted) == 3


def test_after_a_failure_no_further_file_is_begun(query: FakeQuery, storage: MemoryCheckpointStorage) -> None:
    calls = RecordCalls()
    fail = FailNext().arm(Operation.CREATE, Unavailable("disk is full"))
    with pytest.raises(Unavailable):
        _upload(query, FaultyStorage(storage, calls, fail), parallelism=1)
    assert calls.count(Operation.CREATE) == 1


@pytest.mark.parametrize("threshold", [0, 100_000], ids=["stored", "inline"])
@pytest.mark.parametrize("kind", [FileKind.STATE_DELTA, FileKind.STATE_SST, FileKind.QUERY])
def test_a_file_that_vanished_since_the_plan_declines_the_checkpoint(
    query: FakeQuery, storage: MemoryCheckpointStorage, kind: FileKind, threshold: int
) -> None:
    plan = plan_capture(query.query)
    victim = next(f for f in plan.files if f.kind is kind)
    (query.root / victim.path).unlink()
    with pytest.raises(Declined, match=f"{victim.path} was removed by Spark"):
        _upload(query, storage, files=plan.files, inline_threshold=threshold)
    assert storage.contents == {}


@pytest.mark.parametrize("threshold", [0, 100_000], ids=["stored", "inline"])
def test_a_file_that_changed_since_the_plan_declines_the_checkpoint(
    query: FakeQuery, storage: MemoryCheckpointStorage, threshold: int
) -> None:
    plan = plan_capture(query.query)
    query.write("metadata", '{"id":"another, longer identifier than the one that was planned"}')
    with pytest.raises(Declined, match="query/metadata was replaced by Spark"):
        _upload(query, storage, files=plan.files, inline_threshold=threshold)
    assert storage.contents == {}


def test_a_second_try_of_the_same_checkpoint_steps_past_what_the_first_left(
    query: FakeQuery, storage: MemoryCheckpointStorage
) -> None:
    """The first try was killed: its files are nobody's, and another process may still be writing them."""
    first = _upload(query, storage)
    kept = dict(storage.contents)
    query.commit()
    second = _upload(query, storage)
    assert {key: storage.contents[key] for key in kept} == kept
    assert not {e.key for e in first.entries} & {e.key for e in second.entries}
    assert decode_manifest(storage.contents[second.manifest.key], name="m") == list(second.entries)


_CHILD = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from dagster_ckpt.adapters import local_sync
from dagster_ckpt.adapters.fsspec_storage import FsspecCheckpointStorage
from tests.spark.snapshot.snapshot_help import take

class Slow(FsspecCheckpointStorage):
    def create(self, key, source):
        answer = super().create(key, source)
        print(key, flush=True)
        time.sleep(0.05)
        return answer

take(Slow(sys.argv[1]), Path(sys.argv[2]), 1, inline_threshold=0)
"""


def test_kill_9_in_the_middle_leaves_nothing_that_looks_complete(query: FakeQuery, tmp_path: Path) -> None:
    root = ROOT
    target = tmp_path / "storage"
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(target), str(query.root), str(root)], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    with child.stdout:
        for _ in range(5):
            assert child.stdout.readline()
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    storage = FsspecCheckpointStorage(target.as_uri())
    left = {found.key for found in storage.list("")}
    assert left
    assert not [key for key in left if key.endswith(("manifest.parquet", "_metadata"))]
    one = take(storage, query.root, 1)
    assert {found.key for found in storage.list("")} > left, "what was left is still there, for the cleaner"
    assert one.stored.metadata.checkpoint_id == 1


# --- pins ---------------------------------------------------------------------------------------------------


def test_pinned_files_survive_their_removal_by_spark(
    query: FakeQuery, storage: MemoryCheckpointStorage
) -> None:
    plan = plan_capture(query.query)
    expected = {f.path: (query.root / f.path).read_bytes() for f in plan.files}
    pinned = pin_files(plan.files, stage_dir=query.root, checkpoint_id=CheckpointId(1))
    for path in expected:
        (query.root / path).unlink()
    done = _upload(query, storage, files=pinned)
    assert {e.path: storage.contents[e.key or ""] for e in done.entries} == expected


def test_what_was_uploaded_already_is_not_pinned(query: FakeQuery, storage: MemoryCheckpointStorage) -> None:
    first = _upload(query, storage)
    query.commit()
    plan = plan_capture(query.query)
    pinned = pin_files(
        plan.files,
        stage_dir=query.root,
        checkpoint_id=CheckpointId(2),
        uploaded=uploaded_already(first.entries),
    )
    held = {e.path for e in first.entries}
    expected = {f.path for f in plan.files if f.content_named and f.path in held}
    assert {f.path for f in pinned if f.source is None} == expected
    assert len(expected) > 5


def test_a_file_gone_before_it_could_be_pinned_declines_and_leaves_no_pins(query: FakeQuery) -> None:
    plan = plan_capture(query.query)
    (query.root / plan.files[-1].path).unlink()
    with pytest.raises(Declined, match="plan again"):
        pin_files(plan.files, stage_dir=query.root, checkpoint_id=CheckpointId(1))
    assert not StageDirectory(query.root).pins(CheckpointId(1)).exists()


def test_pins_of_a_killed_process_are_swept(query: FakeQuery) -> None:
    pin_files(plan_capture(query.query).files, stage_dir=query.root, checkpoint_id=CheckpointId(1))
    sweep_pins(query.root)
    assert not (query.root / "pins").exists()


# --- the manifest -------------------------------------------------------------------------------------------


def _rows(count: int) -> list[FileEntry]:
    return [
        FileEntry(
            path=f"query/state/0/{n % 500}/{n}.changelog",
            size=n,
            checksum=f"xxh3_128:{n:032x}",
            kind=FileKind.STATE_DELTA,
            operator="0" if n % 2 else None,
            partition=n % 500 if n % 3 else None,
            first_checkpoint=n + 1,
            key=f"sales/shared/{n}" if n % 4 else None,
            inline=None if n % 4 else b"\x00\xff" * (n % 7),
        )
        for n in range(count)
    ]


def test_a_manifest_says_again_what_was_written() -> None:
    rows = _rows(1000)
    assert decode_manifest(encode_manifest(rows), name="m") == rows
    assert decode_manifest(encode_manifest([]), name="m") == []


@pytest.mark.nightly
@pytest.mark.slow
def test_a_hundred_thousand_rows_cost_no_more_each_than_a_thousand() -> None:
    def microseconds_per_row(count: int) -> float:
        rows = _rows(count)
        times = []
        for _ in range(3):
            began = time.process_time()
            decode_manifest(encode_manifest(rows), name="m")
            times.append(time.process_time() - began)
        return min(times) / count * 1e6

    assert microseconds_per_row(100_000) < 5 * microseconds_per_row(1_000)


@pytest.mark.parametrize("damage", [b"", b"PAR1 no parquet", None], ids=["empty", "foreign", "truncated"])
def test_a_damaged_manifest_is_refused(damage: bytes | None) -> None:
    content = encode_manifest(_rows(10))
    with pytest.raises(Corrupt, match="manifest sales/m is damaged"):
        decode_manifest(content[:-20] if damage is None else damage, name="sales/m")


def test_a_manifest_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from dagster_ckpt.spark.snapshot import manifest

    monkeypatch.setattr(manifest, "MANIFEST_VERSION", 2)
    content = encode_manifest(_rows(1))
    monkeypatch.undo()
    with pytest.raises(Corrupt, match="format version 2; this library reads version 1"):
        decode_manifest(content, name="m")


def test_a_file_kind_of_a_newer_library_is_refused() -> None:
    row = replace(_rows(1)[0], kind=json.loads('"hologram"'))
    with pytest.raises(Corrupt, match="unknown kind 'hologram'"):
        decode_manifest(encode_manifest([row]), name="m")
