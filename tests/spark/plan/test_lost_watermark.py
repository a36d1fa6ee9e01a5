"""A watermark that no channel passes is missed where it was meant for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.channel.sink import ChannelSink
from dagster_ckpt.spark.channel.source import read_channel
from dagster_ckpt.spark.plan.refusals import is_meant_for_readers, random_keys, refuse_lost_watermark

Keep = Callable[["DataFrame", str], "DataFrame"]


def expr(text: str) -> Column:
    from pyspark.sql import functions as f

    return f.expr(text)


def passed_on(rows: DataFrame, folder: Path) -> DataFrame:
    """The rows as another stage reads them."""
    ChannelSink(ChannelLog.create(folder), rows.schema, marked=is_meant_for_readers(rows))
    return read_channel(rows.sparkSession, str(folder))


def by_minute(rows: DataFrame, column: str) -> DataFrame:
    from pyspark.sql.functions import window

    return rows.groupBy(window(column, "1 minute"), "value").count()


def sliding(rows: DataFrame, column: str) -> DataFrame:
    from pyspark.sql.functions import window

    return rows.groupBy(window(column, "1 minute", "30 seconds")).count()


def in_sessions(rows: DataFrame, column: str) -> DataFrame:
    from pyspark.sql.functions import session_window

    return rows.groupBy(session_window(column, "1 minute"), "value").count()


def told_apart(rows: DataFrame, column: str) -> DataFrame:
    return rows.dropDuplicates(["value", column])


def distinct(rows: DataFrame, column: str) -> DataFrame:
    return rows.sparkSession.sql(f"SELECT DISTINCT value, {column} FROM {{rows}}", rows=rows)


def joined(rows: DataFrame, column: str) -> DataFrame:
    others = (
        rows.sparkSession.readStream.format("rate").load().selectExpr("value AS other", "timestamp AS then")
    )
    return rows.join(others, expr(f"value = other AND {column} > then - INTERVAL 1 HOUR"))


def with_timers(rows: DataFrame, _: str) -> DataFrame:
    def count(key: Any, frames: Iterator[Any], state: Any) -> Iterator[Any]:
        yield from frames

    return rows.groupBy("value").applyInPandasWithState(
        count, "value LONG", "n LONG", "append", "EventTimeTimeout"
    )


BOUNDED = (by_minute, sliding, in_sessions, told_apart, distinct, joined, with_timers)
"""State that a watermark on the column would bound in one query of Spark."""


@pytest.mark.parametrize("keep", BOUNDED)
def test_state_that_a_watermark_would_bound_is_refused_behind_a_channel_that_it_does_not_pass(
    spark: SparkSession, tmp_path: Path, keep: Keep
) -> None:
    """Late rows were counted and nothing ever left the state, where one query of Spark drops both."""
    rows = spark.readStream.format("rate").load()
    early = passed_on(rows.withWatermark("timestamp", "1 minute"), tmp_path / "early")
    later = passed_on(early.where("value > 3").withColumnRenamed("timestamp", "at"), tmp_path / "later")
    for read, column in ((early, "timestamp"), (later, "at")):
        assert "watermarkDelayMs" not in read.schema.json()
        with pytest.raises(
            InvalidRequest,
            match=rf"stage totals keeps .* the one on '{column}' that stage 'readings' declares .*: declare it here "
            r"\(readings.withWater",
        ):
            refuse_lost_watermark("stage totals", keep(read, column), [(StageUid("readings"), read)])
        refuse_lost_watermark(
            "stage totals", keep(read.withWatermark(column, "1 hour"), column), [(StageUid("readings"), read)]
        )
    plain = passed_on(rows, tmp_path / "plain")
    refuse_lost_watermark("stage totals", keep(plain, "timestamp"), [(StageUid("readings"), plain)])


UNBOUNDED: dict[str, Keep] = {
    "no state": lambda rows, column: rows.where("value > 5"),
    "a count of each key": lambda rows, column: rows.groupBy("value").count(),
    "the newest moment of each key": lambda rows, column: rows.groupBy("value").agg({column: "max"}),
    "days as text": lambda rows, column: rows.groupBy(expr(f"date_format({column}, 'yyyy')")).count(),
    "duplicates of all time": lambda rows, column: rows.dropDuplicates(["value"]),
    "a join of all time": lambda rows, column: rows.join(
        rows.sparkSession.readStream.format("rate").load().selectExpr("value AS other"), expr("value = other")
    ),
}


@pytest.mark.parametrize("keep", UNBOUNDED.values(), ids=UNBOUNDED)
def test_state_that_no_watermark_would_bound_is_kept_without_one(
    spark: SparkSession, tmp_path: Path, keep: Keep
) -> None:
    """In one query of Spark a watermark changes nothing of it: a source may declare one for its other readers."""
    rows = spark.readStream.format("rate").load()
    read = passed_on(rows.withWatermark("timestamp", "1 minute"), tmp_path / "early")
    refuse_lost_watermark("stage totals", keep(read, "timestamp"), [(StageUid("readings"), read)])


def test_a_watermark_that_its_own_stage_has_use_for_is_not_meant_for_readers(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.readStream.format("rate").load()
    used = rows.withWatermark("timestamp", "1 hour").dropDuplicates(["value", "timestamp"])
    read = passed_on(used, tmp_path / "used")
    refuse_lost_watermark("stage totals", by_minute(read, "timestamp"), [(StageUid("readings"), read)])


def test_a_note_that_was_written_into_a_tables_files_is_no_declaration(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark keeps what is noted of columns in the footers of Parquet files, and reads it with their schema."""
    rows = spark.readStream.format("rate").load()
    early = passed_on(rows.withWatermark("timestamp", "1 minute"), tmp_path / "early")
    spark.createDataFrame([], early.schema).write.parquet(str(tmp_path / "table"))
    noted = spark.read.parquet(str(tmp_path / "table")).schema
    assert "dagster_ckpt.watermark" in noted.json()
    read = passed_on(spark.readStream.schema(noted).parquet(str(tmp_path / "table")), tmp_path / "later")
    refuse_lost_watermark("stage totals", by_minute(read, "timestamp"), [(StageUid("readings"), read)])


@pytest.mark.parametrize(
    ("drawn", "found"),
    [("uuid()", ("k",)), ("cast(rand() * 9 AS INT)", ("k",)), ("value % 3", ()), ("hash(value)", ())],
)
def test_a_key_that_is_drawn_by_chance_is_noticed(
    spark: SparkSession, drawn: str, found: tuple[str, ...]
) -> None:
    ticking = spark.readStream.format("rate").load()
    rows = ticking.selectExpr(f"{drawn} AS k", "uuid() AS other", "value").where("value > 1")
    assert random_keys(rows, ["k", "value"]) == found
