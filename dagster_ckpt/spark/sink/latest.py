"""Rows by key: the last of each, in the order in which they came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from dagster_ckpt.errors import InvalidRequest

_ORDER_COLUMN = "__dagster_ckpt_order"


def latest_rows(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the last row of each key."""
    numbered = rows.append_column(_ORDER_COLUMN, pa.array(range(rows.num_rows), pa.int64()))
    try:
        latest = numbered.group_by(list(keys)).aggregate([(_ORDER_COLUMN, "max")])
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise InvalidRequest(
            f"the columns {list(keys)} cannot be a key: {error}. Use plain columns (numbers, text, dates)"
        ) from error
    order: Any = latest[f"{_ORDER_COLUMN}_max"].combine_chunks().sort()
    return rows.take(order)
