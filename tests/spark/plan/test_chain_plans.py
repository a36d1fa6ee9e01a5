"""What real plans say of running stages in one query."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.spark.plan import sources
from dagster_ckpt.spark.plan.sources import (
    why_it_leaves_its_inputs,
    why_it_leaves_its_reader,
    why_it_reads_apart,
    why_readers_may_differ,
)


@pytest.fixture
def rate(spark: SparkSession) -> Callable[[], DataFrame]:
    return lambda: spark.readStream.format("rate").load()


def _text(value: int) -> str:
    return str(value)


STATELESS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "columns": lambda rows: rows.select("value").where("value > 3").withColumn("v", f.col("value") * 2),
    "explode": lambda rows: rows.select(f.explode(f.array("value", "value")).alias("v")),
    "union": lambda rows: rows.union(rows),
    "static join": lambda rows: rows.join(rows.sparkSession.range(3), rows.value == f.col("id"), "left"),
    "static aggregate": lambda rows: rows.join(
        rows.sparkSession.range(3).groupBy("id").count(), rows.value == f.col("id")
    ),
    "repartition": lambda rows: rows.repartition(2),
    "python": lambda rows: rows.mapInArrow(lambda batches: batches, rows.schema),
    "udf": lambda rows: rows.select(f.udf(_text, useArrow=False)("value")),
    "now": lambda rows: rows.withColumn("now", f.current_timestamp()),
    "drop": lambda rows: rows.drop("timestamp"),
}
STATEFUL: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "count": (lambda rows: rows.groupBy("value").count(), "keeps state"),
    "distinct": (lambda rows: rows.select("value").distinct(), "keeps state"),
    "dedupe": (lambda rows: rows.dropDuplicates(["value"]), "keeps state"),
    "limit": (lambda rows: rows.limit(3), "keeps state"),
    "stream join": (lambda rows: rows.join(rows.withColumnRenamed("value", "v"), "timestamp"), "keeps state"),
    "watermark": (lambda rows: rows.withWatermark("timestamp", "1 minute"), "watermark"),
    "random": (lambda rows: rows.withColumn("r", f.rand()), "not deterministic"),
    "uuid": (lambda rows: rows.withColumn("id", f.expr("uuid()")), "not deterministic"),
    "unsteady udf": (
        lambda rows: rows.select(f.udf(_text, useArrow=False).asNondeterministic()("value")),
        "not deterministic",
    ),
    "grouped python": (
        lambda rows: rows.groupBy("value").applyInPandasWithState(
            lambda *_: iter(()), "v LONG", "v LONG", "append", "NoTimeout"
        ),
        "keeps state",
    ),
}


@pytest.mark.parametrize("made", STATELESS)
def test_a_stateless_plan_may_be_part_of_its_readers_query(rate: Callable[[], DataFrame], made: str) -> None:
    assert why_it_leaves_its_reader(STATELESS[made](rate())) == ""


@pytest.mark.parametrize("made", STATELESS)
def test_functions_of_the_author_are_called_once_for_all_readers_where_an_executor_may_be_lost(
    rate: Callable[[], DataFrame], made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = STATELESS[made](rate())
    assert why_readers_may_differ(frame) == ""
    monkeypatch.setattr(sources, "is_local", lambda _: False)
    assert bool(why_readers_may_differ(frame)) is (made in ("python", "udf"))


@pytest.mark.parametrize("made", STATEFUL)
def test_what_keeps_something_or_varies_needs_a_query_of_its_own(
    rate: Callable[[], DataFrame], made: str
) -> None:
    make, why = STATEFUL[made]
    assert why in why_it_leaves_its_reader(make(rate()))


def test_a_reader_that_reads_an_input_twice_or_not_at_all_takes_none_in(
    rate: Callable[[], DataFrame],
) -> None:
    one, other = rate(), rate()
    assert why_it_leaves_its_inputs(one.union(other), [one, other]) == ""
    assert why_it_leaves_its_inputs(one.join(other, "value"), [one, other]) == ""
    renamed = one.withColumnRenamed("value", "v")
    for wrong in (one.union(one), one, one.join(renamed, "timestamp"), one.union(other).union(rate())):
        assert "each of its inputs once" in why_it_leaves_its_inputs(wrong, [one, other])
    assert "once" in why_it_leaves_its_inputs(one.union(one), [one])
    assert why_it_leaves_its_inputs(one.union(one), [one, one]) == "", "given as two inputs, which"
    assert "twice" in why_it_reads_apart([StageUid("one"), StageUid("one")])
    assert why_it_reads_apart([StageUid("one"), StageUid("other")]) == ""
