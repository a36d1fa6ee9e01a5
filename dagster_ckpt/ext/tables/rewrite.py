"""Rows by key, the last of each; files of a table that are written again, without rows whose key others replace."""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from dagster_ckpt.errors import InvalidRequest

_ORDER_COLUMN = "__dagster_ckpt_order"
_FEW = 64
"""Rows whose keys are looked for in all others, before all keys are compared."""


def latest_rows(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the last row of each key."""
    if not rows.num_rows or _are_distinct(rows, keys):
        return rows
    numbered = comparable(rows, keys).append_column(_ORDER_COLUMN, numbers(rows.num_rows))
    try:
        latest = numbered.group_by(list(keys)).aggregate([(_ORDER_COLUMN, "max")])
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise InvalidRequest(
            f"the columns {list(keys)} cannot be a key: {error}. Use plain columns (numbers, text, dates)"
        ) from error
    if latest.num_rows == rows.num_rows:
        return rows
    places: Any = latest[f"{_ORDER_COLUMN}_max"].combine_chunks().sort()
    return rows.take(places)


def comparable(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the key columns, with what Spark takes for one value as one: 0.0 and -0.0, and each NaN.

    Arrow groups floating-point numbers by their bits.
    """
    return pa.table({name: _one_of_equals(rows[name]) for name in keys})


def _one_of_equals(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_floating(column.type):
        return column
    without_sign: Any = pc.add(column, pa.scalar(0.0, column.type))
    found: Any = pc.if_else(pc.is_nan(without_sign), pa.scalar(math.nan, column.type), without_sign)
    return found


def compares_as_it_is(kind: pa.DataType) -> bool:
    """Tell whether values are equal exactly where grouping takes them for one: not so for floating-point numbers."""
    is_text = pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_boolean(kind)
    return bool(
        is_text or pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_temporal(kind)
    )


def _are_distinct(rows: pa.Table, keys: Sequence[str]) -> bool:
    """Tell whether no key comes twice, where that is seen without grouping; grouping imports pandas."""
    if len(keys) > 1 or not compares_as_it_is(rows.schema.field(keys[0]).type):
        return False
    column = rows[keys[0]]
    first = column.slice(0, _FEW)
    come_again = pc.sum(pc.is_in(column, value_set=first)).as_py() > len(first)
    if come_again:  # as all keys do in a running count: seen without hashing them
        return False
    return bool(len(column.unique()) == rows.num_rows)


def numbers(count: int) -> pa.Array:
    """Return the numbers from 0: with no object for each, and not by ``pa.scalar``, which imports pandas."""
    if not count:
        return pa.array([], pa.int64())
    zero, one = (number.to_bytes(8, sys.byteorder) for number in (0, 1))
    steps = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(zero + one * (count - 1))])
    return pc.cumulative_sum(steps)


_AT_ONCE = 256 * 1024 * 1024
"""Bytes of rows that are gathered before they are written as one file."""
_ORDER, _IS_NEW = "__dagster_ckpt_order", "__dagster_ckpt_new"
ENOUGH = 32
"""Small files of about one size from which they are merged beside publishing."""
_MOST = 4 * ENOUGH
"""Files that are merged in one step."""
_SMALL = 32 * 1024 * 1024
"""Bytes from which a file is left as it is, and at which a step has enough."""

F = TypeVar("F")


def small_alike(
    files: Iterable[F], bytes_of: Callable[[F], int], partition_of: Callable[[F], object]
) -> list[F]:
    """Return the files of one partition and of about one size that are most, if they are enough for a step of merging.

    So a row is written again once for each power of the size.
    """
    groups: dict[tuple[str, int], list[F]] = defaultdict(list)
    for file in files:
        if bytes_of(file) < _SMALL:
            groups[repr(partition_of(file)), bytes_of(file).bit_length() // 5].append(file)
    most = max(groups.values(), key=len, default=[])
    if len(most) < ENOUGH:
        return []
    chosen: list[F] = []
    for file in most[:_MOST]:
        if sum(map(bytes_of, chosen)) < _SMALL:
            chosen.append(file)
    return chosen


def gathered(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows of all parts in their order, of small ones together and great ones apart; none where none are."""
    gathering: list[pa.Table] = []
    for piece in _pieces(parts):
        gathering.append(piece)
        if sum(one.nbytes for one in gathering) >= _AT_ONCE:
            yield pa.concat_tables(gathering)
            gathering = []
    if gathering:
        yield pa.concat_tables(gathering)


def _pieces(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    for part in parts:
        at_once = max(1, part.num_rows * _AT_ONCE // max(part.nbytes, _AT_ONCE))
        for first in range(0, part.num_rows, at_once):
            yield part.slice(first, at_once)


def staying(there: pa.Table, keys: pa.Table) -> Any:
    """Tell for each row whether it stays: it has none of the keys. A null is equal to a null, NaN to NaN, -0.0 to 0.0.

    Both have exactly the columns of the key, in the same types.
    """
    names = keys.column_names
    plain = [name for name in names if compares_as_it_is(keys.schema.field(name).type)]
    has_ours = [pc.is_in(there[name], value_set=keys[name]) for name in plain]
    if len(names) == len(plain) == 1:
        return pc.invert(has_ours[0])
    places: Any = numbers(there.num_rows)
    if has_ours:  # grouping is dear: only rows whose values are there, one by one, are compared as a whole
        places = pc.indices_nonzero(reduce(pc.and_, has_ours))
    gone = places.take(_comes_again(there.take(places), keys))
    return pc.invert(pc.is_in(numbers(there.num_rows), value_set=gone.cast(pa.int64())))


def _comes_again(there: pa.Table, keys: pa.Table) -> Any:
    """Return the places of rows that have one of the keys."""
    order = numbers(there.num_rows + keys.num_rows)
    both = comparable(pa.concat_tables([there, keys]), keys.column_names).append_column(_ORDER, order)
    both = both.append_column(_IS_NEW, pc.greater_equal(order, there.num_rows))
    groups = both.group_by(keys.column_names).aggregate([(_ORDER, "list"), (_IS_NEW, "any")])
    found: Any = pc.list_flatten(groups.filter(groups[f"{_IS_NEW}_any"])[f"{_ORDER}_list"].combine_chunks())
    return found.filter(pc.less(found, there.num_rows))


def bounds_of(column: pa.ChunkedArray) -> tuple[Any, Any] | None:
    """Return the least and greatest of key values that a file's bounds can be compared with; None: compare with none.

    No bounds tell where a null is; and those of floating-point numbers leave out NaN.
    """
    kind = column.type
    has_bounds = pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date32(kind)
    if not has_bounds or column.null_count or not len(column):
        return None
    found = pc.min_max(column)
    return found["min"].as_py(), found["max"].as_py()


def repeating(schema: pa.Schema, key: Sequence[str]) -> list[str] | bool:
    """Return the columns that a dictionary may make smaller: one of values that are all different does the opposite."""
    if len(key) > 1 or any(pa.types.is_nested(column.type) for column in schema):
        return True
    return [name for name in schema.names if name not in key]


def conformed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with exactly these columns; one that is missing is null."""
    columns = [
        rows[f.name].cast(f.type) if f.name in rows.column_names else pa.nulls(rows.num_rows, f.type)
        for f in schema
    ]
    return pa.table(columns, schema=schema)
