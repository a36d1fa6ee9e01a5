"""A Delta table under a real Spark query: partitions, keys, types, a column that comes, back to a cut."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable as Reader

from dagster_ckpt.core.ids import BatchId, CheckpointId, CoordinatorEpoch
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.delta.sink import DeltaSink
from dagster_ckpt.ext.delta.target import DeltaTable
from dagster_ckpt.spark.sink.committables import read_committables
from dagster_ckpt.spark.sink.phases import Due, cut_of_sink, preparing, publish_prepared
from dagster_ckpt.spark.sink.port import AttemptId, LaterRows, SinkCut
from dagster_ckpt.testing.sinks.run import context_in, in_attempt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIRST = AttemptId("first", CoordinatorEpoch(1))


def put(spark: SparkSession, folder: Path, values: list[str]) -> None:
    columns = (
        "k long, country string, day date, at timestamp, plain timestamp_ntz, "
        "price decimal(10,2), tags array<string>"
    )
    rows = ", ".join(
        f"({value}, date'2026-01-02', timestamp'2026-01-02 03:04:05.678901', timestamp_ntz'2026-01-02 03:04:05', "
        "1.50, array('a'))"
        for value in values
    )
    frame = spark.sql(f"select * from values {rows} as t(k, country, day, at, plain, price, tags)")
    frame = frame.selectExpr(
        *(f"cast({c.split()[0]} as {c.split()[1]}) {c.split()[0]}" for c in columns.split(", "))
    )
    frame.coalesce(1).write.mode("append").parquet(str(folder))


def run(frame: DataFrame, sink: Callable[[DataFrame, int], None], query_dir: Path) -> None:
    (
        frame.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(query_dir))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


def test_a_streams_rows_are_a_delta_table(spark: SparkSession, tmp_path: Path) -> None:
    context = context_in(tmp_path, FIRST)
    target = DeltaTable("orders", partition_by=("country", "day"))
    sink = DeltaSink(target, context)
    sink.take_over()
    stage = tmp_path / "stage"
    put(spark, tmp_path / "in", ["1, 'DE'", "2, 'a b/c=%'"])

    def frame() -> DataFrame:
        return spark.readStream.schema(spark.read.parquet(str(tmp_path / "in")).schema).parquet(
            str(tmp_path / "in")
        )

    def publish(checkpoint: int, through: int) -> None:
        permit = CommitPermit(
            context.pipeline, FIRST.epoch, CheckpointId(checkpoint), object(), lineage="first"
        )
        publish_prepared([Due(sink, stage, BatchId(through))], permit)

    sink.check(frame())
    run(frame(), preparing(sink, stage), stage / "query")
    assert not Path(sink.place, "_delta_log").exists()
    waits = cut_of_sink(sink, stage, BatchId(0)).snapshot
    assert waits is not None
    batches = tuple(read_committables(stage, waits.prepared))
    for found in (
        sink.rows(SinkCut(snapshot=waits, batches=batches, checkpoint_id=CheckpointId(1))).to_arrow(),
        pa.concat_tables(sink.waiting_rows(batches)),
    ):
        day = datetime.date(2026, 1, 2)
        said = [found.sort_by("k")[name].to_pylist() for name in ("k", "country", "day")]
        assert said == [[1, 2], ["DE", "a b/c=%"], [day, day]], "folders of rows that wait say their columns"
    publish(1, 0)
    first = cut_of_sink(sink, stage, BatchId(0)).snapshot
    assert first is not None
    found = polars.read_delta(sink.place).sort("k")
    assert found.select("k", "country", "tags").rows() == [(1, "DE", ["a"]), (2, "a b/c=%", ["a"])]
    assert found["day"].to_list() == [datetime.date(2026, 1, 2)] * 2
    assert found["at"].dt.microsecond().to_list() == [678901] * 2
    wanted = polars.scan_delta(sink.place).filter(country="a b/c=%").select("k").collect()
    assert wanted["k"].to_list() == [2]
    put(spark, tmp_path / "in", ["3, null"])
    run(frame().selectExpr("*", "'new' w"), preparing(sink, stage), stage / "query")
    publish(2, 1)
    found = polars.read_delta(sink.place).sort("k")
    assert found.select("k", "country", "w").rows() == [
        (1, "DE", None),
        (2, "a b/c=%", None),
        (3, None, "new"),
    ]
    rows, order = sink.rows(), ["k"]
    expected = found.select("k", "country", "w", "price").rows()
    read = rows.to_spark(spark)
    assert read.columns == found.columns, "in the order of the table, partitions too"
    columns = ["k", "country", "w", "price"]
    assert [tuple(row) for row in read.select(columns).orderBy(order).collect()] == expected
    named = rows.files()
    assert named is not None
    with pytest.raises(InvalidRequest, match="is partitioned, and its files lack these columns"):
        named.query(read.schema.json())
    with pytest.raises(
        InvalidRequest, match=r"the partition column 'country' of .* has the collation UTF8_LCASE"
    ):
        sink.check(frame().selectExpr("* except (country)", "collate(country, 'UTF8_LCASE') country"))
    with pytest.raises(InvalidRequest, match="column price is string in the rows and decimal"):
        sink.check(frame().selectExpr("* except (price)", "'1.5' price"))
    newer = DeltaSink(target, in_attempt(context, AttemptId("first", CoordinatorEpoch(2))))
    cut = SinkCut(
        snapshot=first, batches=tuple(read_committables(stage, first.prepared)), checkpoint_id=CheckpointId(1)
    )
    assert "version" in newer.roll_back(cut, LaterRows.SET_ASIDE).text
    assert polars.read_delta(sink.place)["k"].sort().to_list() == [1, 2]
    assert Reader(sink.place).count() == 2
