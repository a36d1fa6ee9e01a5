"""A stage whose function was changed is refused with one sentence before a row is read, and goes on changed back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dagster_ckpt import (
    CheckpointedPipeline,
    checkpointed_pipeline,
    checkpoints_asset_key,
    spark_sink,
    spark_source,
)
from tests.spark.epoch.conftest import Lab, failure_text
from tests.spark.epoch.small_pipeline import ORDERS, Feed, read_totals


def spending(folder: Path, count: Callable[[Any, Any], Any]) -> CheckpointedPipeline:
    """Orders that arrive twice, and ``count`` of both."""

    @spark_source
    def web(spark: Any) -> Any:
        return spark.readStream.schema(ORDERS).json(str(folder / "orders"))

    @spark_source
    def shop(spark: Any) -> Any:
        return spark.readStream.schema(ORDERS).json(str(folder / "orders"))

    @spark_sink(key=["country"])
    def totals(web: Any, shop: Any) -> Any:
        return count(web, shop).toDF("country", "orders", "amount")

    @checkpointed_pipeline(name="spending")
    def pipeline() -> None:
        totals(web(), shop())

    return pipeline  # type: ignore[no-any-return]


def counted(rows: Any) -> Any:
    return rows.groupBy("customer").agg({"number": "count", "amount": "sum"})


def previewed(lab: Lab, pipeline: CheckpointedPipeline) -> str | None:
    """Why the preview job would have the restore of the first checkpoint refused; None: it would not be."""
    done = lab.run(pipeline, job="spending_preview", ops={"preview": {"config": {"restore_from": "chk-1"}}})
    assert done.success, failure_text(done)
    key = checkpoints_asset_key(pipeline.name)
    [record] = lab.instance.fetch_observations(key, limit=1).records
    assert record.asset_observation is not None
    said = str(record.asset_observation.description)
    return said if "would be refused" in said else None


def test_a_query_that_cannot_go_on_is_refused_in_one_sentence_and_goes_on_when_it_is_changed_back(
    lab: Lab, small_feed: Feed
) -> None:
    right = spending(small_feed.folder, lambda web, shop: counted(web.union(shop)))
    assert lab.run(right).success
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
        text = failure_text(failed)
        assert "stage 'totals' cannot go on" in text, text
        assert said in text, text
        assert "Logical Plan" not in text, text
        assert "Traceback" not in text, text
    assert previewed(lab, right) is None
    refusal = previewed(lab, other)
    assert refusal is not None
    assert "stage 'totals' cannot go on from its state: it was made by groupBy(customer)" in refusal
    again = lab.run(right)
    assert again.success, failure_text(again)
    assert read_totals(lab.tables) == {"ann": (4, 22), "bob": (2, 2)}
