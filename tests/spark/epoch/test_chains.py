"""Epoch runs whose stages run as one query: Dagster shows the stages, rows are exact, a restore keeps the chains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt import CheckpointedPipeline, spark_source, spark_stage
from dagster_ckpt.dagster.names import restore_job_name
from tests.lab.lab import Lab
from tests.lab.pipelines import sink, wired
from tests.spark.epoch.small_pipeline import Feed, shop
from tests.tables import rows_in

CHAINED = pytest.mark.parametrize("lab", [{"operator_chaining": True}], indirect=True)


@CHAINED
def test_stages_of_a_chain_are_ops_and_one_query(lab: Lab, tmp_path: Path) -> None:
    """The join keeps state and is read twice: it is where the chain of both sources ends."""
    feed = Feed(tmp_path)
    pipeline = shop(tmp_path)
    feed.customer("ann", "nl")
    feed.order(("ann", 3), ("bob", 4))
    result = lab.succeeds(pipeline)
    assert {e.step_key for e in result.get_step_success_events()} >= {
        "orders",
        "customers",
        "matched",
        "lines",
    }
    feed.customer("bob", "be")
    feed.order(("bob", 5), ("ann", 6))
    lab.succeeds(pipeline)
    feed.check(lab.tables)
    saved = lab.metadata(pipeline, 2)
    assert [set(chain.stages) for chain in saved.chains] == [{"orders", "customers", "matched"}]
    assert {stage.uid for stage in saved.stages} == {"matched", "lines", "totals"}

    feed.order(("ann", 7))
    assert lab.run(pipeline, restore_from="chk-1").success, "back to the first, and everything again"
    feed.check(lab.tables)

    lab.succeeds(pipeline, restore_job_name(pipeline.name), restore_from="chk-3", mode="preview")


def fussy(folder: Path, seen: list[Any], *, fails: list[int] = [], **settings: Any) -> CheckpointedPipeline:  # noqa: B006
    """A source and a stage with a config of their own, which run when it is the sink's turn."""

    @spark_source(config_schema={"limit": int}, **settings)
    def orders(spark, context):  # type: ignore[no-untyped-def]
        seen.append((context.uid, context.config["limit"]))
        reader = spark.readStream.schema("number INT, customer STRING, amount INT")
        return reader.option("maxFilesPerTrigger", context.config["limit"]).json(str(folder / "orders"))

    @spark_stage
    def doubled(orders):  # type: ignore[no-untyped-def]
        if fails:
            raise RuntimeError("no doubling today")
        return orders.selectExpr("number", "amount * 2 AS amount")

    return wired("fussy", orders, doubled, sink("lines", lambda doubled: doubled, key=["number"]))


CONFIG = {"orders": {"limit": 1}}


@CHAINED
def test_a_stage_of_a_chain_has_the_config_of_its_op_fails_the_run_and_may_leave_the_chain(
    lab: Lab, tmp_path: Path
) -> None:
    feed, seen, fails = Feed(tmp_path), list[Any](), list[int]()
    pipeline = fussy(tmp_path, seen, fails=fails)
    feed.order(("ann", 3))
    feed.order(("ann", 4))
    lab.succeeds(pipeline, ops=CONFIG)
    assert set(seen) == {("orders", 1)}
    assert [chain.name for chain in lab.record(pipeline).chains] == ["orders -> doubled -> lines"]
    feed.order(("ann", 5))
    fails.append(1)
    lab.fails(pipeline, "no doubling today", ops=CONFIG)
    fails.clear()
    lab.succeeds(pipeline, ops=CONFIG)
    rows = sorted((r["number"], r["amount"]) for r in rows_in(lab.tables / "lines"))
    assert rows == [(0, 6), (1, 8), (2, 10)]
    feed.order(("ann", 6))
    lab.succeeds(fussy(tmp_path, seen, chain=False), ops=CONFIG)
    assert [chain.name for chain in lab.record(pipeline).chains] == ["doubled -> lines"]
    assert sorted(r["number"] for r in rows_in(lab.tables / "lines")) == [0, 1, 2, 3]
