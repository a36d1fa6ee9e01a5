"""Files as a snapshot names them: with bounds of those columns only whose bounds are those of all rows.

Not by pyiceberg's own functions: groups of rows without bounds are left out of those that these tell, and by them
readers pass over such rows; they cannot read a bound that Python has no value for; and of a floating-point column they
write bounds without its NaN.

Rows by key: copy on write, as every reader understands it. Files whose bounds exclude all the keys are not opened.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.conversions import partition_to_py
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, LessThanOrEqual
from pyiceberg.io import pyarrow as pyiceberg_rows
from pyiceberg.io.pyarrow import (
    ArrowProjectionVisitor,
    ArrowScan,
    MetricModeTypes,
    MetricsMode,
    StatisticsCollector,
    _check_pyarrow_schema_compatible,
    _determine_partitions,
    _get_parquet_writer_kwargs,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import DataScan, TableProperties, Transaction
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, IcebergType
from pyiceberg.utils.datetime import date_str_to_days

from dagster_ckpt.ext.iceberg.columns import PART
from dagster_ckpt.ext.tables.rewrite import bounds_of, conformed, gathered, staying
from dagster_ckpt.ext.tables.staged_files import StagedFiles, partition_values
from dagster_ckpt.spark.files import bounded_by_pyarrow
from dagster_ckpt.spark.sink.committables import TableFile


class _KeepsNoValue(ArrowProjectionVisitor):
    """Rows as pyiceberg reads them, with no value where there is none.

    By itself it makes an empty one of an array of structs, or of a map to structs, that is null: rows that are written
    again, merged or forked would keep that.
    """

    def list(self, list_type: Any, list_array: Any, value_array: Any) -> Any:
        """Return arrays."""
        return _null_as(list_array, super().list(list_type, list_array, value_array))

    def map(self, map_type: Any, map_array: Any, key_result: Any, value_result: Any) -> Any:
        """Return maps."""
        return _null_as(map_array, super().map(map_type, map_array, key_result, value_result))


pyiceberg_rows.ArrowProjectionVisitor = _KeepsNoValue  # type: ignore[misc]


def _null_as(read: Any, made: Any) -> Any:
    if made is None or made.null_count == read.null_count:
        return made
    return made.take(pc.if_else(read.is_valid(), pa.array(range(len(read))), pa.scalar(None, pa.int64())))


_COUNTED, _UNKNOWN = MetricsMode(MetricModeTypes.COUNTS), MetricsMode(MetricModeTypes.NONE)


def data_file(io: Any, metadata: TableMetadata, location: str) -> DataFile:
    """Return a file of the table's columns, staged apart for each partition, that is added where it lies."""
    file = io.new_input(location)
    with file.open() as stream:
        footer = pq.read_metadata(stream)
    return _named(metadata, location, footer, len(file), _partition_of(metadata, location))


def _partition_of(metadata: TableMetadata, location: str) -> Record:
    """Return the partition that the folders name: bounds, by which pyiceberg would tell, are cut short, or missing."""
    spec, schema = metadata.spec(), metadata.schema()
    said = [value for name, value in partition_values(location).items() if name.startswith(PART)]
    if len(said) != len(spec.fields):
        raise ValueError(f"{location} was staged for {len(said)} columns of partitions")
    kinds = (schema.find_type(part.source_id) for part in spec.fields)
    return Record(*(_value(kind, text) for kind, text in zip(kinds, said, strict=True)))


def _value(kind: IcebergType, text: str | None) -> Any:
    if text is None:
        return None
    plain = text[1:]  # behind the letter that tells "" from no value
    if isinstance(kind, DateType):
        return date_str_to_days(plain)
    return partition_to_py(kind, plain)  # type: ignore[arg-type]


def write_files(metadata: TableMetadata, rows: pa.Table, io: Any) -> list[DataFile]:
    """Write rows with the table's columns, those of each partition apart, where the metadata says that data lies."""
    spec, schema = metadata.spec(), metadata.schema()
    columns = schema_to_pyarrow(schema, include_field_ids=True)
    places = load_location_provider(metadata.location, metadata.properties)
    parts: list[tuple[Any, pa.Table]] = [(None, rows)]
    if not spec.is_unpartitioned():
        found = _determine_partitions(spec, schema, rows)
        parts = [(part.partition_key, part.arrow_table_partition) for part in found]
    written = []
    for key, part in parts:
        # Not in folders of the partition: values would name them, and any may be too long for that.
        location = places.new_data_location(f"{uuid.uuid4()}.parquet")
        footers: list[pq.FileMetaData] = []
        output = io.new_output(location)
        with output.create(overwrite=True) as stream:
            pq.write_table(
                pa.table(part.columns, schema=columns),
                stream,
                store_decimal_as_integer=True,
                write_statistics=bounded_by_pyarrow(columns),
                metadata_collector=footers,
                **_get_parquet_writer_kwargs(metadata.properties),
            )
        partition = key.partition if key is not None else Record()
        written.append(_named(metadata, location, footers[0], len(output), partition))
    return written


def _named(
    metadata: TableMetadata,
    location: str,
    footer: pq.FileMetaData,
    size: int,
    partition: Record,
) -> DataFile:
    schema = metadata.schema()
    _check_pyarrow_schema_compatible(
        schema, footer.schema.to_arrow_schema(), format_version=metadata.format_version
    )
    ids = parquet_path_to_id_mapping(schema)
    found = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=_plan(footer, compute_statistics_plan(schema, metadata.properties), ids),
        parquet_column_mapping=ids,
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=partition,
        file_size_in_bytes=size,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **found.to_serialized_dict(),
    )


def _plan(
    footer: pq.FileMetaData, wanted: dict[int, StatisticsCollector], ids: dict[str, int]
) -> dict[int, StatisticsCollector]:
    """Return the bounds asked of each column: none where a group of rows has none or the column says nothing."""
    plan = dict(wanted)
    for index in range(footer.num_columns):
        groups = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
        number = ids[footer.schema.column(index).path]
        if not all(group is not None and group.has_null_count for group in groups):
            plan[number] = replace(plan[number], mode=_UNKNOWN)
        elif not all(_has_bounds(group) for group in groups) and plan[number].mode != _UNKNOWN:
            plan[number] = replace(plan[number], mode=_COUNTED)
    return plan


def _has_bounds(group: Any) -> bool:
    if not group.num_values:
        return True
    try:
        bounds = (group.min, group.max) if group.has_min_max else (None, None)
        return not any(bound is None or (isinstance(bound, float) and math.isnan(bound)) for bound in bounds)
    except (ValueError, OverflowError, pa.ArrowException):  # a day that Python has not, text that is no UTF-8
        return False


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
