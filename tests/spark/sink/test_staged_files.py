"""Rows staged for tables with a log of their own: read side by side, the last of each key whatever is read at once."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_ckpt.errors import Corrupt
from dagster_ckpt.spark.sink import table_files
from dagster_ckpt.spark.sink.committables import TableFile
from dagster_ckpt.spark.sink.table_files import StagedFiles


def staged_below(folder: Path) -> StagedFiles:
    return StagedFiles("t", folder, folder, lambda: (None, ""))


def stage(folder: Path, name: str, rows: pa.Table) -> TableFile:
    pq.write_table(rows, folder / name)
    size = (folder / name).stat().st_size
    return TableFile(name=name, staged=name, rows=rows.num_rows, bytes=size)


def batches_of(folder: Path, batches: list[list[tuple[int, int]]]) -> list[TableFile]:
    kind = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    return [
        stage(folder, f"{n}.parquet", pa.Table.from_pylist([{"k": k, "v": v} for k, v in batch], kind))
        for n, batch in enumerate(batches)
    ]


@settings(deadline=None, max_examples=50)
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
    with patch.object(table_files, "_AT_ONCE", at_once):
        rows = staged_below(folder).latest_rows(files, ["k"]).to_pylist()
    assert {row["k"]: row["v"] for row in rows} == {k: v for batch in batches for k, v in batch}
    assert len(rows) == len({row["k"] for row in rows})


def test_columns_that_came_later_and_stayed_away_are_null_in_the_rows_that_win(tmp_path: Path) -> None:
    files = [
        stage(tmp_path, "0.parquet", pa.table({"k": [1, 2], "v": [1, 1]})),
        stage(tmp_path, "1.parquet", pa.table({"k": [2, 3], "v": [2, 2], "new": ["a", "b"]})),
        stage(tmp_path, "2.parquet", pa.table({"k": [3], "v": [3]})),
    ]
    with patch.object(table_files, "_AT_ONCE", 1):
        rows = staged_below(tmp_path).latest_rows(files, ["k"]).to_pylist()
    assert sorted((row["k"], row["v"], row["new"]) for row in rows) == [
        (1, 1, None),
        (2, 2, "a"),
        (3, 3, None),
    ]


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
