"""The contract of sinks on Iceberg tables of a REST catalog, with their files in an object store."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.iceberg.catalogs import settings_of
from dagster_ckpt.ext.iceberg.sink import IcebergSink
from dagster_ckpt.ext.iceberg.target import IcebergTable
from dagster_ckpt.ext.tables.staged_files import STAGED
from dagster_ckpt.spark.sink.port import Sink, SinkContext
from dagster_ckpt.testing import Staging
from dagster_ckpt.testing.sinks.run import Row, Step
from tests.adapters.servers import S3Server
from tests.ext.iceberg.rest_catalog import rest_catalog
from tests.ext.iceberg.test_iceberg_contract import TestIcebergSink as Local

ON_THE_WIRE = {
    "test_a_checkpoint_makes_all_its_batches_visible",
    "test_nothing_of_an_older_attempt_appears_after_a_newer_one_took_over",
    "test_rows_leave_down_to_a_cut_and_come_back_with_a_later_one",
    "test_what_an_aborted_attempt_staged_is_removed",
    "test_the_last_row_of_a_key_wins",
}
"""What another catalog and another store can change."""


class TestIcebergSinkOfARestCatalog(Local):
    @pytest.fixture(autouse=True)
    def catalog(self, s3_apart: S3Server, tmp_path: Path) -> Iterator[None]:
        files = {
            "s3.endpoint": s3_apart.endpoint,
            "s3.access-key-id": "test",
            "s3.secret-access-key": "test",
            "s3.region": "us-east-1",
        }
        warehouse = f"s3://{s3_apart.new_bucket()}/lake"
        with rest_catalog(tmp_path, warehouse, **files) as (address, behind):
            self.settings = {"type": "rest", "uri": address, **files}
            self.behind = behind
            yield
            assert behind.commits, "every commit goes over the wire"

    def open(self, context: SinkContext) -> Sink:
        folder = re.sub(r"\W+", "_", str(context.table_dir))  # a namespace for each test's folder
        return IcebergSink(IcebergTable(f"{folder}.{context.name}", catalog=self.settings), context)

    def rows(self, place: str) -> list[Row]:
        try:
            table = load_catalog("default", **self.settings).load_table(place.partition("#")[2])
        except NoSuchTableError:
            return []
        found = table.scan(selected_fields=("k", "v")).to_arrow()
        return list(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True))

    def steps(self) -> Sequence[Step]:
        return [
            (RestCatalog, "commit_table") if at == (SqlCatalog, "commit_table") else at
            for at in super().steps()
        ]

    def staging(self, sink: Sink, context: SinkContext) -> Staging:
        area = context.work_dir / STAGED / context.pipeline / context.uid
        return Staging(context.work_dir, area / str(context.attempt().epoch))

    def test_maintenance_leaves_the_rows_and_the_cuts(self, tmp_path: Path) -> None:
        run = self.begun(tmp_path)
        run.batch([(1, 1)])
        run.publish(1)
        at = run.cut(1)
        run.batch([(2, 2)])
        run.publish(2)
        merged, expired = run.sink.maintain([at.cut.snapshot])
        assert (merged.files, expired.files) == (2, 0)
        assert self.shown(run) == [(1, 1), (2, 2)]
        assert self.shown(run.restored(at)) == [(1, 1)]

    def test_a_catalog_that_keeps_no_tags_is_told_with_the_first_rows(self, tmp_path: Path) -> None:
        self.behind.keeps_tags = False
        nessie = settings_of(self.settings | {"nessie.is-nessie-catalog": "true"}, tmp_path)
        with pytest.raises(InvalidRequest, match=f"^the Iceberg catalog of {re.escape(nessie.place)} keeps"):
            nessie.open()
        run = self.begun(tmp_path)
        run.batch([(1, 1)])
        with pytest.raises(
            InvalidRequest, match="newest snapshot alone, and no tags: a restore could not go back"
        ):
            run.publish(1)


_KEPT = {*ON_THE_WIRE, *vars(TestIcebergSinkOfARestCatalog)}
for _name in [name for name in dir(Local) if name.startswith("test_") and name not in _KEPT]:
    setattr(TestIcebergSinkOfARestCatalog, _name, None)
del Local
