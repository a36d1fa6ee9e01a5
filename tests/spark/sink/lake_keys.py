"""Keys of tables with a log of their own, across restores and forks: the same is asked of Delta and Iceberg."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.channel.schema import parsed_schema
from dagster_ckpt.testing import SinkRun


def rows_like(run: SinkRun) -> Any:
    """Return what has the columns of a run's first batch, for ``Sink.check``."""
    return SimpleNamespace(schema=parsed_schema(run.batches[0].row_schema))


def a_restore_shows_rows_by_the_key_they_were_written_by(run: SinkRun) -> None:
    """``run``: of a sink without a key. The mark of what came after the cut stayed: rows without a key passed for rows
    by key, several of one.
    """

    def by(key: tuple[str, ...], run: SinkRun) -> SinkRun:
        run.context = replace(run.context, key=key)
        run.sink = run.open(run.context)
        return run

    run.batch([(1, 1), (1, 2)])
    run.publish(1)
    rows = rows_like(run)
    plain = run.cut(1)
    keyed = by(("k",), run.successor()).in_directory_of(None)
    keyed.roll_back(None)
    keyed.batch([(1, 3)])
    keyed.publish(2)
    keyed.sink.check(rows)
    for refused in (keyed.successor(), by(("v",), keyed.successor())):
        assert "were written without a key" in refused.sink.cannot_roll_back(plain.cut)
        with pytest.raises(InvalidRequest, match="were written without a key"):
            refused.roll_back(plain)
    back = by((), keyed.successor()).in_directory_of(plain)
    back.roll_back(plain)
    back.sink.check(rows)
    back.batch([(1, 4)])
    back.publish(3)
    with pytest.raises(InvalidRequest, match="were written without a key"):
        by(("k",), back.successor()).sink.check(rows)


def a_fork_by_another_key_is_refused(run: SinkRun, keyed: SinkRun, same: SinkRun) -> None:
    """``run``: of a sink without a key; ``keyed``, ``same``: of forks of it, by a key and by none."""
    run.batch([(1, 1), (1, 2)])
    run.publish(1)
    at = run.cut(1)
    with pytest.raises(
        InvalidRequest, match=r"were written without a key, and the sink has the key \['k'\] now"
    ):
        keyed.sink.fork(at.cut)
    same.sink.fork(at.cut)
    same.sink.check(rows_like(run))


NAMES = ["a`b", 'a"b', "a'b", "ä-ö", "1x", "a%b/c:d", "a`", "😀", "select", "_x"]
"""Names of columns that a Delta and an Iceberg table can have."""


def a_key_and_a_column_have_any_name(run: SinkRun, name: str) -> None:
    """``run``: of a sink whose key is k and a column of this name."""
    columns = {name: pa.string(), f"{name}2": pa.int64()}
    run.batch([(1, 1, "a", 10), (1, 2, "b", 20)], types=columns)
    run.publish(1)
    run.batch([(1, 3, "a", 30), (2, 4, "a", None)], types=columns)
    run.publish(2)
    found = run.sink.rows().to_arrow().sort_by("v").to_pydict()
    assert found == {"k": [1, 1, 2], "v": [2, 3, 4], name: ["b", "a", "a"], f"{name}2": [20, 30, None]}


def rows_that_replace_all_keep_their_partitions(run: SinkRun) -> None:
    """``run``: of a sink in output mode *complete* by key k, into a table partitioned by p. The values were null in
    Delta; Iceberg refused them at the publish.
    """
    for number in (1, 2):
        run.batch(
            [(1, number, "a"), (2, number, "b"), (3, number, None)], types={"p": pa.string()}, replaces=True
        )
        run.publish(number)
        found = run.sink.rows().to_arrow().sort_by("k").to_pydict()
        assert found == {"k": [1, 2, 3], "v": [number] * 3, "p": ["a", "b", None]}


STRUCT = pa.struct([("a", pa.int32()), ("l", pa.list_(pa.struct([("b", pa.string())])))])
NESTED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "structs": (
        STRUCT,
        [None, {"a": None, "l": None}, {"a": 1, "l": []}, {"a": 1, "l": [None, {"b": None}]}],
    ),
    "arrays": (pa.list_(STRUCT), [None, [], [None], [{"a": 1, "l": None}, None]]),
    "arrays_of_arrays": (pa.list_(pa.list_(STRUCT)), [None, [], [None, []], [[None]]]),
    "maps": (pa.map_(pa.string(), STRUCT), [None, [], [("", None)], [("a", {"a": None, "l": []})]]),
    "maps_of_arrays": (pa.map_(pa.int32(), pa.list_(pa.int64())), [None, [], [(1, None)], [(1, [None])]]),
}
"""Types by the name of a column, with values that are there, empty or missing at each depth."""


def rows_that_are_written_again_keep_what_is_missing_in_them(run: SinkRun) -> None:
    """``run``: of a sink by key k. An array of structs, or a map to structs, that was null became an empty one."""
    types = {name: of for name, (of, _) in NESTED.items()}
    values = [values for _, values in NESTED.values()]
    run.batch([(k, k, *(column[k] for column in values)) for k in range(4)], types=types)
    run.publish(1)
    for number in (2, 3):
        run.batch([(4, number, *(column[0] for column in values))], types=types)
        run.batch([(k, k, *(column[k] for column in values)) for k in (0, number)], types=types)
        run.publish(number)
    found = run.sink.rows().to_arrow().sort_by("k").to_pydict()
    for name, column in zip(NESTED, values, strict=True):
        assert found[name] == [*column, None], name
