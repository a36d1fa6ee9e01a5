"""The contract of sinks on Iceberg tables, in the SQLite catalog of those who have none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError

from dagster_ckpt.ext.iceberg.lake import Outside
from dagster_ckpt.ext.iceberg.sink import IcebergSink
from dagster_ckpt.ext.iceberg.target import IcebergTable
from dagster_ckpt.spark.sink import positions
from dagster_ckpt.spark.sink.port import Sink, SinkContext
from dagster_ckpt.testing import SinkContract, Staging
from dagster_ckpt.testing.sinks.run import Row, Step


class TestIcebergSink(SinkContract):
    says_whose = True
    can_load = can_load_cuts = changes_together = True

    def open(self, context: SinkContext) -> Sink:
        return IcebergSink(IcebergTable(f"db.{context.name}"), context)

    def rows(self, place: str) -> list[Row]:
        uri, _, name = place.partition("#")
        if not Path(uri.removeprefix("sqlite:///")).exists():
            return []
        catalog = SqlCatalog("default", uri=uri)
        try:
            found = catalog.load_table(name).scan(selected_fields=("k", "v")).to_arrow()
        except NoSuchTableError:
            return []
        finally:
            catalog.close()
        return list(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True))

    def steps(self) -> Sequence[Step]:
        steps = [(Outside, name) for name in ("create", "commit", "commit_together", "keep_and_expire")]
        return [*steps, (SqlCatalog, "commit_table"), (positions, "replace_whole")]

    def staging(self, sink: Sink, context: SinkContext) -> Staging:
        assert isinstance(sink, IcebergSink)
        files = sink.staged
        return Staging(files.root, files.folder(context.attempt().epoch))
