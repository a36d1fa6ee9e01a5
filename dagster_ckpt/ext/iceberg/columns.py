"""Rows against a table's columns: which are added, which cannot be taken; and tables that must not be written to."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from pyiceberg.io.pyarrow import _determine_partitions, schema_to_pyarrow
from pyiceberg.manifest import ManifestContent
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform, TruncateTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import Corrupt, InvalidRequest
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

_PLAIN: dict[str, IcebergType] = {
    "string": StringType(),
    "long": LongType(),
    "integer": IntegerType(),
    "short": IntegerType(),
    "byte": IntegerType(),
    "float": FloatType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestamptzType(),
    "timestamp_ntz": TimestampType(),
}
_PARTITIONS = (StringType, LongType, IntegerType, BooleanType, DateType)
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


def iceberg_columns(row_schema: str) -> list[NestedField]:
    """Return Spark's columns as an Iceberg table has them.

    Raises InvalidRequest naming one that it cannot have, Corrupt for text that is no schema.
    """
    ids = itertools.count(1)
    try:
        fields = [(column["name"], column["type"]) for column in parse_json(row_schema)["fields"]]
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"the columns of a prepared batch are damaged: {row_schema[:80]!r}; restore an earlier one"
        ) from error
    return [_field(name, kind, ids, within="") for name, kind in fields]


def _field(name: str, kind: Any, ids: Iterator[int], *, within: str) -> NestedField:
    number = next(ids)
    return NestedField(
        field_id=number, name=name, field_type=_type(f"{within}{name}", kind, ids), required=False
    )


def _type(name: str, kind: Any, ids: Iterator[int]) -> IcebergType:
    if isinstance(kind, str) and kind in _PLAIN:
        return _PLAIN[kind]
    if isinstance(kind, str) and (found := re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", kind)):
        return DecimalType(int(found[1]), int(found[2]))
    match kind:
        case {"type": "struct", "fields": fields}:
            return StructType(*(_field(f["name"], f["type"], ids, within=f"{name}.") for f in fields))
        case {"type": "array", "elementType": element}:
            return ListType(next(ids), _type(name, element, ids), element_required=False)
        case {"type": "map", "keyType": key, "valueType": value}:
            one, two = next(ids), next(ids)
            return MapType(one, _type(name, key, ids), two, _type(name, value, ids), value_required=False)
        case _:
            spelt_kind = kind if isinstance(kind, str) else str(kind.get("type"))
            raise InvalidRequest(
                f"the column {name} is {spelt_kind}, which an Iceberg table cannot have: cast it to a plain type"
            )


def spelt(kind: IcebergType) -> str:
    """Return a type without the ids of its parts."""
    match kind:
        case StructType():
            return f"struct<{', '.join(f'{f.name}: {spelt(f.field_type)}' for f in kind.fields)}>"
        case ListType():
            return f"list<{spelt(kind.element_type)}>"
        case MapType():
            return f"map<{spelt(kind.key_type)}, {spelt(kind.value_type)}>"
        case _:
            return str(kind)


def columns_together(parts: Sequence[Sequence[NestedField]]) -> list[NestedField]:
    """Return the columns of several micro-batches. Raises InvalidRequest naming one that changed its type."""
    together: dict[str, NestedField] = {}
    for column in (column for part in parts for column in part):
        known = together.setdefault(column.name, column)
        if spelt(known.field_type) != spelt(column.field_type):
            raise InvalidRequest(
                f"the column {column.name} was {spelt(known.field_type)} and became {spelt(column.field_type)}: cast it"
            )
    return list(together.values())


def schema_of(columns: Sequence[NestedField]) -> Schema:
    """Return the columns as a schema, with ids that are unique; the catalog gives them its own."""
    ids = itertools.count(1)

    def numbered(kind: IcebergType) -> IcebergType:
        match kind:
            case StructType():
                return StructType(*(renewed(f) for f in kind.fields))
            case ListType():
                return ListType(next(ids), numbered(kind.element_type), element_required=False)
            case MapType():
                one, two = next(ids), next(ids)
                return MapType(
                    one, numbered(kind.key_type), two, numbered(kind.value_type), value_required=False
                )
            case _:
                return kind

    def renewed(f: NestedField) -> NestedField:
        return NestedField(
            field_id=next(ids), name=f.name, field_type=numbered(f.field_type), required=f.required
        )

    return Schema(*(renewed(column) for column in columns))


def new_columns(table: Table, columns: Sequence[NestedField], place: str) -> list[NestedField]:
    """Return the columns that the table does not have yet. Raises InvalidRequest naming one that changed its type."""
    there = {column.name.lower(): column for column in table.schema().fields}
    added = []
    for column in columns:
        known = there.get(column.name.lower())
        if known is None:
            added.append(column)
        elif known.name != column.name:
            raise InvalidRequest(
                f"the column {column.name} is called {known.name} in table {place}: rename it"
            )
        elif spelt(known.field_type) != spelt(column.field_type):
            raise InvalidRequest(
                f"the column {column.name} is {spelt(column.field_type)} in the rows and {spelt(known.field_type)} in "
                f"table {place}, whose types are not changed: cast it, or write to a new table"
            )
        elif needed := _needed_within(known):
            raise InvalidRequest(
                f"table {place} needs a value in every {needed}, and rows of Spark may have none there: write to a new "
                "table"
            )
    return added


def _needed_within(column: NestedField) -> str:
    """Return the part of a column that needs a value; a map's keys have one in any case. Empty: none does."""
    schema = Schema(column)
    parts = index_by_id(schema)
    keys = {part.field_type.key_id for part in parts.values() if isinstance(part.field_type, MapType)}
    needed = (number for number, part in parts.items() if part.required and number not in keys)
    return next((schema.find_column_name(number) or "" for number in needed), "")


def refuse_columns(
    columns: Sequence[NestedField], *, key: Sequence[str], partition_by: Sequence[str]
) -> None:
    """Raise InvalidRequest where the rows lack a column of the key, or one to partition by."""
    types = {column.name: column.field_type for column in columns}
    for name in (*key, *partition_by):
        if name not in types:
            raise InvalidRequest(f"the rows have no column {name}: there are {', '.join(types)}")
    for name in partition_by:
        if not isinstance(types[name], _PARTITIONS):
            raise InvalidRequest(
                f"the column {name} is {spelt(types[name])} and cannot be partitioned by: use one of text, whole "
                "numbers, booleans or dates"
            )


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
