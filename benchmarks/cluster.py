"""What a cluster costs beside local[N]: the probe of its executors, and counting the rows of a batch.

    python -m benchmarks.cluster

A standalone master and two workers on this machine. ``first``: the executors' Python processes start; ``again``: they
run, and a folder is new to them. A write of rows is timed with and without the count, in turn.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from benchmarks.common import median, scratch, show
from dagster_ckpt.spark.channel.sink import write_staged
from dagster_ckpt.spark.cluster import counted
from dagster_ckpt.spark.cluster.probe import prove_executors
from dagster_ckpt.spark.cluster.sent import ship_package
from dagster_ckpt.spark.java.sessions import executor_ids
from dagster_ckpt.spark.session import build_session
from tests.progress import wait_until
from tests.spark.cluster.driver import CONF
from tests.spark.cluster.standalone import standalone_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMES = 9


def main() -> int:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with scratch() as folder, standalone_cluster("one", "two") as cluster:
        spark = build_session("dagster-ckpt-benchmark", master=cluster.url, conf=CONF)
        try:
            wait_until(lambda: len(executor_ids(spark)) == 2, "both executors have come", quiet=60.0)
            ship_package(spark)
            show("probe of two executors", [_probed(spark, folder)])
            show("rows of a batch, counted", [_counted(spark, folder, rows) for rows in (3, 2_000_000)])
        finally:
            spark.stop()
    return 0


def _probed(spark: SparkSession, folder: Path) -> dict[str, Any]:
    def probe(name: str) -> None:
        assert prove_executors(spark, {"work_dir": folder / name}) == 2

    return {
        "first_ms": _timed(lambda: probe("first")),
        "again_ms": median([_timed(lambda name=f"again-{n}": probe(name)) for n in range(TIMES)]),
    }


def _counted(spark: SparkSession, folder: Path, rows: int) -> dict[str, Any]:
    frame = spark.range(rows, numPartitions=2).selectExpr("id", "id % 7 AS part")
    with_count, without = [], []
    for n in range(TIMES):
        with_count.append(_timed(lambda at=folder / f"{rows}-{n}-counted": write_staged(frame, at, folder)))
        with patch.object(counted, "is_local", lambda _: True):
            without.append(_timed(lambda at=folder / f"{rows}-{n}": write_staged(frame, at, folder)))
    return {"rows": rows, "counted_ms": median(with_count), "not_counted_ms": median(without)}


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return (time.perf_counter() - began) * 1e3


if __name__ == "__main__":
    sys.exit(main())
