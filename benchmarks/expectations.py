"""What conditions on rows cost a stage that has no bad one: ``python -m benchmarks.expectations``

Rows of a shop come out of a stream, and are written for a channel log, in turns without conditions, with four in a
filter of the author's, and with the same as expectations; processor time of Java on one core, medians of ``--rounds``.
Twice: from Parquet, which is the least that a stage can do, so that what Spark takes to ask conditions is a large share
of it; and parsed from JSON, as rows of files and of topics mostly are. Then of an epoch of a pipeline that reads these
texts, parses them in the stage and appends them to a table: processor time of all its processes.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.common import median
from benchmarks.judge import as_batch, batch_of, in_turns, java_seconds
from dagster_ckpt import (
    CheckpointCoordinatorResource,
    CheckpointedPipeline,
    checkpointed_pipeline,
    run_epoch,
    spark_sink,
    spark_source,
    spark_stage,
)
from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.ext.quarantine.judged_rows import JudgedRows
from dagster_ckpt.spark.attempt.participant import ParticipantContext
from dagster_ckpt.spark.channel.sink import CODEC, write_staged
from dagster_ckpt.spark.directories import StageDirectory
from tests.progress import processor_seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

EXPECT: dict[str, Literal["warn", "drop"]] = {
    "pieces >= 0": "drop",
    "id IS NOT NULL": "drop",
    "state IN ('new', 'paid', 'sent', 'returned')": "warn",
    "paid >= at - INTERVAL 1 DAY": "warn",
}


@spark_stage(expect=EXPECT)
def orders(source):  # type: ignore[no-untyped-def]
    """Return the rows, none of which is bad."""
    return source


def measure(spark: SparkSession, folder: Path, *, rows: int, rounds: int) -> list[dict[str, Any]]:
    parquet = batch_of(spark, folder, rows)
    return [
        *_measured(spark, folder / "parquet", parquet, "Parquet", rounds),
        *_measured(spark, folder / "json", _of_json(spark, folder, parquet), "JSON", rounds),
        *_of_pipeline(spark, folder, parquet.schema, rounds),
    ]


def _of_pipeline(spark: SparkSession, folder: Path, schema: StructType, rounds: int) -> list[dict[str, Any]]:
    """Measure epochs of a pipeline that parses the texts below ``folder``."""
    from pyspark.sql import functions as f

    def shop(expect: dict[str, Any]) -> CheckpointedPipeline:
        @spark_source
        def texts(spark):  # type: ignore[no-untyped-def]
            return spark.readStream.schema("value STRING").parquet(str(folder / "texts"))

        @spark_stage(**expect)
        def parsed(texts):  # type: ignore[no-untyped-def]
            return texts.select(f.from_json("value", schema).alias("row")).select("row.*")

        @spark_sink
        def kept(parsed):  # type: ignore[no-untyped-def]
            return parsed

        @checkpointed_pipeline(name="shop")
        def pipeline() -> None:
            kept(parsed(texts()))

        return pipeline  # type: ignore[no-any-return]

    ways = {"without": shop({}), "with": shop({"expect": EXPECT})}
    took: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name in ways if number % 2 else [*reversed(ways)]:
            place = folder / f"{number}-{name}-pipeline"
            began = processor_seconds()
            run_epoch(ways[name], coordinator=CheckpointCoordinatorResource(base_dir=str(place)), spark=spark)
            if number:
                took[name].append(processor_seconds() - began)
            rmtree(place)
    return _ratios("a pipeline", took)


def _ratios(source: str, took: dict[str, list[float]]) -> list[dict[str, Any]]:
    without = median(took["without"])
    return [
        {
            "rows of": source,
            "conditions": name,
            "processor_s": median(found),
            "ratio": median(found) / without,
        }
        for name, found in took.items()
    ]


def _of_json(spark: SparkSession, folder: Path, rows: DataFrame) -> DataFrame:
    """Return the rows as a stage parses them of messages."""
    from pyspark.sql import functions as f

    texts = str(folder / "texts")
    rows.select(f.to_json(f.struct("*")).alias("value")).write.parquet(texts)
    messages = as_batch(spark, spark.read.parquet(texts))
    return messages.select(f.from_json("value", rows.schema).alias("row")).select("row.*")


def _measured(
    spark: SparkSession, folder: Path, frame: DataFrame, source: str, rounds: int
) -> list[dict[str, Any]]:
    directory = StageDirectory(folder / "stage")
    directory.log.mkdir(parents=True)
    context = ParticipantContext(
        stage=orders,
        directory=directory,
        frame=frame,
        keep=_nothing,
        requeue=lambda: None,
        function=_nothing,
        processed=lambda rows, batch: nullcontext(rows),
        input_of=_nothing,
        rules_ahead=lambda rows: (),
        own_table=lambda: None,
        warn=print,
    )
    judged: JudgedRows = orders.participant.open(context)
    ways = {
        "without": lambda place, number: write_staged(frame, place, folder, codec=CODEC),
        "in a filter": lambda place, number: write_staged(
            frame.where(" AND ".join(f"({one})" for one in EXPECT)), place, folder, codec=CODEC
        ),
        "with": lambda place, number: judged.write(frame, place, folder, BatchId(number)),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 2):
        for name in ways if number % 2 else [*reversed(ways)]:
            began = java_seconds(spark)
            ways[name](folder / f"{number}-{name}", number)
            if number >= 2:  # the first ones are compiled
                took[name].append(java_seconds(spark) - began)
    return _ratios(source, took)


def _nothing(*given: Any) -> Any:
    raise AssertionError("no condition quarantines")


if __name__ == "__main__":
    in_turns("conditions on rows", measure, __doc__)
