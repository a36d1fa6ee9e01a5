"""What the rows of a channel cost by the compression of their files: written by Spark, read back by the data source.

    python -m benchmarks.channel_codecs [--rows 10000000] [--rounds 3]

One batch of three longs on two cores, the codecs taking turns. Reading the rows to be written is part of *write*; its
share stands in the first row. The start of a query is part of *read*.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import median, scratch, show, spark_session
from benchmarks.streaming_throughput import Meter
from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.channel.schema import channel_schema_json
from dagster_ckpt.spark.channel.sink import write_staged
from dagster_ckpt.spark.channel.source import read_channel
from dagster_ckpt.spark.files import batch_folder_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CODECS = ("snappy", "lz4_raw", "zstd", "none")


def taken(work: Callable[[], object]) -> tuple[float, float]:
    meter = Meter()
    work()
    cost = meter.read()
    return cost.seconds, cost.processor


def one(spark: SparkSession, rows: DataFrame, folder: Path, codec: str) -> dict[str, float]:
    log = ChannelLog.create(folder / "log")
    log.write_schema(channel_schema_json(rows.schema))
    place = log.data_folder / batch_folder_name(0)

    def write() -> None:
        log.append_data(BatchId(0), write_staged(rows, place, log.directory, codec=codec))

    def read() -> None:
        writer = read_channel(spark, str(log.directory)).writeStream.format("noop")
        writer = writer.option("checkpointLocation", str(folder / "query"))
        writer.trigger(availableNow=True).start().awaitTermination()

    (write_s, write_processor_s), (read_s, read_processor_s) = taken(write), taken(read)
    size = sum(path.stat().st_size for path in place.iterdir())
    return {
        "write_s": write_s,
        "write_processor_s": write_processor_s,
        "read_s": read_s,
        "read_processor_s": read_processor_s,
        "MB": size / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {codec: [] for codec in CODECS}
    with scratch() as folder, spark_session(folder, **{"spark.sql.shuffle.partitions": "2"}) as spark:
        made = spark.range(given.rows).selectExpr(
            "id", "(id * 2654435761) % 1000003 AS value", "id % 1000 AS key"
        )
        made.repartition(2).write.parquet(str(folder / "rows"))
        rows = spark.read.parquet(str(folder / "rows"))

        def only_read() -> None:
            rows.write.format("noop").mode("overwrite").save()

        only_read()
        alone = [taken(only_read) for _ in range(given.rounds)]
        for number in range(given.rounds + 1):
            for codec in CODECS if number % 2 else reversed(CODECS):
                costs = one(spark, rows, folder / f"{codec}-{number}", codec)
                if number:  # the first round: class loading, code generation
                    found[codec].append(costs)
    table: list[dict[str, Any]] = [
        {
            "codec": "(reading the rows alone)",
            "write_s": median([seconds for seconds, _ in alone]),
            "write_processor_s": median([processor for _, processor in alone]),
            "read_s": 0.0,
            "read_processor_s": 0.0,
            "MB": 0.0,
        }
    ]
    for codec, costs_of in found.items():
        table.append({"codec": codec, **{name: median([c[name] for c in costs_of]) for name in costs_of[0]}})
    show(f"rows of a channel by compression, {given.rows:,} rows", table)


if __name__ == "__main__":
    main()
