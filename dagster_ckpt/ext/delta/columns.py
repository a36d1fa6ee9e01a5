"""Rows against a table's columns: which are added, which cannot be taken; and tables that must not be written to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import InvalidRequest
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
from dagster_ckpt.spark.sink.versioned.columns import Column, ColumnsOfFormat, spelt

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
