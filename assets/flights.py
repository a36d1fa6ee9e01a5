"""The reference pipeline: flights of 2013 joined with the hourly weather at their origin.

::

    flights ─┐
             ├─ enriched ─┬─ airport_delays   (per origin and day; Delta; DAGSTER_CKPT_DEMO_DELAYS: iceberg)
    weather ─┘            └─ tail_totals      (running totals per tail number; Delta)

Days are calendar days at the airports (columns year, month, day). Flights without a tail number (2,512 of 336,776)
count in ``airport_delays``; ``tail_totals`` has no row to count them in and leaves them out.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from assets.flights_data import FLIGHTS_SCHEMA, WEATHER_SCHEMA
from dagster_ckpt import checkpointed_pipeline, spark_sink, spark_source, spark_stage
from dagster_ckpt.sinks import DeltaTable, IcebergTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEMO_DIR = Path(os.environ.get("DAGSTER_CKPT_DEMO_DIR") or Path(__file__).resolve().parent.parent / ".demo")
ARRIVALS = DEMO_DIR / "arrivals"

FORMATS = {"delta": DeltaTable, "iceberg": IcebergTable}
DELAYS_IN = FORMATS[os.environ.get("DAGSTER_CKPT_DEMO_DELAYS", "delta")]
"""What ``airport_delays`` is written as; chosen before the first run, as a table stays what it is."""


@spark_source
def flights(spark: SparkSession) -> DataFrame:
    """Read flights as their daily files arrive."""
    return (
        spark.readStream.schema(FLIGHTS_SCHEMA)
        .option("maxFilesPerTrigger", 60)
        .option("maxFileAge", "3650d")
        .parquet(str(ARRIVALS / "flights"))
    )


@spark_source
def weather(spark: SparkSession) -> DataFrame:
    """Read hourly weather as its daily files arrive."""
    return (
        spark.readStream.schema(WEATHER_SCHEMA)
        .option("maxFilesPerTrigger", 60)
        .option("maxFileAge", "3650d")
        .parquet(str(ARRIVALS / "weather"))
    )


@spark_stage(max_entries_per_trigger=1)
def enriched(flights: DataFrame, weather: DataFrame) -> DataFrame:
    """Join each flight with the weather of its hour at its origin; hours without weather drop out."""
    from pyspark.sql import functions as f

    left = flights.withWatermark("time_hour", "1 day").alias("f")
    right = weather.withWatermark("time_hour", "1 day").alias("w")
    same_hour = f.expr("f.origin = w.origin AND f.time_hour = w.time_hour")
    return left.join(right, same_hour, "inner").select(
        "f.origin",
        "f.time_hour",
        f.to_timestamp(f.make_date("f.year", "f.month", "f.day")).alias("day"),
        "f.tailnum",
        "f.distance",
        "f.dep_delay",
        "f.arr_delay",
        "w.visib",
    )


@spark_sink(to=DELAYS_IN("airport_delays"))
def airport_delays(enriched: DataFrame) -> DataFrame:
    """Per origin and day, once the day is over: flights, mean delays in minutes, mean visibility in miles."""
    from pyspark.sql import functions as f

    return (
        enriched.withWatermark("day", "1 day")
        .groupBy("origin", "day")
        .agg(
            f.count("*").alias("flights"),
            f.avg("dep_delay").alias("mean_dep_delay"),
            f.avg("arr_delay").alias("mean_arr_delay"),
            f.avg("visib").alias("mean_visibility"),
        )
        .withColumn("day", f.to_date("day"))
    )


@spark_sink(key=["tailnum"], to=DeltaTable("tail_totals"))
def tail_totals(enriched: DataFrame) -> DataFrame:
    """Running flights and miles per tail number; flights without a tail number are left out."""
    from pyspark.sql import functions as f

    return (
        enriched.where("tailnum IS NOT NULL")
        .groupBy("tailnum")
        .agg(f.count("*").alias("flights"), f.sum("distance").alias("distance"))
    )


@checkpointed_pipeline(name="flights", checkpointing={"interval": 2.0})
def flights_pipeline() -> None:
    """Flights of 2013, with the weather they left in."""
    both = enriched(flights(), weather())
    airport_delays(both)
    tail_totals(both)


FORKED = DEMO_DIR / "fork_tables"
flights_fork = flights_pipeline.fork(
    "flights_fork",
    table_dir=str(FORKED),
    sinks={
        # Iceberg's catalog lies below the fork's own table_dir.
        "airport_delays": DELAYS_IN("airport_delays"),
        "tail_totals": DeltaTable(str(FORKED / "tail_totals")),
    },
)
