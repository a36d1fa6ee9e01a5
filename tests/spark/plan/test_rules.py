"""A query goes on from its state only as long as its stateful operators and the order of its sources are the same."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.plan.errors import WAY_OUT, ChangedQuery
from dagster_ckpt.spark.plan.facts import facts_of
from dagster_ckpt.spark.plan.files import why_moved, written_again
from dagster_ckpt.spark.plan.rules import check_plan
from dagster_ckpt.spark.plan.sources import refuse_clean_source
from dagster_ckpt.spark.snapshot.capture import plan_capture
from tests.spark.snapshot.fake_checkpoint import FakeQuery
from tests.sweeps import third

UID = StageUid("totals")
Rows = Callable[[str], Any]
Build = Callable[[Rows], Any]


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path) -> Rows:
    def read(name: str) -> Any:
        (tmp_path / name).mkdir(exist_ok=True)
        spark.conf.set("test.folder", str(tmp_path / name))
        frame = spark.readStream.schema("k long, v long").json(str(tmp_path / name))
        return frame.selectExpr("k", "v", "timestamp_seconds(v) AS t").withWatermark("t", "5 seconds")

    return read


def sums(frame: Any, key: str = "k", kept: str = "max(v)") -> Any:
    import pyspark.sql.functions as sf

    return frame.groupBy(key).agg(sf.expr(kept).alias("x"))


def told_apart(frame: Any, *kept: str, behind: str = "*") -> Any:
    """Several aggregates, and what is selected of them."""
    import pyspark.sql.functions as sf

    return frame.groupBy("k").agg(*map(sf.expr, kept)).selectExpr(*behind.split("; "))


SUMS = ("sum(v) AS s", "sum(k) AS t")
CASES = ("count_if(v = 1) AS one", "count_if(v = 2) AS two")


def windowed(frame: Any, size: str, slide: str | None = None, column: str = "t") -> Any:
    import pyspark.sql.functions as sf

    return frame.groupBy(sf.window(column, size, slide), "k").count()


def in_sessions(frame: Any, column: str, gap: str = "5 seconds") -> Any:
    import pyspark.sql.functions as sf

    return frame.groupBy(sf.session_window(column, gap), "k").count()


def with_moments(frame: Any, watermark: str = "t") -> Any:
    """Rows with a second moment, and a watermark on one of both, or on none."""
    plain = frame.sparkSession.readStream.schema("k long, v long, w long").json(_folder(frame))
    moments = plain.selectExpr("k", "v", "timestamp_seconds(v) AS t", "timestamp_seconds(w) AS arrived")
    return moments.withWatermark(watermark, "5 seconds") if watermark else moments


def by_moment(frame: Any, moment: str) -> Any:
    """Rows with one of two moments of a source."""
    rows = frame.sparkSession.readStream.schema("k long, made timestamp, arrived timestamp").json(
        _folder(frame)
    )
    return rows.selectExpr("k", f"{moment} AS t").withWatermark("t", "5 seconds")


def _folder(frame: Any) -> str:
    return str(frame.sparkSession.conf.get("test.folder"))


def of_parts(frame: Any, part: str) -> Any:
    """Sums of a part of a value."""
    return sums(frame.selectExpr("k", "map('price', v, 'tax', k) AS m", "'{}' AS j"), kept=f"sum({part})")


def of_json(frame: Any, schema: str) -> Any:
    """A count of what JSON says."""
    return (
        frame.selectExpr("k AS key", f"from_json('{{}}', '{schema}') AS j")
        .selectExpr("j.k", "j.n")
        .groupBy("k")
        .count()
    )


def of_values(frame: Any, *values: str) -> Any:
    """State that is made of values."""
    return frame.selectExpr("v", "t", "DATE'2024-01-01' AS d").selectExpr(*values).dropDuplicates()


WITHOUT_MOMENTS = (
    "CAST(t AS LONG) AS seconds",
    "CAST(CAST(v + 1 AS TIMESTAMP) AS DOUBLE) AS other",
    "CAST(v + 1 AS STRING) AS text",
    "CAST('2024-01-01' AS DATE) AS day",
    "CAST(d AS STRING) AS as_text",
    "to_json(struct(v, d)) AS j",
)
"""What asks for no zone, though it carries one."""
WITHIN_AN_HOUR = "a.k = b.k AND a.t BETWEEN b.t AND b.t + INTERVAL 1 HOUR"

SMALLER, BOTH = "a.k = b.k AND a.v < b.v", "a.v + b.v AS sum"


def of_struct(frame: Any, fields: str) -> Any:
    """Rows with a struct of fields of one type."""
    return frame.selectExpr(
        "k", "v", "t", f"named_struct({fields}) AS s", f"array(named_struct({fields})) AS l"
    )


PRICED, COSTED = "'price', v, 'cost', k", "'cost', v, 'price', k"


def in_zone(zone: str, build: Build) -> Build:
    """The same in a session of another time zone."""

    def built(rows: Rows) -> Any:
        spark = rows("a").sparkSession
        spark.conf.set("spark.sql.session.timeZone", zone)
        try:
            frame = build(rows)
            frame._jdf.queryExecution().analyzed()
            return frame
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")

    return built


def by_pattern(frame: Any, *patterns: str, pace: int = 1) -> Any:
    """Rows of the files of one folder, each pattern of names read by a source of its own."""
    reader = frame.sparkSession.readStream.schema("k long").option("maxFilesPerTrigger", pace)
    one, other = (reader.option("pathGlobFilter", each).json(_folder(frame)) for each in patterns)
    return one.union(other)


def of_text(frame: Any, kind: str = "json") -> Any:
    """Rows whose moments are texts in a file."""
    return frame.sparkSession.readStream.format(kind).schema("k long, at timestamp").load(_folder(frame))


def by_window(frame: Any, size: str) -> Any:
    """The same, with the window in a column of its own."""
    import pyspark.sql.functions as sf

    return frame.withColumn("slot", sf.window("t", size)).groupBy("slot.start", "k").count()


def by_time(frame: Any, unit: str, run: str = "") -> Any:
    import pyspark.sql.functions as sf

    return frame.groupBy(sf.date_trunc(unit, "t"), sf.lit(run).alias("run")).count()


def matched(one: Any, other: Any, how: str = "inner", on: str = "a.k = b.k", kept: str = "a.k AS k") -> Any:
    import pyspark.sql.functions as sf

    near = sf.expr(f"{on} AND a.t < b.t + interval 5 seconds AND a.t > b.t")
    return one.alias("a").join(other.alias("b"), near, how).selectExpr(kept)


def priced(frame: Any) -> Any:
    """Rows with two columns of one type."""
    return frame.selectExpr("k", "t", "v AS price", "v + 1 AS cost")


def with_names(frame: Any, kept: str) -> Any:
    """Sums of rows that have two columns of one name."""
    others = frame.sparkSession.range(3).selectExpr("id AS k", "id AS v")
    return sums(frame.alias("a").join(others.alias("b"), "k"), kept=kept)


def in_sql(frame: Any, text: str) -> Any:
    return frame.sparkSession.sql(text, rows=frame)


def with_state(frame: Any, fields: str) -> Any:
    from pyspark.sql.streaming.state import GroupStateTimeout

    def nothing(key: Any, rows: Any, state: Any) -> Any:
        raise AssertionError("no query runs")

    grouped = frame.groupBy("k")
    return grouped.applyInPandasWithState(nothing, "k long", fields, "update", GroupStateTimeout.NoTimeout)


def in_branches(frame: Any, one: str, other: str) -> Any:
    """Greatest values of two parts of the rows."""
    return sums(frame.where(one)).union(sums(frame.where(other)))


def sf_expr(text: str) -> Any:
    import pyspark.sql.functions as sf

    return sf.expr(text)


def of(build: Callable[..., Any], *given: Any, **more: Any) -> Build:
    """What is built of the rows of the first folder."""
    return lambda rows: build(rows("a"), *given, **more)


def committed(tmp_path: Path) -> StageDirectory:
    """A stage whose query has committed batches."""
    return StageDirectory(FakeQuery(tmp_path / "stage").commit(2).root)


SAME: dict[str, tuple[Build, Build]] = {
    "filters, names of results and values": (
        of(sums, kept="sum(v + 1)"),
        lambda rows: sums(rows("a").where("v > 3"), kept="sum(v + 2)").withColumnRenamed("x", "y"),
    ),
    "other values of aggregates, and another part of a distribution": (
        of(told_apart, *CASES, "percentile(v, 0.5) AS p", "percentile(v, 0.9) AS q"),
        of(
            told_apart,
            "count_if(v = 0) AS one",
            CASES[1],
            "percentile(v, 0.9) AS q",
            "percentile(v, 0.5) AS p",
        ),
    ),
    "other results of the same aggregates": (
        of(told_apart, *SUMS, behind="k; s; t"),
        lambda rows: told_apart(rows("a"), *SUMS, "sum(v) AS u", behind="s AS x; t / s AS y; k; u").where(
            "x > 1"
        ),
    ),
    "an aggregate more that nothing asks for": (
        of(told_apart, *SUMS, behind="k; s; t"),
        of(told_apart, *SUMS, "sum(v) AS u", behind="k; s; t"),
    ),
    "a static side": (
        lambda rows: rows("a").join(rows("a").sparkSession.range(3).groupBy("id").count(), sf_expr("k = id")),
        lambda rows: rows("a").join(rows("a").sparkSession.range(3), sf_expr("k = id")),
    ),
    "the same value for all rows": (of(by_time, "hour", "of yesterday"), of(by_time, "hour", "of today")),
    "another name of UTC": (in_zone("Etc/UTC", of(by_time, "hour")), of(by_time, "hour")),
    "another zone where no calendar is asked": (
        in_zone("Asia/Tokyo", of(windowed, "10 seconds")),
        of(windowed, "10 seconds"),
    ),
    "another zone where sessions end after minutes": (
        in_zone("Asia/Tokyo", of(in_sessions, "t", "5 minutes")),
        of(in_sessions, "t", "5 minutes"),
    ),
    "another zone where rows of an hour meet": (
        in_zone("Asia/Tokyo", lambda rows: matched(rows("a"), rows("b"), on=WITHIN_AN_HOUR)),
        lambda rows: matched(rows("a"), rows("b"), on=WITHIN_AN_HOUR),
    ),
    "another zone where JSON without moments is read": (
        in_zone("Asia/Tokyo", of(of_json, "k LONG, n STRING")),
        of(of_json, "k LONG, n STRING"),
    ),
    "another zone where no moment is made or told": (
        in_zone("Asia/Tokyo", of(of_values, *WITHOUT_MOMENTS)),
        of(of_values, *WITHOUT_MOMENTS),
    ),
    "another zone without state": (
        in_zone("Asia/Tokyo", lambda rows: rows("a").selectExpr("date_trunc('day', t)")),
        lambda rows: rows("a").selectExpr("date_trunc('day', t)"),
    ),
    "another zone in which results are written": (
        in_zone("Asia/Tokyo", lambda rows: sums(rows("a"), kept="max(t)").selectExpr("date_format(x, 'HH')")),
        lambda rows: sums(rows("a"), kept="max(t)").selectExpr("date_format(x, 'HH')"),
    ),
    "other rows of a branch": (of(in_branches, "v < 3", "v >= 3"), of(in_branches, "v < 4", "v >= 4")),
    "a watermark more": (of(sums), lambda rows: sums(rows("a").withWatermark("t", "9 seconds"))),
    "a watermark on another moment where none bounds the state": (
        lambda rows: sums(with_moments(rows("a"))),
        lambda rows: sums(with_moments(rows("a"), "arrived")),
    ),
    "another folder": (lambda rows: rows("a").union(rows("b")), lambda rows: rows("a").union(rows("c"))),
    "another pace and pattern of files": (
        of(by_pattern, "*.eu", "*.us"),
        of(by_pattern, "*.eu", "*.uk", pace=7),
    ),
    "the same source twice": (of(by_pattern, "*.eu", "*.eu"), of(by_pattern, "*.eu", "*.eu", pace=7)),
    "a column more, of a name that another one has": (
        lambda rows: matched(rows("a"), rows("b").withColumnRenamed("k", "id"), on="a.k = b.id"),
        lambda rows: matched(
            rows("a"), rows("b").withColumnRenamed("k", "id").withColumn("k", sf_expr("v")), on="a.k = b.id"
        ),
    ),
    "columns that a join does not keep, and other names of its results": (
        lambda rows: matched(rows("a"), rows("b"), kept="a.v AS x"),
        lambda rows: matched(rows("a").withColumn("more", sf_expr("v + 1")), rows("b"), kept="a.v AS y"),
    ),
    "other fields of structs of which nothing is kept, or one field": (
        lambda rows: told_apart(of_struct(rows("a"), PRICED), "max(s.cost) AS x", "count(s) AS n"),
        lambda rows: told_apart(
            of_struct(rows("a"), f"'more', v, {COSTED}"), "max(s.cost) AS x", "count(s) AS n"
        ),
    ),
    "how near rows must be": (
        lambda rows: matched(rows("a"), rows("b")),
        lambda rows: matched(rows("a").where("k > 1"), rows("b")),
    ),
    "another condition and bound of an inner join": (
        lambda rows: matched(rows("a"), rows("b"), kept=BOTH),
        lambda rows: matched(
            rows("a"), rows("b"), on=f"{SMALLER} AND a.t < b.t - INTERVAL 1 HOUR", kept=BOTH
        ),
    ),
    "a filter behind groups on what they hold": (
        lambda rows: sums(rows("a")).where("x > 1 AND k > 1"),
        lambda rows: sums(rows("a")).where("x > 2 AND x < k AND k > 2"),
    ),
}
CHANGED: dict[str, tuple[Build, Build, str]] = {
    "another key of the same type": (
        of(sums),
        of(sums, "v"),
        "made by groupBy(k).agg(max(v)), the stage has groupBy(v).agg(max(v)) now",
    ),
    "another aggregate of the same type": (of(sums), of(sums, kept="min(v)"), "groupBy(k).agg(min(v)) now"),
    "two counts that have changed places": (
        of(told_apart, *CASES),
        of(told_apart, *reversed(CASES)),
        "what the stage uses of its groups is countif(equalto(v, cast(2))), countif(equalto(v, cast(1))) now",
    ),
    "two filtered counts that have changed places": (
        of(told_apart, *(f"count(*) FILTER (WHERE v = {n}) AS c{n}" for n in (1, 2))),
        of(told_apart, *(f"count(*) FILTER (WHERE v = {n}) AS c{n}" for n in (2, 1))),
        "it keeps count(1), equalto(v, cast(1)), count(1), equalto(v, cast(2))",
    ),
    "another aggregate that is used behind the groups": (
        of(told_apart, *SUMS, behind="k; s AS x"),
        of(told_apart, *SUMS, behind="k; t AS x"),
        "it keeps sum(v) of each group, and what the stage uses of its groups is sum(k) now",
    ),
    "branches that have changed places": (
        of(in_branches, "v < 3", "v >= 3"),
        of(in_branches, "v >= 3", "v < 3"),
        "one of groupBy(k).agg(max(v)) has the rows now that another one of its operators had",
    ),
    "a first value that is not null": (
        of(told_apart, "first(v) AS x"),
        of(told_apart, "first(v) IGNORE NULLS AS x"),
        "the stage has groupBy(k).agg(first(v, ignoreNulls=True)) now",
    ),
    "another column of the rows that a join keeps, under the same name": (
        lambda rows: matched(priced(rows("a")), rows("b"), kept="a.price AS x"),
        lambda rows: matched(rows("a").selectExpr("k", "t", "k AS price"), rows("b"), kept="a.price AS x"),
        "column 'left price' of join(equalto(k, k), Inner) was column 'v' of its source, and is 'k' now",
    ),
    "another column of the rows that a function has, under the same name": (
        lambda rows: with_state(rows("a").selectExpr("k", "v AS x"), "seen long"),
        lambda rows: with_state(rows("a").selectExpr("k", "k AS x"), "seen long"),
        "column 'x' of FlatMapGroupsInPandasWithState(k) was column 'v' of its source, and is 'k' now",
    ),
    "another precision of a count of distinct values": (
        of(sums, kept="approx_count_distinct(v)"),
        of(sums, kept="approx_count_distinct(v, 0.2)"),
        "agg(hyperloglogplusplus(v, relativeSD=0.2)) now",
    ),
    "another field of structs in an array": (
        lambda rows: sums(of_struct(rows("a"), PRICED), kept="collect_list(l.price)"),
        lambda rows: sums(of_struct(rows("a"), PRICED), kept="collect_list(l.cost)"),
        "(l, cost)",
    ),
    "duplicates within a watermark on another moment under the same name": (
        lambda rows: by_moment(rows("a"), "made").dropDuplicatesWithinWatermark(["k"]),
        lambda rows: by_moment(rows("a"), "arrived").dropDuplicatesWithinWatermark(["k"]),
        "column 't' of dropDuplicatesWithinWatermark(k) was column 'made' of its source, and is 'arrived' now",
    ),
    "a filter behind a join on one side": (
        lambda rows: matched(rows("a"), rows("b")),
        lambda rows: matched(rows("a"), rows("b"), kept="a.k + 1 AS k").where("k > 1"),
        "the rows of it were those with no condition, and Spark would ask greaterthan(k, ",
    ),
    "a filter behind groups on their keys": (
        lambda rows: sums(rows("a")).where("k > 1 AND x > 2"),
        lambda rows: sums(rows("a")).where("x > 2"),
        "were those with greaterthan(k, cast(?)), and Spark would ask no condition of new",
    ),
    "aggregates that are used in another order": (
        of(told_apart, *SUMS, behind="k; s; t"),
        of(told_apart, *SUMS, behind="k; t; s"),
        "what the stage uses of its groups is sum(k), sum(v) now",
    ),
    "a filter that uses one more of them": (
        of(told_apart, *SUMS, behind="k; t"),
        lambda rows: told_apart(rows("a"), *SUMS).where("s > 1").select("k", "t"),
        "what the stage uses of its groups is sum(v), sum(k) now",
    ),
    "fields of a struct that have changed places": (
        lambda rows: told_apart(of_struct(rows("a"), PRICED), "max_by(struct(s, v), v) AS x"),
        lambda rows: told_apart(of_struct(rows("a"), COSTED), "max_by(struct(s, v), v) AS x"),
        "'s' in it has the fields (price, cost), and has (cost, price) now",
    ),
    "a field that has taken another one's place": (
        lambda rows: told_apart(of_struct(rows("a"), PRICED), "collect_list(l) AS x"),
        lambda rows: told_apart(of_struct(rows("a"), "'price', v, 'tax', k"), "collect_list(l) AS x"),
        "'l' in it has the fields (price, cost), and has (price, tax) now",
    ),
    "fields of keys that have changed places": (
        lambda rows: of_struct(rows("a"), PRICED).groupBy("s").count(),
        lambda rows: of_struct(rows("a"), COSTED).groupBy("s").count(),
        "'s' in it has the fields",
    ),
    "fields of what rows are told apart by": (
        lambda rows: of_struct(rows("a"), PRICED).dropDuplicates(["l"]),
        lambda rows: of_struct(rows("a"), COSTED).dropDuplicates(["l"]),
        "'l' in it has the fields",
    ),
    "fields of distinct rows": (
        lambda rows: of_struct(rows("a"), PRICED).select("s").distinct(),
        lambda rows: of_struct(rows("a"), COSTED).select("s").distinct(),
        "'s' in it has the fields",
    ),
    "fields of rows that a join keeps": (
        lambda rows: matched(of_struct(rows("a"), PRICED), rows("b"), kept="a.s AS s"),
        lambda rows: matched(of_struct(rows("a"), COSTED), rows("b"), kept="a.s AS s"),
        "'s' in it has the fields",
    ),
    "another size of windows": (of(windowed, "10 seconds"), of(windowed, "20 seconds"), "20000000"),
    "another size of windows in a column of their own": (
        of(by_window, "10 seconds"),
        of(by_window, "20 seconds"),
        "20000000",
    ),
    "another size of windows that overlap": (
        of(windowed, "10 seconds", "5 seconds"),
        of(windowed, "20 seconds", "5 seconds"),
        "20000000",
    ),
    "windows of another moment": (
        lambda rows: windowed(with_moments(rows("a")), "10 seconds"),
        lambda rows: windowed(with_moments(rows("a")), "10 seconds", column="arrived"),
        "window(arrived, ",
    ),
    "windows of another moment that overlap": (
        lambda rows: windowed(with_moments(rows("a")), "10 seconds", "5 seconds"),
        lambda rows: windowed(with_moments(rows("a")), "10 seconds", "5 seconds", column="arrived"),
        "window(arrived, ",
    ),
    "sessions of another moment": (
        lambda rows: in_sessions(with_moments(rows("a")), "t"),
        lambda rows: in_sessions(with_moments(rows("a")), "arrived"),
        "session_window(arrived",
    ),
    "another gap of sessions": (of(in_sessions, "t"), of(in_sessions, "t", "9 seconds"), "9 seconds"),
    "another gap of sessions in SQL": (
        lambda rows: rows("a").groupBy(sf_expr("session_window(t, '5 seconds')"), "k").count(),
        lambda rows: rows("a").groupBy(sf_expr("session_window(t, '9 seconds')"), "k").count(),
        "9 seconds",
    ),
    "a watermark on another moment": (
        lambda rows: with_moments(rows("a")).dropDuplicates(["k", "t", "arrived"]),
        lambda rows: with_moments(rows("a"), "arrived").dropDuplicates(["k", "t", "arrived"]),
        "its watermark was of t and is of arrived now",
    ),
    "days of another time zone": (
        in_zone("Asia/Tokyo", of(by_time, "day")),
        of(by_time, "day"),
        "those of the time zone Asia/Tokyo, and the session's is UTC now: set spark.sql.session.timeZone back",
    ),
    "days of another time zone in a column of their own": (
        in_zone(
            "Asia/Tokyo", lambda rows: sums(rows("a").withColumn("day", sf_expr("CAST(t AS DATE)")), "day")
        ),
        lambda rows: sums(rows("a").withColumn("day", sf_expr("CAST(t AS DATE)")), "day"),
        "those of the time zone Asia/Tokyo",
    ),
    "sessions of days in another time zone": (
        in_zone("Asia/Tokyo", of(in_sessions, "t", "1 day")),
        of(in_sessions, "t", "1 day"),
        "those of the time zone Asia/Tokyo",
    ),
    "rows of a day that meet in another time zone": (
        in_zone(
            "Asia/Tokyo",
            lambda rows: matched(rows("a"), rows("b"), on="a.k = b.k AND a.t > b.t - INTERVAL 1 DAY"),
        ),
        lambda rows: matched(rows("a"), rows("b"), on="a.k = b.k AND a.t > b.t - INTERVAL 1 DAY"),
        "those of the time zone Asia/Tokyo",
    ),
    "moments of JSON in another time zone": (
        in_zone("Asia/Tokyo", of(of_json, "k LONG, n TIMESTAMP")),
        of(of_json, "k LONG, n TIMESTAMP"),
        "those of the time zone Asia/Tokyo",
    ),
    **{
        f"{value} in another time zone": (
            in_zone("Asia/Tokyo", lambda rows, value=value: of_values(rows("a"), value)),
            lambda rows, value=value: of_values(rows("a"), value),
            "those of the time zone Asia/Tokyo",
        )
        for value in (
            "CAST(t AS STRING) AS x",
            "CAST(d AS TIMESTAMP) AS x",
            "CAST(upper('2024-01-01') AS TIMESTAMP) AS x",
            "CAST(timestamp_seconds(v) AS STRING) AS x",
            "CAST(t AS DATE) AS x",
            "CAST(struct(t) AS STRING) AS x",
            "CAST(array('2024-01-01') AS ARRAY<TIMESTAMP>) AS x",
            "to_json(struct(t)) AS x",
        )
    },
    "another part of a map": (of(of_parts, "m['price']"), of(of_parts, "m['tax']"), "(m, tax)"),
    "another part of a text": (
        of(of_parts, "get_json_object(j, '$.price')"),
        of(of_parts, "get_json_object(j, '$.tax')"),
        "(j, $.tax)",
    ),
    "another key of a join that takes nulls for equal": (
        lambda rows: matched(rows("a"), rows("b"), on="a.k <=> b.k"),
        lambda rows: matched(rows("a"), rows("b"), on="a.k <=> b.v"),
        "join(equalnullsafe(k, v), Inner) now",
    ),
    "another column that a join keeps": (
        lambda rows: matched(priced(rows("a")), rows("b"), kept="a.price AS x"),
        lambda rows: matched(priced(rows("a")), rows("b"), kept="a.cost AS x"),
        "has the columns of join of (k, t, price) with (k, t), the stage has join of (k, t, cost) with (k, t) now",
    ),
    "columns that a join keeps in another order": (
        lambda rows: matched(priced(rows("a")).select("k", "t", "price", "cost"), rows("b"), kept="a.*"),
        lambda rows: matched(priced(rows("a")).select("k", "t", "cost", "price"), rows("b"), kept="a.*"),
        "(k, t, cost, price)",
    ),
    "the other side's key of a join": (
        lambda rows: matched(rows("a"), rows("b"), on="a.k = b.v"),
        lambda rows: matched(rows("a"), rows("b"), on="b.k = a.v"),
        "join on left k, right v, the stage has join on left v, right k now",
    ),
    "the other side's column of one name": (
        of(with_names, "sum(a.v)"),
        of(with_names, "sum(b.v)"),
        "has the columns of nothing, the stage has v 2 now",
    ),
    "duplicates by the same columns in another order": (
        lambda rows: rows("a").dropDuplicates(["k", "v"]),
        lambda rows: rows("a").dropDuplicates(["v", "k"]),
        "deduplicate(k, v), the stage has deduplicate(v, k) now",
    ),
    "duplicates of all columns in another order": (
        lambda rows: rows("a").select("k", "v").dropDuplicates(),
        lambda rows: rows("a").select("v", "k").dropDuplicates(),
        "deduplicate(k, v), the stage has deduplicate(v, k) now",
    ),
    "other columns of DISTINCT": (
        of(in_sql, "SELECT DISTINCT k, v FROM {rows}"),
        of(in_sql, "SELECT DISTINCT v, k FROM {rows}"),
        "distinct(k, v), the stage has distinct(v, k) now",
    ),
    "another column of DISTINCT under the same name": (
        of(in_sql, "SELECT DISTINCT k, v AS x FROM {rows}"),
        of(in_sql, "SELECT DISTINCT k, k AS x FROM {rows}"),
        "distinct(k, v), the stage has distinct(k, k) now",
    ),
    "more groupings of the same columns": (
        lambda rows: rows("a").rollup("k", "v").count(),
        lambda rows: rows("a").cube("k", "v").count(),
        "grouping sets",
    ),
    "fields of a state in another order": (
        of(with_state, "seen long, total long"),
        of(with_state, "total long, seen long"),
        "state(seen, total), the stage has state(total, seen) now",
    ),
    "another unit of time": (of(by_time, "hour"), of(by_time, "day"), "(day, t)"),
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
    "another condition of an outer join": (
        lambda rows: matched(rows("a"), rows("b"), how="left_outer", kept=BOTH),
        lambda rows: matched(rows("a"), rows("b"), how="left_outer", on=SMALLER, kept=BOTH),
        "AND lessthan(left v, right v)",
    ),
    "the other way round": (
        lambda rows: matched(rows("a"), rows("b"), how="full_outer", on=SMALLER, kept=BOTH),
        lambda rows: matched(rows("a"), rows("b"), how="full_outer", on="a.k = b.k AND b.v < a.v", kept=BOTH),
        "lessthan(right v, left v)",
    ),
    "another bound of an outer join": (
        lambda rows: matched(rows("a"), rows("b"), how="full_outer", on=WITHIN_AN_HOUR),
        lambda rows: matched(
            rows("a"), rows("b"), how="full_outer", on=WITHIN_AN_HOUR.replace("1 HOUR", "2 HOURS")
        ),
        "it holds which of them have met none",
    ),
    "other duplicates": (
        lambda rows: rows("a").dropDuplicates(["k"]),
        lambda rows: rows("a").dropDuplicates(["v"]),
        "made by dropDuplicates(k), the stage has dropDuplicates(v) now",
    ),
    "an operator that is gone": (
        lambda rows: sums(rows("a").dropDuplicates(["k", "t"])),
        of(sums),
        "the stage has groupBy(k).agg(max(v)) now",
    ),
    "sources in another order": (
        lambda rows: rows("a").union(rows("b")),
        lambda rows: rows("b").union(rows("a")),
        "the order of its sources was",
    ),
    "sources of one folder in another order": (
        of(by_pattern, "*.eu", "*.us"),
        of(by_pattern, "*.us", "*.eu", pace=7),
        "the order of its sources was another one",
    ),
    "sources that have moved on by one": (
        lambda rows: rows("a").union(rows("b")),
        lambda rows: rows("b").union(rows("c")),
        "the order of its sources was",
    ),
}


def test_what_state_depends_on_may_not_change_and_all_else_may(rows: Rows, tmp_path: Path) -> None:
    """One test for all, because only plans are made: no query runs."""
    for name, (before, after) in third(SAME.items()):
        stage = committed(tmp_path / "same" / name)
        check_plan(UID, stage, before(rows))
        check_plan(UID, stage, before(rows))
        check_plan(UID, stage, after(rows))
    for name, (before, after, said) in third(CHANGED.items()):
        stage = committed(tmp_path / name)
        check_plan(UID, stage, before(rows))
        with pytest.raises(ChangedQuery, match="cannot go on from its") as refused:
            check_plan(UID, stage, after(rows))
        assert said in str(refused.value), name
        assert str(refused.value).endswith(WAY_OUT)
        check_plan(UID, stage, before(rows))


def test_another_type_of_a_field_of_a_groups_own_state_is_told_where_only_plans_are_compared(
    rows: Rows,
) -> None:
    facts = [
        facts_of(with_state(rows("a"), f"total {kind}"), output_mode="update") for kind in ("LONG", "DOUBLE")
    ]
    told = [set(one.state_types or ()) for one in facts if one is not None]
    assert told[0] ^ told[1] == {'state.total "long"', 'state.total "double"'}


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


@pytest.fixture
def set_zone(spark: SparkSession) -> Iterator[Callable[[str], None]]:
    """Sets the session's time zone; empty: to nothing, so that it is the machine's."""
    key = "spark.sql.session.timeZone"
    before = spark.conf.get(key)
    yield (
        lambda zone: (
            spark.conf.set(key, zone) if zone else spark._jsparkSession.sessionState().conf().unsetConf(key)
        )
    )
    spark.conf.set(key, before)


def test_another_zone_is_refused_where_only_the_machine_has_another_one(
    rows: Rows, tmp_path: Path, set_zone: Callable[[str], None]
) -> None:
    """Rows without state as well: what was 10:00 before a pipeline moved to another machine was so no more after it."""
    builds: list[Build] = [
        lambda rows: of_text(rows("a")),
        lambda rows: rows("a").selectExpr("CAST('2024-01-01 10:00:00' AS TIMESTAMP) AS at"),
        lambda rows: rows("a").selectExpr("date_trunc('day', t) AS at"),
    ]
    for number, build in enumerate(builds):
        stage = committed(tmp_path / str(number))
        set_zone("Asia/Tokyo")
        check_plan(UID, stage, build(rows))
        set_zone("")
        with pytest.raises(
            ChangedQuery, match=r"in the time zone Asia/Tokyo, and .* now, this machine's, as none is"
        ):
            check_plan(UID, stage, build(rows))
        set_zone("Europe/Berlin")
        check_plan(UID, stage, build(rows))  # somebody has said so
    stage = committed(tmp_path / "parquet")
    set_zone("Asia/Tokyo")
    check_plan(UID, stage, of_text(rows("a"), "parquet"))
    set_zone("")
    check_plan(UID, stage, of_text(rows("a"), "parquet"))  # a moment there is one everywhere


def test_state_that_is_made_of_moments_in_text_goes_on_in_its_zone_only(
    rows: Rows, tmp_path: Path, set_zone: Callable[[str], None]
) -> None:
    stage = committed(tmp_path)
    set_zone("Asia/Tokyo")
    check_plan(UID, stage, of_text(rows("a")).dropDuplicates(["at"]))
    set_zone("UTC")
    with pytest.raises(ChangedQuery, match="those of the time zone Asia/Tokyo, and the session's is UTC now"):
        check_plan(UID, stage, of_text(rows("a")).dropDuplicates(["at"]))


def test_state_without_the_moments_of_its_rows_goes_on_in_another_zone(
    rows: Rows, tmp_path: Path, set_zone: Callable[[str], None]
) -> None:
    """Beside its keys and aggregates nothing of a row is kept; a join keeps what is needed behind it."""

    def met(kept: str) -> Build:
        return lambda rows: (
            of_text(rows("a")).alias("a").join(rows("b").alias("b"), sf_expr("a.k = b.k")).selectExpr(kept)
        )

    def bounded(rows: Rows) -> Any:
        return of_text(rows("a")).withWatermark("at", "5 seconds").dropDuplicatesWithinWatermark(["k"])

    goes_on: list[Build] = [
        lambda rows: of_text(rows("a")).groupBy("k").count(),
        lambda rows: of_text(rows("a")).withWatermark("at", "5 seconds").groupBy("k").count(),
        lambda rows: of_text(rows("a")).selectExpr("k", "to_date(at) AS day").dropDuplicates(["k"]),
        lambda rows: (
            rows("a").withColumn("day", sf_expr("to_date(t)")).select("day", "k").groupBy("k").count()
        ),
        lambda rows: with_names(of_text(rows("a")).selectExpr("k", "k AS v", "at"), "sum(a.v)"),
        met("a.k"),
    ]
    is_refused: list[Build] = [
        lambda rows: of_text(rows("a")).selectExpr("k", "at AS x").groupBy("k").agg(sf_expr("max(x)")),
        lambda rows: of_text(rows("a")).where("at > '2024-01-01'").groupBy("k").count(),
        lambda rows: of_text(rows("a")).union(of_text(rows("b"))).groupBy("k").agg(sf_expr("max(at)")),
        bounded,
        met("a.at"),
    ]
    for number, build in enumerate([*goes_on, *is_refused]):
        stage = committed(tmp_path / str(number))
        set_zone("Asia/Tokyo")
        check_plan(UID, stage, build(rows))
        set_zone("UTC")
        if build in goes_on:
            check_plan(UID, stage, build(rows))
            continue
        with pytest.raises(ChangedQuery, match="those of the time zone Asia/Tokyo"):
            check_plan(UID, stage, build(rows))


@pytest.mark.parametrize(
    ("was", "now", "is_refused"),
    [
        ("append", "update", "leave out groups that are open"),
        ("append", "complete", "leave out groups that were closed"),
        ("update", "complete", "leave out groups that were closed"),
        ("update", "append", ""),
        ("complete", "update", ""),
    ],
)
def test_another_output_mode_that_would_leave_groups_out_is_refused(
    rows: Rows, tmp_path: Path, was: str, now: str, is_refused: str
) -> None:
    """A window that was open in append mode never came in update mode, unless another row of it did."""
    grouped, ungrouped = committed(tmp_path / "grouped"), committed(tmp_path / "ungrouped")
    check_plan(UID, grouped, windowed(rows("a"), "10 seconds"), output_mode=was)
    check_plan(UID, ungrouped, rows("a").dropDuplicates(["k"]), output_mode=was)
    check_plan(UID, ungrouped, rows("a").dropDuplicates(["k"]), output_mode=now)
    if not is_refused:
        check_plan(UID, grouped, windowed(rows("a"), "10 seconds"), output_mode=now)
        return
    with pytest.raises(ChangedQuery, match=is_refused):
        check_plan(UID, grouped, windowed(rows("a"), "10 seconds"), output_mode=now)
    check_plan(UID, grouped, windowed(rows("a"), "10 seconds"), output_mode=was)


def test_groups_that_no_watermark_has_closed_are_all_there_in_complete_mode(
    rows: Rows, tmp_path: Path
) -> None:
    """What counts is the watermark that the groups were made with, and whether it is theirs."""
    open_ones, closed = committed(tmp_path / "open"), committed(tmp_path / "closed")
    check_plan(UID, open_ones, sums(rows("a")), output_mode="update")
    check_plan(UID, open_ones, sums(rows("a")), output_mode="complete")
    check_plan(UID, closed, windowed(with_moments(rows("a")), "10 seconds"), output_mode="update")
    with pytest.raises(ChangedQuery, match="leave out groups that were closed"):
        check_plan(UID, closed, windowed(with_moments(rows("a"), ""), "10 seconds"), output_mode="complete")


def test_files_that_were_moved_are_not_read_a_second_time(spark: SparkSession, tmp_path: Path) -> None:
    """Of a folder without a pattern Spark refuses it itself; of others it read all rows again."""

    def source(folder: str) -> Any:
        return spark.readStream.schema("k long").json(str(tmp_path / folder / "*.json"))

    stage = committed(tmp_path)
    for name in ("in box", "landing", "archive"):
        (tmp_path / name).mkdir()
    for number in range(3):
        read = tmp_path / "in box" / f"{number}.json"
        read.write_text('{"k": 1}')
        log = stage.query / "sources" / "0" / str(number)
        log.parent.mkdir(parents=True, exist_ok=True)
        entry = {"path": read.as_uri(), "timestamp": read.stat().st_mtime_ns // 1_000_000, "batchId": number}
        log.write_text(f"v1\n{json.dumps(entry)}")
    check_plan(UID, stage, source("in box"))
    check_plan(UID, stage, source("landing"))  # new files in a new folder
    check_plan(UID, stage, source("in box"))
    (tmp_path / "in box" / "1.json").rename(tmp_path / "landing" / "1.json")
    (tmp_path / "in box" / "2.json").rename(tmp_path / "archive" / "2.json")
    with pytest.raises(ChangedQuery, match=r"in box/1.json, which was read, lies at .*/landing/1.json now"):
        check_plan(UID, stage, source("landing"))
    check_plan(UID, stage, source("in box"))
    check_plan(UID, stage, spark.readStream.schema("k long").json(f"{tmp_path}/landing/../in box/*.js*"))
    check_plan(UID, stage, source("in box"))
    (tmp_path / "linked").symlink_to(tmp_path / "in box")
    with pytest.raises(ChangedQuery, match=r"in box/0.json, which was read, lies at .*/linked/0.json now"):
        check_plan(UID, stage, source("linked"))
    (tmp_path / "copy").mkdir()
    shutil.copy2(tmp_path / "in box" / "0.json", tmp_path / "copy")
    with pytest.raises(ChangedQuery, match=r"in box/0.json, which was read, lies at .*/copy/0.json now"):
        check_plan(UID, stage, source("copy"))
    (tmp_path / "landing" / "1.json").write_text('{"k": 2}')
    os.utime(tmp_path / "landing" / "1.json", (1.7e9, 1.7e9))
    check_plan(UID, stage, source("landing"))  # another file of that name
    assert written_again(stage.query) == []
    os.utime(tmp_path / "in box" / "0.json", (1.7e9, 1.7e9))
    assert written_again(stage.query) == [str(tmp_path / "in box" / "0.json")]


@pytest.mark.parametrize(
    ("was", "now", "is_the_same"),
    [
        ("s3a://lake/in/*.json", "s3://lake/in/*.json", True),
        ("abfss://box@account/in/2*", "abfs://box@account/in/20*", True),
        ("s3a://lake/in/*.json", "s3://pond/in/*.json", False),
        ("s3a://lake/in/*.json", "s3://lake/out/*.json", False),
        ("s3a://lake/in/*.json", "gs://lake/in/*.json", False),
    ],
)
def test_a_bucket_under_another_scheme_has_the_files_that_were_read(
    tmp_path: Path, was: str, now: str, is_the_same: bool
) -> None:
    """By a pattern Spark read all of them again."""
    entry = {"path": f"{was.rpartition('/')[0]}/2024.json", "timestamp": 1, "batchId": 0}
    log = tmp_path / "sources" / "0" / "0"
    log.parent.mkdir(parents=True)
    log.write_text(f"v1\n{json.dumps(entry)}")
    found = why_moved(tmp_path, [f"FileSource[{was}]"], [f"FileSource[{now}]"])
    assert ("2024.json, which was read, is " in found) == is_the_same
    assert not why_moved(tmp_path, [f"FileSource[{was}]"], [f"FileSource[{was}]"])


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
