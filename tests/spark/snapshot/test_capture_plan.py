"""Exactly the files of the pinned batch, whatever else lies in Spark's checkpoint directory."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.core.model import FileKind
from dagster_ckpt.errors import Declined, InvalidRequest, NotFound
from dagster_ckpt.spark.attempt.query_state import refuse_names_that_are_patterns
from dagster_ckpt.spark.snapshot.capture import (
    CapturePlan,
    latest_committed_batch,
    plan_beginning,
    plan_capture,
    read_offsets,
)
from tests.removal import remove_tree
from tests.spark.snapshot.fake_checkpoint import QUERY_ID, FakeQuery


def _state(plan: CapturePlan, partition: int = 0) -> list[str]:
    kinds = (FileKind.STATE_DELTA, FileKind.STATE_SNAPSHOT)
    return sorted(
        Path(f.path).name.split("_")[0].split(".")[0] + Path(f.path).suffix
        for f in plan.files
        if f.partition == partition and f.kind in kinds
    )


@pytest.fixture(params=[True, False], ids=["format-2", "format-1"])
def query(request: pytest.FixtureRequest, tmp_path: Path) -> FakeQuery:
    return FakeQuery(tmp_path, unique_ids=request.param)


def test_a_batch_needs_its_own_logs_and_the_offsets_before_it(query: FakeQuery) -> None:
    plan = plan_capture(query.commit(5).query, BatchId(3))
    logs = [f.path for f in plan.files if f.kind is FileKind.QUERY]
    assert logs == ["query/metadata", "query/offsets/3", "query/offsets/2", "query/commits/3"]
    assert (plan.batch_id, plan.query_id) == (3, QUERY_ID)
    assert plan.offsets == {"0": '{"pos":3}'}
    assert plan.watermark_ms == 3000
    assert plan.subtasks == 2


def test_the_newest_committed_batch_is_taken_when_none_is_named(query: FakeQuery) -> None:
    assert plan_capture(query.commit(5).query).batch_id == 4
    assert latest_committed_batch(query.query) == 4


def test_an_uncommitted_batch_is_not_taken(query: FakeQuery) -> None:
    query.commit(3).write("offsets/3", "v1\n{}\n-")
    assert plan_capture(query.query).batch_id == 2


def test_state_is_the_newest_snapshot_at_or_below_the_version_and_the_changes_after_it(
    query: FakeQuery,
) -> None:
    query.commit(8).snapshot(2).snapshot(4).snapshot(8)
    assert _state(plan_capture(query.query, BatchId(5))) == ["4.zip", "5.changelog", "6.changelog"]
    assert _state(plan_capture(query.query, BatchId(3))) == ["4.zip"]
    assert _state(plan_capture(query.query, BatchId(0))) == ["1.changelog"]


def test_a_snapshot_brings_the_immutable_files_it_names_and_no_others(query: FakeQuery) -> None:
    query.commit(4).snapshot(2).snapshot(4)
    tables = [f for f in plan_capture(query.query, BatchId(2)).files if f.kind is FileKind.STATE_SST]
    assert [Path(f.path).name[:6] for f in tables] == ["000002", "000002"]
    assert all(f.content_named and f.store_name == "default" for f in tables)
    assert {f.partition for f in tables} == {0, 1}


def test_only_names_with_a_unique_id_identify_their_content(query: FakeQuery) -> None:
    plan = plan_capture(query.commit(2).query)
    changes = [f for f in plan.files if f.kind is FileKind.STATE_DELTA]
    assert [f.content_named for f in changes] == [query.unique_ids] * 4


def test_orphans_of_a_failed_try_are_left_out(tmp_path: Path) -> None:
    """A task wrote its change file, a snapshot of it was uploaded, and the batch ran again."""
    query = FakeQuery(tmp_path).commit(5)
    orphan = query.change(0, 4)
    query.snapshot(4, uid=orphan)
    plan = plan_capture(query.query)
    assert _state(plan) == ["1.changelog", "2.changelog", "3.changelog", "4.changelog", "5.changelog"]
    assert not any(orphan in f.path for f in plan.files)


def test_orphans_are_told_by_the_lineage_where_the_commit_log_is_purged(tmp_path: Path) -> None:
    query = FakeQuery(tmp_path).commit(5)
    orphan = query.change(0, 3)
    query.snapshot(3, uid=orphan)
    for batch in range(4):
        query.remove(f"commits/{batch}")
    plan = plan_capture(query.query)
    assert not any(orphan in f.path for f in plan.files)
    assert _state(plan) == ["1.changelog", "2.changelog", "3.changelog", "4.changelog", "5.changelog"]


def test_an_orphan_does_not_stand_in_for_the_file_that_vanished(tmp_path: Path) -> None:
    query = FakeQuery(tmp_path).commit(5)
    kept = query.lineage[4][0]
    query.change(0, 4)
    query.remove(f"state/0/0/4_{kept}.changelog")
    with pytest.raises(Declined, match="version 4 of query/state/0/0 is gone"):
        plan_capture(query.query, BatchId(4))


def test_a_named_batch_is_never_exchanged_for_another(query: FakeQuery) -> None:
    query.commit(5).snapshot(4).remove("state/0/1/3*.changelog")
    with pytest.raises(Declined, match=r"batch 2 .*version 3 of query/state/0/1 is gone"):
        plan_capture(query.query, BatchId(2))
    assert plan_capture(query.query).batch_id == 4


def test_a_batch_that_is_not_or_no_longer_committed_is_declined(query: FakeQuery) -> None:
    query.commit(3).remove("commits/0")
    for batch in (0, 7):
        with pytest.raises(Declined, match=f"batch {batch} "):
            plan_capture(query.query, BatchId(batch))


def test_a_missing_immutable_file_is_noticed(query: FakeQuery) -> None:
    query.commit(2).snapshot(2).remove("state/0/1/SSTs/*")
    with pytest.raises(Declined, match=r"SSTs/.* is gone"):
        plan_capture(query.query)


def test_an_immutable_file_of_the_wrong_size_is_noticed(query: FakeQuery) -> None:
    query.commit(2).snapshot(2)
    (table,) = (query.query / "state/0/0/SSTs").iterdir()
    table.write_bytes(b"short")
    with pytest.raises(Declined, match="has 5 bytes where its snapshot names"):
        plan_capture(query.query)


@pytest.mark.parametrize("path", ["commits/1", "offsets/1", "metadata"])
def test_a_damaged_log_entry_is_named(query: FakeQuery, path: str) -> None:
    query.commit(2).write(path, 'v2\n{"nextBatch')
    with pytest.raises(Declined, match=f"{path} (is damaged|has format)"):
        plan_capture(query.query)


def test_a_log_of_an_unknown_format_is_refused(query: FakeQuery) -> None:
    query.commit(2).write("commits/1", "v9\n{}")
    with pytest.raises(Declined, match=r"commits/1 has format 'v9'; this library knows v1, v2"):
        plan_capture(query.query)


def test_a_damaged_snapshot_archive_is_named(query: FakeQuery) -> None:
    query.commit(2).snapshot(2)
    (archive,) = (query.query / "state/0/0").glob("2*.zip")
    archive.write_bytes(b"no archive")
    with pytest.raises(Declined, match="not a RocksDB snapshot archive"):
        plan_capture(query.query)


def test_a_partition_folder_that_is_gone_is_noticed(query: FakeQuery) -> None:
    query.commit(2)
    remove_tree(query.query / "state/0/0")
    with pytest.raises(Declined, match="query/state/0/0 is gone"):
        plan_capture(query.query)


def test_folders_of_a_former_larger_number_of_partitions_are_left_out(query: FakeQuery) -> None:
    query.commit(2)
    query.write("state/0/2/1.changelog", "of an earlier life")
    plan = plan_capture(query.query)
    assert plan.subtasks == 2
    assert not any(f.path.startswith("query/state/0/2/") for f in plan.files)


def test_a_global_aggregate_has_one_partition_whatever_the_setting(tmp_path: Path) -> None:
    query = FakeQuery(tmp_path, partitions=1, unique_ids=False).commit(2)
    query.write("offsets/1", 'v1\n{"conf":{"spark.sql.shuffle.partitions":"8"}}\n{"pos":1}')
    assert plan_capture(query.query).subtasks == 1


def test_schemas_of_later_batches_are_left_out(query: FakeQuery) -> None:
    query.commit(4)
    query.write("state/0/_stateSchema/default/0_aaaa", "first")
    query.write("state/0/_stateSchema/default/3_bbbb", "later")
    query.write("state/0/_metadata/v2/3", "later")
    schemas = [f.path for f in plan_capture(query.query, BatchId(2)).files if f.kind is FileKind.STATE_SCHEMA]
    assert "query/state/0/_stateSchema/default/0_aaaa" in schemas
    assert "query/state/0/_metadata/metadata" in schemas
    assert not any("3" in Path(path).name for path in schemas)


def test_temporary_files_and_checksum_side_files_are_left_out(query: FakeQuery) -> None:
    query.commit(2)
    query.write("state/0/0/.2.changelog.crc", "side file")
    query.write("sources/0/.0.crc", "side file")
    query.write("state/0/0/2_00000000-0000-0000-0000-000000000000.changelog.crc", "side file")
    assert not any("crc" in f.path for f in plan_capture(query.query).files)


def test_a_gap_in_the_log_of_files_is_noticed(query: FakeQuery) -> None:
    query.commit(2).write("offsets/1", 'v1\n{}\n{"logOffset":4}')
    for number in ("2.compact", "3"):
        query.write(f"sources/0/{number}", 'v1\n{"path":"file:///a"}')
    with pytest.raises(Declined, match="entry 4 of a file source's log is gone"):
        plan_capture(query.query)


def test_files_seen_by_a_batch_that_was_never_committed_are_left_out(query: FakeQuery) -> None:
    """A source without an offset has read nothing; its log may hold what the next batch was going to read."""
    query.commit(1).write("offsets/0", "v1\n{}\n-\n-")
    query.write("sources/0/0", 'v1\n{"path":"file:///a","timestamp":1,"batchId":0}')
    query.write("sources/1/0", "v1\n1795212613779")
    sources = [f.path for f in plan_capture(query.query).files if f.kind is FileKind.SOURCE_LOG]
    assert sources == ["query/sources/1/0"]


def test_a_stream_that_is_read_twice_shifts_the_numbers_of_logs_and_none_is_cut(query: FakeQuery) -> None:
    """Spark writes two offsets of it, and numbers the logs without it."""
    offsets = ["0", "0", "3"]
    query.commit(1).write(
        "offsets/0", "\n".join(["v1", "{}", *(f'{{"logOffset":{one}}}' for one in offsets)])
    )
    for name in ("0/0", "1/0", "1/1", "1/2", "1/3"):
        query.write(f"sources/{name}", 'v1\n{"path":"file:///a","timestamp":1,"batchId":0}')
    sources = [f.path for f in plan_capture(query.query).files if f.kind is FileKind.SOURCE_LOG]
    assert sources == [f"query/sources/{name}" for name in ("0/0", "1/0", "1/1", "1/2", "1/3")]
    with pytest.raises(InvalidRequest, match="reads a stream of files twice"):
        refuse_names_that_are_patterns("map", query.query, BatchId(0))
    query.write("offsets/0", 'v1\n{}\n{"logOffset":0}\n{"logOffset":0}\n{"pos":0}')
    refuse_names_that_are_patterns("two streams and a channel", query.query, BatchId(0))
    query.write("offsets/0", 'v1\n{}\n{"logOffset":0}\n{"logOffset":0}')
    (query.query / "sources/1").rename(query.query / "other")
    query.write("sources/0/1", "v1")
    sources = [f.path for f in plan_capture(query.query).files if f.kind is FileKind.SOURCE_LOG]
    assert sources == ["query/sources/0/0"], "the only log has the stream's own number"


def test_a_cut_before_any_batch_holds_no_batch_whatever_was_committed_since(query: FakeQuery) -> None:
    query.commit(3).write("sources/0/0", "v1\n1795212613779")
    plan = plan_beginning(query.query)
    assert plan.batch_id is None
    assert [f.path for f in plan.files] == ["query/metadata", "query/sources/0/0"]
    assert plan.query_id == QUERY_ID


def test_named_sources_of_the_second_offset_format_are_read(query: FakeQuery) -> None:
    query.commit(2).write("offsets/1", 'v2\n{"batchWatermarkMs":5}\norders:{"pos":3}\nclicks:-')
    assert plan_capture(query.query).offsets == {"orders": '{"pos":3}'}
    assert read_offsets(query.query, BatchId(1)) == {"orders": '{"pos":3}'}


def test_offsets_of_a_batch_that_is_not_kept_are_not_found(query: FakeQuery) -> None:
    with pytest.raises(NotFound, match="batch 9 has no entry"):
        read_offsets(query.commit(2).query, BatchId(9))


def test_a_plan_is_whole_while_batches_and_maintenance_go_on(query: FakeQuery) -> None:
    """A writer commits, snapshots and deletes everything older than two batches, as fast as it can."""
    query.commit(2).snapshot(2)
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            query.commit().snapshot(query.batches)
            old = query.batches - 2
            for pattern in (f"state/0/*/{old}[_.]*", f"commits/{old - 1}", f"SSTs/{old:06d}-*"):
                for path in query.query.glob(pattern):
                    path.unlink()

    writer = threading.Thread(target=run)
    writer.start()
    try:
        batches = {plan_capture(query.query).batch_id for _ in range(100)}
    finally:
        stop.set()
        writer.join()
    assert len(batches) > 3
