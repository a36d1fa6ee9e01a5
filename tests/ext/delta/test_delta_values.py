"""Values and names in Delta tables are shown as they are, or refused before their checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from dagster_ckpt.ext.delta.columns import NO_NAME
from dagster_ckpt.ext.delta.sink import DeltaSink
from dagster_ckpt.ext.delta.target import DeltaTable
from dagster_ckpt.spark.sink.port import Sink, SinkContext
from dagster_ckpt.testing import ValueContract
from dagster_ckpt.testing.sinks.values import BEYOND_YEARS, NAMES, NO_FOLDERS, NO_UTF8, RARE_TYPES


class TestDeltaValues(ValueContract):
    refuses = (
        NO_UTF8
        | BEYOND_YEARS
        | RARE_TYPES
        | {"struct_case", "struct_name"}
        | {name for name in NAMES if set(name) & set(NO_NAME)}
    )

    refuses_in_partitions = NO_UTF8 | BEYOND_YEARS | NO_FOLDERS | {"text_empty", "text_hive"}

    def open(self, context: SinkContext) -> Sink:
        return DeltaSink(DeltaTable(context.name), context)

    def open_partitioned(self, context: SinkContext, partition_by: Sequence[str]) -> Sink:
        return DeltaSink(DeltaTable(context.name, partition_by=tuple(partition_by)), context)
