"""Two sinks that a test kills: file source to two-phase tables, publishing by themselves as batches commit.

Run as ``python table_child.py <folder> <files to come>``; ends by itself when all files are published.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.core.ids import BatchId, CoordinatorEpoch, PipelineId
from dagster_ckpt.spark.session import build_session
from dagster_ckpt.spark.sink.phases import preparing
from dagster_ckpt.spark.sink.port import Published
from dagster_ckpt.spark.snapshot.capture import latest_committed_batch
from dagster_ckpt.spark.table.log import create_table
from dagster_ckpt.spark.table.publish import adopt
from dagster_ckpt.spark.table.records import (
    Append,
    Upsert,
)
from tests.spark.table.tables import attempt_id, permit, publish_through, sink_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MODES = {"append": Append(), "upsert": Upsert(keys=("k",), buckets=3)}


def main(folder: Path, files: int) -> None:
    spark = build_session(
        "table-child",
        master="local[2]",
        conf={
            "spark.driver.memory": "1g",
            "spark.ui.enabled": "false",
            "spark.log.level": "OFF",
            "spark.sql.shuffle.partitions": "2",
            "spark.local.dir": str(folder / "local"),
        },
    )
    sinks = [Sink(spark, folder, mode) for mode in MODES]
    while not all(sink.published_all(files) for sink in sinks):
        time.sleep(0.05)
        for sink in sinks:
            sink.publish()
    for sink in sinks:
        sink.query.stop()
    print("DONE", flush=True)


class Sink:
    """One query and its table."""

    def __init__(self, spark: SparkSession, folder: Path, mode: str) -> None:
        self.mode, self.stage = mode, folder / mode / "stage"
        self.table = create_table(
            str(folder / mode / "table"), pipeline=PipelineId("kills"), mode=MODES[mode]
        )
        self.epoch = CoordinatorEpoch(1 + self.table.state().epoch)
        self.checkpoint = adopt(self.table, attempt_id(self.epoch)).head or 0
        self.committed: BatchId | None = None
        source = (
            spark.readStream.schema("k long, v long")
            .option("maxFilesPerTrigger", 1)
            .option("maxFileAge", "3650d")
            .parquet(str(folder / "in"))
        )
        frame = source.groupBy("k").agg({"v": "sum"}).toDF("k", "v") if mode == "upsert" else source
        self.query = (
            frame.writeStream.outputMode("update" if mode == "upsert" else "append")
            .foreachBatch(preparing(sink_of(self.table, self.epoch), self.stage))
            .option("checkpointLocation", str(self.stage / "query"))
            .start()
        )

    def published_all(self, files: int) -> bool:
        assert self.query.isActive, self.query.exception()
        return self._files_consumed() == files

    def _files_consumed(self) -> int:
        """Files of the last committed batch and before; after a kill Spark may take two in one batch."""
        if self.committed is None:
            return 0
        offsets = (self.stage / "query" / "offsets" / str(self.committed)).read_text()
        return 1 + int(json.loads(offsets.splitlines()[-1])["logOffset"])

    def publish(self) -> None:
        """Complete a checkpoint at the last committed batch."""
        self.committed = latest_committed_batch(self.stage / "query")
        if self.committed is None:
            return
        self.checkpoint += 1
        by = permit(self.checkpoint, self.epoch, PipelineId("kills"))
        done = publish_through(self.table, self.stage, self.committed, by)
        if isinstance(done, Published):
            print(f"PUBLISHED {self.mode} {self.committed}", flush=True)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]))
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # a broken query's JVM would keep the process alive
