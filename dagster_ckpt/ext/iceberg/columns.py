"""Rows against a table's columns: which are added, which cannot be taken; and tables that must not be written to."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from pyiceberg.io.pyarrow import _determine_partitions, schema_to_pyarrow
from pyiceberg.manifest import ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform, TruncateTransform
from pyiceberg.types import (
    DoubleType,
    FloatType,
    IcebergType,
    ListType,
    MapType,
    NestedField,
    StructType,
)

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.tables.columns import Column, ColumnsOfFormat, array_of, map_of
from dagster_ckpt.spark.sink.accepts import (
    NESTED,
    PLAIN,
    UTF8,
    YEARS,
    Accepts,
    ColumnRule,
    NameRule,
    names_of_folders,
)

_KEPT_AS = {name: name for name in ("string", "long", "float", "double", "boolean", "binary", "date")}
_KEPT_AS |= dict.fromkeys(("integer", "short", "byte"), "int")
_KEPT_AS |= {"timestamp": "timestamptz", "timestamp_ntz": "timestamp"}
COLUMNS = ColumnsOfFormat(
    kept_as=lambda kind: kind.replace(",", ", ") if kind.startswith("decimal(") else _KEPT_AS.get(kind),
    cannot="which an Iceberg table cannot have",
    fixed="whose types are not changed",
    partitions=("string", "long", "int", "boolean", "date"),
)
PART = "_dagster_ckpt_part_"
"""Beginning of the names of the folders that staged files of partitions lie in."""
_NAMES = (
    NameRule(
        broken=lambda name: "." in name or not name,
        what="cannot be mapped to one of an Iceberg table (it has a dot, or no character)",
    ),
)


def accepted(folders_of: Sequence[str], table: Table | None = None) -> Accepts:
    """Return the types and names of columns that an Iceberg table can hold, by its own rules and its readers'.

    ``folders_of``: columns whose values name the folders that rows are staged in.
    """
    return Accepts(
        types=PLAIN | NESTED,
        names=_NAMES,
        folds_case=True,
        values=(UTF8, *YEARS),
        columns=(
            *names_of_folders(folders_of, longer_by=len(PART) + 4),
            *(() if table is None else _truncated(table)),
        ),
    )


def _truncated(table: Table) -> Iterator[ColumnRule]:
    """Yield the rules of numbers that a transform would truncate below the least of their type."""
    for part in table.spec().fields:
        if isinstance(part.transform, TruncateTransform):
            for kind, least in (("integer", -(2**31)), ("long", -(2**63))):
                width = part.transform.width
                yield ColumnRule(
                    columns=(table.schema().find_column_name(part.source_id) or "",),
                    types=frozenset({kind}),
                    broken=lambda values, end=least + width: f"{values[0]} < {end}",  # type: ignore[misc]
                    what=f"a number that truncate[{width}], by which the table is partitioned, does not take",
                    way_out="filter such rows out",
                )


def schema_of(columns: Sequence[Column]) -> Schema:
    """Return the columns as a schema, with ids that are unique; the catalog gives them its own."""
    ids = itertools.count(1)

    def of_type(kind: Any) -> IcebergType:
        match kind:
            case {"type": "struct", "fields": fields}:
                return StructType(*map(field_of, fields))
            case {"type": "array", "elementType": element}:
                return ListType(next(ids), of_type(element), element_required=False)
            case {"type": "map", "keyType": key, "valueType": value}:
                one, two = next(ids), next(ids)
                return MapType(one, of_type(key), two, of_type(value), value_required=False)
            case _:
                return IcebergType.model_validate(kind)

    def field_of(column: Column) -> NestedField:
        number, kind = next(ids), of_type(column["type"])
        return NestedField(number, column["name"], kind, required=not column["nullable"])

    return Schema(*map(field_of, columns))


def schema_columns(schema: Schema) -> list[Column]:
    """Return a table's columns; plain types are called what Iceberg calls them."""

    def type_of(kind: IcebergType) -> Any:
        match kind:
            case StructType():
                return {"type": "struct", "fields": [column_of(field) for field in kind.fields]}
            case ListType():
                return array_of(type_of(kind.element_type), with_null=not kind.element_required)
            case MapType():
                key, value = type_of(kind.key_type), type_of(kind.value_type)
                return map_of(key, value, with_null=not kind.value_required)
            case _:
                return str(kind)

    def column_of(field: NestedField) -> Column:
        kind = type_of(field.field_type)
        return {"name": field.name, "type": kind, "nullable": not field.required, "metadata": {}}

    return [column_of(field) for field in schema.fields]


def columns_of_partitions(table: Table) -> list[str]:
    """Return the columns that a table is partitioned by, whatever is made of their values."""
    schema = table.schema()
    return [schema.find_column_name(part.source_id) or part.name for part in table.spec().fields]


def refuse_table(table: Table, place: str, *, partition_by: Sequence[str], is_keyed: bool) -> None:
    """Raise InvalidRequest where adding staged files would break what the table promises."""
    metadata, schema = table.metadata, table.schema()
    fields = metadata.spec().fields
    needed = [column.name for column in schema.fields if column.required]
    parts = columns_of_partitions(table)
    transformed = [
        str(part.transform) for part in fields if not isinstance(part.transform, IdentityTransform)
    ]
    floating = [
        name for name in parts if isinstance(schema.find_type(name), FloatType | DoubleType)
    ]  # pyiceberg finds no row of the partition NaN
    why = ""
    if metadata.format_version != 2:
        why = f"its format is version {metadata.format_version}: 2 is what can be written to"
    elif floating:
        why = f"it is partitioned by {floating[0]!r}, a floating-point number"
    elif needed:
        why = f"its column {needed[0]} must not be null"
    elif is_keyed and _has_deletes(table):
        why = "rows of it are deleted by delete files: compact it first (rewrite_data_files)"
    elif is_keyed:
        why = _no_partitions(table)
    elif transformed:
        why = f"it is partitioned by {', '.join(transformed)} of a column, and only plain columns can be"
    elif tuple(parts) != tuple(partition_by):
        why = f"it is partitioned by {parts} and not by {list(partition_by)}"
    if why:
        raise InvalidRequest(f"table {place} cannot be written to here, {why}: give the sink another table")


def _no_partitions(table: Table) -> str:
    """Return why pyiceberg cannot tell the partitions of rows: tried on none. Empty: it can."""
    schema = table.schema()
    if table.spec().is_unpartitioned():
        return ""
    try:
        list(_determine_partitions(table.spec(), schema, schema_to_pyarrow(schema).empty_table()))
    except Exception as error:
        return f"it is partitioned by what pyiceberg cannot compute ({error})"
    return ""


def _has_deletes(table: Table) -> bool:
    snapshot = table.current_snapshot()
    if snapshot is None:
        return False
    return any(manifest.content is ManifestContent.DELETES for manifest in snapshot.manifests(table.io))
