"""Bounds of a file's columns in the log: by which readers pass over files, so that a wrong one hides rows.

Two faults of delta-rs decide what is written. It takes a bound that is missing beside others for one that no value
fulfills, in ``to_pyarrow_dataset`` and so in DuckDB: a file has bounds of all columns that the table wants them of, or
of none. And it writes wrong ones when it merges files (decimals as floating-point numbers, moments cut to milliseconds,
numbers beside NaN): a table that we make wants none of such columns.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from dagster_ckpt.spark.sink.versioned.columns import Column

_LISTED, _FIRST = "delta.dataSkippingStatsColumns", "delta.dataSkippingNumIndexedCols"
_ALWAYS_RIGHT = ("long", "integer", "short", "byte", "date")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""A name that every reader of a list of columns takes for itself."""
_WITHOUT_BOUNDS = ("binary", "array", "map")
"""Types that no reader asks bounds of."""
_MOST = 32
"""Columns that have bounds; the default of Delta too."""
_WIDEST_TEXT = 32
_GREATEST = 0x10FFFF


def wanted_bounds(columns: Sequence[Column], key: Sequence[str]) -> dict[str, str]:
    """Return the properties of a new table that name the columns which have bounds."""
    kinds = {column["name"]: column["type"] for column in columns if _PLAIN_NAME.fullmatch(column["name"])}
    names = dict.fromkeys([*(name for name in key if name in kinds), *kinds])
    listed = [
        name for name in names if kinds[name] in _ALWAYS_RIGHT or (name in key and kinds[name] == "string")
    ]
    return {_LISTED: ",".join(listed[:_MOST])} if listed else {_FIRST: "0"}


def bounded_columns(table: DeltaTable) -> list[str]:
    """Return the columns of which a table's readers take a missing bound for a wrong one."""
    metadata, fields = table.metadata(), table.schema().fields
    kinds = {column.name: getattr(column.type, "type", "") for column in fields}
    listed = metadata.configuration.get(_LISTED, "").split(",")
    first = metadata.configuration.get(_FIRST, str(_MOST))
    if listed != [""] and all(_PLAIN_NAME.fullmatch(name) for name in listed):
        wanted = [name for name in listed if name in kinds]
    else:
        wanted = list(kinds)[: int(first) if first.isdecimal() else None]
    without = {name for name, kind in kinds.items() if kind in _WITHOUT_BOUNDS}
    return [name for name in wanted if name not in {*without, *metadata.partition_columns}]


def statistics(footer: pq.FileMetaData, bounded: Iterable[str]) -> str:
    """Return a file's statistics as the log has them, in JSON.

    ``bounded``: columns that must all have bounds; where one cannot, none gets any.
    """
    found = _of_columns(footer)
    hides_nan = not (footer.created_by or "").startswith("parquet-mr")
    nulls: dict[str, int] = {}
    bounds: dict[str, tuple[str, str] | None] = {}
    for name in bounded:
        groups = found.get(name)
        if groups is None:  # the rows have no such column
            nulls[name] = footer.num_rows
        elif groups:
            nulls[name] = sum(group.null_count for group in groups)
        if nulls.get(name) != footer.num_rows:
            bounds[name] = _bounds(groups or (), hides_nan=hides_nan)
    said = {"numRecords": str(footer.num_rows), "nullCount": json.dumps(nulls)}
    known = {name: spelt for name, spelt in bounds.items() if spelt is not None}
    if known and len(known) == len(bounds):
        for side, limits in enumerate(("minValues", "maxValues")):
            said[limits] = _object({name: spelt[side] for name, spelt in known.items()})
    return _object(said)


def _object(texts: Mapping[str, str]) -> str:
    """Return an object whose values are JSON already: a decimal is a number there, with all its digits."""
    return "{" + ", ".join(f"{json.dumps(name)}: {text}" for name, text in texts.items()) + "}"


def _of_columns(footer: pq.FileMetaData) -> dict[str, list[pq.Statistics]]:
    """Return the footer's statistics of each plain column, one of each group of rows; empty: not of all of them."""
    found: dict[str, list[pq.Statistics]] = {}
    for index in range(footer.num_columns):
        column = footer.schema.column(index)
        if column.max_repetition_level or column.max_definition_level > 1 or column.path != column.name:
            name = column.path.split(".")[0]
            found[name] = []
            continue
        groups = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
        is_whole = groups and all(group is not None and group.has_null_count for group in groups)
        found[column.name] = groups if is_whole else []
    return found


def _bounds(groups: Sequence[pq.Statistics], *, hides_nan: bool) -> tuple[str, str] | None:
    """Return the least and greatest value as the log spells them, never narrower than they are; None: nobody knows."""
    groups = [group for group in groups if group.num_values]
    if not groups or not all(group.has_min_max for group in groups):
        return None
    try:
        lows, highs = [group.min for group in groups], [group.max for group in groups]
    except (ValueError, OverflowError, pa.ArrowException):  # a day that Python has not, text that is no UTF-8
        return None
    if isinstance(lows[0], float) and (hides_nan or any(math.isnan(bound) for bound in (*lows, *highs))):
        return None
    low, high = min(lows), max(highs)
    spelt = _spelt(low, -1), _spelt(high, 1)
    return None if None in spelt else spelt  # type: ignore[return-value]


def _spelt(value: Any, direction: int) -> str | None:
    """Return a bound as JSON has it, on its own side of the value; None: it cannot be told."""
    spelt: Any = None
    match value:
        case bool() | int():
            spelt = value
        case decimal.Decimal():
            return format(value, "f")
        case float() if math.isfinite(value):
            spelt = value or direction * 0.0  # zero may stand for that of the other sign
        case str():
            spelt = _shortened(value, direction)
        case datetime.datetime():
            spelt = _moment(value, direction)
        case datetime.date():
            spelt = value.isoformat()
        case _:
            pass
    return None if spelt is None else json.dumps(spelt)


def _shortened(text: str, direction: int) -> str | None:
    """Return text that is no longer than a bound may be, and not on the other side of this one."""
    start = text[:_WIDEST_TEXT]
    if len(text) <= _WIDEST_TEXT or direction < 0:
        return start
    while start:
        after = ord(start[-1]) + 1
        if after <= _GREATEST:
            return start[:-1] + chr(0xE000 if 0xD800 <= after < 0xE000 else after)
        start = start[:-1]
    return None


def _moment(value: datetime.datetime, direction: int) -> str | None:
    moment = value.replace(microsecond=value.microsecond // 1000 * 1000)
    if direction > 0 and moment < value:
        try:
            moment += datetime.timedelta(milliseconds=1)
        except OverflowError:
            return None
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z" * bool(value.tzinfo)
