"""Every other stateful operator of PySpark over rows in event time, some of them late; several in one query, tagged."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from tests.spark.snapshot.capture_workloads import ROCKS2, ROCKS2_JOIN3, StateFormat

FILES = 3
KEYS = 5
OUT = "tag string, k long, n long"


def write_events(folder: Path, number: int, *, seed: int = 0) -> None:
    """Add file ``number``: rows at 10 s times its number, one of each key a little late, and one far too late."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [(k, number * 10 + (k + seed) % 3) for k in range(KEYS)]
    rows += [(k, max(0, number * 10 - 4)) for k in range(0, KEYS, 2 + seed)]
    rows += [(seed, 1)]
    table = pa.table({"k": [k for k, _ in rows], "v": [v for _, v in rows]})
    path = folder / f"part-{number:05d}.parquet"
    pq.write_table(table, folder / f".tmp-{number}")
    (folder / f".tmp-{number}").rename(path)
    os.utime(path, (1.7e9 + number, 1.7e9 + number))  # the file source orders by modification time


def events(spark: SparkSession, folder: Path) -> DataFrame:
    import pyspark.sql.functions as sf

    files = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1)
    rows = files.option("maxFileAge", "100000d").parquet(str(folder))
    return rows.withColumn("t", sf.timestamp_seconds("v")).withWatermark("t", "5 seconds")


@dataclass(frozen=True)
class Operators:
    """Operators in one query over ``<folder>/a`` and ``<folder>/b``."""

    name: str
    build: Callable[[SparkSession, Path], DataFrame]
    state: StateFormat = ROCKS2
    files: int = FILES


def tagged(tag: str, frame: DataFrame, key: str, number: str) -> DataFrame:
    return frame.selectExpr(f"'{tag}' AS tag", f"CAST({key} AS LONG) AS k", f"CAST({number} AS LONG) AS n")


def _union(*frames: DataFrame) -> DataFrame:
    return reduce(lambda one, other: one.union(other), frames)


def _windows(spark: SparkSession, folder: Path) -> DataFrame:
    import pyspark.sql.functions as sf

    rows = events(spark, folder / "a")
    tumbling = rows.groupBy(sf.window("t", "5 seconds"), "k").count()
    session = rows.groupBy(sf.session_window("t", "3 seconds"), "k").count()
    return _union(
        tagged("window", tumbling, "unix_seconds(window.start)", "100 * k + count"),
        tagged("session", session, "unix_seconds(session_window.start)", "100 * k + count"),
    )


def _joins(spark: SparkSession, folder: Path) -> DataFrame:
    import pyspark.sql.functions as sf

    def joined(how: str) -> DataFrame:
        left, right = (events(spark, folder / name).alias(name) for name in "ab")
        near = sf.expr(
            "a.k = b.k AND b.v % 2 = 0 AND a.t BETWEEN b.t - interval 2 seconds AND b.t + interval 2 seconds"
        )
        pairs = left.join(right, near, how)
        number = "a.v" if how == "left_semi" else "1000 * coalesce(a.v, -1) + coalesce(b.v, -1)"
        return tagged(how, pairs, "a.k" if how == "left_semi" else "coalesce(a.k, b.k)", number)

    return _union(*(joined(how) for how in ("inner", "right_outer", "full_outer", "left_semi")))


def _duplicates(spark: SparkSession, folder: Path) -> DataFrame:
    rows = events(spark, folder / "a")
    return _union(
        tagged("distinct", rows.dropDuplicates(["k", "t"]), "k", "v"),
        tagged("within", rows.dropDuplicatesWithinWatermark(["k"]), "k", "v"),
    )


def _after_one_another(spark: SparkSession, folder: Path) -> DataFrame:
    import pyspark.sql.functions as sf

    distinct = events(spark, folder / "a").dropDuplicates(["k", "t"])
    return tagged(
        "both", distinct.groupBy(sf.window("t", "10 seconds")).count(), "unix_seconds(window.start)", "count"
    )


def _group_state(spark: SparkSession, folder: Path) -> DataFrame:
    from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

    def update(key: Any, frames: Iterator[Any], state: GroupState) -> Iterator[Any]:
        import pandas as pd

        if state.hasTimedOut:
            (count,) = state.get
            state.remove()
            yield pd.DataFrame({"tag": ["timeout"], "k": [key[0]], "n": [count]})
            return
        (count,) = state.get if state.exists else (0,)
        for frame in frames:
            count += len(frame)
        state.update((count,))
        if key[0] % 2 == 0:
            state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 1000)

    rows = events(spark, folder / "a")
    return rows.groupBy("k").applyInPandasWithState(
        update, OUT, "c long", "append", GroupStateTimeout.EventTimeTimeout
    )


def _processor_with_timers(spark: SparkSession, folder: Path) -> DataFrame:
    from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

    class Reminder(StatefulProcessor):
        """Remembers the seconds of each key and tells them when a timer fires; begins with an initial state."""

        def init(self, handle: StatefulProcessorHandle) -> None:
            self.handle = handle
            self.seen = handle.getListState("seen", "v long")

        def handleInitialState(self, key: Any, initial: Any, timerValues: Any) -> None:  # noqa: N802, N803
            self.seen.appendValue((int(initial["n"].iloc[0]),))

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            import pandas as pd

            for frame in rows:
                for value in sorted(frame["v"].tolist()):
                    self.seen.appendValue((value,))
            self.handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 1000)
            yield pd.DataFrame({"tag": [], "k": [], "n": []}).astype({"tag": str, "k": int, "n": int})

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803
            import pandas as pd

            values = [row[0] for row in self.seen.get()]
            yield pd.DataFrame({"tag": ["timer"], "k": [key[0]], "n": [1000 * len(values) + sum(values)]})

        def close(self) -> None:
            return None

    initial = spark.createDataFrame([(k, 500 + k) for k in range(KEYS)], "k long, n long").groupBy("k")
    rows = events(spark, folder / "a").groupBy("k")
    return rows.transformWithStateInPandas(Reminder(), OUT, "Append", "EventTime", initial)


EVERY = (
    Operators("windows", _windows, files=FILES + 1),
    Operators(
        "joins", _joins, ROCKS2_JOIN3
    ),  # a quarter of the stores; test_restore_rescale has the other format
    Operators("duplicates", _duplicates),
    Operators("duplicates-then-window", _after_one_another),
    Operators("group-state-with-timeouts", _group_state),
    Operators("processor-with-timers-and-initial-state", _processor_with_timers),
)


def with_time_to_live(spark: SparkSession, folder: Path) -> DataFrame:
    """Values, lists and maps that live for an hour, and one value that is gone in the next batch."""
    from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

    hour = 3_600_000

    class Remembering(StatefulProcessor):
        """Tells of each key how many rows it remembers in each kind of state."""

        def init(self, handle: StatefulProcessorHandle) -> None:
            self.count = handle.getValueState("count", "n long", hour)
            self.brief = handle.getValueState("brief", "n long", 1)
            self.seen = handle.getListState("seen", "v long", hour)
            self.values = handle.getMapState("values", "v long", "n long", hour)

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            import pandas as pd

            count = self.count.get()[0] if self.count.exists() else 0
            brief = 1_000_000 if self.brief.exists() else 0
            for frame in rows:
                for value in sorted(frame["v"].tolist()):
                    count += 1
                    self.seen.appendValue((value,))
                    self.values.updateValue((value,), (count,))
            self.count.update((count,))
            self.brief.update((count,))
            listed, mapped = len(list(self.seen.get())), len(list(self.values.keys()))
            yield pd.DataFrame(
                {"tag": ["ttl"], "k": [key[0]], "n": [brief + 10_000 * count + 100 * listed + mapped]}
            )

        def close(self) -> None:
            return None

    return (
        events(spark, folder / "a")
        .groupBy("k")
        .transformWithStateInPandas(Remembering(), OUT, "Append", "ProcessingTime")
    )
