"""The channel log as a total order of entries, without Spark."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_ckpt.core.ids import BatchId, CheckpointId, LogPosition
from dagster_ckpt.core.messages import Alignment, BarrierOptions
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound
from dagster_ckpt.spark.channel.entries import (
    AlreadyAppended,
    Appended,
    BarrierEntry,
    CancelEntry,
    DataEntry,
    EndEntry,
    Outdated,
    encode_options,
)
from dagster_ckpt.spark.channel.in_flight import sweep_staging
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.files import DataFile, batch_folder_name
from tests.properties import examples
from tests.spark.crashing import crash_before_change, crashes_at_every_change


def staged(log: ChannelLog, batch: int, rows: int = 1) -> tuple[DataFile, ...]:
    folder = log.data_folder / batch_folder_name(batch)
    folder.mkdir(parents=True)
    (folder / "part.parquet").write_bytes(b"x" * rows)
    return (DataFile(f"data/{folder.name}/part.parquet", rows, rows),)


def append(log: ChannelLog, batch: int, rows: int = 1) -> Appended | AlreadyAppended:
    return log.append_data(BatchId(batch), staged(log, batch, rows))


def barrier(log: ChannelLog, checkpoint: int) -> Appended | AlreadyAppended | Outdated:
    return log.append_barrier(CheckpointId(checkpoint), timestamp=1.5)


def end_of_an_older_version(log: ChannelLog) -> None:
    """Append the entry that states that no data follows: the format has it, and nothing writes it any more."""
    (log.directory / f"{log.end:020d}.json").write_text('{"kind":"end"}')


def test_entries_are_read_back_as_they_were_appended(tmp_path: Path) -> None:
    log = ChannelLog.create(tmp_path)
    files = staged(log, 0, rows=3)
    options = BarrierOptions(kind=CheckpointKind.SAVEPOINT, alignment=Alignment.UNALIGNED, target="s3://x/y")
    assert log.append_data(BatchId(0), files) == Appended(LogPosition(0))
    assert log.append_barrier(
        CheckpointId(7), timestamp=2.5, options_json=encode_options(options)
    ) == Appended(LogPosition(1))
    log.append_cancel(CheckpointId(8))
    end_of_an_older_version(log)
    entries = [entry for _, entry in ChannelLog(tmp_path).entries(LogPosition(0))]
    assert entries[0] == DataEntry(batch_id=BatchId(0), files=files)
    assert isinstance(entries[1], BarrierEntry)
    assert (entries[1].checkpoint_id, entries[1].batch_id, entries[1].timestamp) == (7, 0, 2.5)
    assert entries[1].options == options
    assert entries[2:] == [CancelEntry(checkpoint_id=CheckpointId(8)), EndEntry()]


def test_a_replayed_batch_is_recognised_and_appended_once(tmp_path: Path) -> None:
    log = ChannelLog.create(tmp_path)
    append(log, 0)
    append(log, 1)
    assert append(ChannelLog(tmp_path), 0) == AlreadyAppended(LogPosition(0))
    assert ChannelLog(tmp_path).find_batch(BatchId(1)) == AlreadyAppended(LogPosition(1))
    assert log.end == 2


def test_a_barrier_names_the_last_batch_before_it_and_is_appended_once(tmp_path: Path) -> None:
    log = ChannelLog.create(tmp_path)
    barrier(log, 1)
    append(log, 0)
    barrier(log, 2)
    assert [e.batch_id for _, e in log.entries(LogPosition(0)) if isinstance(e, BarrierEntry)] == [None, 0]
    assert barrier(ChannelLog(tmp_path), 2) == AlreadyAppended(LogPosition(2))
    assert barrier(ChannelLog(tmp_path), 1) == AlreadyAppended(LogPosition(0))
    assert log.find_barrier(CheckpointId(2)) == 2
    assert log.find_barrier(CheckpointId(3)) is None


def test_a_barrier_that_a_newer_one_or_its_own_cancel_overtook_is_outdated(tmp_path: Path) -> None:
    log = ChannelLog.create(tmp_path)
    barrier(log, 5)
    assert barrier(log, 4) == Outdated(CheckpointId(5))
    log.append_cancel(CheckpointId(6))
    assert barrier(log, 6) == Outdated(CheckpointId(6))
    assert barrier(log, 7) == Appended(LogPosition(2))


def test_a_cancel_is_appended_once(tmp_path: Path) -> None:
    log = ChannelLog.create(tmp_path)
    assert log.append_cancel(CheckpointId(3)) == Appended(LogPosition(0))
    barrier(log, 4)
    assert log.append_cancel(CheckpointId(4)) == Appended(LogPosition(2))
    assert ChannelLog(tmp_path).append_cancel(CheckpointId(4)) == AlreadyAppended(LogPosition(2))


def test_no_data_follows_the_end_but_the_barrier_of_the_final_checkpoint_does(tmp_path: Path) -> None:
    log = ChannelLog.create(tmp_path)
    append(log, 0)
    end_of_an_older_version(log)
    assert barrier(log, 1) == Appended(LogPosition(2))
    assert append(log, 0) == AlreadyAppended(LogPosition(0))
    with pytest.raises(InvalidRequest, match="has ended"):
        append(log, 1)


def test_a_restored_log_begins_with_its_barrier_at_the_old_index(tmp_path: Path) -> None:
    at_cut = BarrierEntry(checkpoint_id=CheckpointId(9), batch_id=BatchId(41), timestamp=1.0)
    log = ChannelLog.create(tmp_path / "log", base=LogPosition(100), barrier=at_cut)
    assert (log.start, log.end, log.find_barrier(CheckpointId(9))) == (100, 101, 100)
    assert append(log, 41) == AlreadyAppended(None)
    assert append(log, 42) == Appended(LogPosition(101))
    with pytest.raises(InvalidRequest, match="truncated away"):
        log.read(LogPosition(99))


def test_an_unaligned_restore_puts_the_in_flight_entries_before_the_barrier(tmp_path: Path) -> None:
    old = ChannelLog.create(tmp_path / "old")
    for batch in range(4):
        append(old, batch)
    old.append_barrier(CheckpointId(1), timestamp=1.0)
    assert [data.batch_id for data in old.files_between(LogPosition(2), LogPosition(4))] == [2, 3]
    at_cut = old.read(LogPosition(4))
    assert isinstance(at_cut, BarrierEntry)
    in_flight = [entry for _, entry in old.entries(LogPosition(2), LogPosition(4))]
    new = ChannelLog.create(tmp_path / "new", base=LogPosition(2), barrier=at_cut, in_flight=in_flight)
    assert [p for p, _ in new.entries(LogPosition(2))] == [2, 3, 4]
    assert append(new, 3) == AlreadyAppended(LogPosition(3))


def test_creating_a_log_twice_is_refused_and_a_half_created_one_is_begun_anew(tmp_path: Path) -> None:
    at_cut = BarrierEntry(checkpoint_id=CheckpointId(1), batch_id=None, timestamp=1.0)

    def prepare() -> None:
        for path in tmp_path.glob("*"):
            path.unlink()

    def act() -> None:
        ChannelLog.create(tmp_path, base=LogPosition(5), barrier=at_cut)

    for _ in crashes_at_every_change(tmp_path, prepare, act):
        if not (tmp_path / "log.json").exists():
            ChannelLog.create(tmp_path, base=LogPosition(6), barrier=at_cut)
            assert (ChannelLog(tmp_path).start, ChannelLog(tmp_path).end) == (6, 7)
        else:
            assert (ChannelLog(tmp_path).start, ChannelLog(tmp_path).end) == (5, 6)
        with pytest.raises(InvalidRequest, match="already holds"):
            act()


def test_a_folder_without_a_log_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="holds no channel log"):
        _ = ChannelLog(tmp_path).end
    with pytest.raises(NotFound, match="no schema yet"):
        ChannelLog(tmp_path).read_schema()


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"kind":"data"}', b'{"kind":"new"}', b'{"kind":"end","x":1}', b"7"]
)
def test_a_damaged_entry_is_named(tmp_path: Path, content: bytes) -> None:
    log = ChannelLog.create(tmp_path)
    append(log, 0)
    path = tmp_path / f"{0:020d}.json"
    path.write_bytes(content)
    with pytest.raises(Corrupt, match=path.name):
        ChannelLog(tmp_path).read(LogPosition(0))


def test_a_missing_entry_in_the_middle_is_named(tmp_path: Path) -> None:
    log = ChannelLog.create(tmp_path)
    for batch in range(3):
        append(log, batch)
    (tmp_path / f"{1:020d}.json").unlink()
    with pytest.raises(Corrupt, match="missing in the middle"):
        ChannelLog(tmp_path).read(LogPosition(1))


def test_a_damaged_header_is_named(tmp_path: Path) -> None:
    ChannelLog.create(tmp_path)
    (tmp_path / "log.json").write_text(json.dumps({"format_version": 2, "start": 0}))
    with pytest.raises(Corrupt, match=r"log\.json"):
        _ = ChannelLog(tmp_path).end


@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 64, 100, 1000])
def test_the_end_is_found_without_listing_whatever_the_length(tmp_path: Path, length: int) -> None:
    ChannelLog.create(tmp_path, base=LogPosition(10))
    for index in range(10, 10 + length):
        (tmp_path / f"{index:020d}.json").write_text('{"kind":"end"}')
    assert ChannelLog(tmp_path).end == 10 + length


def test_truncation_forgets_entries_and_removes_their_files_but_never_the_newest_batch(
    tmp_path: Path,
) -> None:
    log = ChannelLog.create(tmp_path)
    for batch in range(5):
        append(log, batch)
    reader = ChannelLog(tmp_path)
    assert reader.end == 5
    assert log.truncate_before(LogPosition(3)) == 3
    assert (log.start, log.end, len(list(log.data_folder.iterdir()))) == (3, 5, 2)
    assert log.truncate_before(LogPosition(99)) == 1
    assert ChannelLog(tmp_path).last_batch() == 4
    assert append(log, 4) == AlreadyAppended(LogPosition(4))
    append(log, 5)
    assert reader.end == 6


def test_truncation_keeps_the_end_of_the_stream(tmp_path: Path) -> None:
    log = ChannelLog.create(tmp_path)
    append(log, 0)
    end_of_an_older_version(log)
    barrier(log, 1)
    barrier(log, 2)
    log.truncate_before(LogPosition(99))
    assert [p for p, entry in log.entries(LogPosition(0)) if isinstance(entry, EndEntry)] == [1]
    with pytest.raises(InvalidRequest, match="has ended"):
        append(ChannelLog(tmp_path), 1)


def test_truncation_can_be_stopped_anywhere_and_repeated(tmp_path: Path) -> None:
    directory = tmp_path / "log"

    def prepare() -> None:
        import shutil

        shutil.rmtree(directory, ignore_errors=True)
        log = ChannelLog.create(directory)
        for batch in range(6):
            append(log, batch)

    for _ in crashes_at_every_change(
        directory, prepare, lambda: ChannelLog(directory).truncate_before(LogPosition(4))
    ):
        log = ChannelLog(directory)
        assert log.end == 6
        assert [e.batch_id for _, e in log.entries(LogPosition(4)) if isinstance(e, DataEntry)] == [4, 5]
        log.truncate_before(LogPosition(4))
        sweep_staging(log)
        assert (log.start, log.end) == (4, 6)
        assert sorted(path.name for path in directory.glob("0*.json")) == [f"{i:020d}.json" for i in (4, 5)]
        assert len(list(log.data_folder.iterdir())) == 2


def test_sweeping_removes_unnamed_output_of_appended_batches_only(tmp_path: Path) -> None:
    log = ChannelLog.create(tmp_path)
    append(log, 0)
    append(log, 0)
    append(log, 1)
    staged(log, 2)
    (log.data_folder / "somebody-elses").mkdir()
    assert sweep_staging(log) == 1
    assert sorted(path.name[:16] for path in log.data_folder.iterdir()) == [
        "batch-0000000000",
        "batch-0000000001",
        "batch-0000000002",
        "somebody-elses",
    ]


def _append_many(directory: str, who: int, number: int) -> None:
    log = ChannelLog(directory)
    for index in range(number):
        log.append_cancel(CheckpointId(1 + who * 1000 + index))


def test_racing_appenders_in_threads_and_processes_leave_one_gap_free_log(tmp_path: Path) -> None:
    ChannelLog.create(tmp_path)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_append_many, args=(str(tmp_path), who, 30)) for who in range(3)]
    threads = [threading.Thread(target=_append_many, args=(str(tmp_path), who, 30)) for who in (3, 4)]
    for worker in [*processes, *threads]:
        worker.start()
    for worker in [*processes, *threads]:
        worker.join()
    log = ChannelLog(tmp_path)
    canceled = [
        entry.checkpoint_id for _, entry in log.entries(LogPosition(0)) if isinstance(entry, CancelEntry)
    ]
    assert log.end == 150
    assert sorted(canceled) == sorted(1 + who * 1000 + index for who in range(5) for index in range(30))
    assert not list(tmp_path.glob(".tmp-*"))


_ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["data", "replay", "barrier", "cancel", "truncate", "sweep", "reopen"]),
        st.integers(0, 3),
        st.one_of(st.none(), st.integers(0, 6)),
    ),
    max_size=40,
)


@settings(max_examples=examples(80), deadline=None)
@given(actions=_ACTIONS)
def test_any_interleaving_of_appends_and_crashes_keeps_the_log_total_and_gap_free(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int, int | None]]
) -> None:
    directory = tmp_path_factory.mktemp("log")
    handles = [ChannelLog.create(directory), *(ChannelLog(directory) for _ in range(3))]
    next_batch = next_checkpoint = 0
    for action, who, crash in actions:
        log = handles[who]
        try:
            with crash_before_change(crash, directory):
                match action:
                    case "data":
                        append(log, next_batch)
                    case "replay" if next_batch:
                        append(log, next_batch - 1)
                    case "barrier":
                        barrier(log, next_checkpoint + 1)
                    case "cancel":
                        log.append_cancel(CheckpointId(next_checkpoint + 1))
                    case "truncate":
                        log.truncate_before(LogPosition(max(log.end - 3, 0)))
                    case "sweep":
                        sweep_staging(log)
        except BaseException as stopped:
            if type(stopped).__name__ != "SimulatedCrash":
                raise
            handles[who] = ChannelLog(directory)
        fresh = ChannelLog(directory)
        last = fresh.last_batch()
        next_batch = 0 if last is None else last + 1
        next_checkpoint += action in ("barrier", "cancel")
        _check(fresh, directory)
        assert all(handle.end == fresh.end for handle in handles)


def _check(log: ChannelLog, directory: Path) -> None:
    indices = sorted(int(path.stem) for path in directory.glob("[0-9]*.json"))
    kept = [index for index in indices if index >= log.start]
    assert kept == list(range(log.start, log.end))
    entries = [entry for _, entry in log.entries(log.start)]
    batches = [entry.batch_id for entry in entries if isinstance(entry, DataEntry)]
    barriers = [entry.checkpoint_id for entry in entries if isinstance(entry, BarrierEntry)]
    assert batches == sorted(set(batches))
    assert barriers == sorted(set(barriers))
    for entry in entries:
        if isinstance(entry, DataEntry):
            assert all(os.path.exists(directory / file.name) for file in entry.files)
