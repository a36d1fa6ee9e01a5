"""Rows of a micro-batch as a Parquet table stages them."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from dagster_ckpt.spark.table.records import BUCKET_COLUMN, Append, Upsert

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def with_bucket(frame: DataFrame, mode: Append | Upsert) -> DataFrame:
    """Return the rows with the bucket that each belongs to, where the table has buckets."""
    match mode:
        case Append():
            return frame
        case Upsert():
            from pyspark.sql import functions as F  # noqa: N812 (everybody's name for it)

            # not `lit`, which imports PySpark's test tools, and with them pandas (4.3)
            bucket = F.pmod(F.xxhash64(*[F.col(f"`{key}`") for key in mode.keys]), F.expr(str(mode.buckets)))
            return frame.withColumn(BUCKET_COLUMN, bucket.cast("int"))
        case _:
            assert_never(mode)
