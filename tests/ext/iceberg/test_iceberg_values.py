"""Values and names in Iceberg tables are shown as they are, or refused before their checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from dagster_ckpt.ext.iceberg.sink import IcebergSink
from dagster_ckpt.ext.iceberg.target import IcebergTable
from dagster_ckpt.spark.sink.port import Sink, SinkContext
from dagster_ckpt.testing import ValueContract
from dagster_ckpt.testing.sinks.values import BEYOND_YEARS, NO_FOLDERS, NO_UTF8, RARE_TYPES


class TestIcebergValues(ValueContract):
    refuses = NO_UTF8 | BEYOND_YEARS | RARE_TYPES | {"struct_case", "a.b"}

    refuses_in_partitions = NO_UTF8 | BEYOND_YEARS | NO_FOLDERS
    refuses_in_partitions_by_key = NO_UTF8 | BEYOND_YEARS

    def open(self, context: SinkContext) -> Sink:
        return IcebergSink(IcebergTable(f"db.{context.name}"), context)

    def open_partitioned(self, context: SinkContext, partition_by: Sequence[str]) -> Sink:
        table = IcebergTable(f"db.{context.name}", partition_by=tuple(partition_by))
        return IcebergSink(table, context)
