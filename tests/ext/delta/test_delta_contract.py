"""The contract of sinks on Delta tables, local."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from deltalake import DeltaTable as Reader

from dagster_ckpt.ext.delta.lake import Outside
from dagster_ckpt.ext.delta.sink import DeltaSink
from dagster_ckpt.ext.delta.target import DeltaTable
from dagster_ckpt.ext.tables import staged_files
from dagster_ckpt.ext.tables.staged_files import STAGED
from dagster_ckpt.spark.sink import positions
from dagster_ckpt.spark.sink.port import Sink, SinkContext
from dagster_ckpt.testing import SinkContract, Staging
from dagster_ckpt.testing.sinks.run import Row, Step

COMMITS = ("create", "write", "add_columns", "restore", "replace_rows")


class TestDeltaSink(SinkContract):
    says_whose = True
    can_load = can_load_cuts = True

    def open(self, context: SinkContext) -> Sink:
        return DeltaSink(DeltaTable(context.name), context)

    def rows(self, place: str) -> list[Row]:
        if not (Path(place) / "_delta_log").exists():
            return []
        found = Reader(place).to_pyarrow_table(columns=["k", "v"])
        return list(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True))

    def steps(self) -> Sequence[Step]:
        return [
            *((Outside, name) for name in COMMITS),
            (positions, "replace_whole"),
            (staged_files, "upload"),
        ]

    def staging(self, sink: Sink, context: SinkContext) -> Staging:
        root = Path(sink.place)
        return Staging(root, root / STAGED / context.pipeline / context.uid / str(context.attempt().epoch))
