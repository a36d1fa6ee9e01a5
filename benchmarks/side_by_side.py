"""What does an epoch gain whose stages run side by side? ``python -m benchmarks.side_by_side``

``--branches`` sources, each with a table of its own, ``--rows`` rows a branch and epoch; one session,
the ways taking turns:
one stage at a time, and four at once.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.common import median, scratch, show, spark_session, write_keys
from dagster_ckpt import (
    CheckpointCoordinatorResource,
    CheckpointedPipeline,
    checkpointed_pipeline,
    run_epoch,
    spark_sink,
    spark_source,
)
from dagster_ckpt.spark.epoch import attempt

WAYS = {"one at a time": 1, "four at once": 4}


def pipeline_of(folder: Path, name: str, branches: int) -> CheckpointedPipeline:
    def branch(number: int) -> tuple[Any, Any]:
        @spark_source(uid=f"rows_{number}")
        def rows(spark):  # type: ignore[no-untyped-def]
            return spark.readStream.schema("k long, v long").parquet(str(folder / f"in-{number}"))

        @spark_sink(uid=f"table_{number}")
        def table(rows):  # type: ignore[no-untyped-def]
            return rows.selectExpr("k", "v * 2 AS v")

        return rows, table

    pairs = [branch(number) for number in range(branches)]

    @checkpointed_pipeline(name=name)
    def all_of_them() -> None:
        for rows, table in pairs:
            table(rows())

    return all_of_them  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--branches", type=int, default=4)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 500_000])
    chosen = parser.parse_args()
    shown = []
    for rows in chosen.rows:
        with scratch() as folder, spark_session(folder, **{"spark.sql.shuffle.partitions": "2"}) as spark:
            took: dict[str, list[float]] = {way: [] for way in WAYS}
            for number in range(chosen.rounds + 1):
                for branch in range(chosen.branches):
                    write_keys(folder / f"in-{branch}", number, range(rows))
                for way in WAYS if number % 2 else reversed(WAYS):
                    pipeline = pipeline_of(folder, way.replace(" ", "_"), chosen.branches)
                    where = CheckpointCoordinatorResource(base_dir=str(folder / "state"))
                    attempt.AT_ONCE = WAYS[way]
                    began = time.perf_counter()
                    run_epoch(pipeline, coordinator=where, spark=spark)
                    if number:  # the first one warms up
                        took[way].append(time.perf_counter() - began)
            alone, beside = (median(took[way]) for way in WAYS)
            shown.append(
                {
                    "rows a branch": rows,
                    "one at a time, s": alone,
                    "four at once, s": beside,
                    "ratio": beside / alone,
                }
            )
    show(f"epoch of {chosen.branches} independent branches, {os.cpu_count()} cores", shown)


if __name__ == "__main__":
    main()
