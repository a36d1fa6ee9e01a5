"""A query goes on from its state only as long as its stateful operators and the order of its sources are the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.attempt.changed_query import WAY_OUT, ChangedQuery
from dagster_ckpt.spark.attempt.clean_source import refuse_clean_source
from dagster_ckpt.spark.attempt.plan_shape import check_plan
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.snapshot.capture import plan_capture
from tests.spark.snapshot.fake_checkpoint import FakeQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UID = StageUid("totals")
Rows = Callable[[str], Any]
Build = Callable[[Rows], Any]


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path) -> Rows:
    def read(name: str) -> Any:
        (tmp_path / name).mkdir(exist_ok=True)
        frame = spark.readStream.schema("k long, v long").json(str(tmp_path / name))
        return frame.selectExpr("k", "v", "timestamp_seconds(v) AS t").withWatermark("t", "5 seconds")

    return read


def sums(frame: Any, key: str = "k", kept: str = "max(v)") -> Any:
    import pyspark.sql.functions as sf

    return frame.groupBy(key).agg(sf.expr(kept).alias("x"))


def windowed(frame: Any, size: str) -> Any:
    import pyspark.sql.functions as sf

    return frame.groupBy(sf.window("t", size), "k").count()


def by_window(frame: Any, size: str) -> Any:
    """The same, with the window in a column of its own."""
    import pyspark.sql.functions as sf

    return frame.withColumn("slot", sf.window("t", size)).groupBy("slot.start", "k").count()


def by_time(frame: Any, unit: str, run: str = "") -> Any:
    import pyspark.sql.functions as sf

    return frame.groupBy(sf.date_trunc(unit, "t"), sf.lit(run).alias("run")).count()


def matched(one: Any, other: Any, how: str = "inner", on: str = "a.k = b.k") -> Any:
    import pyspark.sql.functions as sf

    near = sf.expr(f"{on} AND a.t < b.t + interval 5 seconds AND a.t > b.t")
    return one.alias("a").join(other.alias("b"), near, how).selectExpr("a.k AS k")


def committed(tmp_path: Path) -> StageDirectory:
    """A stage whose query has committed batches."""
    return StageDirectory(FakeQuery(tmp_path / "stage").commit(2).root)


SAME: dict[str, tuple[Build, Build]] = {
    "filters, names of results and values": (
        lambda rows: sums(rows("a"), kept="sum(v + 1)"),
        lambda rows: sums(rows("a").where("v > 3"), kept="sum(v + 2)").withColumnRenamed("x", "y"),
    ),
    "a static side": (
        lambda rows: rows("a").join(rows("a").sparkSession.range(3).groupBy("id").count(), sf_expr("k = id")),
        lambda rows: rows("a").join(rows("a").sparkSession.range(3), sf_expr("k = id")),
    ),
    "the same value for all rows": (
        lambda rows: by_time(rows("a"), "hour", "of yesterday"),
        lambda rows: by_time(rows("a"), "hour", "of today"),
    ),
    "another folder": (
        lambda rows: rows("a").union(rows("b")),
        lambda rows: rows("a").union(rows("c")),
    ),
    "how near rows must be": (
        lambda rows: matched(rows("a"), rows("b")),
        lambda rows: matched(rows("a"), rows("b")).where("k > 1"),
    ),
}
CHANGED: dict[str, tuple[Build, Build, str]] = {
    "another key of the same type": (
        lambda rows: sums(rows("a")),
        lambda rows: sums(rows("a"), "v"),
        "made by groupBy(k).agg(max(v)), the stage has groupBy(v).agg(max(v)) now",
    ),
    "another aggregate of the same type": (
        lambda rows: sums(rows("a")),
        lambda rows: sums(rows("a"), kept="min(v)"),
        "groupBy(k).agg(min(v)) now",
    ),
    "another size of windows": (
        lambda rows: windowed(rows("a"), "10 seconds"),
        lambda rows: windowed(rows("a"), "20 seconds"),
        "20000000",
    ),
    "another size of windows in a column of their own": (
        lambda rows: by_window(rows("a"), "10 seconds"),
        lambda rows: by_window(rows("a"), "20 seconds"),
        "20000000",
    ),
    "another unit of time": (
        lambda rows: by_time(rows("a"), "hour"),
        lambda rows: by_time(rows("a"), "day"),
        "(day, t)",
    ),
    "another unit of time in a join": (
        lambda rows: matched(rows("a"), rows("b"), on="date_trunc('hour', a.t) = date_trunc('hour', b.t)"),
        lambda rows: matched(rows("a"), rows("b"), on="date_trunc('day', a.t) = date_trunc('day', b.t)"),
        "(day, t)",
    ),
    "another key of a join": (
        lambda rows: matched(rows("a"), rows("b")),
        lambda rows: matched(rows("a"), rows("b"), on="a.k = b.v"),
        "join(equalto(k, v), Inner) now",
    ),
    "another kind of join": (
        lambda rows: matched(rows("a"), rows("b")),
        lambda rows: matched(rows("a"), rows("b"), how="left_outer"),
        "LeftOuter) now",
    ),
    "other duplicates": (
        lambda rows: rows("a").dropDuplicates(["k"]),
        lambda rows: rows("a").dropDuplicates(["v"]),
        "made by dropDuplicates(k), the stage has dropDuplicates(v) now",
    ),
    "an operator that is gone": (
        lambda rows: sums(rows("a").dropDuplicates(["k", "t"])),
        lambda rows: sums(rows("a")),
        "the stage has groupBy(k).agg(max(v)) now",
    ),
    "sources in another order": (
        lambda rows: rows("a").union(rows("b")),
        lambda rows: rows("b").union(rows("a")),
        "the order of its sources was",
    ),
    "sources that have moved on by one": (
        lambda rows: rows("a").union(rows("b")),
        lambda rows: rows("b").union(rows("c")),
        "the order of its sources was",
    ),
}


def sf_expr(text: str) -> Any:
    import pyspark.sql.functions as sf

    return sf.expr(text)


def test_what_state_depends_on_may_not_change_and_all_else_may(rows: Rows, tmp_path: Path) -> None:
    """One test for all, because only plans are made: no query runs."""
    for number, (before, after) in enumerate(SAME.values()):
        stage = committed(tmp_path / f"same-{number}")
        check_plan(UID, stage, before(rows))
        check_plan(UID, stage, before(rows))
        check_plan(UID, stage, after(rows))
    for name, (before, after, said) in CHANGED.items():
        stage = committed(tmp_path / name)
        check_plan(UID, stage, before(rows))
        with pytest.raises(ChangedQuery, match="cannot go on from its") as refused:
            check_plan(UID, stage, after(rows))
        assert said in str(refused.value), name
        assert str(refused.value).endswith(WAY_OUT)
        check_plan(UID, stage, before(rows))


def test_a_query_without_a_batch_may_change_and_one_of_before_is_taken_as_it_is(
    rows: Rows, tmp_path: Path
) -> None:
    young = StageDirectory(tmp_path / "young")
    check_plan(UID, young, sums(rows("a")))
    check_plan(UID, young, sums(rows("a"), "v"))
    old = committed(tmp_path)
    assert not old.plan.exists()
    check_plan(UID, old, sums(rows("a")))
    assert "plan.json" in [file.path for file in plan_capture(old.query).files]
    old.plan.write_text(old.plan.read_text().replace("Spark ", "another Spark "))
    check_plan(UID, old, sums(rows("a"), "v"))  # another Spark may write plans in another way


@pytest.mark.parametrize("given", ["delete", "Archive"])
def test_a_source_whose_files_spark_takes_away_is_refused(
    spark: SparkSession, tmp_path: Path, given: str
) -> None:
    """Killed behind such a batch, a run went on from the checkpoint before it, and its rows were nowhere."""
    reader = spark.readStream.schema("k long").option("sourceArchiveDir", str(tmp_path / "archive"))
    kept = reader.option("cleanSource", "off").json(str(tmp_path))
    refuse_clean_source("stage orders", kept)
    taken = reader.option("CLEANSOURCE", given).json(str(tmp_path))
    both = kept.union(taken.where("k > 1"))
    with pytest.raises(InvalidRequest, match=f"a source of stage orders has the option .*='{given}'"):
        refuse_clean_source("stage orders", both)
