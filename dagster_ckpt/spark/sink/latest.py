"""Rows by key: the last of each, in the order in which they came."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

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
