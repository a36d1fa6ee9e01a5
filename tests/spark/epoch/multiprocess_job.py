"""An epoch job whose steps each have a process of their own; those processes load it again by its name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_ckpt import (
    CheckpointCoordinatorResource,
    CheckpointedPipeline,
    PipelineOptions,
    SparkSessionResource,
    build_pipeline_definitions,
    spark_sink,
)
from tests.lab.pipelines import reads, sink, wired
from tests.spark.epoch.small_pipeline import ORDERS

BROKEN = "broken"
"""While this file is in the feed's folder, the totals fail."""
ENGINE = "engine"
"""Of two steps that run at the same time, one uses it and the other starts a JVM of its own."""
CONF = {
    "spark.driver.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "2",
}


def fanned_out(feed: Path, name: str, boundedness: str) -> CheckpointedPipeline:
    """orders → lines, totals: two sinks whose processes work at the same time."""

    @spark_sink(key=["customer"])
    def totals(orders):  # type: ignore[no-untyped-def]
        if (feed / BROKEN).exists():
            raise RuntimeError("the totals are broken")
        return orders.groupBy("customer").sum("amount").toDF("customer", "amount")

    return wired(
        name,
        reads("orders", ORDERS, feed / "orders", boundedness=boundedness),
        sink("lines", lambda orders: orders.select("number", "customer")),
        totals,
        checkpointing={"operator_chaining": False},
    )


FORKED: Mapping[str, Any] = {
    "start_method": {"forkserver": {"preload_modules": [__name__, "pyspark.sql", "pyarrow.parquet"]}}
}
"""Processes that begin with what one of them has imported, for all that a step needs: half of its time."""


def definitions(folder: Path, executor: Mapping[str, Any]) -> dg.Definitions:
    return build_pipeline_definitions(
        fanned_out(folder / "feed", "fanned_out", "unbounded"),
        fanned_out(folder / "feed", "bounded", "bounded"),
        coordinator=CheckpointCoordinatorResource(base_dir=str(folder / "lab"), num_retained=5),
        spark=SparkSessionResource(master="local[1,3]", warm_engine=str(folder / ENGINE), conf=CONF),
        options=PipelineOptions(executor=dg.multiprocess_executor.configured(dict(executor))),
    )


def epoch_job(folder: str, concurrent: int) -> dg.JobDefinition:
    return definitions(Path(folder), {**FORKED, "max_concurrent": concurrent}).resolve_job_def("fanned_out")


def streaming_job(folder: str) -> dg.JobDefinition:
    """Its process is spawned: what Dagster does where nothing is said."""
    return definitions(Path(folder), {}).resolve_job_def("bounded_streaming")
