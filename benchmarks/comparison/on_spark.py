"""One measurement by bare Spark or by us: ``python -m benchmarks.comparison.on_spark MEASUREMENT`` (JSON)."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import spark_session
from benchmarks.comparison.work import (
    BARE,
    ONE_MORE,
    RESTING_CHECKPOINTS,
    SQL,
    Measurement,
    Result,
    processor_seconds,
)
from benchmarks.streaming_common import Stream, service, streaming, wait
from dagster_ckpt import checkpointed_pipeline, spark_sink, spark_source, spark_stage
from dagster_ckpt.core.config import RestoreOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from dagster_ckpt import CheckpointedPipeline


class Meter:
    """Measures a span from its creation."""

    def __init__(self) -> None:
        self._began, self._processor = time.perf_counter(), processor_seconds()

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self._began, processor_seconds() - self._processor


def numbers_of(spark: SparkSession, folder: Path, wanted: Measurement) -> DataFrame:
    reader = spark.readStream.schema("k LONG, v LONG").option("maxFilesPerTrigger", wanted.files_per_batch)
    return reader.option("maxFileAge", "9999d").csv(str(folder))


def counted(numbers: DataFrame) -> DataFrame:
    numbers.createOrReplaceTempView("numbers")
    return numbers.sparkSession.sql(SQL)


def arrive(data: str, folder: Path) -> int:
    """Let all files arrive at once; return the number of the last batch."""
    files = sorted(Path(data).iterdir())
    for path in files:
        (folder / path.name).hardlink_to(path)
    return len(files)


def one_more(wanted: Measurement, folder: Path) -> None:
    """Let one file arrive that is not there yet."""
    (folder / ONE_MORE).hardlink_to(sorted(Path(wanted.small).iterdir())[0])


def batches(files: int, wanted: Measurement) -> int:
    return -(-files // wanted.files_per_batch)


def bare(
    spark: SparkSession, wanted: Measurement, data: str, folder: Path, result: Result
) -> tuple[float, float]:
    arriving = folder / "arriving"
    arriving.mkdir(parents=True)

    def start(place: Path) -> StreamingQuery:
        writer = counted(numbers_of(spark, arriving, wanted)).writeStream.outputMode("update")
        return (
            writer.option("checkpointLocation", str(place))
            .foreachBatch(lambda frame, n: frame.write.mode("overwrite").parquet(f"{place}-out/{n}"))
            .start()
        )

    query = start(folder / "query")
    wait(lambda: not str(query.status["message"]).startswith("Initializing"))
    meter = Meter()
    last = batches(arrive(data, arriving), wanted) - 1
    wait((folder / "query" / "commits" / str(last)).exists)
    took = meter.read()
    query.stop()
    # In the place it ran, the executors would still hold its state, which no restart of a process finds.
    place = folder / "restarted"
    shutil.copytree(folder / "query", place)
    one_more(wanted, arriving)
    began = time.perf_counter()
    query = start(place)
    wait((place / "commits" / str(last + 1)).exists)
    result.restore_s = time.perf_counter() - began
    query.stop()
    return took


def pipeline_of(folder: Path, wanted: Measurement) -> CheckpointedPipeline:
    @spark_source
    def numbers(spark):  # type: ignore[no-untyped-def]
        return numbers_of(spark, folder, wanted)

    def step(number: int) -> Any:
        @spark_stage(uid=f"step_{number}")
        def stage(rows):  # type: ignore[no-untyped-def]
            return rows.selectExpr("k", "v")

        return stage

    @spark_sink(key=["k"])
    def totals(rows):  # type: ignore[no-untyped-def]
        return counted(rows)

    @checkpointed_pipeline(name="comparison")
    def comparison() -> None:
        rows = numbers()
        for number in range(wanted.stages - 2):
            rows = step(number)(rows)
        totals(rows)

    return comparison  # type: ignore[no-any-return]


def ours(
    spark: SparkSession, wanted: Measurement, data: str, folder: Path, result: Result
) -> tuple[float, float]:
    arriving = folder / "arriving"
    arriving.mkdir(parents=True)
    interval = {"interval": wanted.interval} if wanted.interval else {}
    pipeline = pipeline_of(arriving, wanted)
    with streaming(folder / "run", pipeline, spark, operator_chaining=wanted.chained, **interval) as stream:
        meter = Meter()
        last = batches(arrive(data, arriving), wanted) - 1
        wait(lambda: is_through(stream, last), stream)
        took = meter.read()
        if wanted.interval:
            done = stream.completions()
            result.flowing_ms = [
                (one.metadata.completed_at - one.metadata.triggered_at) * 1e3 for one in done
            ]
            resting = [stream.checkpoint() for _ in range(RESTING_CHECKPOINTS)]
            result.resting_ms = [
                (one.metadata.completed_at - one.metadata.triggered_at) * 1e3 for one in resting
            ]
            result.checkpoint_bytes = sum(stage.metrics.bytes_full for stage in resting[-1].metadata.stages)
            newest = f"chk-{resting[-1].metadata.checkpoint_id}"
    if wanted.interval:
        one_more(wanted, arriving)
        result.restore_s = restored(service(folder / "run", pipeline, spark, owner="restored"), newest)
    return took


def restored(stream: Stream, snapshot: str) -> float:
    """Return seconds from the order to restore to the first batch of the restored run."""
    stream.service.restore = RestoreOptions(restore_from=snapshot)
    began = time.perf_counter()
    stream.start()
    wait(lambda: has_run(stream), stream)
    seconds = time.perf_counter() - began
    stream.stop()
    return seconds


def has_run(stream: Stream) -> bool:
    assert stream.run is not None
    stage = stream.run.stages["totals"]  # type: ignore[index]
    return any(progress["numInputRows"] for progress in stage.recent_progress())


def is_through(stream: Stream, last: int) -> bool:
    assert stream.run is not None
    stages = stream.run.stages
    source = next(uid for uid, stage in stages.items() if not stage.worker.inputs)
    read = stream.batch(source)
    return read is not None and read >= last and all(stage.is_quiet() for stage in stages.values())


def main() -> None:
    wanted = Measurement.read(sys.argv[1])
    folder, result = Path(wanted.folder), Result()
    conf = {
        "spark.master": f"local[{wanted.cores}]",
        "spark.sql.shuffle.partitions": str(wanted.subtasks or wanted.cores),
    }
    with spark_session(folder, **conf) as spark:

        def run(data: str, place: str) -> tuple[float, float]:
            if wanted.way == BARE:
                return bare(spark, wanted, data, folder / place, result)
            return ours(spark, wanted, data, folder / place, result)

        run(wanted.full, "warm")  # Java's compiler is done with the work
        result.small_s, result.small_processor_s = run(wanted.small, "small")
        result.full_s, result.full_processor_s = run(wanted.full, "full")
    print(result.text())


if __name__ == "__main__":
    main()
