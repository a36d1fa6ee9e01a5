"""Checkpoints of a running stream: duration by state size, alignment, and a restore to its first batch.

    python -m benchmarks.streaming_checkpoints [--keys 10000 100000 1000000] [--checkpoints 10] [--chain]

A keyed count behind a channel, or in one chain with its source; before every checkpoint one percent of the keys
changes. ``at_rest`` checkpoints are triggered once these changes are counted, ``flowing`` ones while they are on their
way. ``restore`` is from the order to restore to the first batch of the restored run, beside a bare Spark query
restarted from its checkpointLocation; the slowest of five as well, for both replay changes where they find no snapshot.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import median, scratch, show, spark_session
from benchmarks.streaming_common import Stream, service, streaming, wait
from dagster_ckpt import checkpointed_pipeline, spark_sink, spark_source
from dagster_ckpt.core.checkpoint.record import parse_record
from dagster_ckpt.core.config import RestoreOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dagster_ckpt import CheckpointedPipeline
    from dagster_ckpt.core.model import StageSnapshot
    from dagster_ckpt.core.request import Completed


RESTORES = 5


class Keys:
    """Files of keys that arrive."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.files = 0

    def put(self, first: int, count: int) -> None:
        table = pa.table({"key": pa.array(range(first, first + count), pa.int64())})
        temporary = self.folder.parent / f".{self.files}.parquet"
        pq.write_table(table, temporary)
        temporary.rename(self.folder / f"{self.files:06d}.parquet")
        self.files += 1


def source_of(spark: SparkSession, folder: Path) -> DataFrame:
    reader = spark.readStream.schema("key LONG").option("maxFilesPerTrigger", 1)
    return reader.option("maxFileAge", "9999d").parquet(str(folder))


def counting(folder: Path) -> CheckpointedPipeline:
    @spark_source
    def keys(spark):  # type: ignore[no-untyped-def]
        return source_of(spark, folder)

    @spark_sink(key=["key"])
    def totals(keys):  # type: ignore[no-untyped-def]
        return keys.groupBy("key").count()

    @checkpointed_pipeline(name="counting")
    def pipeline() -> None:
        totals(keys())

    return pipeline  # type: ignore[no-any-return]


def caught_up(stream: Stream, files: int) -> None:
    """Wait until the source has read every file; what it wrote may still be on its way."""
    assert stream.run is not None
    source = next(uid for uid, stage in stream.run.stages.items() if not stage.worker.inputs)
    wait(lambda: (stream.batch(source) or 0) >= files - 1, stream)


def at_rest(stream: Stream) -> None:
    assert stream.run is not None
    stages = stream.run.stages
    wait(lambda: all(stage.is_quiet() for stage in stages.values()), stream)


def measure(
    folder: Path, spark: SparkSession, keys: int, checkpoints: int, *, chain: bool = False
) -> dict[str, float]:
    arriving = Keys(folder / "keys")
    pipeline = counting(arriving.folder)
    arriving.put(0, keys)
    resting: list[Completed] = []
    flowing: list[Completed] = []
    with streaming(folder / "run", pipeline, spark, operator_chaining=chain) as stream:
        caught_up(stream, arriving.files)
        at_rest(stream)
        stream.checkpoint()
        for number in range(2 * checkpoints):
            arriving.put(number * keys // 100 % keys, keys // 100)
            caught_up(stream, arriving.files)
            if number % 2:
                at_rest(stream)
            (resting if number % 2 else flowing).append(stream.checkpoint())
    restore = restore_to_first_batch(folder, spark, pipeline, arriving)
    bare = bare_restart(folder, spark, arriving)
    return {
        "keys": keys,
        "at_rest_ms": median([duration(done) for done in resting]),
        "flowing_ms": median([duration(done) for done in flowing]),
        "flowing_to_sink_ms": median([barrier_to_sink(done) for done in flowing]),
        "pin_ms": median([of_totals(done).metrics.sync_ms for done in resting + flowing]),
        "bytes_new": int(
            median([sum(s.metrics.bytes_new for s in done.metadata.stages) for done in flowing])
        ),
        "restore_s": median(restore),
        "restore_most_s": max(restore),
        "bare_restart_s": median(bare),
        "bare_most_s": max(bare),
    }


def duration(done: Completed) -> float:
    return (done.metadata.completed_at - done.metadata.triggered_at) * 1e3


def of_totals(done: Completed) -> StageSnapshot:
    totals = done.metadata.stage("totals")
    assert totals is not None
    return totals


def barrier_to_sink(done: Completed) -> float:
    metrics = of_totals(done).metrics
    return metrics.alignment_ms + metrics.start_delay_ms


def restore_to_first_batch(
    folder: Path, spark: SparkSession, pipeline: CheckpointedPipeline, arriving: Keys
) -> list[float]:
    """Seconds from opening the coordinator to a committed batch of the stage with the state, restored from storage.

    Every time from the same checkpoint, so all files that arrived since are read.
    """
    newest = service(folder / "run", pipeline, spark).service.store.load(pipeline.name)
    assert newest is not None
    key = f"chk-{parse_record(newest.body).completed[-1].checkpoint_id}"
    arriving.put(0, 10)
    return [_one_restore(folder, spark, pipeline, key, number) for number in range(RESTORES)]


def _one_restore(
    folder: Path, spark: SparkSession, pipeline: CheckpointedPipeline, key: str, number: int
) -> float:
    stream = service(folder / "run", pipeline, spark, owner=f"restored-{number}")
    stream.service.restore = RestoreOptions(restore_from=key)
    began = time.perf_counter()
    stream.start()
    first = stream.batch("totals") or 0
    wait(lambda: (stream.batch("totals") or 0) > first or _has_run(stream), stream)
    seconds = time.perf_counter() - began
    stream.stop()
    return seconds


def _has_run(stream: Stream) -> bool:
    assert stream.run is not None
    stage = stream.run.stages["totals"]  # type: ignore[index]
    return any(progress["numInputRows"] for progress in stage.recent_progress())


def bare_restart(folder: Path, spark: SparkSession, arriving: Keys) -> list[float]:
    """Seconds from start() of the same count, without us, to its first batch after a restart.

    It writes the changed rows as Parquet, as our sink does. Every restart is from a copy of the checkpointLocation: in
    the place it ran, the executors would still hold its state, which no restart of a process finds.
    """

    def run(place: Path) -> float:
        began = time.perf_counter()
        frame = source_of(spark, arriving.folder).groupBy("key").count()
        writer = frame.writeStream.outputMode("update").option("checkpointLocation", str(place))
        query = writer.foreachBatch(lambda batch, n: batch.write.parquet(f"{place}-out/{n}")).start()
        wait((place / "commits" / str(arriving.files - 1)).exists)
        seconds = time.perf_counter() - began
        query.stop()
        return seconds

    run(folder / "bare")
    arriving.put(0, 10)
    places = [folder / f"bare-{number}" for number in range(RESTORES)]
    for place in places:
        shutil.copytree(folder / "bare", place)
    return [run(place) for place in places]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--checkpoints", type=int, default=10)
    parser.add_argument("--chain", action="store_true")
    given = parser.parse_args()
    with scratch() as folder, spark_session(folder) as spark:
        measure(folder / "warm-up", spark, 1000, 2, chain=given.chain)
        rows = [
            measure(folder / str(keys), spark, keys, given.checkpoints, chain=given.chain)
            for keys in given.keys
        ]
    show("checkpoints of a running stream", rows)


if __name__ == "__main__":
    main()
