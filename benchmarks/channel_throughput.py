"""Channel source and sinks against what Spark has built in, in one session and one run: ratios, not seconds.

    python -m benchmarks.channel_throughput [--rows 5000000] [--repeat 3]

Sources: a channel log against the file source over the same Parquet files. Sinks: the channel sink and the
two-phase table against Spark's Parquet file sink and a plain foreachBatch; and the Python streaming sink that
was not chosen (docs/decisions/0006-channel-log.md).
"""

from __future__ import annotations

import argparse
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from benchmarks.common import median, scratch, show, spark_session
from dagster_ckpt.core.ids import BatchId, CoordinatorEpoch, LogPosition, PipelineId, StageUid
from dagster_ckpt.ext.delta.target import DeltaTable
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.channel.schema import channel_schema_json
from dagster_ckpt.spark.channel.sink import ChannelSink
from dagster_ckpt.spark.channel.source import read_channel
from dagster_ckpt.spark.files import DataFile, batch_folder_name, parquet_files
from dagster_ckpt.spark.sink.phases import Judge, preparing
from dagster_ckpt.spark.sink.port import AttemptId, Sink, SinkContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

KV = "k long, v long"
BIG, SMALL = 20, 40
"""Entries of the large and of the small log."""


@dataclass(frozen=True)
class Staged(WriterCommitMessage):  # type: ignore[misc]
    """What a task of the Python sink staged."""

    name: str
    rows: int
    bytes: int


class PythonSink(DataSource):  # type: ignore[misc]
    """The alternative: executors stage through Arrow, a Python process commits one entry."""

    @classmethod
    def name(cls) -> str:
        return "bench_python_sink"

    def streamWriter(self, schema: Any, overwrite: bool) -> PythonSinkWriter:  # noqa: N802
        return PythonSinkWriter(self.options["path"])


class PythonSinkWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        folder = Path(self._path) / "data" / batch_folder_name(0)
        folder.mkdir(parents=True)
        path, rows, writer = folder / f"{uuid.uuid4().hex}.parquet", 0, None
        for batch in iterator:
            writer = writer or pq.ParquetWriter(path, batch.schema)
            writer.write_batch(batch)
            rows += batch.num_rows
        if writer is None:
            return Staged("", 0, 0)
        writer.close()
        return Staged(f"data/{folder.name}/{path.name}", rows, path.stat().st_size)

    def commit(self, messages: list[Staged | None], batch_id: int) -> None:
        files = [DataFile(m.name, m.rows, m.bytes) for m in messages if m is not None and m.name]
        ChannelLog(self._path).append_data(BatchId(batch_id), files)

    def abort(self, messages: list[Staged | None], batch_id: int) -> None:
        """Leave it to the sweep."""


def fill(log_dir: Path, spark: SparkSession, entries: int, rows: int) -> None:
    log = ChannelLog.create(log_dir)
    log.write_schema(channel_schema_json(spark.createDataFrame([], KV).schema))
    for batch in range(entries):
        folder = log.data_folder / batch_folder_name(batch)
        folder.mkdir(parents=True)
        keys = pa.array([(i * 7919) % 1000 for i in range(rows)], pa.int64())
        pq.write_table(pa.table({"k": keys, "v": pa.array(range(rows), pa.int64())}), folder / "part.parquet")
        log.append_data(BatchId(batch), parquet_files(log_dir, folder))


class Runs:
    """Runs queries over one kind of input each and keeps what they took."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self._number = spark, folder, 0

    def fresh(self) -> Path:
        self._number += 1
        return self.folder / "out" / str(self._number)

    def files(self, log: str, per_trigger: int) -> DataFrame:
        source = self.spark.readStream.schema(KV).option("maxFilesPerTrigger", per_trigger)
        return source.option("recursiveFileLookup", "true").parquet(str(self.folder / log / "data"))

    def channel(self, log: str, per_trigger: int) -> DataFrame:
        return read_channel(self.spark, str(self.folder / log), max_entries=per_trigger)

    def take(
        self, frame: DataFrame, sink: Callable[[DataStreamWriter, DataFrame], DataStreamWriter]
    ) -> tuple[float, float, int]:
        """Return seconds in all, milliseconds per trigger (median) and rows."""
        writer = sink(frame.writeStream.option("checkpointLocation", str(self.fresh())), frame)
        began = time.perf_counter()
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        seconds = time.perf_counter() - began
        work = [progress for progress in query.recentProgress if progress["numInputRows"]]
        rows = sum(progress["numInputRows"] for progress in work)
        return seconds, median([p["durationMs"]["triggerExecution"] for p in work]), rows

    # --- sinks ----------------------------------------------------------------------------------------------

    def noop(self, writer: DataStreamWriter, _: DataFrame) -> DataStreamWriter:
        return writer.format("noop")

    def parquet(self, writer: DataStreamWriter, _: DataFrame) -> DataStreamWriter:
        return writer.format("parquet").option("path", str(self.fresh()))

    def plain_batch(self, writer: DataStreamWriter, _: DataFrame) -> DataStreamWriter:
        target = self.fresh()
        return writer.foreachBatch(lambda frame, batch: frame.write.parquet(f"{target}/{batch}"))

    def channel_sink(self, writer: DataStreamWriter, frame: DataFrame) -> DataStreamWriter:
        return writer.foreachBatch(ChannelSink(ChannelLog.create(self.fresh()), frame.schema))

    def python_sink(self, writer: DataStreamWriter, _: DataFrame) -> DataStreamWriter:
        target = self.fresh()
        ChannelLog.create(target)
        return writer.format(PythonSink.name()).option("path", str(target))

    def sink(self) -> Sink:
        context = SinkContext(
            pipeline=PipelineId("bench"),
            uid=StageUid("sink"),
            name="sink",
            key=(),
            is_complete=False,
            table_dir=self.fresh(),
            work_dir=self.fresh(),
            attempt=lambda: AttemptId("", CoordinatorEpoch(1)),
        )
        sink: Sink = DeltaTable().open(context)
        return sink

    def table(self, writer: DataStreamWriter, frame: DataFrame) -> DataStreamWriter:
        sink = self.sink()
        return writer.foreachBatch(preparing(sink, self.fresh(), Judge.of(sink, frame)))


def compare(
    runs: Runs, cases: Mapping[str, Callable[[], tuple[float, float, int]]], repeat: int
) -> list[dict[str, Any]]:
    """Run all cases in turn, ``repeat`` times after a warm-up; ratios are to the first case."""
    taken: dict[str, list[tuple[float, float, int]]] = {name: [] for name in cases}
    for round_number in range(repeat + 1):
        for name, case in cases.items():
            result = case()
            if round_number:
                taken[name].append(result)
    rows: list[dict[str, Any]] = []
    for name, results in taken.items():
        seconds = median([r[0] for r in results])
        per_trigger = median([r[1] for r in results])
        rows.append(
            {
                "case": name,
                "krows/s": results[0][2] / seconds / 1e3,
                "ms/trigger": per_trigger,
                "seconds": seconds,
            }
        )
    for row in rows:
        row["throughput ratio"] = row["krows/s"] / rows[0]["krows/s"]
        row["trigger ratio"] = row["ms/trigger"] / rows[0]["ms/trigger"]
    return rows


def log_operations(folder: Path, length: int) -> dict[str, Any]:
    """Microseconds per operation of a log that already has ``length`` entries."""
    log = ChannelLog.create(folder)
    for batch in range(length):
        (folder / f"{batch:020d}.json").write_text(f'{{"kind":"data","batch_id":{batch},"files":[]}}')
    began = time.perf_counter()
    fresh = ChannelLog(folder)
    end = fresh.end
    opened = time.perf_counter()
    for index in range(200):
        fresh.append_data(BatchId(end + index), ())
    appended = time.perf_counter()
    for position in range(200):
        log.read(LogPosition(position))
    read = time.perf_counter()
    return {
        "entries": length,
        "find end us": (opened - began) * 1e6,
        "append us": (appended - opened) / 200 * 1e6,
        "read us": (read - appended) / 200 * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    with scratch() as folder:
        show("channel log", [log_operations(folder / f"log-{n}", n) for n in (0, 1_000, 100_000)])
        with spark_session(folder, **{"spark.sql.shuffle.partitions": "2"}) as spark:
            spark.dataSource.register(PythonSink)
            fill(folder / "big", spark, BIG, arguments.rows // BIG)
            fill(folder / "small", spark, SMALL, 100)
            runs = Runs(spark, folder)
            for log, per_trigger, title in (("big", 4, "throughput"), ("small", 1, "small batches")):
                sources = {
                    "file source": lambda log=log, n=per_trigger: runs.take(runs.files(log, n), runs.noop),
                    "channel": lambda log=log, n=per_trigger: runs.take(runs.channel(log, n), runs.noop),
                    "file source, count": lambda log=log, n=per_trigger: runs.take(
                        runs.files(log, n).groupBy("k").count(),
                        lambda w, f: runs.noop(w.outputMode("update"), f),
                    ),
                    "channel, count": lambda log=log, n=per_trigger: runs.take(
                        runs.channel(log, n).groupBy("k").count(),
                        lambda w, f: runs.noop(w.outputMode("update"), f),
                    ),
                }
                show(f"sources, {title}", compare(runs, sources, arguments.repeat))
                sinks = {
                    name: lambda sink=sink, log=log, n=per_trigger: runs.take(runs.files(log, n), sink)
                    for name, sink in {
                        "parquet file sink": runs.parquet,
                        "plain foreachBatch": runs.plain_batch,
                        "channel sink": runs.channel_sink,
                        "python streaming sink": runs.python_sink,
                        "two-phase table": runs.table,
                    }.items()
                }
                show(f"sinks, {title}", compare(runs, sinks, arguments.repeat))


if __name__ == "__main__":
    main()
