"""Values and names in Delta tables are shown as they are, or refused before their checkpoint."""

from __future__ import annotations

from dagster_ckpt.authoring.targets import DeltaTable
from dagster_ckpt.ext.delta.columns import NO_NAME
from dagster_ckpt.ext.delta.sink import DeltaSink
from dagster_ckpt.spark.sink.port import Sink, SinkContext
from dagster_ckpt.testing import ValueContract
from dagster_ckpt.testing.sinks.values import BEYOND_YEARS, NAMES, NO_UTF8, RARE_TYPES


class TestDeltaValues(ValueContract):
    refuses = (
        NO_UTF8
        | BEYOND_YEARS
        | RARE_TYPES
        | {"struct_case", "struct_name"}
        | {name for name in NAMES if set(name) & set(NO_NAME)}
    )

    def open(self, context: SinkContext) -> Sink:
        return DeltaSink(DeltaTable(context.name), context)
