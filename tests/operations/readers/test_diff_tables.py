"""Two tables compared by their rows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.operations.readers.diff_tables import diff_tables
from dagster_ckpt.spark.sink.rows import PublishedRows


class Rows(PublishedRows):
    def __init__(self, *rows: dict[str, Any], place: str = "/tables/totals") -> None:
        super().__init__(place)
        self.rows = list(rows)

    def to_arrow(self) -> pa.Table:
        return pa.Table.from_pylist(self.rows)


ANN, BOB, CAT = ({"name": name, "spent": spent} for name, spent in (("ann", 5), ("bob", 7), ("cat", 1)))


def test_by_key_rows_are_added_missing_and_changed() -> None:
    found = diff_tables(Rows(ANN, BOB), Rows({"name": "ann", "spent": 6}, CAT), key=["name"])
    assert (found.rows, found.same, found.added, found.missing, found.changed) == ((2, 2), 0, 1, 1, 1)
    assert [(e.kind, e.before, e.after) for e in found.examples] == [
        ("missing", {"name": "bob", "spent": "7"}, None),
        ("changed", {"name": "ann", "spent": "5"}, {"name": "ann", "spent": "6"}),
        ("added", None, {"name": "cat", "spent": "1"}),
    ]
    assert not found.is_same


def test_without_a_key_whole_rows_count_as_often_as_they_are_there() -> None:
    found = diff_tables(Rows(ANN, ANN, BOB), Rows(BOB, ANN, CAT))
    assert (found.same, found.added, found.missing, found.changed) == (2, 1, 1, 0)


def test_the_order_of_rows_and_columns_does_not_matter() -> None:
    assert diff_tables(
        Rows(ANN, BOB), Rows(*({"spent": r["spent"], "name": r["name"]} for r in (BOB, ANN)))
    ).is_same


def test_columns_that_only_one_has_are_told() -> None:
    found = diff_tables(Rows(ANN), Rows({"name": "ann", "paid": 5}))
    assert (found.columns_added, found.columns_missing, found.is_same) == (("paid",), ("spent",), False)


def test_values_that_hold_others_and_nan_are_compared_by_what_they_are() -> None:
    row = {"id": 1, "tags": ["a", "b"], "at": {"x": 1.0, "y": None}, "rate": float("nan")}
    assert diff_tables(Rows(row), Rows(dict(row)), key=["id"]).is_same
    assert diff_tables(Rows(row), Rows({**row, "tags": ["b", "a"]}), key=["id"]).changed == 1


def test_a_key_that_is_none_is_refused() -> None:
    with pytest.raises(
        InvalidRequest, match="key column 'customer' is not in both tables: both have name, spent"
    ):
        diff_tables(Rows(ANN), Rows(ANN), key=["customer"])
    with pytest.raises(InvalidRequest, match="several rows of the key name='ann': give all columns"):
        diff_tables(Rows(ANN), Rows(ANN, {"name": "ann", "spent": 9}), key=["name"])


ROWS = st.dictionaries(st.integers(0, 6), st.integers(0, 2), min_size=1)


@given(ROWS, ROWS)
def test_the_numbers_add_up(before: dict[int, int], after: dict[int, int]) -> None:
    one, other = ([{"k": k, "v": v} for k, v in rows.items()] for rows in (before, after))
    by_key = diff_tables(Rows(*one), Rows(*other), key=["k"])
    assert by_key.same + by_key.changed + by_key.missing == len(one)
    assert by_key.same + by_key.changed + by_key.added == len(other)
    whole = diff_tables(Rows(*one), Rows(*other))
    assert whole.same == (Counter(before.items()) & Counter(after.items())).total() == by_key.same
    assert by_key.is_same == (before == after) == whole.is_same
