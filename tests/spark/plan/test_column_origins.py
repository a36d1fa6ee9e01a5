"""Columns that a state is made of, followed through their names in front of it to those of the source."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.channel.sink import ChannelSink
from dagster_ckpt.spark.channel.source import read_channel
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.plan.errors import WAY_OUT, ChangedQuery
from dagster_ckpt.spark.plan.rules import check_plan
from tests.spark.snapshot.fake_checkpoint import FakeQuery

UID = StageUid("totals")
COLUMNS = "k long, j long, a long, b long, t timestamp"
Source = Callable[..., Any]
Build = Callable[[Source], Any]


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> Source:
    def read(*selects: str, schema: str = COLUMNS, folder: str = "in", ahead: str = "") -> Any:
        """A stream, and what is selected of it, one step after the other; ``ahead``: by a stage that has a channel."""
        (tmp_path / folder).mkdir(exist_ok=True)
        frame = spark.readStream.schema(schema).json(str(tmp_path / folder))
        if ahead:
            frame = frame.selectExpr(*ahead.split("; ")).where("k > 0")
            writer = StageDirectory(tmp_path / "attempt-1" / "clean")
            check_plan(StageUid("clean"), writer, frame)
            shutil.rmtree(writer.log, ignore_errors=True)
            ChannelSink(ChannelLog.create(writer.log), frame.schema)
            frame = read_channel(spark, str(writer.log), channel="clean")
        for select in selects:
            frame = frame.selectExpr(*select.split("; "))
        return frame

    return read


def sums(frame: Any, kept: str = "sum(p)", key: str = "k") -> Any:
    import pyspark.sql.functions as sf

    return frame.groupBy(key).agg(sf.expr(kept).alias("x"))


def summed(*selects: str, schema: str = COLUMNS, kept: str = "sum(p)") -> Build:
    return lambda source: sums(source(*selects, schema=schema), kept)


def behind(ahead: str, *selects: str) -> Build:
    return lambda source: sums(source(*selects, ahead=ahead))


def met(left: str, right: str, on: str) -> Build:
    import pyspark.sql.functions as sf

    def built(source: Source) -> Any:
        one = source("*", left).withWatermark("t", "1 second").alias("l")
        other = source("*", right, folder="other").withWatermark("t", "1 second").alias("r")
        return one.join(other, sf.expr(f"{on} AND l.t = r.t")).selectExpr("1 AS one")

    return built


def joined_to(static: str) -> Build:
    def built(source: Source) -> Any:
        frame = source("k")
        table = frame.sparkSession.range(3).selectExpr("id AS k", "id + 1 AS a", "id + 2 AS b")
        return sums(frame.join(table.selectExpr("k", static), "k"))

    return built


def united(second: str) -> Build:
    return lambda source: sums(source("k; a AS p").union(source(second, folder="other")))


def by_window(of: str) -> Build:
    import pyspark.sql.functions as sf

    def built(source: Source) -> Any:
        frame = source(f"k; {of} AS s", schema="k long, t timestamp, u timestamp")
        return frame.groupBy(sf.window("s", "5 seconds")).count()

    return built


SAME: dict[str, tuple[Build, Build]] = {
    "renamed by its source": (
        summed("k; a AS p", schema="k long, a long"),
        summed("k; b AS p", schema="k long, b long"),
    ),
    "under a new name in its source as well": (
        summed("k; a AS p", schema="k long, a long"),
        summed("k; b AS p", schema="k long, a long, b long"),
    ),
    "under a name that its source has given up": (
        summed("k; a AS p"),
        summed("k; b AS p", schema="k long, b long"),
    ),
    "renamed several times": (
        summed("k; a AS p"),
        summed("k; a; b AS q", "a AS r; k AS z; q", "r AS p; z AS k; q AS a"),
    ),
    "not renamed any more": (
        summed("k; a AS p", "k; p AS a", kept="sum(a)"),
        summed("*", kept="sum(a)"),
    ),
    "in other letters": (summed("k; a AS p"), summed("K AS k; A AS p")),
    "in another place of its source": (
        summed("k; a AS p"),
        summed("k; a AS p", schema="b long, a long, k long, more long"),
    ),
    "computed now": (summed("k; a AS p"), summed("k; coalesce(b, a) AS p")),
    "computed before": (summed("k; a + b AS p"), summed("k; b AS p")),
    "of another type in its source, and cast": (
        summed("k; a AS p"),
        summed("k; CAST(a AS LONG) AS p", schema="k long, a string"),
    ),
    "not used": (summed("k; a AS p; b AS q"), summed("k; a AS p; j AS q")),
    "of a result": (
        lambda source: sums(source("k; a AS p")).selectExpr("x AS y"),
        lambda source: sums(source("k; a AS p")).selectExpr("x + k AS y"),
    ),
    "under another name between stages": (behind("k; a", "k; a AS p"), behind("k; a AS q", "k; q AS p")),
    "computed by another stage": (behind("k; a AS p"), behind("k; a + 1 AS p")),
    "not computed by another stage any more": (behind("k; a + 1 AS p"), behind("k; b AS p")),
    "of a static table": (joined_to("a AS p"), joined_to("b AS p")),
    "of a union's second input": (united("k; a AS p"), united("k; b AS p")),
    "of a field": (
        summed("k; f.a AS p", schema="k long, f struct<a: long, b: long>"),
        summed("k; f.b AS p", schema="k long, f struct<a: long, b: long>"),
    ),
}

CHANGED: dict[str, tuple[Build, Build, str]] = {
    "of an aggregate": (
        summed("k; a AS p"),
        summed("k; b AS p"),
        "column 'p' of groupBy(k).agg(sum(p)) was column 'a' of its source, and is 'b' now, under the same name",
    ),
    "that changed places": (
        summed("k; a; b", kept="sum(a) - max(b)"),
        summed("k; a AS b; b AS a", kept="sum(a) - max(b)"),
        "of its source, and is ",
    ),
    "of more names, behind a filter": (
        lambda source: sums(source("k; a AS x", "k; x AS y").where("y > 1").selectExpr("k", "y AS p")),
        lambda source: sums(source("k; b AS x").where("x > 1").selectExpr("k", "x AS p")),
        "was column 'a' of its source, and is 'b' now",
    ),
    "of an expression": (
        summed("k; a AS p", kept="sum(p + 1)"),
        summed("k; b AS p", kept="sum(p + 2)"),
        "was column 'a' of its source, and is 'b' now",
    ),
    "of a group": (
        summed("k; a AS p"),
        summed("j AS k; a AS p"),
        "column 'k' of groupBy(k).agg(sum(p)) was column 'k' of its source, and is 'j' now",
    ),
    "of a window": (by_window("t"), by_window("u"), "was column 't' of its source, and is 'u' now"),
    "of duplicates": (
        lambda source: source("a AS p").dropDuplicates(["p"]),
        lambda source: source("b AS p").dropDuplicates(["p"]),
        "was column 'a' of its source, and is 'b' now",
    ),
    "of another stage's source": (
        behind("k; a AS p"),
        behind("k; b AS p"),
        "was column 'a ahead of clean' of its source, and is 'b ahead of clean' now, under the same name",
    ),
    "that changed places ahead of a channel": (
        behind("k; a; b", "k; a AS p"),
        behind("k; a AS b; b AS a", "k; a AS p"),
        "was column 'a ahead of clean' of its source",
    ),
    "that another stage computes": (
        behind("k; a + 1 AS x; b + 1 AS y", "k; x AS p"),
        behind("k; a + 1 AS x; b + 1 AS y", "k; y AS p"),
        "was column 'x of clean' of its source, and is 'y of clean' now",
    ),
    "that rows meet by": (
        met("k; t", "a AS z; t", "l.k = r.z"),
        met("k; t", "b AS z; t", "l.k = r.z"),
        "was column 'a' of its source, and is 'b' now",
    ),
    "of a union's first input": (
        united("k; a AS p"),
        lambda source: sums(source("k; b AS p").union(source("k; a AS p", folder="other"))),
        "was column 'a' of its source, and is 'b' now",
    ),
}


def test_a_column_of_a_state_may_be_renamed_but_not_be_another_one_of_its_source(
    source: Source, tmp_path: Path
) -> None:
    """One test for all, because only plans are made: no query runs."""

    def committed(name: str) -> StageDirectory:
        return StageDirectory(FakeQuery(tmp_path / name / "stage").commit(2).root)

    for name, (before, after) in SAME.items():
        stage = committed(f"same {name}")
        for build in (before, before, after, after):
            check_plan(UID, stage, build(source))
    for name, (before, after, said) in CHANGED.items():
        stage = committed(name)
        check_plan(UID, stage, before(source))
        with pytest.raises(ChangedQuery, match="cannot go on from its state") as refused:
            check_plan(UID, stage, after(source))
        assert said in str(refused.value), name
        assert str(refused.value).endswith(WAY_OUT)
        check_plan(UID, stage, before(source))


def test_a_plan_that_was_written_before_origins_were_is_taken_as_it_is(
    source: Source, tmp_path: Path
) -> None:
    stage = StageDirectory(FakeQuery(tmp_path / "stage").commit(2).root)
    check_plan(UID, stage, summed("k; a AS p")(source))
    written = json.loads(stage.plan.read_text())
    del written["origins"], written["source_columns"]
    stage.plan.write_text(json.dumps(written))
    check_plan(UID, stage, summed("k; b AS p")(source))
    with pytest.raises(ChangedQuery):
        check_plan(UID, stage, summed("k; a AS p")(source))
