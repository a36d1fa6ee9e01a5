"""A stream over topics of a real Kafka, whose broker is killed under it."""

from __future__ import annotations

import pytest

from tests.adapters.servers import KafkaBroker
from tests.ext.kafka.topics import Topic, rows_in
from tests.lab.lab import Lab
from tests.lab.streams import until


@pytest.mark.nightly
def test_a_stream_reads_on_once_its_broker_is_back(lab: Lab, kafka_for_spark: KafkaBroker) -> None:
    topic = Topic(kafka_for_spark.address, "streams", 2)
    topic.put(0, 1)
    running = lab.start(topic.pipeline())
    running.checkpoint()
    kafka_for_spark.kill()
    kafka_for_spark.start()
    topic.grow(3)
    topic.put(0, 1, 2, transaction=True)

    def all_there() -> bool:
        running.checkpoint()
        return rows_in(lab.tables) == topic.rows

    until(all_there, running)
    running.stop()
    assert rows_in(lab.tables) == topic.rows
