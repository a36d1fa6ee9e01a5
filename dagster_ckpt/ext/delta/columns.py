"""Rows against a table's columns: which are added, which cannot be taken; and tables that must not be written to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.ext.delta.lake import client
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

_PRIMITIVES = [
    "string",
    "long",
    "integer",
    "short",
    "byte",
    "float",
    "double",
    "boolean",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
]
_PARTITIONS = ("string", "long", "integer", "short", "byte", "boolean", "date")
NO_NAME = " ,;{}()\n\t=\0"
_FEATURES_WE_KEEP = {"appendOnly", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "invariants"}
_FEATURES_WE_KEEP |= {"checkConstraints", "generatedColumns", "changeDataFeed"}
"""Names in the protocol that staged files may be added under; the next table says when they are in use."""

Column = dict[str, Any]


def accepted(partition_by: Sequence[str]) -> Accepts:
    """Return the values and types that a Delta table with these partition columns can hold."""
    return Accepts(
        types=PLAIN | NESTED,
        names=(no_characters(NO_NAME, "a Delta table"),),
        folds_case=True,
        values=(UTF8, *YEARS),
        columns=(*no_empty_text(partition_by), *names_of_folders(partition_by)),
    )


def delta_columns(row_schema: str) -> list[Column]:
    """Return Spark's columns as a Delta table has them.

    Raises InvalidRequest naming one that it cannot have, Corrupt for text that is no schema.
    """
    try:
        columns = [_plain(column) for column in parse_json(row_schema)["fields"]]
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"the columns of a prepared batch are damaged: {row_schema[:80]!r}; restore an earlier one"
        ) from error
    for column in columns:
        _refuse_type(column["name"], column["type"])
    return columns


def schema_of(columns: Sequence[Column]) -> Schema:
    """Return the columns as the client's schema."""
    schema: Schema = client().Schema.from_json(json.dumps({"type": "struct", "fields": list(columns)}))
    return schema


def columns_together(parts: Sequence[Sequence[Column]]) -> list[Column]:
    """Return the columns of several micro-batches. Raises InvalidRequest naming one that changed its type."""
    together: dict[str, Column] = {}
    for column in (column for part in parts for column in part):
        known = together.setdefault(column["name"], column)
        if known["type"] != column["type"]:
            raise InvalidRequest(
                f"the column {column['name']} was {_spelt(known['type'])} and became {_spelt(column['type'])}: cast it"
            )
    return list(together.values())


def table_columns(table: DeltaTable) -> list[Column]:
    """Return a table's columns as they are."""
    columns: list[Column] = parse_json(table.schema().to_json())["fields"]
    return columns


def new_columns(table: DeltaTable, columns: Sequence[Column], uri: str) -> list[Column]:
    """Return the columns that the table does not have yet. Raises InvalidRequest naming one that changed its type."""
    has = {c["name"].lower(): c for c in table_columns(table)}
    there = {name: _plain(c) for name, c in has.items()}
    added = []
    for column in columns:
        known = there.get(column["name"].lower())
        if known is None:
            added.append(column)
        elif known["name"] != column["name"]:
            raise InvalidRequest(
                f"the column {column['name']} is called {known['name']} in table {uri}: rename it"
            )
        elif known["type"] != column["type"]:
            raise InvalidRequest(
                f"the column {column['name']} is {_spelt(column['type'])} in the rows and {_spelt(known['type'])} in "
                f"table {uri}, and delta-rs cannot change a type: cast it, or write to a new table"
            )
        elif _needs_values(has[column["name"].lower()]["type"]):
            raise InvalidRequest(
                f"table {uri} needs a value in every part of the column {column['name']}, and rows of Spark may have "
                "none there: write to a new table"
            )
    return added


def refuse_columns(columns: Sequence[Column], *, key: Sequence[str], partition_by: Sequence[str]) -> None:
    """Raise InvalidRequest where the rows lack a column of the key, or one to partition by."""
    types = {column["name"]: column["type"] for column in columns}
    for name in (*key, *partition_by):
        if name not in types:
            raise InvalidRequest(f"the rows have no column {name}: there are {', '.join(types)}")
    if partition_by and not set(types) - set(partition_by):
        raise InvalidRequest(
            f"all columns of the rows ({', '.join(types)}) are partitions of the table, and its files would hold none: "
            "leave one out of partition_by"
        )
    for name in partition_by:
        if types[name] not in _PARTITIONS:
            raise InvalidRequest(
                f"the column {name} is {_spelt(types[name])} and cannot be partitioned by: use one of "
                f"{', '.join(_PARTITIONS)}"
            )


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
        elif column["name"] in metadata.partition_columns and column["type"] not in _PARTITIONS:
            # delta-rs reads other values, or none, where the log has bytes, moments or decimals of a partition.
            why = f"it is partitioned by {column['name']}, which is {_spelt(column['type'])}"
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


def _plain(column: Column) -> Column:
    """Return a column as Delta writes it: nullable, without Spark's notes (a watermark's delay)."""
    return {"name": column["name"], "type": _plain_type(column["type"]), "nullable": True, "metadata": {}}


def _plain_type(kind: Any) -> Any:
    if not isinstance(kind, dict):
        return kind
    match kind.get("type"):
        case "struct":
            return {"type": "struct", "fields": [_plain(column) for column in kind["fields"]]}
        case "array":
            return {
                "type": "array",
                "elementType": _plain_type(kind["elementType"]),
                "containsNull": True,
            }
        case "map":
            plain = {"keyType": _plain_type(kind["keyType"]), "valueType": _plain_type(kind["valueType"])}
            return {"type": "map", **plain, "valueContainsNull": True}
        case _:
            return kind


def _needs_values(kind: Any) -> bool:
    """Tell whether a part of a column needs a value: rows that have none there would leave a table nobody can read."""
    match kind:
        case {"type": "struct", "fields": fields}:
            return any(not field["nullable"] or _needs_values(field["type"]) for field in fields)
        case {"type": "array", "elementType": element}:
            return not kind["containsNull"] or _needs_values(element)
        case {"type": "map", "keyType": key, "valueType": value}:
            return not kind["valueContainsNull"] or _needs_values(key) or _needs_values(value)
        case _:
            return False


def _refuse_type(name: str, kind: Any) -> None:
    if isinstance(kind, str) and (kind in _PRIMITIVES or kind.startswith("decimal(")):
        return
    match kind:
        case {"type": "struct", "fields": fields}:
            for column in fields:
                _refuse_type(f"{name}.{column['name']}", column["type"])
        case {"type": "array", "elementType": element}:
            _refuse_type(name, element)
        case {"type": "map", "keyType": key, "valueType": value}:
            _refuse_type(name, key)
            _refuse_type(name, value)
        case _:
            raise InvalidRequest(
                f"the column {name} is {_spelt(kind)}, which delta-rs cannot write: cast it to a plain type"
            )


def _spelt(kind: Any) -> str:
    match kind:
        case {"type": "struct", "fields": fields}:
            return f"struct<{', '.join(': '.join((f['name'], _spelt(f['type']))) for f in fields)}>"
        case {"type": "array", "elementType": element}:
            return f"array<{_spelt(element)}>"
        case {"type": "map", "keyType": key, "valueType": value}:
            return f"map<{_spelt(key)}, {_spelt(value)}>"
        case _:
            return kind if isinstance(kind, str) else str(kind.get("type"))
