"""What judging rows costs the plan that stages them, and a stream as a whole: ``python -m benchmarks.judge [--stream]``

Rows of a shop (four numbers, four texts of 160 bytes together, three times) come out of a stream that reads Parquet,
and are staged as Parquet, in turns with the rules of a table of PostgreSQL, which has the most, with those of a Delta
table, and without; processor time of Java's tasks on one core, medians and least of ``--rounds``. ``--stream``: read by
a streaming run, appended to a Delta table and shown by its checkpoint, in turns with and without the judge; processor
time of Python and Java, from the run's start to its end.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from benchmarks.common import median, scratch, show, spark_session
from benchmarks.sinks import worked
from benchmarks.streaming_common import streaming, wait
from dagster_ckpt import checkpointed_pipeline, spark_sink, spark_source
from dagster_ckpt.ext.delta.columns import accepted
from dagster_ckpt.ext.sql.columns import DIALECTS
from dagster_ckpt.sinks import DeltaTable
from dagster_ckpt.spark.channel.sink import write_staged
from dagster_ckpt.spark.sink.phases import Judge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dagster_ckpt import CheckpointedPipeline

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
    """Return the processor time of the driver's threads that run tasks: others compile, and collect garbage."""
    pid = spark._jvm.java.lang.ProcessHandle.current().pid()
    threads = Path(f"/proc/{pid}/task").iterdir()
    ours = (one for one in threads if (one / "comm").read_text().startswith("Executor task"))
    return sum(int((one / "schedstat").read_text().split()[0]) for one in ours) / 1e9


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
    return [
        {"rows": rows, "rules of": name, "rules": len(judge.rules), **_more(took[name], took["none"])}
        for name, judge in judges.items()
    ]


def _more(took: list[float], without: list[float]) -> dict[str, Any]:
    return {
        "processor_s": median(took),
        "more_percent": (median(took) / median(without) - 1) * 100,
        "least_s": min(took),
        "least_more_percent": (min(took) / min(without) - 1) * 100,
    }


def measure_stream(spark: SparkSession, folder: Path, *, rows: int, rounds: int) -> list[dict[str, Any]]:
    batch_of(spark, folder, rows)
    took: dict[str, list[float]] = {"with": [], "without": []}
    for number in range(rounds + 1):
        for name in took if number % 2 else [*reversed(took)]:
            none = mock.patch.object(Judge, "of", lambda sink, frame: Judge(sink.place, ()))
            began = worked()
            with none if name == "without" else nullcontext():
                _run(spark, folder / f"{number}-{name}", _shop(folder / "source"), rows)
            if number:  # the first ones are compiled
                took[name].append(worked() - began)
    return [{"rows": rows, "judge": name, **_more(found, took["without"])} for name, found in took.items()]


def _shop(source: Path) -> CheckpointedPipeline:
    @spark_source
    def orders(spark):  # type: ignore[no-untyped-def]
        schema = spark.read.parquet(str(source)).schema
        return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(source))

    @spark_sink(to=DeltaTable("shown"))
    def shown(rows):  # type: ignore[no-untyped-def]
        return rows

    @checkpointed_pipeline(name="shop")
    def pipeline() -> None:
        shown(orders())

    return pipeline  # type: ignore[no-any-return]


def _run(spark: SparkSession, folder: Path, pipeline: CheckpointedPipeline, rows: int) -> None:
    """Let a streaming run show all rows by one checkpoint."""
    with streaming(folder, pipeline, spark) as stream:
        wait(lambda: (stream.batch("shown") or 0) >= 1, stream)  # two files, one a batch
        stream.checkpoint()
        wait(lambda: _rows_of(folder / "tables" / "shown") == rows, stream, every=0.25)


def _rows_of(table: Path) -> int:
    from deltalake import DeltaTable as Reader

    return Reader(str(table)).count() if Reader.is_deltatable(str(table)) else 0


Measure = Callable[..., list[dict[str, Any]]]


def in_turns(
    title: str, measure: Measure, about: str | None, ways: Mapping[str, Measure] | None = None
) -> None:
    """Measure on one core, as the options say, and print; ``about``: the module's docstring; ``ways``: by options."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    for name in ways or {}:
        parser.add_argument(f"--{name}", dest="way", action="store_const", const=name)
    options = parser.parse_args()
    chosen = (ways or {}).get(getattr(options, "way", None) or "", measure)
    with scratch() as folder, spark_session(folder, **{"spark.master": "local[1]"}) as spark:
        show(title, chosen(spark, folder, rows=options.rows, rounds=options.rounds))


if __name__ == "__main__":
    in_turns("judging rows", measure, __doc__, {"stream": measure_stream})
