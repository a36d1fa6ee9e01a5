"""Rows by key: the latest of each, and the files they touch written again without the rows they replace.

Copy on write, as every reader understands it. Files whose bounds exclude all the keys are not opened.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, LessThanOrEqual
from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files, schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.table import DataScan, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata

from dagster_ckpt.spark.sink.committables import TableFile
from dagster_ckpt.spark.sink.latest import comparable
from dagster_ckpt.spark.sink.table_files import StagedFiles

_AT_ONCE = 256 * 1024 * 1024
"""Bytes of rows that stay, gathered from touched files before they are written."""
_AT_LEAST: Any = GreaterThanOrEqual
_AT_MOST: Any = LessThanOrEqual
_ORDER, _IS_NEW = "__dagster_ckpt_order", "__dagster_ckpt_new"


def upsert(
    transaction: Transaction,
    staged: StagedFiles,
    files: Sequence[TableFile],
    *,
    key: Sequence[str],
    folder: str,
    is_alone: bool = False,
) -> tuple[list[DataFile], list[DataFile]]:
    """Write the rows of these files, the last of each key; return the files that are new, and those that leave.

    ``is_alone``: no row of the table stays, whatever its key.
    """
    metadata, io = transaction.table_metadata, transaction._table.io
    written = written_below(metadata, folder)
    arrow = schema_to_pyarrow(metadata.schema(), include_field_ids=False)
    new = conformed(staged.latest_rows(files, key), arrow)
    removed: list[DataFile] = []
    added: list[DataFile] = []
    parts = [new]
    for file, stay in () if is_alone else _touched(metadata, io, new.select(key), arrow):
        removed.append(file)
        parts.append(stay)
        if sum(part.nbytes for part in parts) > _AT_ONCE:
            added += _dataframe_to_data_files(written, pa.concat_tables(parts), io)
            parts = []
    if parts:
        added += _dataframe_to_data_files(written, pa.concat_tables(parts), io)
    return added, removed


def written_below(metadata: TableMetadata, folder: str) -> TableMetadata:
    """Return the table's metadata, as those who write files into this folder are given it."""
    path = {TableProperties.WRITE_DATA_PATH: folder}
    return metadata.model_copy(update={"properties": metadata.properties | path})


def _touched(
    metadata: TableMetadata, io: Any, keys: pa.Table, arrow: pa.Schema
) -> Iterator[tuple[DataFile, pa.Table]]:
    """Yield each file that has one of these keys, with its rows that have none."""
    names = keys.column_names
    schema = metadata.schema()
    only_keys = pa.schema([arrow.field(name) for name in names])
    for task in DataScan(metadata, io, row_filter=_within(keys)).plan_files():
        there = ArrowScan(metadata, io, schema.select(*names), AlwaysTrue()).to_table([task])
        stay = staying(conformed(there, only_keys), keys)
        if len(stay) == there.num_rows:
            continue
        rows = conformed(ArrowScan(metadata, io, schema, AlwaysTrue()).to_table([task]), arrow)
        yield task.file, rows.take(staying(rows.select(names), keys))


def staying(there: pa.Table, keys: pa.Table) -> pa.Array:
    """Return the places of rows that have none of the keys; a null is equal to a null."""
    names = keys.column_names
    order = pa.array(range(there.num_rows + keys.num_rows), pa.int64())
    both = comparable(pa.concat_tables([there, keys]), names).append_column(_ORDER, order)
    both = both.append_column(_IS_NEW, pc.greater_equal(order, there.num_rows))
    groups = both.group_by(names).aggregate([(_ORDER, "list"), (_IS_NEW, "any")])
    kept = groups.filter(pc.invert(groups[f"{_IS_NEW}_any"]))[f"{_ORDER}_list"]
    return pc.list_flatten(kept.combine_chunks()).sort()


def _within(keys: pa.Table) -> BooleanExpression:
    """Return the bounds of the keys, where a file's statistics can be compared with them."""
    bounds: BooleanExpression = AlwaysTrue()
    for name in keys.column_names:
        found = pc.min_max(keys[name]) if _has_bounds(keys[name]) else None
        low, high = (found["min"].as_py(), found["max"].as_py()) if found is not None else (None, None)
        if low is None or isinstance(low, bool) or not isinstance(low, int | str | datetime.date):
            continue
        bounds = And(bounds, *(_AT_LEAST(name, low), _AT_MOST(name, high)))
    return bounds


def _has_bounds(column: Any) -> bool:
    kind = column.type
    plain = pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date32(kind)
    return plain and column.null_count == 0 and len(column) > 0


def conformed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with exactly these columns; one that is missing is null."""
    columns = [
        rows[f.name].cast(f.type) if f.name in rows.column_names else pa.nulls(rows.num_rows, f.type)
        for f in schema
    ]
    return pa.table(columns, schema=schema)
