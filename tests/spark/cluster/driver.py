"""A driver in a process of its own: runs what it reads on stdin, a line of JSON each, and answers with a line.

``python -m tests.spark.cluster.driver``
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from dagster_ckpt import (
    CheckpointCoordinatorResource,
    CheckpointedPipeline,
    SparkSessionResource,
    run_epoch,
    run_stream,
    spark_sink,
)
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.ext.spark_pipelines.published import ComputedTable, ComputedTables
from dagster_ckpt.sinks import DeltaTable, IcebergTable
from dagster_ckpt.spark.cluster import lost, probe
from dagster_ckpt.spark.streaming.restart import ExponentialDelay, NoRestart
from tests.lab.pipelines import reads, sink, wired
from tests.plain_files import AS_USUAL
from tests.spark.epoch.small_pipeline import ORDERS, shop
from tests.spark.lake.deployment import Places
from tests.spark_session import SPARK_JVM

CONF = {
    "spark.pyspark.python": "python3",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": SPARK_JVM,
    "spark.ui.enabled": "false",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "2",
    **AS_USUAL,
}


def copied(feed: Path, kind: str) -> CheckpointedPipeline:
    """Numbers of files → one table of a kind."""
    target = {"parquet": None, "delta": DeltaTable("numbers"), "iceberg": IcebergTable()}[kind]

    return wired(
        f"copied_{kind}",
        reads("orders", "number INT", f"file://{feed}/orders"),
        sink("numbers", lambda orders: orders, to=target),
        checkpointing={"operator_chaining": False},
    )


def summed(feed: Path) -> CheckpointedPipeline:
    """Amounts by customer: state and a table, without a channel in between; of its rows their count is computed."""

    pipeline = wired(
        "summed",
        reads("orders", "customer STRING, amount INT", f"file://{feed}/orders"),
        sink(
            "sums",
            lambda orders: orders.groupBy("customer").sum("amount").toDF("customer", "amount"),
            key=["customer"],
        ),
    )

    def counted(spark: SparkSession, rows: Mapping[StageUid, DataFrame | None]) -> DataFrame:
        read = rows[StageUid("sums")]
        assert read is not None
        return read.selectExpr("count(*) AS n")

    made: CheckpointedPipeline = pipeline
    derived = (ComputedTable(uid=StageUid("counted"), reads=(StageUid("sums"),), fn=counted),)
    return replace(made, derived=derived, after_publish=(ComputedTables(derived),))


def split(feed: Path) -> CheckpointedPipeline:
    """Orders by a channel to two tables: one appended to, one with state."""

    @spark_sink(key=["customer"])
    def totals(orders):  # type: ignore[no-untyped-def]
        sums = orders.groupBy("customer").agg({"number": "count", "amount": "sum"})
        return sums.toDF("customer", "orders", "amount")

    return wired(
        "split",
        reads("orders", ORDERS, f"file://{feed}/orders"),
        sink("lines", lambda orders: orders.select("number", "customer")),
        totals,
        checkpointing={"operator_chaining": False},
    )


def chosen(name: str, feed: Path) -> CheckpointedPipeline:
    if name in ("shop", "summed", "split"):
        return {"shop": shop, "summed": summed, "split": split}[name](feed)
    return copied(feed, name)


def deployed(step: dict[str, Any]) -> tuple[CheckpointedPipeline, CheckpointCoordinatorResource]:
    """What runs and where it keeps what it keeps: a folder that all see, or PostgreSQL and S3."""
    how = {
        "interval": 1.0,
        "tolerable_failed_checkpoints": 100,
        "concurrent_runs": "take_over",
        **step.get("coordinator", {}),
    }
    if "places" in step:
        places = Places.read(step["places"])
        pipeline = places.stateless() if step["pipeline"] == "stateless" else places.pipeline()
        return pipeline, places.coordinator(Path(step["lab"]), **how)
    pipeline = chosen(step["pipeline"], Path(step["feed"]))
    return pipeline, CheckpointCoordinatorResource(**{"base_dir": step["lab"], **how})


def run(step: dict[str, Any]) -> dict[str, Any]:
    pipeline, coordinator = deployed(step)
    spark = SparkSessionResource(
        master=step["master"], ship_package=step["ship"], conf={**CONF, **step.get("conf", {})}
    )
    probed: list[int] = []

    def prove(*given: Any) -> int:
        probed.append(probe.prove_executors(*given) if step["probe"] else 0)
        return probed[-1]

    with (
        patch("dagster_ckpt.spark.attempt.pipeline_setup.prove_executors", prove),
        patch("dagster_ckpt.spark.cluster.lost.PATIENCE", step.get("patience", lost.PATIENCE)),
    ):
        if step["stream"]:
            strategy = ExponentialDelay() if step.get("restarts") else NoRestart()
            end = run_stream(pipeline, coordinator=coordinator, spark=spark, strategy=strategy)
            said = end.savepoint
        else:
            done = run_epoch(pipeline, coordinator=coordinator, spark=spark)
            said = done.checkpoint.uri if done.checkpoint is not None else ""
    return {"said": said, "probed": sum(probed)}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what Spark prints is no answer
    for line in sys.stdin:
        try:
            answer = run(json.loads(line))
        except BaseException as error:
            answer = {"failed": type(error).__name__, "said": str(error)}
        assert SparkContext._active_spark_context is None
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
