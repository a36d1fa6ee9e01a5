"""Rows by key: the last of each, in the order in which they came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dagster_ckpt.errors import InvalidRequest

_ORDER_COLUMN = "__dagster_ckpt_order"


def latest_rows(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the last row of each key."""
    if not rows.num_rows:
        return rows
    order = pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows))  # no object for each row
    numbered = rows.append_column(_ORDER_COLUMN, pc.subtract(order, 1))
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


def replaced(before: pa.Table, new: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the rows of ``before`` whose keys are not in ``new``, then those of ``new``; in both a key is there once.

    Both have the same columns.
    """
    if not before.num_rows or not new.num_rows:
        return new if not before.num_rows else before
    if len(keys) > 1 or not _is_plain(new.schema.field(keys[0]).type):
        return latest_rows(pa.concat_tables([before, new]), keys)
    comes_again = pc.is_in(
        before[keys[0]], value_set=new[keys[0]].combine_chunks()
    )  # a null is equal to a null
    return pa.concat_tables([before.filter(pc.invert(comes_again)), new])


def _is_plain(kind: pa.DataType) -> bool:
    """Tell whether values are equal exactly where grouping takes them for one: not so for floating-point numbers."""
    is_text = pa.types.is_string(kind) or pa.types.is_binary(kind)
    return bool(is_text or pa.types.is_integer(kind) or pa.types.is_date32(kind))
