"""A channel whose rows go through S3, under real Spark queries: every type kept, order kept, nothing on the disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.channel.batch_input import PLACE, read_rows
from dagster_ckpt.spark.channel.sink import ChannelSink, write_apart, write_staged
from dagster_ckpt.spark.channel.source import read_channel
from dagster_ckpt.spark.exchange.mounts import remove_folder
from dagster_ckpt.spark.sink.port import AttemptId
from dagster_ckpt.spark.sink.staged_rows import stage_rows
from tests.adapters.servers import S3Server
from tests.spark.channel.test_channel_spark import ALL_TYPES, Collected, in_full, run
from tests.spark.exchange.places import Place, place_of


@pytest.fixture
def place(tmp_path: Path, s3_apart: S3Server) -> Iterator[Place]:
    with place_of("s3", tmp_path, s3_apart) as made:
        yield made


def test_every_type_comes_back_as_it_was(place: Place, spark: SparkSession, tmp_path: Path) -> None:
    log = place.log(place.attempt())
    frame = spark.sql(ALL_TYPES)
    sink = ChannelSink(log, frame.schema)
    sink(frame, 0)
    sink(frame.limit(0), 1)
    sink(frame, 0)  # again
    assert not log.data_folder.exists()
    got: list[list[tuple[object, ...]]] = []

    def keep(batch: DataFrame, _: int) -> None:
        got.append(in_full(batch))

    run(read_channel(spark, str(log.directory)), keep, tmp_path / "query")
    assert [sorted(rows, key=repr) for rows in got] == [sorted(in_full(frame), key=repr)]


def test_rows_keep_their_order_and_a_query_goes_on(place: Place, spark: SparkSession, tmp_path: Path) -> None:
    log = place.log(place.attempt())
    for batch in range(3):
        frame = spark.range(batch * 100, batch * 100 + 100, numPartitions=3).selectExpr("id AS k", "id AS v")
        ChannelSink(log, frame.schema).append(frame, BatchId(batch))
    read = Collected()
    run(read_channel(spark, str(log.directory), max_entries=1), read, tmp_path / "query")
    assert [rows[0][0] for rows in read.batches.values()] == [0, 100, 200]
    assert [row[0] for row in read.rows] == list(range(300))


def test_secrets_do_not_show_in_plans(place: Place, spark: SparkSession) -> None:
    log = place.log(place.attempt())
    ChannelSink(log, spark.range(1).schema)
    frame = read_channel(spark, str(log.directory))
    assert '"secret_key"' not in frame._jdf.queryExecution().toString()  # type: ignore[operator]


def test_rows_of_a_sink_end_on_the_drivers_disk(place: Place, spark: SparkSession) -> None:
    place.attempt(3)
    root = place.work_dir / "shop" / "staged" / "totals"
    frame = spark.range(0, 50, numPartitions=2).toDF("k")
    batch = stage_rows(frame, BatchId(4), AttemptId("h", 3), root=root, staged=root / "staged" / "3")  # type: ignore[arg-type]
    assert sum(file.rows for file in batch.files) == 50
    assert all((root / file.staged).stat().st_size == file.bytes for file in batch.files)
    assert not place.stored()


def test_partitioned_rows_are_refused(place: Place, spark: SparkSession) -> None:
    root = place.attempt().root / "x"
    with pytest.raises(InvalidRequest, match="leave partition_by out"):
        write_staged(spark.range(1), root / "batch", root, ["id"])


def test_rows_apart_are_read_again_with_their_places(place: Place, spark: SparkSession) -> None:
    log = place.log(place.attempt())
    frame = spark.range(6, numPartitions=2).selectExpr("id AS `a.b`", "id % 3 AS by")
    kinds = write_apart(frame, "by", log.data_folder / "batch-0000000000-000000000000", log.directory)
    schema = frame.drop("by").schema
    paths = {kind: [log.directory / file.name for file in files] for kind, files in kinds.items()}
    again = {
        kind: [
            row.asDict()
            for row in read_rows(spark, found, schema, [10 * n for n, _ in enumerate(found)]).collect()
        ]
        for kind, found in paths.items()
    }
    assert again == {kind: [{"a.b": kind, PLACE: 0}, {"a.b": kind + 3, PLACE: 10}] for kind in range(3)}
    assert [row[0] for row in read_rows(spark, paths[1], schema).collect()] == [1, 4]
    remove_folder(log.data_folder)
    assert not place.stored()


def test_names_of_columns_may_have_dots_and_be_there_twice(place: Place, spark: SparkSession) -> None:
    log = place.log(place.attempt())
    frame = spark.range(3).selectExpr("id AS `a.b`", "id AS `c`")
    files = write_staged(frame, log.data_folder / "batch-0000000000-000000000000", log.directory)
    opened = place.exchange.below(log.directory).parquet_files([file.name for file in files])
    assert sorted(row["a.b"] for file in opened for row in file.read().to_pylist()) == [0, 1, 2]
