"""A query that something else in the process stops has not read everything, and no run says so."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from dagster_ckpt import (
    CheckpointCoordinatorResource,
    CheckpointedPipeline,
    run_epoch,
    run_stream,
)
from dagster_ckpt.errors import Unavailable
from tests.lab.pipelines import reads, sink, wired
from tests.progress import join, wait_until
from tests.tables import rows_in

FILES = 6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        file = tmp_path / "in" / f"{number}.json"
        file.write_text(json.dumps({"k": number}) + "\n")
        os.utime(file, (1000 + number, 1000 + number))  # Spark reads the oldest first
    return tmp_path


def numbers(folder: Path, boundedness: str) -> CheckpointedPipeline:
    """A file a batch; the second one waits until the gate is there, so that the query is stopped inside of a batch."""
    gate = str(folder / "open")

    def waited(k):  # type: ignore[no-untyped-def]
        import time
        from pathlib import Path

        while k and not Path(gate).exists():
            time.sleep(0.02)
        return k

    return wired(
        "numbers",
        reads("rows", "k long", folder / "in", at_once=1, boundedness=boundedness),
        sink("out", lambda rows: rows.select(f.udf(waited, "long")("k").alias("k"))),
    )


def shown(folder: Path) -> list[int]:
    return sorted(row["k"] for row in rows_in(folder / "state" / "tables" / "numbers" / "out"))


@pytest.fixture
def stopped(spark: SparkSession, folder: Path) -> threading.Thread:
    """Somebody who stops all queries once one has read something."""

    def stop() -> None:
        wait_until(
            lambda: [query for query in spark.streams.active if query.recentProgress],
            "a query has read a file",
            moves=lambda: len(spark.streams.active),
            every=0.05,
        )
        for query in spark.streams.active:
            query.stop()
        (folder / "open").touch()

    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    return thread


def test_an_epoch_whose_query_was_stopped_fails_and_the_next_one_reads_the_rest(
    spark: SparkSession, folder: Path, stopped: threading.Thread
) -> None:
    coordinator = CheckpointCoordinatorResource(base_dir=str(folder / "state"))
    pipeline = numbers(folder, "unbounded")
    with pytest.raises(
        Unavailable, match="the query of rows -> out was stopped before it had read all there was"
    ):
        run_epoch(pipeline, coordinator=coordinator, spark=spark)
    join(stopped, "the queries are stopped")
    assert shown(folder) == []
    run_epoch(pipeline, coordinator=coordinator, spark=spark)
    assert shown(folder) == list(range(FILES))


def test_a_stream_of_a_bounded_source_starts_a_stopped_query_again(
    spark: SparkSession, folder: Path, stopped: threading.Thread
) -> None:
    coordinator = CheckpointCoordinatorResource(base_dir=str(folder / "state"), interval="1 s")
    run_stream(numbers(folder, "bounded"), coordinator=coordinator, spark=spark)
    assert shown(folder) == list(range(FILES))
