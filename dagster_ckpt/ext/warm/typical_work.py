"""A program that does what checkpointed pipelines do, for the classes it makes a JVM load.

Files read and written, state in RocksDB, a join, a deduplication, a Python data source, a batch handed to Python.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.spark.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource

ROWS = 1000


def main(folder: Path) -> None:
    """Do it, below ``folder``."""
    session = build_session(
        "dagster-ckpt-classes",
        master="local[2,3]",
        conf={
            "spark.driver.memory": "1g",
            "spark.log.level": "OFF",
            "spark.ui.enabled": "false",
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        },
    )
    try:
        _work(session, folder)
    finally:
        session.stop()


def _work(session: SparkSession, folder: Path) -> None:
    from pyspark.sql import functions as f

    rows = session.range(ROWS).withColumns(
        {"k": f.col("id") % 7, "t": f.timestamp_seconds("id"), "s": f.concat(f.lit("x"), "id")}
    )
    for form in ("parquet", "json", "csv"):
        rows.write.format(form).option("header", True).save(str(folder / form))
    schema = rows.schema

    def read(form: str) -> DataFrame:
        return session.readStream.format(form).schema(schema).option("header", True).load(str(folder / form))

    late = read("csv").withWatermark("t", "1 minute")
    counted = late.groupBy(f.window("t", "1 minute"), "k").agg(
        f.count("*").alias("n"), f.sum("id").alias("total")
    )
    queries: dict[str, tuple[DataFrame, str]] = {
        "mapped": (read("parquet").where("k > 1").selectExpr("upper(s) s", "k"), "append"),
        "counted": (read("json").groupBy("k").agg(f.count("*"), f.max("t"), f.avg("id")), "update"),
        "windows": (counted, "append"),
        "distinct": (late.dropDuplicatesWithinWatermark(["k"]), "append"),
        "joined": (
            late.join(read("json").withWatermark("t", "1 minute").selectExpr("id", "t u"), "id"),
            "append",
        ),
    }
    for name, (query, mode) in queries.items():
        _run(query, mode, folder / "checkpoints" / name, _writer(folder / "tables" / name))
    session.dataSource.register(_numbers())
    own = session.readStream.format("numbers").load()
    _run(own, "append", folder / "checkpoints" / "numbers", _writer(folder / "tables" / "numbers"))
    session.read.parquet(str(folder / "tables" / "counted")).createOrReplaceTempView("counted")
    session.sql("SELECT k, count(*) OVER (PARTITION BY k) FROM counted ORDER BY k").collect()
    session.createDataFrame([(1, "a")], "i int, s string").join(rows, f.col("i") == rows.id).collect()


def _numbers() -> type[DataSource]:
    """Return a data source in Python, as the one that reads what stages hand on."""
    from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

    class Reader(SimpleDataSourceStreamReader):  # type: ignore[misc, unused-ignore]
        def initialOffset(self) -> dict[str, int]:  # noqa: N802
            return {"at": 0}

        def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int]], dict[str, int]]:
            return iter([(n,) for n in range(start["at"], 10)]), {"at": 10}

        def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[tuple[int]]:  # noqa: N802
            return iter([(n,) for n in range(start["at"], end["at"])])

    class Numbers(DataSource):  # type: ignore[misc, unused-ignore]
        @classmethod
        def name(cls) -> str:
            return "numbers"

        def schema(self) -> str:
            return "n int"

        def simpleStreamReader(self, schema: object) -> SimpleDataSourceStreamReader:  # noqa: N802
            return Reader()

    return Numbers


def _writer(folder: Path) -> Callable[[DataFrame, int], None]:
    def write(batch: DataFrame, batch_id: int) -> None:
        batch.persist()
        batch.write.mode("overwrite").parquet(str(folder))
        batch.count()
        batch.unpersist()

    return write


def _run(query: DataFrame, mode: str, checkpoint: Path, write: Callable[[DataFrame, int], None]) -> None:
    started = (
        query.writeStream.outputMode(mode)
        .foreachBatch(write)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    started.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
