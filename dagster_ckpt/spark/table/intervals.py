"""Spark's day-time intervals in rows that were read without Spark.

Parquet has no type for them: files hold plain microseconds, and only Spark's schema says what these are. Intervals of
years and months stay the number of months, as Arrow has no type that readers share.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dagster_ckpt.core.json_text import parse_json

_DAY_TIME = ("interval day", "interval hour", "interval minute", "interval second")


def with_durations(rows: pa.Table, schema: str) -> pa.Table:
    """Return the rows with ``duration`` where a Spark schema (JSON) has day-time intervals; empty: nobody knows."""
    if '"interval ' not in schema:
        return rows
    kinds = {field["name"]: field["type"] for field in parse_json(schema)["fields"]}
    fields = [field.with_type(_timed(field.type, kinds.get(field.name))) for field in rows.schema]
    return rows.cast(pa.schema(fields, metadata=rows.schema.metadata))


def _timed(carried: pa.DataType, kind: Any) -> pa.DataType:
    """Return an Arrow type with durations for those of the Spark type that are carried as numbers."""
    if isinstance(kind, str):
        is_interval = kind.startswith(_DAY_TIME) and pa.types.is_int64(carried)
        return pa.duration("us") if is_interval else carried
    if not isinstance(kind, dict):
        return carried
    if pa.types.is_list(carried):
        return pa.list_(_timed_field(carried.value_field, kind["elementType"]))
    if pa.types.is_map(carried):
        key, item = carried.key_field, carried.item_field
        return pa.map_(_timed_field(key, kind["keyType"]), _timed_field(item, kind["valueType"]))
    if pa.types.is_struct(carried):
        kinds = {field["name"]: field["type"] for field in kind["fields"]}
        return pa.struct([_timed_field(field, kinds.get(field.name)) for field in carried])
    return carried


def _timed_field(field: pa.Field[Any], kind: Any) -> pa.Field[Any]:
    return field.with_type(_timed(field.type, kind))
