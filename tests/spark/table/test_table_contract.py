"""The contract of sinks on Parquet tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dagster_ckpt.authoring.targets import ParquetTable
from dagster_ckpt.spark.sink.port import Sink, SinkContext
from dagster_ckpt.spark.table import buckets, log, publish, roll_back
from dagster_ckpt.spark.table.parquet_sink import ParquetSink
from dagster_ckpt.spark.table.records import BUCKET_COLUMN
from dagster_ckpt.testing import SinkContract, Staging
from dagster_ckpt.testing.sinks.run import Row, Step

BUCKETS = 3


class TestParquetSink(SinkContract):
    is_atomic = False
    """Files become visible one by one."""
    can_be_raced = False
    can_replace = False
    checks_types = False
    can_load = can_load_cuts = True

    def open(self, context: SinkContext) -> Sink:
        return ParquetSink(ParquetTable(context.name, BUCKETS), context)

    def rows(self, place: str) -> list[Row]:
        found = [pq.read_table(path, partitioning=None) for path in sorted(Path(place).glob("*.parquet"))]
        return [
            row for table in found for row in zip(table["k"].to_pylist(), table["v"].to_pylist(), strict=True)
        ]

    def steps(self) -> Sequence[Step]:
        return [
            (publish, "move_whole"),
            (publish, "write_versions"),
            (publish, "show_versions"),
            (roll_back, "move_whole"),
            (roll_back, "show_versions"),
            (buckets, "replace_by_link"),
            (log, "create_durably"),
            (log, "replace_whole"),
        ]

    def staging(self, sink: Sink, context: SinkContext) -> Staging:
        root = Path(sink.place)
        folder = root / "_dagster_ckpt" / "staged" / str(context.attempt().epoch)
        return Staging(root, folder, _with_bucket if context.key else lambda rows: rows)


def _with_bucket(rows: pa.Table) -> pa.Table:
    number = pc.cast(rows["k"], pa.int64())
    bucket = pc.subtract(number, pc.multiply(pc.divide(number, BUCKETS), BUCKETS))
    return rows.append_column(BUCKET_COLUMN, pc.cast(bucket, pa.int32()))
