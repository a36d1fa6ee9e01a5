"""Topics of a real Kafka pass the contract of sinks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql.types import LongType, StructField, StructType

from dagster_ckpt.core.ids import CoordinatorEpoch, PipelineId
from dagster_ckpt.errors import InvalidRequest, Unavailable
from dagster_ckpt.ext.kafka.broker import Broker
from dagster_ckpt.ext.kafka.sink import KafkaSink
from dagster_ckpt.ext.kafka.topics import KafkaTopic
from dagster_ckpt.spark.sink.port import AttemptId, Sink, SinkContext, SinkPosition
from dagster_ckpt.testing import SinkContract
from dagster_ckpt.testing.sinks.run import context_in
from tests.progress import wait_until


def committed(servers: str, topic: str) -> list[tuple[bytes | None, bytes]]:
    """Return every message that a reader of committed ones finds."""
    settings = {
        "bootstrap.servers": servers,
        "group.id": "test",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 10,
    }
    consumer = Consumer(settings)
    try:
        partitions = consumer.list_topics(topic, timeout=300).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found, ended = [], 0
        while ended < len(partitions):
            message = consumer.poll(30)
            assert message is not None
            if message.error() is None:
                found.append((message.key(), message.value()))
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF
                ended += 1
        return found
    finally:
        consumer.close()


class TestKafka(SinkContract):
    can_roll_back = False
    can_fork = False
    can_upsert = False  # readers see every message; compaction keeps the newest of a key
    can_replace = False
    checks_types = False

    @pytest.fixture(autouse=True)
    def _broker(self, kafka_servers: str) -> None:
        self._servers = kafka_servers
        self._topics: dict[Path, str] = {}

    def open(self, context: SinkContext) -> Sink:
        folder = context.table_dir
        topic = self._topics.setdefault(folder, f"orders-{abs(hash(folder))}")
        return KafkaSink(KafkaTopic(self._servers, topic), context)

    def rows(self, place: str) -> list[tuple[int, int]]:
        values = [json.loads(value) for _, value in committed(self._servers, place.rpartition("/")[2])]
        return [(row["k"], row["v"]) for row in values]

    def steps(self) -> Sequence[tuple[Any, str]]:
        return [(Broker, "send"), (Broker, "commit")]


def test_a_topic_that_two_sinks_spell_in_two_ways_is_refused_to_the_second(
    kafka_servers: str, tmp_path: Path
) -> None:
    """They shared the position: what the one had published passed for published by the other."""
    first = AttemptId("first", CoordinatorEpoch(1))
    spelled = KafkaTopic(kafka_servers, f"shared-{abs(hash(tmp_path))}")
    otherwise = replace(spelled, bootstrap_servers=f"{kafka_servers},{kafka_servers}")
    KafkaSink(spelled, context_in(tmp_path, first)).take_over()
    second = KafkaSink(otherwise, context_in(tmp_path, first, name="copies"))
    with pytest.raises(
        InvalidRequest, match="is the topic that sink 'orders' writes, under another spelling"
    ):
        second.take_over()
    later = replace(first, epoch=CoordinatorEpoch(2))
    renamed = KafkaSink(otherwise, context_in(tmp_path, later, name="copies"))
    renamed.take_over()
    with pytest.raises(InvalidRequest, match="topics that hold positions"):
        KafkaSink(replace(spelled, topic=f"{spelled.topic}.dagster_ckpt"), context_in(tmp_path, later))
    position = renamed.position()
    assert position is not None
    assert position.epoch == 2


def test_a_position_is_found_behind_others_open_transactions_and_in_a_topic_of_several_partitions(
    kafka_servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lay in the partition of its key, where nobody read, or was hidden: rows went out twice."""
    name = f"ours-{abs(hash(tmp_path))}"
    positions = NewTopic(f"{name}.dagster_ckpt", num_partitions=2, config={"cleanup.policy": "compact"})
    admin = AdminClient({"bootstrap.servers": kafka_servers})
    admin.create_topics([positions])[positions.topic].result(60)
    ours, theirs = (
        Broker(kafka_servers, {}, name, pipeline=one, uid="orders", shared_with=(other,))
        for one, other in (("stall", "shop"), ("shop", "stall"))
    )
    first = SinkPosition(lineage="one", epoch=1, checkpoint_id=1, head=1, through_batch=0)
    ours.create_topics()
    ours.write(ours.begin(), [(None, b"1")], first)
    assert ours.position(is_fenced=True) == first
    with monkeypatch.context() as patch:
        patch.setattr(theirs, "commit", lambda producer: producer.flush())
        producer = theirs.begin()
        theirs.write(producer, [(None, b"theirs")], first)
    second = replace(first, checkpoint_id=2, head=2, through_batch=1)
    ours.write(ours.begin(), [(None, b"2")], second)
    monkeypatch.setattr("dagster_ckpt.ext.kafka.broker._OPEN_SECONDS", 1)
    with pytest.raises(Unavailable, match="another pipeline's open transaction: retry"):
        ours.position(is_fenced=True)
    theirs.begin()  # as the next attempt of a process that died
    assert ours.position(is_fenced=True) == second


def test_a_topic_that_shows_another_pipelines_rows_is_refused_before_the_claim_unless_they_share_it(
    kafka_servers: str, tmp_path: Path
) -> None:
    """A renamed pipeline began from the beginning: rows were there twice."""
    topic = KafkaTopic(kafka_servers, f"theirs-{abs(hash(tmp_path))}")
    broker = Broker(kafka_servers, {}, topic.topic, pipeline="former", uid="orders")
    broker.create_topics()
    first = SinkPosition(lineage="one", epoch=1, checkpoint_id=1, head=1, through_batch=0)
    broker.write(broker.begin(), [(None, b"1")], first)
    context = context_in(tmp_path, AttemptId("two", CoordinatorEpoch(1)))
    sink = KafkaSink(topic, context)
    assert "previous_names=['former']" in sink.cannot_roll_back(None)
    with pytest.raises(InvalidRequest, match="twice if 'shop' is that pipeline under another name"):
        sink.take_over()
    assert not KafkaSink(replace(topic, shared_with=("former",)), context).cannot_roll_back(None)
    renamed = KafkaSink(topic, replace(context, previous_pipelines=(PipelineId("former"),)))
    assert renamed.position() == first


def test_a_position_topic_that_forgets_is_refused_before_the_first_batch(
    kafka_servers: str, tmp_path: Path
) -> None:
    """A pipeline that was idle for its retention could not tell what it had published."""
    name = f"forgets-{abs(hash(tmp_path))}"
    admin = AdminClient({"bootstrap.servers": kafka_servers})
    admin.create_topics([NewTopic(f"{name}.dagster_ckpt", num_partitions=1)])[f"{name}.dagster_ckpt"].result(
        60
    )
    sink = KafkaSink(
        KafkaTopic(kafka_servers, name), context_in(tmp_path, AttemptId("one", CoordinatorEpoch(1)))
    )
    columns = StructType([StructField("k", LongType())])
    with pytest.raises(InvalidRequest, match="make it a compacted topic"):
        sink.check(SimpleNamespace(schema=columns, columns=columns.names))  # type: ignore[arg-type]


def test_a_key_lies_in_the_partition_in_which_other_writers_of_kafka_put_it(
    kafka_servers: str, tmp_path: Path
) -> None:
    """The client's own default is another one: messages of one key were in two partitions, and without an order."""
    name = f"keyed-{abs(hash(tmp_path))}"
    admin = AdminClient({"bootstrap.servers": kafka_servers})
    admin.create_topics([NewTopic(name, num_partitions=8)])[name].result(60)
    broker = Broker(kafka_servers, {}, name, pipeline="shop", uid="orders")
    broker.create_topics()
    keys = [f"key-{number}".encode() for number in range(20)]
    at = SinkPosition(lineage="one", epoch=1, checkpoint_id=1, head=1, through_batch=0)
    broker.write(broker.begin(), [(key, b"") for key in keys], at)
    assert partitions_of(kafka_servers, name) == {key: (murmur2(key) & 0x7FFFFFFF) % 8 for key in keys}


def partitions_of(servers: str, topic: str) -> dict[bytes, int]:
    settings = {
        "bootstrap.servers": servers,
        "group.id": "test",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(8)])
        found: dict[bytes, int] = {}
        while len(found) < 20:
            message = consumer.poll(30)
            assert message is not None
            assert message.error() is None
            found[message.key()] = message.partition()
        return found
    finally:
        consumer.close()


def murmur2(data: bytes) -> int:
    """Kafka's own hash of a key (org.apache.kafka.common.utils.Utils.murmur2)."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = (0x9747B28C ^ len(data)) & mask
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    if rest := data[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def test_a_topic_that_was_removed_shows_nothing_and_neither_does_one_that_was_made_again(
    kafka_servers: str, tmp_path: Path
) -> None:
    """Its position was that of another topic: what had been published passed for being there."""
    name = f"removed-{abs(hash(tmp_path))}"
    admin = AdminClient({"bootstrap.servers": kafka_servers})
    broker = Broker(kafka_servers, {}, name, pipeline="shop", uid="orders")
    broker.create_topics()
    at = SinkPosition(lineage="one", epoch=1, checkpoint_id=3, head=3, through_batch=7)
    broker.write(broker.begin(), [(b"k", b"v")], at)
    assert broker.position() == at
    admin.delete_topics([name])[name].result(60)
    wait_until(lambda: name not in admin.list_topics(timeout=300).topics, "the topic is gone")
    shows_nothing = replace(at, head=None, through_batch=None)
    assert broker.position() == shows_nothing
    admin.create_topics([NewTopic(name)])[name].result(60)
    assert Broker(kafka_servers, {}, name, pipeline="shop", uid="orders").position() == shows_nothing
    broker.write(broker.begin(), [(b"k", b"v")], replace(at, checkpoint_id=4, head=4))
    assert broker.position() == replace(at, checkpoint_id=4, head=4)
