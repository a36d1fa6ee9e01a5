"""Columns of a table against those of rows, and their bounds in the log, by which readers pass over files.

Two faults of delta-rs decide which bounds are written. It takes a bound that is missing beside others for one that no
value fulfills, in ``to_pyarrow_dataset`` and so in DuckDB: a file has bounds of all columns that the table wants them
of, or of none. And it writes wrong ones when it merges files (decimals as floating-point numbers, moments cut to
milliseconds, numbers beside NaN): a table that we make wants none of such columns.
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

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.delta.lake import client
from dagster_ckpt.ext.tables.columns import Column, ColumnsOfFormat, spelt
from dagster_ckpt.spark.sink.accepts import (
    NESTED,
    PLAIN,
    UTF8,
    YEARS,
    Accepts,
    names_of_folders,
    no_characters,
    no_empty_text,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable, Schema

COLUMNS = ColumnsOfFormat(
    kept_as=lambda kind: kind if kind in PLAIN or kind.startswith("decimal(") else None,
    cannot="which delta-rs cannot write",
    fixed="and delta-rs cannot change a type",
    partitions=("string", "long", "integer", "short", "byte", "boolean", "date"),
)
NO_NAME = " ,;{}()\n\t=\0"
_FEATURES_WE_KEEP = {"appendOnly", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "invariants"}
_FEATURES_WE_KEEP |= {"checkConstraints", "generatedColumns", "changeDataFeed"}
"""Names in the protocol that staged files may be added under; the next table says when they are in use."""


def accepted(partition_by: Sequence[str]) -> Accepts:
    """Return the values and types that a Delta table with these partition columns can hold."""
    return Accepts(
        types=PLAIN | NESTED,
        names=(no_characters(NO_NAME, "a Delta table"),),
        folds_case=True,
        values=(UTF8, *YEARS),
        columns=(*no_empty_text(partition_by), *names_of_folders(partition_by)),
    )


def delta_columns(
    row_schemas: Sequence[str], key: Sequence[str], partition_by: Sequence[str]
) -> list[Column]:
    """Return the columns of micro-batches together, as a Delta table keeps them.

    Raises InvalidRequest naming one that it cannot have, Corrupt for text that is no schema.
    """
    columns = COLUMNS.together(row_schemas, key=key, partition_by=partition_by)
    names = [column["name"] for column in columns]
    if partition_by and not set(names) - set(partition_by):
        raise InvalidRequest(
            f"all columns of the rows ({', '.join(names)}) are partitions of the table, and its files would hold none: "
            "leave one out of partition_by"
        )
    return columns


def schema_of(columns: Sequence[Column]) -> Schema:
    """Return the columns as the client's schema."""
    schema: Schema = client().Schema.from_json(json.dumps({"type": "struct", "fields": list(columns)}))
    return schema


def table_columns(table: DeltaTable) -> list[Column]:
    """Return a table's columns as they are."""
    columns: list[Column] = parse_json(table.schema().to_json())["fields"]
    return columns


def refuse_table(
    table: DeltaTable, uri: str, *, only_appends: bool, partition_by: Sequence[str] | None
) -> None:
    """Raise InvalidRequest where adding staged files would break what the table promises."""
    protocol, metadata = table.protocol(), table.metadata()
    configuration = metadata.configuration
    why = ""
    unknown = sorted(set(protocol.writer_features or ()) - _FEATURES_WE_KEEP)
    promises = [name for name in configuration if name.startswith("delta.constraints.")]
    for column in table_columns(table):
        if not column["nullable"]:
            why = f"its column {column['name']} must not be null"
        elif column["name"] in metadata.partition_columns and column["type"] not in COLUMNS.partitions:
            # delta-rs reads other values, or none, where the log has bytes, moments or decimals of a partition.
            why = f"it is partitioned by {column['name']}, which is {spelt(column['type'])}"
        promises += [f"{column['name']}: {name}" for name in column["metadata"] if name.startswith("delta.")]
    if unknown:
        why = f"it uses {', '.join(unknown)}"
    elif configuration.get("delta.columnMapping.mode", "none") != "none":
        why = "its columns are mapped to other names"
    elif promises:
        why = f"it checks or makes values ({', '.join(promises)})"
    elif configuration.get("delta.appendOnly") == "true" and not only_appends:
        why = "it only takes appends (delta.appendOnly)"
    elif partition_by is not None and tuple(metadata.partition_columns) != tuple(partition_by):
        why = f"it is partitioned by {metadata.partition_columns} and not by {list(partition_by)}"
    if why:
        raise InvalidRequest(f"table {uri} cannot be written to here, {why}: give the sink another table")


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
