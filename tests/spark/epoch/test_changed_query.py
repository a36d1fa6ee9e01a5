"""A stage whose function was changed is refused with one sentence before a row is read, and goes on changed back."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dagster_ckpt import (
    CheckpointedPipeline,
    checkpoints_asset_key,
)
from dagster_ckpt.cli.app import main
from tests.lab.lab import Lab
from tests.lab.pipelines import reads, sink, stage, wired
from tests.spark.epoch.small_pipeline import ORDERS, Feed, read_totals


def spending(folder: Path, count: Callable[[Any, Any], Any]) -> CheckpointedPipeline:
    """Orders that arrive twice, and ``count`` of both."""

    return wired(
        "spending",
        reads("web", ORDERS, folder / "orders"),
        reads("shop", ORDERS, folder / "orders"),
        sink(
            "totals", lambda web, shop: count(web, shop).toDF("country", "orders", "amount"), key=["country"]
        ),
    )


def counted(rows: Any) -> Any:
    return rows.groupBy("customer").agg({"number": "count", "amount": "sum"})


def previewed(lab: Lab, pipeline: CheckpointedPipeline) -> str | None:
    """Why the preview job would have the restore of the first checkpoint refused; None: it would not be."""
    lab.succeeds(pipeline, job="spending_restore", restore_from="chk-1", mode="preview")
    key = checkpoints_asset_key(pipeline.name)
    [record] = lab.instance.fetch_observations(key, limit=1).records
    assert record.asset_observation is not None
    said = str(record.asset_observation.description)
    return said if "would be refused" in said else None


LOCATION = """
from pathlib import Path
from dagster_ckpt import CheckpointCoordinatorResource, SparkSessionResource, build_pipeline_definitions
from tests.spark.epoch.test_changed_query import counted, spending

pipeline = spending(Path({orders!r}), {count})
defs = build_pipeline_definitions(
    pipeline,
    coordinator=CheckpointCoordinatorResource(base_dir={base!r}, table_dir={tables!r}),
    spark=SparkSessionResource(master="local[2,3]"),
)
"""


def previewed_by_command(lab: Lab, folder: Path, name: str, count: str, *more: str) -> Result:
    """What the command says with the code of a location whose pipeline counts in this way."""
    code = folder / f"{name}.py"
    places = {"orders": str(folder), "base": str(lab.folder), "tables": str(lab.tables)}
    code.write_text(LOCATION.format(count=count, **places))
    arguments = ["preview", "chk-1", "-p", "spending", "--base", str(lab.folder), "-f", str(code), *more]
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize("lab", [{"operator_chaining": False}], indirect=True, ids=["a query for each stage"])
def test_a_query_that_cannot_go_on_is_refused_in_one_sentence_and_goes_on_when_it_is_changed_back(
    lab: Lab, small_feed: Feed
) -> None:
    right = spending(small_feed.folder, lambda web, shop: counted(web.union(shop)))
    lab.succeeds(right)
    small_feed.order(("ann", 6), ("bob", 1))
    turned = spending(small_feed.folder, lambda web, shop: counted(shop.union(web)))
    other = spending(
        small_feed.folder,
        lambda web, shop: web.union(shop).groupBy("customer").agg({"customer": "count", "amount": "sum"}),
    )
    for changed, said in (
        (turned, "the order of its inputs has changed"),
        (other, "made by groupBy(customer).agg(count(number), sum(amount))"),
    ):
        failed = lab.run(changed)
        assert not failed.success
        told = failed.get_step_failure_events()[0].step_failure_data.error
        assert told is not None
        assert "stage 'totals' cannot go on" in told.message, told.message
        assert said in told.message, told.message
        assert "Logical Plan" not in told.message, told.message
        assert "Traceback" not in told.message, told.message
        assert told.cause is not None, "what Spark said stands behind it"
    assert previewed(lab, right) is None
    refusal = previewed(lab, other)
    assert refusal is not None
    assert "stage 'totals' cannot go on from its state: it was made by groupBy(customer)" in refusal
    changed_count = "lambda a, b: a.union(b).groupBy('customer').agg({'customer': 'count', 'amount': 'sum'})"
    told = previewed_by_command(lab, small_feed.folder, "changed", changed_count)
    assert told.exit_code == 1, told.output
    assert "refused: stage 'totals' cannot go on from its state" in told.output
    unlooked = previewed_by_command(lab, small_feed.folder, "unlooked", changed_count, "--files-only")
    assert unlooked.exit_code == 0, unlooked.output
    fine = previewed_by_command(lab, small_feed.folder, "fine", "lambda a, b: counted(a.union(b))")
    assert fine.exit_code == 0, fine.output
    lab.succeeds(right)
    assert read_totals(lab.tables) == {"ann": (4, 22), "bob": (2, 2)}


def test_errors_of_a_query_name_the_line_of_the_user_and_what_to_do(lab: Lab, small_feed: Feed) -> None:
    from pyspark.sql.functions import udf

    def sent(made: Callable[[Any], Any]) -> CheckpointedPipeline:
        orders = small_feed.folder / "orders"
        return wired("sending", reads("web", ORDERS, orders), sink("sent", lambda web: made(web)))

    def share(amount):  # type: ignore[no-untyped-def]
        return 100 // (amount - 5)

    for fails, said in (
        (
            lambda web: web.groupBy("customer").count(),
            r"(stage sent|chain web -> sent) aggregates, .* add key=\[\.\.\.\] to the sink",
        ),
        (
            lambda web: web.select("custmer"),
            r"test_changed_query.py:\d+ in .*`custmer` cannot be resolved. Did you",
        ),
        (
            lambda web: web.select(udf(share, "int")("amount").alias("share")),
            r"^[^ ]*test_changed_query.py:\d+ in share, ",
        ),
    ):
        error = lab.run(sent(fails)).get_step_failure_events()[0].step_failure_data.error
        assert error is not None
        assert "Error occurred while" not in error.message, error.to_string()
        sentence = error.message.removeprefix("dagster._core.definitions.events.Failure: ").strip()
        assert re.search(said, sentence), sentence
        assert "\n" not in sentence
        assert error.cause is not None
        assert error.cause.cause is not None, "the original stands behind it"


def test_rows_that_changed_are_not_counted_again_by_the_next_stage(lab: Lab, small_feed: Feed) -> None:
    """Spark refuses it in one query; of two it knows nothing, and every change of a total was one more."""

    def counting(of_totals: Callable[[Any], Any]) -> CheckpointedPipeline:
        return wired(
            "counting",
            reads("orders", ORDERS, small_feed.folder / "orders"),
            stage(
                "totals",
                lambda orders: orders.groupBy("customer").agg({"amount": "sum"}).toDF("customer", "amount"),
                output_mode="update",
            ),
            stage("large", lambda totals: totals.where("amount > 1"), chain=False),
            sink(
                "sizes",
                lambda large: of_totals(large.selectExpr("length(customer) AS size", "amount")),
                key=["size"],
            ),
        )

    for counts, does in (({"amount": "sum"}, "sums"), ({"*": "count"}, "counts")):
        lab.fails(
            counting(lambda rows, counts=counts: rows.groupBy("size").agg(counts)),
            f"{does} rows of stage 'totals', whose output_mode='update' passes",
        )
    lab.succeeds(counting(lambda rows: rows.groupBy("size").agg({"amount": "max"}).toDF("size", "amount")))


def test_rows_that_come_once_are_counted_whatever_the_output_mode(lab: Lab, small_feed: Feed) -> None:
    pipeline = wired(
        "once",
        reads("orders", ORDERS, small_feed.folder / "orders"),
        stage(
            "once",
            lambda orders: orders.dropDuplicates(["customer", "amount"]),
            output_mode="update",
            chain=False,
        ),
        sink("counts", lambda once: once.groupBy("customer").count(), key=["customer"]),
    )

    lab.succeeds(pipeline)
