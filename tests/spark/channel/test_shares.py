"""The files of a batch over tasks: in the log's order, because a sink with a key keeps the row that came last."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.spark.channel.source import balanced
from dagster_ckpt.spark.files import DataFile


def files(sizes: list[int]) -> list[DataFile]:
    return [DataFile(f"{number}.parquet", 1, size) for number, size in enumerate(sizes)]


@given(st.lists(st.integers(0, 1000), max_size=30), st.integers(1, 8))
def test_shares_are_runs_of_the_log_none_empty(sizes: list[int], shares: int) -> None:
    given_files = files(sizes)
    dealt = balanced(given_files, shares)
    assert [file for share in dealt for file in share] == given_files
    assert all(dealt)
    assert len(dealt) == min(shares, len(dealt))


def test_shares_are_of_about_equal_bytes() -> None:
    assert [len(share) for share in balanced(files([10] * 10), 5)] == [2] * 5
    assert [[file.bytes for file in share] for share in balanced(files([100, 1, 1, 1, 1, 100]), 3)] == [
        [100],
        [1, 1, 1, 1],
        [100],
    ]
