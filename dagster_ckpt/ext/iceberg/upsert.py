"""Rows by key: the latest of each, and the files they touch written again without the rows they replace.

Copy on write, as every reader understands it. Files whose bounds exclude all the keys are not opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, LessThanOrEqual
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.table import DataScan, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata

from dagster_ckpt.ext.iceberg.files import write_files
from dagster_ckpt.spark.sink.committables import TableFile
from dagster_ckpt.spark.sink.rewrite import bounds_of, conformed, gathered, staying
from dagster_ckpt.spark.sink.table_files import StagedFiles

_AT_LEAST: Any = GreaterThanOrEqual
_AT_MOST: Any = LessThanOrEqual
_LAST_DAYS = (date.min, date.max)
"""No day lies beyond them, and pyiceberg fails where it asks a partition of years or months for the next one."""


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

    def parts() -> Iterator[pa.Table]:
        yield new
        for file, stay in () if is_alone else _touched(metadata, io, new.select(key), arrow):
            removed.append(file)
            yield stay

    for rows in gathered(parts()):
        added += write_files(written, rows, io)
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
        if pc.all(staying(conformed(there, only_keys), keys)).as_py():
            continue
        rows = conformed(ArrowScan(metadata, io, schema, AlwaysTrue()).to_table([task]), arrow)
        yield task.file, rows.filter(staying(rows.select(names), keys))


def _within(keys: pa.Table) -> BooleanExpression:
    """Return the bounds of the keys, where a file's statistics can be compared with them."""
    within: BooleanExpression = AlwaysTrue()
    for name in keys.column_names:
        for of, bound in zip((_AT_LEAST, _AT_MOST), bounds_of(keys[name]) or (), strict=False):
            if bound not in _LAST_DAYS:
                within = And(within, of(name, bound))
    return within
