"""Plain streaming programs as they are found: ``python found.py NAME FOLDER``, which knows nothing of checkpoints.

Each reads ``FOLDER/in/*.json`` (key, amount, at) and writes below ``FOLDER/out``; ``FOLDER/seen`` says how many files
it has processed. It ends when ``FOLDER/stop`` exists.
"""

import json
import multiprocessing
import os
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.state import GroupStateTimeout

SCHEMA = "key string, amount long, at timestamp"


class Found:
    """One program's session and folder."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.out = spark, folder, folder / "out"
        self.queries: list[Callable[[], StreamingQuery]] = []

    def orders(self) -> DataFrame:
        reader = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return reader.json(str(self.folder / "in"))

    def place(self, name: str) -> str:
        return str(self.folder / "checkpoints" / name)


def upsert(found: Found) -> Callable[[DataFrame, int], None]:
    """Write a batch over the rows of its keys in SQLite, as programs do by JDBC."""

    def save(batch: DataFrame, number: int) -> None:
        found.out.mkdir(exist_ok=True)
        with sqlite3.connect(found.out / "totals.db") as base:
            base.execute("CREATE TABLE IF NOT EXISTS totals (key TEXT PRIMARY KEY, total INTEGER)")
            base.executemany("REPLACE INTO totals VALUES (?, ?)", [tuple(row) for row in batch.collect()])
        base.close()

    return save


def no_place(found: Found) -> Iterator[StreamingQuery]:
    """No ``checkpointLocation`` anywhere; totals overwritten in a database."""
    totals = found.orders().groupBy("key").agg(f.sum("amount").alias("total"))
    yield totals.writeStream.outputMode("update").foreachBatch(upsert(found)).start()


def one_place(found: Found) -> Iterator[StreamingQuery]:
    """One location for the whole session; a table in memory that is saved as it is, and the console."""
    found.spark.conf.set("spark.sql.streaming.checkpointLocation", str(found.folder / "all"))
    counts = found.orders().groupBy("key").count()
    yield counts.writeStream.outputMode("complete").format("memory").queryName("shown").start()
    yield found.orders().writeStream.format("console").start()
    found.out.mkdir(exist_ok=True)
    rows = [row.asDict() for row in found.spark.sql("SELECT * FROM shown").collect()]
    (found.out / "shown.json").write_text(json.dumps(rows))


def three(found: Found) -> Iterator[StreamingQuery]:
    """Three queries on one source."""
    orders = found.orders()
    for kind, frame in (
        ("parquet", orders),
        ("json", orders.where("amount > 5")),
        ("csv", orders.select("key")),
    ):
        writer = frame.writeStream.format(kind).option("checkpointLocation", found.place(kind))
        yield writer.start(str(found.out / kind))


def chain(found: Found) -> Iterator[StreamingQuery]:
    """A table that another query of the program reads."""
    writer = found.orders().writeStream.format("parquet").option("checkpointLocation", found.place("clean"))
    yield writer.start(str(found.out / "clean"))
    reader = found.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    totals = reader.parquet(str(found.out / "clean")).groupBy("key").agg(f.sum("amount").alias("total"))
    writer = totals.writeStream.outputMode("update").foreachBatch(upsert(found))
    yield writer.option("checkpointLocation", found.place("totals")).start()


def available(found: Found) -> Iterator[StreamingQuery]:
    """A job that processes what there is, started for each look."""
    writer = found.orders().dropDuplicates(["key", "amount"]).writeStream.format("parquet")
    writer = writer.option("checkpointLocation", found.place("fresh")).trigger(availableNow=True)
    query = writer.start(str(found.out / "fresh"))
    query.awaitTermination()
    yield query


def by_hand(found: Found) -> Iterator[StreamingQuery]:
    """A query that is stopped, and started again."""
    for query in found.spark.streams.active:
        if query.name == "running":
            query.processAllAvailable()
            query.stop()
    totals = found.orders().groupBy("key").agg(f.sum("amount").alias("total"))
    writer = totals.writeStream.queryName("running").outputMode("update").foreachBatch(upsert(found))
    yield writer.option("checkpointLocation", found.place("by hand")).start()


def table(found: Found) -> Iterator[StreamingQuery]:
    """A table of the catalog, by ``toTable``."""
    writer = found.orders().writeStream.option("checkpointLocation", found.place("table"))
    yield writer.option("path", str(found.out / "kept")).toTable(f"kept_{found.folder.name}")


def partitioned(found: Found) -> Iterator[StreamingQuery]:
    """A table of Parquet with a folder for each key."""
    writer = found.orders().writeStream.format("parquet").partitionBy("key")
    yield writer.option("checkpointLocation", found.place("by key")).start(str(found.out / "by_key"))


def delta(found: Found) -> Iterator[StreamingQuery]:
    """A Delta table by ``foreachBatch``, written once for each batch number."""
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

    place = str(found.out / "delta")

    def save(batch: DataFrame, number: int) -> None:
        if (
            DeltaTable.is_deltatable(place)
            and (DeltaTable(place).transaction_version("orders") or -1) >= number
        ):
            return
        once = CommitProperties(app_transactions=[Transaction("orders", number)])
        write_deltalake(place, batch.toArrow(), mode="append", commit_properties=once)

    yield (
        found.orders()
        .select("key", "amount")
        .writeStream.foreachBatch(save)
        .option("checkpointLocation", found.place("delta"))
        .start()
    )


def join(found: Found) -> Iterator[StreamingQuery]:
    """Orders joined with those of the same key a minute later."""
    first = found.orders().withWatermark("at", "10 minutes")
    later = (
        found.orders()
        .selectExpr("key AS k", "amount AS more", "at AS then")
        .withWatermark("then", "10 minutes")
    )
    pairs = first.join(
        later, f.expr("key = k AND amount = more AND then BETWEEN at AND at + INTERVAL 90 SECONDS")
    )
    writer = pairs.writeStream.format("parquet").option("checkpointLocation", found.place("pairs"))
    yield writer.start(str(found.out / "pairs"))


def sessions(found: Found) -> Iterator[StreamingQuery]:
    """Sessions of a key, written when they are over."""
    windows = found.orders().withWatermark("at", "20 seconds")
    counts = windows.groupBy(f.session_window("at", "12 seconds").alias("w"), "key").agg(
        f.sum("amount").alias("total")
    )
    flat = counts.selectExpr("w.start AS start", "w.end AS end", "key", "total")
    yield (
        flat.writeStream.format("parquet")
        .option("checkpointLocation", found.place("s"))
        .start(str(found.out / "sessions"))
    )


TOGETHER = (chain, join, sessions)


def together(found: Found) -> Iterator[StreamingQuery]:
    """Several of these in one program."""
    for one in TOGETHER:
        yield from one(found)


def running_sum(key: tuple[str], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    total = state.getOption[0] if state.exists else 0
    for frame in frames:
        total += int(frame["amount"].sum())
    state.update((total,))
    yield pd.DataFrame({"key": [key[0]], "total": [total]})


def own_state(found: Found) -> Iterator[StreamingQuery]:
    """State of one's own in pandas."""
    sums = (
        found.orders()
        .groupBy("key")
        .applyInPandasWithState(
            running_sum, "key string, total long", "total long", "update", GroupStateTimeout.NoTimeout
        )
    )
    writer = sums.writeStream.queryName("sums").outputMode("update").foreachBatch(upsert(found))
    yield writer.option("checkpointLocation", found.place("own")).start()


def processor(found: Found) -> Iterator[StreamingQuery]:
    """A processor of one's own by ``transformWithState``, in RocksDB, which names its schemas by full path."""
    from pyspark.sql.streaming import StatefulProcessor

    class Sums(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.total = handle.getValueState("total", "total long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            total = self.total.get()[0] if self.total.exists() else 0
            total += sum(int(frame["amount"].sum()) for frame in rows)
            self.total.update((total,))
            yield pd.DataFrame({"key": [key[0]], "total": [total]})

        def close(self) -> None: ...

    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    found.spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    grouped = found.orders().groupBy("key")
    sums = grouped.transformWithStateInPandas(Sums(), "key string, total long", "Update", "None")
    writer = sums.writeStream.queryName("sums").outputMode("update").foreachBatch(upsert(found))
    yield writer.option("checkpointLocation", found.place("own")).start()


class Append:
    """A writer of rows to a file, as programs hand to ``foreach``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, partition: int, epoch: int) -> bool:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file = (self.folder / f"{epoch}-{partition}.json").open("w")
        return True

    def process(self, row: Any) -> None:
        self.file.write(json.dumps(row.asDict(), default=str) + "\n")

    def close(self, error: Exception | None) -> None:
        self.file.close()


def each(found: Found) -> Iterator[StreamingQuery]:
    """A row at a time to ``foreach``, without a name, next to a memory table that is only looked at."""
    yield found.orders().select("key", "amount").writeStream.foreach(Append(found.out / "each")).start()
    yield found.orders().writeStream.format("memory").queryName("looked_at").start()


def many(place: Path) -> int:
    return len(list(place.parent.glob("in/*.json")))


def fork_that_ends() -> None:
    """Let a fork end as programs do, with what they do at their exit; what a thread held there is held for ever."""
    if not (child := os.fork()):
        sys.exit(0)
    for _ in range(300):
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def strange(found: Found) -> Iterator[StreamingQuery]:
    """One text for two tables, names that are no files', a failing query, a table among Spark's files, a fork."""

    def fails(rows: DataFrame, number: int) -> None:
        rows.select(f.raise_error(f.lit("as it does"))).collect()

    for name in ("πρώτη", "δεύτερη"):

        def save(rows: DataFrame, number: int, to: Path = found.out / name) -> None:
            to.mkdir(parents=True, exist_ok=True)
            rows.persist()
            for part, kept in (("few", "amount < 5"), ("many", "amount >= 5")):
                text = "".join(f"{line}\n" for line in rows.where(kept).toJSON().collect())
                (to / f"{number} {part}.json").write_text(text)
            rows.unpersist()

        yield found.orders().writeStream.foreachBatch(save).start()
    failing = found.orders().writeStream.queryName("a/b").foreachBatch(fails)
    try:
        failing.option("checkpointLocation", found.place("fails")).start().awaitTermination()
    except Exception:
        found.spark.streams.resetTerminated()
    writer = found.orders().where("amount < 7").writeStream.queryName("a b").format("json")
    yield writer.option("checkpointLocation", str(found.out / "nested")).start(str(found.out / "nested"))
    shutil.rmtree(found.place("gone"), ignore_errors=True)
    counts = found.orders().groupBy("key").count().writeStream.outputMode("complete").queryName("orders")
    yield counts.format("console").option("checkpointLocation", found.place("gone")).start()
    beside = Found(found.spark.newSession(), found.folder)
    sums = beside.orders().groupBy("key").agg(f.sum("amount").alias("total")).writeStream.queryName("orders")
    writer = sums.outputMode("update").foreachBatch(upsert(beside))
    yield writer.option("checkpointLocation", found.place("beside")).start()
    fork_that_ends()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map(many, [found.out]) == [many(found.out)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))


PROGRAMS = {
    one.__name__: one
    for one in (
        no_place,
        one_place,
        three,
        chain,
        available,
        by_hand,
        table,
        partitioned,
        delta,
        join,
        sessions,
        together,
        own_state,
        each,
        processor,
        strange,
    )
}
AGAIN = frozenset({"available", "by_hand", "one_place"})
"""Programs that do something at each look at what has arrived."""


def looked(found: Found, name: str, begun: list[StreamingQuery]) -> int:
    """Let the program process what there is; return how many files that were."""
    files = len(list((found.folder / "in").glob("*.json")))
    if name == "one_place" and begun:
        for query in begun:
            query.processAllAvailable()
        rows = [row.asDict() for row in found.spark.sql("SELECT * FROM shown").collect()]
        (found.out / "shown.json").write_text(json.dumps(rows))
    elif name in ("available", "by_hand") or not begun:
        begun[:] = PROGRAMS[name](found)
    for query in begun:
        if query.isActive:
            query.processAllAvailable()
        if query.exception():
            raise query.exception()
    return files


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse")).config(
        "spark.ui.enabled", "false"
    )
    found, begun = Found(builder.config("spark.log.level", "OFF").getOrCreate(), folder), []
    while not (folder / "stop").exists():
        seen = looked(found, name, begun)
        (folder / "seen.tmp").write_text(str(seen))
        os.replace(folder / "seen.tmp", folder / "seen")
        time.sleep(0.2)
    for query in begun:
        query.stop()


if __name__ == "__main__":
    main()
