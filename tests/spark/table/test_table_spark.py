"""Two-phase tables under real Spark queries and real kills, read back by readers that know nothing of them."""

from __future__ import annotations

import glob
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_ckpt.core.ids import BatchId, CheckpointId, PipelineId
from dagster_ckpt.digests import digest_file
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.sink.committables import read_committables
from dagster_ckpt.spark.sink.phases import cut_of_sink, preparing
from dagster_ckpt.spark.sink.port import SinkCut
from dagster_ckpt.spark.table.log import create_table
from dagster_ckpt.spark.table.records import (
    Append,
    Upsert,
)
from dagster_ckpt.spark.table.roll_back import roll_back
from tests.root import ROOT
from tests.spark.table.tables import PIPELINE, attempt_id, permit, publish_through, rows_of, sink_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def put(folder: Path, number: int, rows: int = 20) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table({"k": pa.array(range(rows), pa.int64()), "v": pa.array([number] * rows, pa.int64())})
    pq.write_table(table, folder / f".{number}")
    os.utime(folder / f".{number}", (1.7e9 + number, 1.7e9 + number))
    (folder / f".{number}").rename(folder / f"part-{number:04d}.parquet")


def totals(spark: SparkSession, folder: Path) -> DataFrame:
    source = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1).parquet(str(folder))
    return source.groupBy("k").agg({"v": "sum"}).toDF("k", "v")


def run(frame: DataFrame, sink: Callable[[DataFrame, int], None], query_dir: Path, mode: str) -> None:
    (
        frame.writeStream.outputMode(mode)
        .foreachBatch(sink)
        .option("checkpointLocation", str(query_dir))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


def test_running_totals_are_published_with_their_checkpoint_and_rolled_back_with_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = create_table(str(tmp_path / "table"), pipeline=PIPELINE, mode=Upsert(keys=("k",), buckets=4))
    stage = tmp_path / "stage"
    sink = preparing(sink_of(table), stage)
    for number in (1, 2):
        put(tmp_path / "in", number)
    frame = totals(spark, tmp_path / "in")
    run(frame, sink, stage / "query", "update")
    first = cut_of_sink(sink_of(table), stage, BatchId(1)).snapshot
    assert first is not None
    assert rows_of(tmp_path / "table") == []
    publish_through(table, stage, BatchId(1), permit(1))
    assert rows_of(tmp_path / "table") == [(k, 3) for k in range(20)]
    put(tmp_path / "in", 3)
    run(frame, sink, stage / "query", "update")
    publish_through(table, stage, BatchId(2), permit(2))
    assert rows_of(tmp_path / "table") == [(k, 6) for k in range(20)]
    batches = tuple(read_committables(stage, first.prepared))
    cut = SinkCut(snapshot=first, batches=batches, checkpoint_id=CheckpointId(1))
    back = roll_back(table, cut, attempt_id(2))
    assert back.head == 1
    assert rows_of(tmp_path / "table") == [(k, 3) for k in range(20)]


def test_pandas_pyarrow_and_spark_read_the_table_as_a_plain_dataset(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.sql(
        "SELECT id AS k, CONCAT('n', id) AS name, timestamp_seconds(id) AS ts, CAST(id AS DECIMAL(9, 2)) "
        "AS d "
        "FROM range(10)"
    )
    for mode in (Append(), Upsert(keys=("name", "k"), buckets=3)):
        folder = tmp_path / mode.kind
        table = create_table(str(folder), pipeline=PIPELINE, mode=mode)
        sink = preparing(sink_of(table), tmp_path / f"stage-{mode.kind}")
        sink(rows, 0)
        sink(rows, 0)
        publish_through(table, tmp_path / f"stage-{mode.kind}", BatchId(0), permit(1))
        sink(rows, 1)
        assert spark.read.parquet(str(folder)).exceptAll(rows).count() == 0
        assert spark.read.parquet(str(folder)).count() == 10
        loaded = sink_of(table).rows()
        assert loaded.to_spark(spark).exceptAll(rows).count() == 0
        assert loaded.to_spark(spark).count() == loaded.to_arrow().num_rows == 10
        assert pq.read_table(folder).num_rows == 10
        assert sorted(pd.read_parquet(folder)["name"]) == sorted(f"n{i}" for i in range(10))
        assert pq.ParquetDataset(sorted(glob.glob(f"{folder}/*.parquet"))).read().num_rows == 10
        for file in read_committables(tmp_path / f"stage-{mode.kind}", [0])[0].files:
            lies = [path for path in (folder / file.name, folder / file.staged) if path.exists()]
            assert [digest_file(path).checksum for path in lies[:1]] == [file.checksum] * len(lies[:1])
            assert file.checksum.startswith("xxh3_128:")


def test_rows_without_the_key_column_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "table"), pipeline=PIPELINE, mode=Upsert(keys=("key",)))
    with pytest.raises(InvalidRequest, match="no key column 'key'"):
        sink_of(table).check(spark.range(1))


def test_at_least_once_shows_every_batch_at_once_and_an_upsert_still_each_key_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path / "in", 1)
    put(tmp_path / "in", 2)
    table = create_table(str(tmp_path / "upsert"), pipeline=PIPELINE, mode=Upsert(keys=("k",), buckets=2))
    direct = sink_of(table).write_through
    run(totals(spark, tmp_path / "in"), lambda frame, n: direct(frame, BatchId(n)), tmp_path / "q1", "update")
    assert rows_of(tmp_path / "upsert") == [(k, 3) for k in range(20)]
    plain = sink_of(create_table(str(tmp_path / "append"), pipeline=PIPELINE, mode=Append()))
    plain.write_through(spark.sql("SELECT 1L AS k, 2L AS v"), BatchId(0))
    plain.write_through(spark.sql("SELECT 1L AS k, 2L AS v"), BatchId(0))
    assert rows_of(tmp_path / "append") == [(1, 2), (1, 2)]
    with pytest.raises(InvalidRequest, match="was written at least once"):
        plain.take_over()


@pytest.mark.spark
def test_after_a_kill_in_full_flight_every_row_is_in_the_tables_exactly_once(tmp_path: Path) -> None:
    files = 12
    for number in range(files):
        put(tmp_path / "in", number)
    _run_child(tmp_path, files, kill_after=4)
    keys = [k for k, _ in rows_of(tmp_path / "upsert" / "table")]
    assert len(keys) == len(set(keys))
    assert len(rows_of(tmp_path / "append" / "table")) < 20 * files
    _run_child(tmp_path, files, kill_after=None)
    everything = [(k, number) for k in range(20) for number in range(files)]
    assert rows_of(tmp_path / "append" / "table") == sorted(everything)
    assert rows_of(tmp_path / "upsert" / "table") == [(k, sum(range(files))) for k in range(20)]


def _run_child(folder: Path, files: int, *, kill_after: int | None) -> None:
    """Run the sinks; kill their whole process group when they have published so often, driver and JVM alike."""
    said = folder / "stderr.txt"
    with (
        said.open("w") as errors,
        subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("table_child.py")), str(folder), str(files)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"},
        ) as child,
    ):
        assert child.stdout is not None
        try:
            _follow(child.stdout, kill_after, said)
        finally:
            os.killpg(child.pid, signal.SIGKILL)


def _follow(lines: Iterable[str], kill_after: int | None, said: Path) -> None:
    published = 0
    for line in lines:
        published += line.startswith("PUBLISHED")
        if published == kill_after:
            return
        if line.startswith("DONE"):
            assert kill_after is None
            return
    raise AssertionError(f"the sinks ended before they had published everything: {said.read_text()[-3000:]}")


def test_the_permit_decides_which_pipeline_publishes(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "table"), pipeline=PipelineId("mine"), mode=Append())
    with pytest.raises(InvalidRequest, match="belongs to pipeline 'mine'"):
        publish_through(table, tmp_path, None, permit(1))
