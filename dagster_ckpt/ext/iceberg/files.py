"""Files as a snapshot names them: with bounds of those columns only whose bounds are those of all rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    StatisticsCollector,
    _check_pyarrow_schema_compatible,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table.metadata import TableMetadata

_COUNTED, _UNKNOWN = MetricsMode(MetricModeTypes.COUNTS), MetricsMode(MetricModeTypes.NONE)


def data_file(io: Any, metadata: TableMetadata, location: str) -> DataFile:
    """Return a file of the table's columns that is added where it lies.

    Not by pyiceberg's own: groups of rows without bounds are left out of those that it writes, and by them readers
    pass over these rows; and it cannot read a bound that Python has no value for.
    """
    file = io.new_input(location)
    with file.open() as stream:
        footer = pq.read_metadata(stream)
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
        partition=found.partition(metadata.spec(), schema),
        file_size_in_bytes=len(file),
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **found.to_serialized_dict(),
    )


def _plan(
    footer: pq.FileMetaData, wanted: dict[int, StatisticsCollector], ids: dict[str, int]
) -> dict[int, StatisticsCollector]:
    """Return what is asked of each column: no bounds where a group of rows has none, nothing where it says nothing."""
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
        return bool(group.has_min_max and group.min is not None and group.max is not None)
    except (ValueError, OverflowError, pa.ArrowException):  # a day that Python has not, text that is no UTF-8
        return False
