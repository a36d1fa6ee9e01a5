"""Topics of a real broker that a test writes, and a pipeline that reads one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from dagster_ckpt import (
    CheckpointedPipeline,
    KafkaTopics,
    checkpointed_pipeline,
    spark_sink,
    spark_source,
)
from tests.progress import wait_until
from tests.tables import rows_in as shown_by

Rows = Counter[tuple[str, int, int]]


class Topic:
    """One topic, and the truth about what can be read in it: value, partition, offset."""

    def __init__(self, servers: str, name: str, partitions: int) -> None:
        self.servers, self.name = servers, name
        self._client = {"bootstrap.servers": servers, "log_level": 0}
        self._admin = AdminClient(self._client)
        self.rows: Rows = Counter()
        self._numbers = 0
        self._admin.create_topics([NewTopic(name, num_partitions=partitions)])[name].result(60)

    def put(self, *partitions: int, aborted: bool = False, transaction: bool = False) -> None:
        """Add a record to each of these partitions, alone or in one transaction."""
        is_one = aborted or transaction
        producer = Producer({**self._client, **({"transactional.id": self.name} if is_one else {})})
        if is_one:
            producer.init_transactions(60)
            producer.begin_transaction()
        sent: list[tuple[str, int, int]] = []

        def delivered(error: Any, message: Any) -> None:
            assert error is None
            sent.append((message.value().decode(), message.partition(), message.offset()))

        for partition in partitions:
            self._numbers += 1
            producer.produce(self.name, f"r{self._numbers}", partition=partition, on_delivery=delivered)
        assert producer.flush(60) == 0
        if aborted:
            producer.abort_transaction(60)
            return
        if transaction:
            producer.commit_transaction(60)
        self.rows.update(sent)

    def grow(self, partitions: int) -> None:
        """Give it more partitions, and wait until the broker says so."""
        self._admin.create_partitions([NewPartitions(self.name, partitions)])[self.name].result(60)

    def expire(self, partition: int, before: int) -> None:
        """Remove records as retention does."""
        gone = TopicPartition(self.name, partition, before)
        self._admin.delete_records([gone])[gone].result(60)

    def make_again(self, partitions: int) -> None:
        """Delete it, and make another one of its name."""
        self._admin.delete_topics([self.name])[self.name].result(60)
        wait_until(lambda: self.name not in self._admin.list_topics(timeout=300).topics, "the topic is gone")
        self._admin.create_topics([NewTopic(self.name, num_partitions=partitions)])[self.name].result(60)
        self.rows.clear()

    def pipeline(self, *, strict: bool = True, **checkpointing: Any) -> CheckpointedPipeline:
        """The topic's records into a table."""
        origin = KafkaTopics(self.servers, fail_on_data_loss=strict)
        options = {
            "kafka.bootstrap.servers": self.servers,
            "subscribe": self.name,
            "startingOffsets": "earliest",
            "failOnDataLoss": str(strict).lower(),
            "kafka.isolation.level": "read_committed",
        }

        @spark_source(reads=origin)
        def orders(spark):  # type: ignore[no-untyped-def]
            records = spark.readStream.format("kafka").options(**options).load()
            return records.selectExpr("CAST(value AS STRING) AS value", "partition", "offset")

        @spark_sink
        def rows(orders):  # type: ignore[no-untyped-def]
            return orders

        @checkpointed_pipeline(name=f"reads_{self.name}", checkpointing=checkpointing)
        def pipeline() -> None:
            rows(orders())

        return pipeline  # type: ignore[no-any-return]


def rows_in(tables: Path) -> Rows:
    """What the pipeline's table shows."""
    return Counter((row["value"], row["partition"], row["offset"]) for row in shown_by(tables / "rows"))
