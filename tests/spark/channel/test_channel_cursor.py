"""Where a reader's next micro-batch ends, as a pure decision, and the release file that steers it."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from dagster_ckpt.core.ids import BatchId, CheckpointId, LogPosition
from dagster_ckpt.errors import Corrupt, InvalidRequest, Unavailable
from dagster_ckpt.spark.channel.entries import (
    MIN_EMPTY_ENTRIES_PER_BATCH,
    BarrierEntry,
    CancelEntry,
    DataEntry,
    EndEntry,
    Entry,
    HoldNothing,
    Limit,
    Release,
    Released,
    ReleasedThrough,
    next_end,
)
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.channel.source import ChannelReader
from dagster_ckpt.spark.files import DataFile, create_exclusively, replace_whole


def data(batch: int, rows: int = 1) -> DataEntry:
    files = (DataFile(f"data/{batch}", rows, rows),) if rows else ()
    return DataEntry(batch_id=BatchId(batch), files=files)


def barrier(checkpoint: int) -> BarrierEntry:
    return BarrierEntry(checkpoint_id=CheckpointId(checkpoint), batch_id=None, timestamp=0.0)


def end_of(
    entries: list[Entry],
    start: int = 0,
    *,
    released: Released | None = None,
    limit: Limit | None = None,
    onto_barrier: bool = False,
) -> int:
    ahead = [(LogPosition(index), entry) for index, entry in enumerate(entries) if index >= start]
    return next_end(
        LogPosition(start),
        ahead,
        released=released or ReleasedThrough(),
        limit=limit or Limit(),
        onto_barrier=onto_barrier,
    )


def test_a_batch_ends_exactly_on_an_unreleased_barrier() -> None:
    assert end_of([data(0), data(1), barrier(1), data(2)]) == 2


def test_a_reader_that_stands_on_an_unreleased_barrier_stays_there() -> None:
    assert end_of([data(0), barrier(1), data(1)], start=1) == 1


def test_a_released_barrier_is_passed_and_the_next_one_holds() -> None:
    entries = [data(0), barrier(1), data(1), barrier(2), data(2)]
    assert end_of(entries, start=1, released=ReleasedThrough(1)) == 3
    assert end_of(entries, start=1, released=ReleasedThrough(2)) == 5
    assert end_of(entries, released=HoldNothing()) == 5


def test_a_barrier_without_rows_before_it_is_reached_without_a_batch() -> None:
    assert end_of([barrier(1), barrier(2)], released=ReleasedThrough(1)) == 0


def test_a_query_that_ends_with_what_is_there_goes_onto_the_barrier() -> None:
    assert end_of([barrier(1), barrier(2)], released=ReleasedThrough(1), onto_barrier=True) == 1
    assert end_of([barrier(1), barrier(2)], start=1, released=ReleasedThrough(1), onto_barrier=True) == 1


def test_many_entries_without_rows_are_worth_a_batch_so_that_the_log_can_be_cut() -> None:
    barriers = [barrier(n) for n in range(1, MIN_EMPTY_ENTRIES_PER_BATCH + 2)]
    assert end_of(barriers[:-2], released=ReleasedThrough(MIN_EMPTY_ENTRIES_PER_BATCH)) == 0
    assert (
        end_of(barriers[:-1], released=ReleasedThrough(MIN_EMPTY_ENTRIES_PER_BATCH))
        == MIN_EMPTY_ENTRIES_PER_BATCH
    )
    assert (
        end_of(barriers, released=ReleasedThrough(MIN_EMPTY_ENTRIES_PER_BATCH)) == MIN_EMPTY_ENTRIES_PER_BATCH
    )
    assert end_of(barriers, released=ReleasedThrough(MIN_EMPTY_ENTRIES_PER_BATCH - 1)) == 0
    assert end_of([*barriers, data(0)], released=HoldNothing()) == len(barriers) + 1


def test_nothing_but_released_barriers_cancels_and_empty_batches_makes_no_batch() -> None:
    assert (
        end_of(
            [barrier(1), CancelEntry(checkpoint_id=CheckpointId(2)), data(0, rows=0), EndEntry()],
            released=ReleasedThrough(1),
        )
        == 0
    )


def test_a_cancel_marker_holds_nobody() -> None:
    assert end_of([CancelEntry(checkpoint_id=CheckpointId(1)), data(0)]) == 2


def test_limits_end_a_batch_between_entries_but_one_entry_is_always_taken() -> None:
    entries: list[Entry] = [data(0, 10), data(1, 10), data(2, 10)]
    assert end_of(entries, limit=Limit(entries=2)) == 2
    assert end_of(entries, limit=Limit(rows=25)) == 2
    assert end_of(entries, limit=Limit(rows=3)) == 1
    assert end_of(entries, limit=Limit(entries=3, rows=19)) == 1


_ENTRY = st.one_of(
    st.builds(data, st.integers(0, 9), st.integers(0, 3)),
    st.builds(lambda n: CancelEntry(checkpoint_id=CheckpointId(n)), st.integers(1, 9)),
    st.just(None),
)


@given(
    drawn=st.lists(_ENTRY, max_size=20),
    through=st.integers(0, 8),
    limit=st.builds(Limit, entries=st.none() | st.integers(1, 3), rows=st.none() | st.integers(1, 5)),
)
def test_repeated_batches_deliver_every_row_up_to_the_held_barrier_once_and_then_stop(
    drawn: list[Entry | None], through: int, limit: Limit
) -> None:
    entries: list[Entry] = []
    for entry in drawn:
        entries.append(
            barrier(1 + sum(isinstance(e, BarrierEntry) for e in entries)) if entry is None else entry
        )
    held = next(
        (i for i, e in enumerate(entries) if isinstance(e, BarrierEntry) and e.checkpoint_id > through),
        len(entries),
    )
    position, delivered = 0, []
    for _ in range(len(entries) + 1):
        end = end_of(entries, position, released=ReleasedThrough(through), limit=limit)
        assert position <= end <= held
        delivered.extend(range(position, end))
        if end == position:
            break
        position = end
    assert delivered == list(range(position))
    assert not any(isinstance(e, DataEntry) and e.files for e in entries[position:held])
    through_the_end = end_of(entries, position, released=ReleasedThrough(through), onto_barrier=True)
    assert through_the_end == held or held == len(entries)


def test_a_release_is_never_taken_back(tmp_path: Path) -> None:
    release = Release(tmp_path / "stage")
    assert release.read() == ReleasedThrough(0)
    release.through(CheckpointId(3))
    release.through(CheckpointId(2))
    assert Release.at(release.path).read() == ReleasedThrough(3)
    release.everything()
    release.through(CheckpointId(4))
    assert release.read() == HoldNothing()


def test_releases_from_several_threads_keep_the_highest(tmp_path: Path) -> None:
    def release_some(first: int) -> None:
        for number in range(first, 100, 4):
            Release(tmp_path).through(CheckpointId(number))

    threads = [threading.Thread(target=release_some, args=(first,)) for first in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Release(tmp_path).read() == ReleasedThrough(99)


def test_a_damaged_release_file_or_a_wrong_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "released").write_text("{}")
    with pytest.raises(Corrupt, match="released"):
        Release(tmp_path).read()
    with pytest.raises(InvalidRequest, match="named 'released'"):
        Release.at(tmp_path / "other")


# --- whose position it is -----------------------------------------------------------------------------------


def reader(folder: Path, **options: str) -> ChannelReader:
    return ChannelReader({"path": str(folder), **options}, StructType([]))


def test_an_offset_of_another_channel_is_refused_before_a_row_is_read(tmp_path: Path) -> None:
    """Spark hands offsets out by the order of the sources: after a.union(c) became c.union(a), c would get a's."""
    log = ChannelLog.create(tmp_path)
    log.append_data(BatchId(0), ())
    mine = reader(tmp_path, channel="c", formerly='["old"]')
    for foreign in ({"channel": "a", "pos": 0}, {"logOffset": 3}):
        with pytest.raises(InvalidRequest, match=r"its input 'c' is one in .* back into the order they had"):
            mine.latestOffset(foreign, ReadAllAvailable())
        with pytest.raises(InvalidRequest, match="the order of its inputs has changed"):
            mine.partitions(foreign, foreign)


@pytest.mark.parametrize("start", [{"channel": "c", "pos": 0}, {"channel": "old", "pos": 0}, {"pos": 0}])
def test_offsets_of_the_channel_by_any_of_its_names_or_none_go_on_and_stay_what_they_are(
    tmp_path: Path, start: dict[str, object]
) -> None:
    """Spark compares offsets as text: one that nothing was read from must not change."""
    ChannelLog.create(tmp_path)
    mine = reader(tmp_path, channel="c", formerly='["old"]')
    assert mine.latestOffset(start, ReadAllAvailable()) is start
    assert mine.partitions(start, start) == []


def test_a_write_that_finds_the_disk_full_says_what_to_make_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = Release(tmp_path / "stage")
    release.through(CheckpointId(1))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(Unavailable, match=r"stage/released failed: .*Make room or give access"):
        release.through(CheckpointId(2))
    (old := tmp_path / "note").write_bytes(b"old")
    with pytest.raises(Unavailable, match=r"writing .*note failed: .*Make room or give access"):
        replace_whole(old, b"new")
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(Unavailable, match=r"writing .*new failed: .*Make room or give access"):
        create_exclusively(tmp_path / "new", b"new")
    monkeypatch.undo()
    assert release.read() == ReleasedThrough(CheckpointId(1))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["note", "stage"], (
        "nothing is left of a write that failed"
    )
    assert old.read_bytes() == b"old"
