"""How long does an epoch with little data take, and what of it is Java's start? ``python -m benchmarks.cold_start``

One new file of 1,000 rows: source → keyed sum → table. Each way is a process of its own, from its start to its end, so
many rounds in alternating order: a bare Spark script (`availableNow`, the table written by `foreachBatch`), an epoch in
a plain program, and the pipeline's Dagster job; each cold, with an archive of Java's classes, ours on a warm engine.
Beside them a Dagster job with nothing in it, for what of a job is Dagster.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import functions as f

from benchmarks.common import median, scratch, show, write_keys
from dagster_ckpt import (
    CheckpointCoordinatorResource,
    CheckpointedPipeline,
    SparkSessionResource,
    checkpointed_pipeline,
    run_epoch,
    spark_sink,
    spark_source,
)
from dagster_ckpt.ext.warm.class_archive import make_archive, with_archive
from dagster_ckpt.spark.session import build_session

ROWS = 1000
WAYS = (
    "script",
    "script, archive",
    "program",
    "program, archive",
    "program, warm",
    "job",
    "job, archive",
    "job, warm",
    "empty job",
)
CONF = {
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "2",
}


def pipeline_of(folder: Path) -> CheckpointedPipeline:
    @spark_source
    def rows(spark):  # type: ignore[no-untyped-def]
        return spark.readStream.schema("k long, v long").parquet(str(folder / "in"))

    @spark_sink(key=["k"])
    def totals(rows):  # type: ignore[no-untyped-def]
        return rows.groupBy("k").agg(f.sum("v").alias("total"))

    @checkpointed_pipeline(name="little")
    def little() -> None:
        totals(rows())

    return little  # type: ignore[no-any-return]


def script(folder: Path, archive: str) -> None:
    """What one would write without us."""
    spark = build_session("bare", master="local[2,3]", conf=with_archive(CONF, archive))
    rows = spark.readStream.schema("k long, v long").parquet(str(folder / "in"))
    query = (
        rows.groupBy("k")
        .agg(f.sum("v").alias("total"))
        .writeStream.outputMode("update")
        .foreachBatch(lambda batch, number: batch.write.parquet(str(folder / "out" / str(number))))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


def epoch(folder: Path, how: str, spark: SparkSessionResource) -> None:
    """The same, by us."""
    coordinator = CheckpointCoordinatorResource(base_dir=str(folder / "state"))
    pipeline = pipeline_of(folder)
    if how == "program":
        run_epoch(pipeline, coordinator=coordinator, spark=spark)
        return
    import dagster as dg  # a plain program needs neither Dagster's storage nor our jobs

    from dagster_ckpt import build_pipeline_definitions

    definitions = build_pipeline_definitions(pipeline, coordinator=coordinator, spark=spark)
    (folder / "dagster").mkdir(exist_ok=True)
    with dg.DagsterInstance.local_temp(str(folder / "dagster")) as instance:
        definitions.resolve_job_def("little").execute_in_process(instance=instance)


def empty_job(folder: Path) -> None:
    """A Dagster job with nothing in it: what no job can do without."""
    import dagster as dg

    @dg.op
    def nothing() -> None: ...

    @dg.job
    def empty() -> None:
        nothing()

    (folder / "dagster").mkdir(parents=True, exist_ok=True)
    with dg.DagsterInstance.local_temp(str(folder / "dagster")) as instance:
        empty.execute_in_process(instance=instance)


def child(way: str, folder: Path, archive: str) -> None:
    how, _, engine = way.partition(", ")
    archive = archive if engine == "archive" else ""
    if how == "script":
        script(folder, archive)
        return
    if how == "empty job":
        empty_job(folder)
        return
    warm = str(folder / "engine") if engine == "warm" else ""
    epoch(
        folder,
        how,
        SparkSessionResource(
            master="local[2,3]", conf=CONF, class_archive=archive, warm_engine=warm, warm_engine_idle="10 min"
        ),
    )


def measured(way: str, folder: Path, archive: str) -> float:
    """Return the seconds from the start to the end of one process."""
    began = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "benchmarks.cold_start",
        "--way",
        way,
        "--folder",
        str(folder),
        "--archive",
        archive,
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    for name in ("--way", "--folder", "--archive"):
        parser.add_argument(name, default="")
    chosen = parser.parse_args()
    if chosen.way:
        child(chosen.way, Path(chosen.folder), chosen.archive)
        return
    with scratch() as base:
        archive = str(make_archive(base / "classes").parent)
        figures: dict[str, list[float]] = {way: [] for way in WAYS}
        for number in range(chosen.rounds + 1):  # the first one fills caches, and starts the warm engines
            order: Callable[[tuple[str, ...]], object] = reversed if number % 2 else iter
            for way in order(WAYS):  # type: ignore[attr-defined]
                folder = base / way.replace(", ", "-")
                write_keys(folder / "in", number, range(ROWS))
                figures[way].append(measured(way, folder, archive))
    bare = median(figures["script"][1:])
    show(
        f"an epoch with {ROWS} rows, {chosen.rounds} rounds",
        [
            {
                "way": way,
                "wall s": median(taken[1:]),
                "least": min(taken[1:]),
                "most": max(taken[1:]),
                "of the bare script": median(taken[1:]) / bare,
            }
            for way, taken in figures.items()
        ],
    )


if __name__ == "__main__":
    main()
