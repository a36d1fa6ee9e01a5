"""A stage whose ``partitions`` were changed: its state is restored, spread anew, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dagster_ckpt import CheckpointedPipeline, spark_sink
from dagster_ckpt.core.model import StageSnapshot
from dagster_ckpt.spark.session import HDFS_PROVIDER
from tests.lab.lab import Lab
from tests.lab.pipelines import reads, wired
from tests.spark.epoch.small_pipeline import ORDERS, Feed, read_totals


def spending(folder: Path, partitions: int) -> CheckpointedPipeline:
    """Orders and amount per customer, one row each, with so many state partitions."""

    @spark_sink(key=["country"], partitions=partitions)
    def totals(orders: Any) -> Any:
        counted = orders.groupBy("customer").agg({"number": "count", "amount": "sum"})
        return counted.toDF("country", "orders", "amount")

    return wired(
        "spending", reads("orders", ORDERS, folder / "orders"), totals, checkpointing={"num_retained": 5}
    )


def expected(feed: Feed) -> dict[str, tuple[int, int]]:
    names = {o["customer"] for o in feed.orders}
    mine = {name: [o["amount"] for o in feed.orders if o["customer"] == name] for name in names}
    return {name: (len(amounts), sum(amounts)) for name, amounts in mine.items()}


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    made = Feed(tmp_path / "feed")
    made.order(*[(f"customer-{n % 7}", n) for n in range(20)])
    return made


def sink_of(lab: Lab, pipeline: CheckpointedPipeline, checkpoint: int) -> StageSnapshot:
    snapshot = lab.metadata(pipeline, checkpoint).stage("totals")
    assert snapshot is not None
    return snapshot


def test_changed_partitions_take_effect_with_the_next_run_and_going_back_works_too(
    lab: Lab, feed: Feed
) -> None:
    lab.succeeds(spending(feed.folder, 2))
    feed.order(*[(f"customer-{n % 5}", n) for n in range(10)])
    three = spending(feed.folder, 3)
    lab.succeeds(three)
    assert read_totals(lab.tables) == expected(feed)
    assert [sink_of(lab, three, n).parallelism for n in (1, 2)] == [2, 3]

    feed.order(("customer-1", 100), ("customer-new", 1))
    assert lab.run(three).success, "the next run adopts the directory as it stands"
    assert read_totals(lab.tables) == expected(feed)
    batches = [sink_of(lab, three, n).batch_id for n in (2, 3)]
    assert batches[1] == batches[0] + 1, "nothing was restored or spread again"  # type: ignore[operator]

    lab.succeeds(three, restore_from="chk-1")
    assert read_totals(lab.tables) == expected(feed)
    assert sink_of(lab, three, 4).parallelism == 3


def test_state_that_spark_cannot_spread_is_refused_and_the_old_number_goes_on(
    lab: Lab, feed: Feed, spark: SparkSession
) -> None:
    lab.spark_conf |= {
        "spark.sql.streaming.stateStore.providerClass": HDFS_PROVIDER,
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "1",
    }
    lab.succeeds(spending(feed.folder, 2))
    feed.order(("customer-1", 100))
    lab.fails(spending(feed.folder, 3), "set the stage's partitions back to 2")
    lab.succeeds(spending(feed.folder, 2))
    assert read_totals(lab.tables) == expected(feed)
