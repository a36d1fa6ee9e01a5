"""A program that starts its queries in every way there is, and ends with 3: ``python odd.py --input FOLDER -n 2``.

``seen.txt`` in its folder gets a line for each batch.
"""

import argparse
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.streaming.readwriter import DataStreamWriter

parser = argparse.ArgumentParser()
parser.add_argument("--input", required=True)
parser.add_argument("-n", type=int, default=1)
given = parser.parse_args()
HERE = Path.cwd()


class Listener(StreamingQueryListener):  # type: ignore[misc]
    """A listener of the program's own."""

    def onQueryStarted(self, event: object) -> None: ...  # noqa: N802 - PySpark's name
    def onQueryProgress(self, event: object) -> None: ...  # noqa: N802 - PySpark's name
    def onQueryIdle(self, event: object) -> None: ...  # noqa: N802 - PySpark's name
    def onQueryTerminated(self, event: object) -> None: ...  # noqa: N802 - PySpark's name


def session() -> SparkSession:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    return builder.config("spark.log.level", "OFF").getOrCreate()


def seen(name: str) -> Callable[[DataFrame, int], None]:
    def note(batch: DataFrame, number: int) -> None:
        with (HERE / "seen.txt").open("a") as out:
            out.write(f"{name} {number} {batch.count()}\n")

    return note


def writer(spark: SparkSession, name: str, place: str) -> DataStreamWriter:
    rows = spark.readStream.schema("key string, amount long").json(given.input).writeStream
    return rows.foreachBatch(seen(name)).option("checkpointLocation", place)


def main() -> None:
    spark = session()
    spark.streams.addListener(Listener())
    progress = []

    def beside(number: int) -> None:
        place = f"file://{HERE}/a blank/t%20{number}"
        query = writer(spark, f"thread{number}", place).trigger(once=True).start()
        query.awaitTermination()
        progress.append(query.recentProgress)

    threads = [threading.Thread(target=beside, args=(number,)) for number in range(given.n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(progress) == given.n

    def starts_another(batch: DataFrame, number: int) -> None:
        seen("outer")(batch, number)
        writer(spark, "inner", "~/inner").trigger(availableNow=True).start().awaitTermination()

    outer = writer(spark, "outer", "./x/../outer").queryName("outer").foreachBatch(starts_another).start()
    outer.processAllAvailable()
    outer.stop()
    for place in ("one", "two"):
        load = writer(spark, place, f"loads/{place}").queryName("load").trigger(availableNow=True)
        load.start().awaitTermination()
    try:
        spark.readStream.text(given.input).writeStream.format("parquet").start()
    except Exception:
        seen("caught")(spark.range(0), -1)
    spark.stop()
    (HERE / "elsewhere").mkdir(exist_ok=True)
    os.chdir(HERE / "elsewhere")
    writer(session(), "after", "moved").queryName("after").trigger(
        availableNow=True
    ).start().awaitTermination()


if __name__ == "__main__":
    main()
    sys.exit(3)
