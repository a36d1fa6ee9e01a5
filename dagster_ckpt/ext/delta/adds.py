"""Staged files as actions of a commit: path, size, partition values, statistics."""

from __future__ import annotations

import datetime
import json
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow.parquet as pq

from dagster_ckpt.spark.sink.committables import TableFile
from dagster_ckpt.spark.sink.table_files import StagedFiles

if TYPE_CHECKING:
    from deltalake.transaction import AddAction

_COLUMNS_WITH_STATISTICS = 32
"""The default of Delta (``delta.dataSkippingNumIndexedCols``)."""
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_WIDEST_TEXT = 32


def add_actions(staged: StagedFiles, files: Sequence[TableFile]) -> list[AddAction]:
    """Return the actions that add these files where they lie. Raises Corrupt when one is gone."""
    from deltalake.transaction import AddAction

    now = int(time.time() * 1000)
    return [
        AddAction(
            path=file.staged,
            size=file.bytes,
            partition_values=partition_values(file.staged),
            modification_time=now,
            data_change=True,
            stats=json.dumps(statistics(footer)),
        )
        for file, footer in zip(files, staged.footers(files), strict=True)
    ]


def partition_values(path: str) -> dict[str, str | None]:
    """Return what the folders of a path say of its rows, as Spark writes them (``country=DE/``)."""
    pairs = (part.split("=", 1) for part in path.split("/")[:-1] if "=" in part)
    return {unquote(name): None if value == _NO_VALUE else unquote(value) for name, value in pairs}


def statistics(footer: pq.FileMetaData) -> dict[str, Any]:
    """Return a file's statistics as Delta spells them: for plain columns, where the footer is exact."""
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(footer.num_columns):
        column = footer.schema.column(index)
        if len(nulls) >= _COLUMNS_WITH_STATISTICS or column.path != column.name:
            continue
        groups = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
        if not groups or any(group is None or not group.has_null_count for group in groups):
            continue
        nulls[column.name] = sum(group.null_count for group in groups)
        bounds = [group for group in groups if group.null_count < group.num_values + group.null_count]
        if bounds and all(group.has_min_max for group in bounds):
            low, high = min(group.min for group in bounds), max(group.max for group in bounds)
            if (spelt := (_spelt(low, -1), _spelt(high, 1))) and None not in spelt:
                lows[column.name], highs[column.name] = spelt
    return {"numRecords": footer.num_rows, "minValues": lows, "maxValues": highs, "nullCount": nulls}


def _spelt(value: Any, direction: int) -> Any:
    """Return a bound as JSON has it, never narrower than it is; None: leave this column without bounds."""
    spelt: Any = None
    match value:
        case bool() | bytes():
            pass
        case int():
            spelt = value
        case float() if (
            math.isfinite(value) and value
        ):  # a float column may hold NaN and -0.0, which it hides
            spelt = value
        case str() if len(value) <= _WIDEST_TEXT:
            spelt = value
        case datetime.datetime():
            moment = value.replace(microsecond=value.microsecond // 1000 * 1000)
            if direction > 0 and moment < value:
                moment += datetime.timedelta(milliseconds=1)
            spelt = moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z" * bool(value.tzinfo)
        case datetime.date():
            spelt = value.isoformat()
        case _:
            pass
    return spelt
