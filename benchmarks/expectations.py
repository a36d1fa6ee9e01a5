"""What conditions on rows cost a stage that has no bad one: ``python -m benchmarks.expectations [--stream]``

Rows of a shop come out of a stream, and are written for a channel log, in turns without conditions, with four in a
filter of the author's, and with the same as expectations; processor time of Java on one core, medians of ``--rounds``.
Twice: from Parquet, which is the least that a stage can do, so that what Spark takes to ask conditions is a large share
of it; and parsed from JSON, as rows of files and of topics mostly are. Then of an epoch of a pipeline that reads these
texts, parses them in the stage and appends them to a table: processor time of all its processes. ``--stream``: of a
streaming run of it over 40 batches, with a checkpoint at its end; ``apart``: without conditions, and what has them no
part of a chain.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.common import median
from benchmarks.judge import as_batch, batch_of, in_turns, java_seconds
from benchmarks.streaming_common import streaming, wait
from benchmarks.streaming_throughput import is_through
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

BATCHES = 40


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
    texts = folder / "texts"
    ways = {"without": _shop(texts, schema), "with": _shop(texts, schema, expect=EXPECT)}

    def run(pipeline: CheckpointedPipeline, place: Path) -> None:
        run_epoch(pipeline, coordinator=CheckpointCoordinatorResource(base_dir=str(place)), spark=spark)

    return _ratios("a pipeline", _worked(ways, folder, run, rounds))


def measure_stream(spark: SparkSession, folder: Path, *, rows: int, rounds: int) -> list[dict[str, Any]]:
    schema = batch_of(spark, folder, rows).schema
    texts, arriving = folder / "texts", folder / "arriving"
    whole = spark.read.parquet(str(folder / "source")).repartition(BATCHES)
    whole.selectExpr("to_json(struct(*)) AS value").write.parquet(str(texts))
    files = sorted(texts.glob("*.parquet"))
    settings: dict[str, dict[str, Any]] = {
        "without": {},
        "apart": {"chain": False},
        "with": {"expect": EXPECT},
    }
    ways = {name: _shop(arriving, schema, a_batch=1, **given) for name, given in settings.items()}

    def run(pipeline: CheckpointedPipeline, place: Path) -> None:
        arriving.mkdir()
        with streaming(place, pipeline, spark) as stream:
            for file in files:
                (arriving / file.name).hardlink_to(file)
            wait(lambda: is_through(stream, len(files), 1), stream, every=0.1)
            stream.checkpoint()
        rmtree(arriving)

    return _ratios("a stream", _worked(ways, folder, run, rounds))


def _shop(texts: Path, schema: StructType, a_batch: int = 1000, **settings: Any) -> CheckpointedPipeline:
    """Return a pipeline that parses the texts of files, so many a batch, in a stage with these settings."""
    from pyspark.sql import functions as f

    @spark_source
    def messages(spark):  # type: ignore[no-untyped-def]
        return (
            spark.readStream.schema("value STRING").option("maxFilesPerTrigger", a_batch).parquet(str(texts))
        )

    @spark_stage(**{one: given for one, given in settings.items() if one != "chain"})
    def parsed(messages):  # type: ignore[no-untyped-def]
        return messages.select(f.from_json("value", schema).alias("row")).select("row.*")

    @spark_sink(chain=settings.get("chain", True))
    def kept(parsed):  # type: ignore[no-untyped-def]
        return parsed

    @checkpointed_pipeline(name="shop")
    def pipeline() -> None:
        kept(parsed(messages()))

    return pipeline  # type: ignore[no-any-return]


def _worked(
    ways: dict[str, CheckpointedPipeline],
    folder: Path,
    run: Callable[[CheckpointedPipeline, Path], None],
    rounds: int,
) -> dict[str, list[float]]:
    """Run pipelines in turns, each in a folder of its own; return the processor time of all processes."""
    took: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name in ways if number % 2 else [*reversed(ways)]:
            place = folder / f"{number}-{name}-pipeline"
            began = processor_seconds()
            run(ways[name], place)
            if number:  # the first ones are compiled
                took[name].append(processor_seconds() - began)
            rmtree(place)
    return took


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
    in_turns("conditions on rows", measure, __doc__, {"stream": measure_stream})
