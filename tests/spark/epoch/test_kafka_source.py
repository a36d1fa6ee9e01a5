"""Topics of a real Kafka, read with Spark's own connector: each record once, and refused where records are gone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from dagster_ckpt import CheckpointedPipeline
from dagster_ckpt.spark.source.positions import source_positions
from tests.adapters.servers import KafkaBroker
from tests.ext.kafka.topics import Topic, rows_in
from tests.lab.lab import Lab
from tests.lab.pipelines import sink, source, wired


def position(lab: Lab, topic: Topic, checkpoint: int) -> dict[str, int]:
    """Offsets of a checkpoint, by partition."""
    [at] = source_positions(lab.metadata(topic.pipeline(), checkpoint), None)
    return {str(partition): offset for partition, offset in at.positions[topic.name].items()}


def test_each_committed_record_is_read_once_while_partitions_are_added_and_the_pipeline_goes_back(
    lab: Lab, kafka_for_spark: KafkaBroker
) -> None:
    topic = Topic(kafka_for_spark.address, "grows", 2)
    topic.put(0, 0, 1)
    topic.put(0, 1, aborted=True)
    lab.succeeds(topic.pipeline())
    assert rows_in(lab.tables) == topic.rows
    shown = lab.materializations(topic.pipeline())[0].metadata
    assert shown["lag"].value == 0
    assert [row.data["lag"] for row in shown["positions"].records] == ["0", "0"]  # type: ignore[union-attr]
    topic.grow(3)
    topic.put(0, 2, 2, transaction=True)
    topic.put(2, aborted=True)
    lab.succeeds(topic.pipeline())
    assert rows_in(lab.tables) == topic.rows
    assert set(position(lab, topic, 1)) == {"0", "1"}
    assert set(position(lab, topic, 2)) == {"0", "1", "2"}
    lab.succeeds(topic.pipeline(), restore_from="chk-000001")
    assert rows_in(lab.tables) == topic.rows


@pytest.mark.nightly
def test_records_that_expired_under_a_snapshot_are_named_before_anything_starts(
    lab: Lab, kafka_for_spark: KafkaBroker
) -> None:
    topic = Topic(kafka_for_spark.address, "expires", 2)
    topic.put(0, 0, 1)
    lab.succeeds(topic.pipeline())
    topic.put(0, 0, 1)
    lab.succeeds(topic.pipeline())
    assert position(lab, topic, 1) == {"0": 2, "1": 1}
    topic.expire(0, 3)
    lab.fails(
        topic.pipeline(),
        "source orders cannot read on: offset 2 of partition 0 of topic expires (the earliest there is 3) is gone "
        f"in kafka://{kafka_for_spark.address}",
        restore_from="chk-000001",
    )
    assert rows_in(lab.tables) == topic.rows, "nothing was taken back"
    assert lab.record(topic.pipeline()).epoch == 2, "nothing was claimed"

    topic.put(0, 0)
    lost = [row for row in topic.rows if row[1:] == (0, 4)]
    topic.expire(0, 5)
    lab.fails(topic.pipeline(), "offset 4 of partition 0 of topic expires (the earliest there is 5) is gone")
    lab.succeeds(topic.pipeline(strict=False))
    assert rows_in(lab.tables) == topic.rows - Counter(lost)


def test_a_topic_that_was_made_again_is_refused_however_far_it_has_grown(
    lab: Lab, kafka_for_spark: KafkaBroker
) -> None:
    """Offsets go on in it as if nothing were missing, and its first records were never read."""
    topic = Topic(kafka_for_spark.address, "begun_again", 1)
    topic.put(0, 0)
    lab.succeeds(topic.pipeline())
    shown = rows_in(lab.tables)
    assert shown == topic.rows
    topic.make_again(1)
    topic.put(0, 0, 0)
    for chosen in ({}, {"restore_from": "chk-000001"}):
        lab.fails(
            topic.pipeline(), "cannot read on: topic begun_again (it was made again: its id was", **chosen
        )
    assert rows_in(lab.tables) == shown
    lab.succeeds(topic.pipeline(strict=False))
    assert rows_in(lab.tables) == shown + Counter(row for row in topic.rows if row[2] == 2)
    topic.put(0)
    lab.succeeds(topic.pipeline())


@pytest.mark.nightly
def test_topics_of_one_query_in_another_order_are_refused(lab: Lab, kafka_for_spark: KafkaBroker) -> None:
    """Spark names both of them kafka: where records may be lost, each was read from its start again."""
    topics = [Topic(kafka_for_spark.address, name, 1) for name in ("first", "second")]
    for topic in topics:
        topic.put(0, 0)

    def both(*topics: Topic) -> CheckpointedPipeline:
        def of(spark: Any, topic: Topic) -> Any:
            options = {"kafka.bootstrap.servers": topic.servers, "subscribe": topic.name}
            reader = spark.readStream.format("kafka").options(**options, failOnDataLoss="false")
            records = reader.option("startingOffsets", "earliest").load()
            return records.selectExpr("CAST(value AS STRING) AS value", "partition", "offset")

        return wired(
            "two_topics",
            source("orders", lambda spark: of(spark, topics[0]).union(of(spark, topics[1]))),
            sink("rows", lambda orders: orders),
        )

    lab.succeeds(both(*topics))
    topics[0].put(0)
    lab.fails(
        both(*reversed(topics)),
        "the order of its sources was kafka[first], kafka[second] and is kafka[second],",
    )
    lab.succeeds(both(*topics))
    assert rows_in(lab.tables) == topics[0].rows + topics[1].rows
