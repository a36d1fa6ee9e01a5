"""An Iceberg table under a real Spark query: partitions, types, a column that comes, back to a cut."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import TYPE_CHECKING

import polars
import pyarrow as pa
import pytest
from pyiceberg.table import Table

from dagster_ckpt.core.ids import BatchId, CheckpointId, CoordinatorEpoch
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.iceberg.sink import IcebergSink
from dagster_ckpt.ext.iceberg.target import IcebergTable
from dagster_ckpt.spark.sink.committables import read_committables
from dagster_ckpt.spark.sink.phases import Due, cut_of_sink, preparing, publish_prepared
from dagster_ckpt.spark.sink.port import AttemptId, LaterRows, SinkCut
from dagster_ckpt.testing.sinks.run import context_in, in_attempt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIRST = AttemptId("first", CoordinatorEpoch(1))


def rows(spark: SparkSession, *values: str) -> DataFrame:
    """Return (k, country) and a column of each other type."""
    frame = spark.sql(f"select * from values {', '.join(f'({value})' for value in values)} as t(k, country)")
    return frame.selectExpr(
        "cast(k as long) k",
        "cast(country as string) country",
        "date'2026-01-02' day",
        "timestamp'2026-01-02 03:04:05.678901' at",
        "timestamp_ntz'2026-01-02 03:04:05' plain",
        "cast(1.50 as decimal(10,2)) price",
        "cast(7 as byte) tiny",
        "array('a', null) tags",
        "map('x', named_struct('y z', 1)) deep",
    )


@pytest.mark.filterwarnings("ignore:Iceberg scan planning with the polars_iceberg plugin")
def test_a_streams_rows_are_an_iceberg_table(spark: SparkSession, tmp_path: Path) -> None:
    context = context_in(tmp_path, FIRST)
    target = IcebergTable("db.orders", partition_by=("country", "day"))
    sink = IcebergSink(target, context)
    sink.take_over()
    stage = tmp_path / "stage"
    session = spark.newSession()  # as foreachBatch hands one out

    def batch(number: int, frame: DataFrame) -> None:
        sink.check(frame)
        preparing(sink, stage)(frame, number)

    def publish(checkpoint: int, through: int) -> None:
        permit = CommitPermit(
            context.pipeline, FIRST.epoch, CheckpointId(checkpoint), object(), lineage="first"
        )
        publish_prepared([Due(sink, stage, BatchId(through))], permit)

    def table() -> Table:
        return sink._backend.lake.settings.open().load_table("db.orders")

    batch(0, rows(session, "1, 'DE'", "2, 'a b/c=%'", "3, ''", "4, null"))
    publish(1, 0)
    first = cut_of_sink(sink, stage, BatchId(0)).snapshot
    assert first is not None
    found = table().scan().to_arrow().sort_by("k")
    assert found["country"].to_pylist() == ["DE", "a b/c=%", "", None]
    assert found.schema.field("at").type == pa.timestamp("us", "UTC")
    one = found.to_pylist()[0]
    assert one["day"] == datetime.date(2026, 1, 2)
    assert one["at"].microsecond == 678901
    assert (one["price"], one["tiny"], one["tags"]) == (decimal.Decimal("1.50"), 7, ["a", None])
    assert one["deep"] == [("x", {"y z": 1})]
    for condition, number in (("country == 'a b/c=%'", 2), ("country == ''", 3), ("country is null", 4)):
        files = list(table().scan(row_filter=condition).plan_files())
        assert [file.file.record_count for file in files] == [1], condition
        assert table().scan(row_filter=condition).to_arrow()["k"].to_pylist() == [number]
    batch(1, rows(session, "5, 'DE'").selectExpr("*", "'new' w"))
    publish(2, 1)
    seen = polars.scan_iceberg(table()).select("k", "country", "w").collect().sort("k").rows()
    assert seen[0] == (1, "DE", None)
    assert seen[-1] == (5, "DE", "new")
    with pytest.raises(InvalidRequest, match=r"column price is string in the rows and decimal\(10, 2\)"):
        sink.check(rows(session, "1, 'DE'").selectExpr("* except (price)", "'1.5' price"))
    newer = IcebergSink(target, in_attempt(context, AttemptId("first", CoordinatorEpoch(2))))
    batches = tuple(read_committables(stage, first.prepared))
    cut = SinkCut(snapshot=first, batches=batches, checkpoint_id=CheckpointId(1))
    assert "went back to snapshot" in newer.roll_back(cut, LaterRows.SET_ASIDE).text
    assert sorted(table().scan().to_arrow()["k"].to_pylist()) == [1, 2, 3, 4]
    assert sink.describe().details["partitioned by"] == "country, day"
