"""Streaming queries of every stateful kind, small and deterministic, whose output is recorded per batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from dagster_ckpt.spark.session import HDFS_PROVIDER, ROCKSDB_PROVIDER
from tests.progress import wait_until

KEYS = 20
ROWS = 40

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class StateFormat:
    """A state store provider with its formats."""

    name: str
    conf: dict[str, str]

    def apply(self, spark: SparkSession, **more: str) -> None:
        defaults = {"join.stateFormatVersion": "2"}
        for key, value in {**defaults, **self.conf, **more}.items():
            spark.conf.set(f"spark.sql.streaming.{key}", value)


def _rocksdb(version: int, changelog: str) -> dict[str, str]:
    return {
        "stateStore.providerClass": ROCKSDB_PROVIDER,
        "stateStore.checkpointFormatVersion": str(version),
        "stateStore.rocksdb.changelogCheckpointing.enabled": changelog,
        "stateStore.minDeltasForSnapshot": "3",
        "minBatchesToRetain": "100",
    }


HDFS = StateFormat("hdfs", {**_rocksdb(1, "false"), "stateStore.providerClass": HDFS_PROVIDER})
ROCKS1 = StateFormat("rocksdb-v1", _rocksdb(1, "true"))
ROCKS1_PLAIN = StateFormat("rocksdb-v1-no-changelog", _rocksdb(1, "false"))
ROCKS2 = StateFormat("rocksdb-v2", _rocksdb(2, "true"))
ROCKS2_PLAIN = StateFormat("rocksdb-v2-no-changelog", _rocksdb(2, "false"))
ROCKS2_JOIN3 = StateFormat("rocksdb-v2-join-v3", {**_rocksdb(2, "true"), "join.stateFormatVersion": "3"})
"""All four tables of a join in one store with column families."""


def write_input(folder: Path, number: int, *, seed: int = 0) -> list[tuple[int, int]]:
    """Add input file ``number``; its rows depend on nothing but the arguments."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [((i * 7 + number * 3 + seed) % KEYS, number) for i in range(ROWS)]
    table = pa.table({"k": [k for k, _ in rows], "v": [v for _, v in rows]})
    pq.write_table(table, folder / f".tmp-{number}")
    (folder / f".tmp-{number}").rename(folder / f"part-{number:05d}.parquet")
    # The file source orders by modification time.
    os.utime(folder / f"part-{number:05d}.parquet", (1.7e9 + number, 1.7e9 + number))
    return rows


def read_input(spark: SparkSession, folder: Path) -> DataFrame:
    return (
        spark.readStream.schema("k long, v long")
        .option("maxFilesPerTrigger", 1)
        .option("maxFileAge", "100000d")
        .parquet(str(folder))
    )


# --- the kinds ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A query over ``<folder>/a`` (and ``<folder>/b``), its output mode and how to read its state."""

    name: str
    build: Callable[[SparkSession, Path], DataFrame]
    mode: str = "update"
    state_options: tuple[dict[str, str], ...] = ({},)


def _aggregation(spark: SparkSession, folder: Path) -> DataFrame:
    import pyspark.sql.functions as sf

    return read_input(spark, folder / "a").groupBy("k").agg(sf.count("*").alias("c"), sf.sum("v").alias("s"))


def _global_aggregation(spark: SparkSession, folder: Path) -> DataFrame:
    import pyspark.sql.functions as sf

    return read_input(spark, folder / "a").groupBy().agg(sf.count("*").alias("c"), sf.sum("v").alias("s"))


def _drop_duplicates(spark: SparkSession, folder: Path) -> DataFrame:
    import pyspark.sql.functions as sf

    return read_input(spark, folder / "a").withColumn("k", sf.col("k") + sf.col("v")).dropDuplicates(["k"])


def _join(spark: SparkSession, folder: Path) -> DataFrame:
    import pyspark.sql.functions as sf

    def side(name: str) -> DataFrame:
        rows = read_input(spark, folder / name)
        return rows.withColumn("t", sf.timestamp_seconds("v")).withWatermark("t", "2 seconds").alias(name)

    near = sf.expr("a.k = b.k and a.t between b.t - interval 1 seconds and b.t + interval 1 seconds")
    return side("a").join(side("b"), near, "leftOuter").select("a.k", "a.v", sf.col("b.v").alias("w"))


def _with_state_in_pandas(spark: SparkSession, folder: Path) -> DataFrame:
    from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

    def update(key: Any, frames: Iterator[Any], state: GroupState) -> Iterator[Any]:
        import pandas as pd

        count, total = state.get if state.exists else (0, 0)
        for frame in frames:
            count, total = count + len(frame), total + int(frame["v"].sum())
        state.update((count, total))
        yield pd.DataFrame({"k": [key[0]], "c": [count], "s": [total]})

    return (
        read_input(spark, folder / "a")
        .groupBy("k")
        .applyInPandasWithState(
            update, "k long, c long, s long", "c long, s long", "update", GroupStateTimeout.NoTimeout
        )
    )


def _transform_with_state(spark: SparkSession, folder: Path) -> DataFrame:
    from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

    class Counter(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.total = handle.getValueState("total", "c long, s long")
            self.seen = handle.getMapState("seen", "v long", "n long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            import pandas as pd

            count, total = self.total.get() if self.total.exists() else (0, 0)
            for frame in rows:
                count, total = count + len(frame), total + int(frame["v"].sum())
                for value in sorted(set(frame["v"].tolist())):
                    self.seen.updateValue((value,), (count,))
            self.total.update((count, total))
            yield pd.DataFrame({"k": [key[0]], "c": [count], "s": [total]})

        def close(self) -> None:
            return None

    return (
        read_input(spark, folder / "a")
        .groupBy("k")
        .transformWithStateInPandas(Counter(), "k long, c long, s long", "Update", "None")
    )


def _stateless(spark: SparkSession, folder: Path) -> DataFrame:
    return read_input(spark, folder / "a").where("k % 2 = 0")


AGGREGATION = Kind("aggregation", _aggregation)
GLOBAL_AGGREGATION = Kind("global-aggregation", _global_aggregation)
DROP_DUPLICATES = Kind("drop-duplicates", _drop_duplicates, mode="append")
JOIN = Kind("stream-join", _join, mode="append", state_options=({"joinSide": "left"}, {"joinSide": "right"}))
WITH_STATE_IN_PANDAS = Kind("apply-in-pandas-with-state", _with_state_in_pandas)
TRANSFORM_WITH_STATE = Kind(
    "transform-with-state",
    _transform_with_state,
    state_options=({"stateVarName": "total"}, {"stateVarName": "seen"}),
)
STATELESS = Kind("stateless", _stateless, mode="append", state_options=())


# --- running them -------------------------------------------------------------------------------------------


@dataclass
class Recorded:
    """A query and the rows of each batch."""

    query: StreamingQuery
    batches: dict[int, Rows] = field(default_factory=dict)

    def after(self, batch: int) -> dict[int, Rows]:
        return {number: rows for number, rows in self.batches.items() if number > batch}

    def finish(self) -> Recorded:
        """Process all input there is, then stop."""
        try:
            self.query.processAllAvailable()
        finally:
            self.query.stop()
        return self

    def wait_for(self, batch: int) -> None:
        """Return when ``batch`` has produced its rows (it is committed soon after)."""

        def check() -> None:
            assert self.query.isActive, f"batch {batch} did not come: {self.query.exception()}"

        def moves() -> int:
            return max(self.batches, default=-1)

        wait_until(lambda: batch in self.batches, f"batch {batch} comes", moves=moves, check=check)


def start(frame: DataFrame, mode: str, stage_dir: Path) -> Recorded:
    """Start ``frame`` with its checkpoint in ``stage_dir/query``, recording what each batch emits."""
    recorded: dict[int, Rows] = {}

    def keep(rows: DataFrame, batch: int) -> None:
        recorded[batch] = sorted((tuple(row) for row in rows.collect()), key=str)

    query = (
        frame.writeStream.outputMode(mode)
        .foreachBatch(keep)
        .option("checkpointLocation", str(stage_dir / "query"))
        .start()
    )
    return Recorded(query, recorded)


def state_rows(spark: SparkSession, query_dir: Path, kind: Kind, *, batch: int | None = None) -> list[Rows]:
    """Return the state Spark's own reader finds, sorted, one list per state variable or join side."""
    found = []
    for options in kind.state_options:
        reader = spark.read.format("statestore").options(**options)
        if batch is not None:
            reader = reader.option("batchId", batch)
        rows = reader.load(str(query_dir)).collect()
        found.append(sorted((tuple(row) for row in rows), key=str))
    return found
