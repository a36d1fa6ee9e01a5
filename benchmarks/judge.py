"""What judging rows costs the plan that stages them: ``python -m benchmarks.judge``

Rows of a shop (four numbers, four texts of 160 bytes together, three times) come out of a stream that reads Parquet,
and are staged as Parquet, in turns with the rules of a table of PostgreSQL, which has the most, with those of a Delta
table, and without; processor time of Java on one core, medians of ``--rounds``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import median, scratch, show, spark_session
from dagster_ckpt.ext.delta.columns import accepted
from dagster_ckpt.ext.sql.columns import DIALECTS
from dagster_ckpt.spark.channel.sink import write_staged
from dagster_ckpt.spark.sink.judge import Judge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDERS = (
    "id",
    "id % 5000 AS customer",
    "id * 0.37 AS price",
    "CAST(id % 97 AS INT) AS pieces",
    "concat('item-', id % 20000) AS item",
    "concat(upper(sha2(CAST(id % 3000 AS STRING), 256)), ' Straße ', id % 300) AS address",
    "element_at(array('new', 'paid', 'sent', 'returned'), CAST(id % 4 AS INT) + 1) AS state",
    "concat('order ', id, ' of customer ', id % 5000, ', to be delivered in the morning, please') AS note",
    "timestamp_micros(1700000000000000 + id * 1000) AS at",
    "timestamp_micros(1700000000000000 + id * 1700) AS paid",
    "date_add(DATE '2026-01-01', CAST(id % 365 AS INT)) AS due",
)


def batch_of(spark: Any, folder: Path, rows: int) -> DataFrame:
    """Return rows as ``foreachBatch`` gets them, behind the plan of a stream that reads Parquet."""
    source = str(folder / "source")
    spark.range(rows, numPartitions=2).selectExpr(*ORDERS).write.parquet(source)
    return as_batch(spark, spark.read.parquet(source))


def as_batch(spark: Any, rows: DataFrame) -> DataFrame:
    """Return rows as ``foreachBatch`` gets them, behind their plan."""
    from pyspark.sql import DataFrame as SparkDataFrame

    read = rows._jdf
    batch = spark._jsparkSession.internalCreateDataFrame(read.queryExecution().toRdd(), read.schema(), False)
    return SparkDataFrame(batch, spark)


def java_seconds(spark: Any) -> float:
    """Return the processor time that the driver's Java has taken."""
    pid = spark._jvm.java.lang.ProcessHandle.current().pid()
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(spark: SparkSession, folder: Path, *, rows: int, rounds: int) -> list[dict[str, Any]]:
    frame = batch_of(spark, folder, rows)
    schema = frame.schema.json()
    postgres = DIALECTS["postgresql"].accepts(key=("item",), needed=("item",))
    judges = {
        "none": Judge("it", ()),
        "delta": Judge("it", accepted(()).rules(schema)),
        "postgresql": Judge("it", postgres.rules(schema)),
    }
    took: dict[str, list[float]] = {name: [] for name in judges}
    for number in range(rounds + 2):
        for name in judges if number % 2 else [*reversed(judges)]:
            began = java_seconds(spark)
            write_staged(judges[name].judged(frame), folder / f"{number}-{name}", folder)
            if number >= 2:  # the first ones are compiled
                took[name].append(java_seconds(spark) - began)
    without = median(took["none"])
    return [
        {
            "rows": rows,
            "rules of": name,
            "rules": len(judge.rules),
            "processor_s": median(took[name]),
            "more_percent": (median(took[name]) / without - 1) * 100,
        }
        for name, judge in judges.items()
    ]


def in_turns(title: str, measure: Callable[..., list[dict[str, Any]]], about: str | None) -> None:
    """Measure on one core, as the options say, and print; ``about``: the module's docstring."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    with scratch() as folder, spark_session(folder, **{"spark.master": "local[1]"}) as spark:
        show(title, measure(spark, folder, rows=options.rows, rounds=options.rounds))


if __name__ == "__main__":
    in_turns("judging rows", measure, __doc__)
