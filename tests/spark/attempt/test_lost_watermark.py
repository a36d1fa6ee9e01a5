"""A watermark that no channel passes is missed where it was meant for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.attempt.lost_watermark import is_meant_for_readers, refuse_lost_watermark
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.channel.sink import ChannelSink
from dagster_ckpt.spark.channel.source import read_channel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def passed_on(rows: DataFrame, folder: Path) -> DataFrame:
    """The rows as another stage reads them."""
    ChannelSink(ChannelLog.create(folder), rows.schema, marked=is_meant_for_readers(rows))
    return read_channel(rows.sparkSession, str(folder))


def test_state_behind_a_channel_that_a_watermark_does_not_pass_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Late rows were counted and nothing ever left the state, where one query of Spark drops both."""
    rows = spark.readStream.format("rate").load()
    early = passed_on(rows.withWatermark("timestamp", "1 minute"), tmp_path / "early")
    later = passed_on(early.where("value > 3").withColumnRenamed("timestamp", "at"), tmp_path / "later")
    for read, column in ((early, "timestamp"), (later, "at")):
        assert "watermarkDelayMs" not in read.schema.json()
        counted = read.groupBy("value").count()
        with pytest.raises(
            InvalidRequest,
            match=rf"stage totals keeps .* the one on '{column}' .*: declare it here \(withWater",
        ):
            refuse_lost_watermark("stage totals", counted, [read])
        refuse_lost_watermark(
            "stage totals", read.withWatermark(column, "1 hour").groupBy("value").count(), [read]
        )
        refuse_lost_watermark("stage totals", read.where("value > 5"), [read])

    used = early.withWatermark("timestamp", "1 hour").dropDuplicates(["value", "timestamp"])
    behind = passed_on(used, tmp_path / "used")  # it has done its work
    plain = passed_on(rows, tmp_path / "plain")
    for read in (behind, plain):
        refuse_lost_watermark("stage totals", read.groupBy("value").count(), [read])
