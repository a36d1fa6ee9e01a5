"""Kafka → sessions → Delta: the pipeline, as one would deploy it.

clicks ─┬─ sessions   one row per session of a user, once it is over
        └─ pages      views per page, one row each
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_ckpt import CheckpointedPipeline, KafkaTopics, checkpointed_pipeline, spark_sink, spark_source
from dagster_ckpt.sinks import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "clicks"
CLICK = "user STRING, page STRING, at TIMESTAMP"
GAP = "30 minutes"
"""Without a click for so long, a user's session is over."""
LATE = "10 minutes"
"""Clicks may come so much later than others that happened after them."""


def clickstream(broker: str) -> CheckpointedPipeline:
    """Return the pipeline over a broker's topic."""
    from pyspark.sql import functions as f

    @spark_source(reads=KafkaTopics(broker, group="clickstream"))
    def clicks(spark: SparkSession) -> DataFrame:
        records = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", broker)
            .option("kafka.isolation.level", "read_committed")
            .option("subscribe", TOPIC)
            .option("startingOffsets", "earliest")
            .load()
        )
        return records.select(f.from_json(f.col("value").cast("string"), CLICK).alias("click")).select(
            "click.*"
        )

    @spark_sink(to=DeltaTable("sessions"))
    def sessions(clicks: DataFrame) -> DataFrame:
        in_time = clicks.withWatermark("at", LATE)
        window = f.session_window("at", GAP)
        found = in_time.groupBy("user", window).agg(f.count("*").alias("clicks"))
        return found.select("user", f.col("session_window.start").alias("began"), "clicks")

    @spark_sink(key=["page"], to=DeltaTable("pages"))
    def pages(clicks: DataFrame) -> DataFrame:
        return clicks.groupBy("page").agg(f.count("*").alias("views"))

    @checkpointed_pipeline(name="clickstream")
    def pipeline() -> None:
        arrived: Any = clicks()
        sessions(arrived)
        pages(arrived)

    return pipeline  # type: ignore[no-any-return]
