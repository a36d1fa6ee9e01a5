"""Rows that come again whenever they change are not added up, and all others are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from dagster_ckpt import CheckpointedPipeline
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.directories import AttemptDirectory
from dagster_ckpt.spark.plan.refusals import refuse_counted_changes
from tests.lab.pipelines import sink, source, stage, wired

Combine = Callable[["DataFrame", "DataFrame"], "DataFrame"]
"""Of rows that may have changed, and of others."""
GROUPED = "groupBy(k).agg(sum(v))"


def pipeline(output_mode: Any = "update") -> CheckpointedPipeline:
    """orders → totals → passed → report, with prices beside it."""

    return wired(
        "reporting",
        source("orders", lambda spark: spark),
        stage("totals", lambda orders: orders, output_mode=output_mode),
        stage("passed", lambda totals: totals),
        source("prices", lambda spark: spark),
        sink("report", lambda passed, prices: passed),
    )


def attempt_in(folder: Path, **operators: str) -> AttemptDirectory:
    """An attempt whose stages have written down these operators."""
    attempt = AttemptDirectory(folder / "attempt-1")
    for uid in pipeline().stages:
        plan = attempt.stage(uid).plan
        plan.parent.mkdir(parents=True)
        plan.write_text(json.dumps({"operators": [operators[uid]] if uid in operators else []}))
    return attempt


def reported(
    spark: SparkSession, attempt: AttemptDirectory, combine: Combine, output_mode: str = "update"
) -> None:
    """Ask of the report, whose inputs are combined so. Raises InvalidRequest."""
    changing, final = (
        spark.readStream.format("rate").load().selectExpr("value AS k", f"value AS {v}") for v in "vw"
    )
    uid, read = StageUid("report"), [(StageUid("passed"), changing), (StageUid("prices"), final)]
    refuse_counted_changes(pipeline(output_mode), attempt, uid, combine(changing, final), read)


def as_rows(rows: DataFrame) -> DataFrame:
    return rows.toDF("k", "n")


def by_function(rows: DataFrame) -> DataFrame:
    def differences(key: Any, frames: Iterator[Any], state: Any) -> Iterator[Any]:
        yield from frames

    return rows.groupBy("k").applyInPandasWithState(
        differences, "k LONG, v LONG", "n LONG", "append", "NoTimeout"
    )


def asking(aggregate: str) -> Combine:
    def asked(changing: DataFrame, _: DataFrame) -> DataFrame:
        import pyspark.sql.functions as sf

        return changing.groupBy("k").agg(sf.expr(aggregate).alias("n"))

    return asked


ADDED: dict[str, Combine] = {
    "counted": lambda changing, _: changing.groupBy("k").count(),
    "filtered and summed": lambda changing, _: changing.where("v > 1").groupBy("k").sum("v"),
    **{
        name: asking(name)
        for name in ("count_if(v > 1)", "stddev(v)", "listagg('a')", "median(v)", "bit_xor(v)", "corr(v, k)")
    },
    "counted with others": lambda changing, final: as_rows(changing).union(as_rows(final)).groupBy().count(),
    "joined and counted": lambda changing, final: changing.join(final, "k").groupBy("k").count(),
    "counted, then told apart": lambda changing, _: changing.groupBy("k").count().dropDuplicates(["k"]),
}
NOT_ADDED: dict[str, Combine] = {
    "greatest": lambda changing, _: changing.groupBy("k").agg({"v": "max"}),
    **{
        name: asking(name)
        for name in (
            "max_by(k, v)",
            "first(v)",
            "any_value(v)",
            "bool_or(v > 1)",
            "every(v > 1)",
            "bit_or(v)",
        )
    },
    "passed on": lambda changing, _: changing,
    "told apart, then counted": lambda changing, _: changing.dropDuplicates(["k"]).groupBy().count(),
    "differences, then summed": lambda changing, _: by_function(changing).groupBy("k").sum("v"),
    "others counted beside them": lambda changing, final: as_rows(changing).union(
        as_rows(final.groupBy("k").count())
    ),
}


@pytest.mark.parametrize("combine", ADDED.values(), ids=ADDED)
def test_rows_that_may_come_again_are_not_added_up(
    spark: SparkSession, tmp_path: Path, combine: Combine
) -> None:
    attempt = attempt_in(tmp_path, totals=GROUPED)
    for mode in ("update", "complete"):
        with pytest.raises(
            InvalidRequest, match=rf"rows of stage 'totals', whose output_mode='{mode}' passes"
        ):
            reported(spark, attempt, combine, mode)
    reported(spark, attempt, combine, "append")
    for operator in (
        "dropDuplicates(k)",
        "TransformWithStateInPySpark(k)",
        "FlatMapGroupsInPandasWithState(k)",
    ):
        behind = attempt_in(tmp_path / operator, totals=GROUPED, passed=operator)
        reported(spark, behind, combine)
    with pytest.raises(InvalidRequest, match="rows of stage 'totals'"):
        reported(spark, attempt_in(tmp_path / "joined", totals=GROUPED, passed="join(k, Inner)"), combine)


@pytest.mark.parametrize("combine", NOT_ADDED.values(), ids=NOT_ADDED)
def test_whatever_is_not_added_up_may_come_again(
    spark: SparkSession, tmp_path: Path, combine: Combine
) -> None:
    reported(spark, attempt_in(tmp_path, totals=GROUPED), combine)
