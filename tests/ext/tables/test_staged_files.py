"""Rows staged for tables with a log of their own: read side by side, the last of each key whatever is read at once."""

from __future__ import annotations

import datetime
import decimal
import math
import random
import struct
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_ckpt.digests import digest_file
from dagster_ckpt.errors import Corrupt
from dagster_ckpt.ext.tables import rewrite, staged_files
from dagster_ckpt.ext.tables.rewrite import latest_rows, staying
from dagster_ckpt.ext.tables.staged_files import StagedFiles
from dagster_ckpt.spark.sink.committables import TableFile
from tests.properties import examples


def staged_below(folder: Path) -> StagedFiles:
    return StagedFiles("t", folder, folder, lambda: (None, ""))


def stage(folder: Path, name: str, rows: pa.Table) -> TableFile:
    pq.write_table(rows, folder / name)
    found = digest_file(folder / name)
    return TableFile(
        name=Path(name).name, staged=name, rows=rows.num_rows, bytes=found.size, checksum=found.checksum
    )


def batches_of(folder: Path, batches: list[list[tuple[int, int]]]) -> list[TableFile]:
    kind = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    return [
        stage(folder, f"{n}.parquet", pa.Table.from_pylist([{"k": k, "v": v} for k, v in batch], kind))
        for n, batch in enumerate(batches)
    ]


def test_rows_are_read_by_no_file_of_python(tmp_path: Path) -> None:
    """Threads of pyarrow that still hold such a file abort a process that ends (exit code 134)."""
    file = stage(tmp_path, "0.parquet", pa.table({"k": [1]}))
    with staged_below(tmp_path).open(file) as handle:
        assert isinstance(handle, pa.NativeFile)
        assert not isinstance(handle, pa.PythonFile)


@settings(deadline=None, max_examples=examples(50))
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers()), max_size=4), min_size=1, max_size=6),
    st.sampled_from([1, 900, 10**9]),
)
def test_the_last_row_of_each_key_wins_whatever_is_read_at_once(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[tuple[int, int]]], at_once: int
) -> None:
    folder = tmp_path_factory.mktemp("staged")
    batches = [[(k, v % 2**60) for k, v in batch] for batch in batches]
    files = batches_of(folder, batches)
    with patch.object(staged_files, "_AT_ONCE", at_once):
        rows = staged_below(folder).latest_rows(files, ["k"]).to_pylist()
    assert {row["k"]: row["v"] for row in rows} == {k: v for batch in batches for k, v in batch}
    assert len(rows) == len({row["k"] for row in rows})


def test_columns_that_came_later_and_stayed_away_are_null_in_the_rows_that_win(tmp_path: Path) -> None:
    files = [
        stage(tmp_path, "0.parquet", pa.table({"k": [1, 2], "v": [1, 1]})),
        stage(tmp_path, "1.parquet", pa.table({"k": [2, 3], "v": [2, 2], "new": ["a", "b"]})),
        stage(tmp_path, "2.parquet", pa.table({"k": [3], "v": [3]})),
    ]
    with patch.object(staged_files, "_AT_ONCE", 1):
        rows = staged_below(tmp_path).latest_rows(files, ["k"]).to_pylist()
    assert sorted((row["k"], row["v"], row["new"]) for row in rows) == [
        (1, 1, None),
        (2, 2, "a"),
        (3, 3, None),
    ]


@pytest.mark.parametrize("keys", [["k"], ["k", "side"]])
def test_zeros_of_both_signs_are_one_key_as_in_spark_and_so_is_every_nan(keys: list[str]) -> None:
    """Arrow groups by bits: a table had a row for 0.0 and one for -0.0, and Spark takes these for equal."""
    other_nan = struct.unpack("d", struct.pack("Q", 0xFFF8_0000_0000_0001))[0]
    for kind in (pa.float64(), pa.float32()):
        values = pa.array([0.0, -0.0, math.nan, other_nan, None, None, 1.5], kind)
        rows = pa.table({"k": values, "side": ["x"] * 7, "v": range(7)})
        found = latest_rows(rows, keys)
        assert found["v"].to_pylist() == [1, 3, 5, 6]
        assert math.copysign(1, found["k"][0].as_py()) == -1, "the row that wins is as it came"


KEYS = {
    "flag": [True, False, None],
    "whole": [1, 2, 3, None],
    "real": [0.0, -0.0, math.nan, 1.5, None],
    "text": ["", "a", "b", None],
    "bytes": [b"", b"a", None],
    "price": [decimal.Decimal("1.50"), decimal.Decimal("0.00"), None],
    "day": [datetime.date(2026, 1, 1), datetime.date(2026, 1, 2), None],
    "at": [datetime.datetime(2026, 1, 1, 0, 0, 0, 1), datetime.datetime(2026, 1, 1), None],  # noqa: DTZ001
}


@pytest.mark.parametrize(
    "keys", [*([name] for name in KEYS), ["flag", "real", "text"], ["whole", "price"]], ids="-".join
)
def test_rows_that_stay_and_new_ones_are_the_last_of_each_key(keys: list[str]) -> None:
    chance = random.Random(7)
    for _ in range(60):
        sizes = chance.randrange(8), chance.randrange(8)
        kinds = {name: pa.array(KEYS[name]).type for name in keys}
        before, new = (
            latest_rows(
                pa.table(
                    {
                        **{
                            name: pa.array([chance.choice(KEYS[name]) for _ in range(size)], kind)
                            for name, kind in kinds.items()
                        },
                        "v": pa.array(range(first, first + size), pa.int64()),
                    }
                ),
                keys,
            )
            for first, size in zip((0, 100), sizes, strict=True)
        )
        found = pa.concat_tables([before.filter(staying(before.select(keys), new.select(keys))), new])
        assert found["v"].to_pylist() == latest_rows(pa.concat_tables([before, new]), keys)["v"].to_pylist()


def test_rows_are_gathered_in_their_order_into_files_of_some_size() -> None:
    parts = [
        pa.table({"v": pa.array(range(first, first + size), pa.int64())})
        for first, size in ((0, 1), (1, 9), (10, 2), (12, 0), (12, 3))
    ]
    with patch.object(rewrite, "_AT_ONCE", 32):
        found = [rows["v"].to_pylist() for rows in rewrite.gathered(parts)]
    assert [v for rows in found for v in rows] == list(range(15))
    assert [len(rows) for rows in found] == [5, 4, 6]
    assert list(rewrite.gathered(parts[3:4])) == []


def test_what_is_gone_is_named_while_others_are_read(tmp_path: Path) -> None:
    files = batches_of(tmp_path, [[(n, n)] for n in range(20)])
    (tmp_path / "7.parquet").unlink()
    with pytest.raises(Corrupt, match=r"7\.parquet is gone"):
        staged_below(tmp_path).latest_rows(files, ["k"])
    with pytest.raises(Corrupt, match=r"7\.parquet is gone"):
        staged_below(tmp_path).footers(files)
    assert [table["k"][0].as_py() for table in staged_below(tmp_path).rows_of(files[8:])] == list(
        range(8, 20)
    )


class Counting:
    """An object store in a folder that counts what is read from it."""

    def __init__(self, folder: Path) -> None:
        self.fs, self.folder, self.reads = (
            pafs.SubTreeFileSystem(str(folder), pafs.LocalFileSystem()),
            folder,
            0,
        )

    def open_input_file(self, path: str) -> pa.NativeFile:
        self.reads += 1
        return self.fs.open_input_file(path)

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        return self.fs.get_file_info(paths)  # type: ignore[no-any-return]

    def open_output_stream(self, path: str) -> pa.NativeFile:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        return self.fs.open_output_stream(path)


@pytest.fixture
def store(tmp_path: Path) -> Counting:
    (tmp_path / "store").mkdir()
    return Counting(tmp_path / "store")


def in_a_store(folder: Path, store: Counting) -> StagedFiles:
    return StagedFiles("t", None, folder, lambda: (store, "t"), area="staged")


def uploaded(
    folder: Path, store: Counting, *batches: list[tuple[int, int]]
) -> tuple[StagedFiles, list[TableFile]]:
    """Return the staged files of a table in a store, and those of its batches, which are uploaded."""
    names = [f"staged/1/batch-{number:010d}-x" for number in range(len(batches))]
    for name in names:
        (folder / name).mkdir(parents=True)
    kind = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    files = [
        stage(folder, f"{name}/0.parquet", pa.Table.from_pylist([{"k": k, "v": v} for k, v in batch], kind))
        for name, batch in zip(names, batches, strict=True)
    ]
    staged = in_a_store(folder, store)
    staged.upload(files)
    assert not any((folder / "staged").rglob("*.parquet"))
    return staged, files


def test_what_this_machine_has_uploaded_is_not_fetched_again_until_it_is_published(
    tmp_path: Path, store: Counting
) -> None:
    staged, files = uploaded(tmp_path / "work", store, [(1, 1)], [(1, 2)])
    assert staged.latest_rows(files, ["k"]).to_pylist() == [{"k": 1, "v": 2}]
    assert [footer.num_rows for footer in staged.footers(files)] == [1, 1]
    assert store.reads == 0
    staged.forget_copies(files[:1])
    assert staged.latest_rows(files, ["k"]).to_pylist() == [{"k": 1, "v": 2}]
    assert store.reads == 1


def test_another_machine_fetches_what_was_uploaded_with_one_request_a_file(
    tmp_path: Path, store: Counting
) -> None:
    _, files = uploaded(tmp_path / "work", store, [(1, 1)], [(2, 2)])
    elsewhere = in_a_store(tmp_path / "elsewhere", store)
    assert [rows.num_rows for rows in elsewhere.rows_of(files)] == [1, 1]
    assert store.reads == 2


def test_of_a_published_batch_nothing_stays_no_folder_of_a_partition_either(
    tmp_path: Path, store: Counting
) -> None:
    folder = tmp_path / "work"
    name = "staged/1/batch-0000000000-x/country=fr"
    (folder / name).mkdir(parents=True)
    file = stage(folder, f"{name}/0.parquet", pa.table({"k": [1]}))
    staged = in_a_store(folder, store)
    staged.upload([file])
    staged.forget_copies([file])
    assert not [path for path in folder.rglob("*") if "batch" in path.name or "country" in path.name]


def test_an_attempt_begins_without_the_copies_of_the_one_before_it(tmp_path: Path, store: Counting) -> None:
    staged, files = uploaded(tmp_path / "work", store, [(1, 1)])
    staged.forget_copies()
    assert not [path for path in (tmp_path / "work").rglob("*") if path.is_file()]
    assert staged.rows(files[0]).to_pylist() == [{"k": 1, "v": 1}]


def test_a_file_that_is_gone_from_the_store_is_missed_though_others_are_here(
    tmp_path: Path, store: Counting
) -> None:
    staged, files = uploaded(tmp_path / "work", store, [(1, 1)], [(2, 2)])
    staged.forget_copies(files[:1])
    (store.folder / "t" / files[0].staged).unlink()
    with pytest.raises(Corrupt, match="is gone: its rows cannot be published"):
        staged.latest_rows(files, ["k"])


@pytest.mark.parametrize("damage", ["gone", "has 3 bytes and had"])
def test_files_that_a_table_is_to_name_are_looked_at_in_the_store(
    tmp_path: Path, store: Counting, damage: str
) -> None:
    staged, files = uploaded(tmp_path / "work", store, [(1, 1)], [(2, 2)])
    there = store.folder / "t" / files[1].staged
    there.unlink() if damage == "gone" else there.write_bytes(b"PAR")
    with pytest.raises(Corrupt, match=damage):
        staged.footers(files)


@pytest.mark.parametrize("has_copies", [True, False])
def test_what_is_not_as_it_was_staged_is_told_where_it_is_read(
    tmp_path: Path, store: Counting, has_copies: bool
) -> None:
    """The copy, from which rows are merged; without one the file in the store."""
    staged, files = uploaded(tmp_path / "work", store, [(1, 1)], [(2, 2)])
    staged.refuse_changed(files)
    assert store.reads == 0
    if not has_copies:
        staged.forget_copies()
    place = staged._copy(files[1]) if has_copies else store.folder / "t" / files[1].staged
    content = bytearray(place.read_bytes())
    content[len(content) // 5] ^= 1
    place.write_bytes(content)
    with pytest.raises(Corrupt, match=r"x/0\.parquet is not as it was staged \(its checksum"):
        staged.refuse_changed(files)
    staged.refuse_changed([file.model_copy(update={"checksum": ""}) for file in files])
