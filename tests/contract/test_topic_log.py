"""Every log of topics that sources read passes one suite: the one in memory, and a real Kafka."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from dagster_ckpt.core.restore.horizon import Bounds, Positions
from dagster_ckpt.errors import InvalidRequest, Unavailable
from dagster_ckpt.ext.kafka import topic_log
from dagster_ckpt.ext.kafka.topics import KafkaTopics
from dagster_ckpt.spark.source.positions import TopicLog
from dagster_ckpt.testing import MemoryTopics
from tests.progress import wait_until

WEEK = 604_800.0


class TopicLogContract(ABC):
    log: TopicLog

    @abstractmethod
    def create(self, topic: str, partitions: int, retention: float | None) -> None: ...

    @abstractmethod
    def delete(self, topic: str) -> None: ...

    @abstractmethod
    def append(self, topic: str, partition: int, times: list[float]) -> None: ...

    @abstractmethod
    def expire(self, topic: str, partition: int, before: int) -> None: ...

    @abstractmethod
    def told(self, group: str, topic: str, partitions: int) -> Positions: ...

    def test_the_ends_of_every_partition_are_told(self) -> None:
        self.create("ends", 2, WEEK)
        self.append("ends", 1, [time.time()] * 5)
        assert self.log.bounds(["ends", "missing"]) == {
            "ends": {0: Bounds(earliest=0, latest=0), 1: Bounds(earliest=0, latest=5)}
        }
        self.expire("ends", 1, 3)
        assert self.log.bounds(["ends"])["ends"][1] == Bounds(earliest=3, latest=5)
        assert self.log.bounds([]) == {}

    def test_a_topic_that_was_made_again_has_another_id(self) -> None:
        self.create("again", 1, None)
        before = self.log.ids(["again", "missing"])
        assert set(before) == {"again"}
        assert self.log.ids(["again"]) == before
        self.delete("again")
        assert self.log.ids(["again"]) == {}
        self.create("again", 1, None)
        assert self.log.ids(["again"]).keys() == {"again"}
        assert self.log.ids(["again"]) != before
        assert self.log.ids([]) == {}

    def test_the_time_of_the_record_at_a_position_and_the_retention_are_told(self) -> None:
        now = round(time.time())
        self.create("clocks", 3, WEEK)
        self.create("for_ever", 1, None)
        self.append("clocks", 0, [now - 50.0, now - 40.0])
        self.append("clocks", 1, [now - 30.0])
        self.append("for_ever", 0, [now - 20.0])
        found = self.log.clocks({"clocks": {0: 1, 1: 0, 2: 0}, "for_ever": {0: 0}})
        assert found["clocks"].retention == WEEK
        assert dict(found["clocks"].times) == {0: now - 40.0, 1: now - 30.0}
        assert found["for_ever"].retention is None
        assert self.log.clocks({}) == {}

    def test_a_group_is_told_positions_forth_and_back(self) -> None:
        self.create("told", 2, None)
        self.append("told", 0, [1.0] * 4)
        for at in ({0: 3, 1: 0}, {0: 4, 1: 0}, {0: 2, 1: 0}):
            self.log.commit("readers", {"told": at})
            assert self.told("readers", "told", 2) == {"told": at}


class TestMemoryTopics(TopicLogContract):
    @pytest.fixture(autouse=True)
    def _log(self) -> None:
        self.log = self.topics = MemoryTopics()

    def create(self, topic: str, partitions: int, retention: float | None) -> None:
        self.topics.create(topic, partitions, retention=retention)

    def delete(self, topic: str) -> None:
        self.topics.delete(topic)

    def append(self, topic: str, partition: int, times: list[float]) -> None:
        for at in times:
            self.topics.append(topic, partition, 1, at=at)

    def expire(self, topic: str, partition: int, before: int) -> None:
        self.topics.expire(topic, partition, before)

    def told(self, group: str, topic: str, partitions: int) -> Positions:
        return self.topics.groups[group]


class TestKafkaLog(TopicLogContract):
    @pytest.fixture(autouse=True)
    def _log(self, kafka_servers: str) -> None:
        self.client = {"bootstrap.servers": kafka_servers, "log_level": 0}
        self.admin = AdminClient(self.client)
        self.log = KafkaTopics(kafka_servers).open()

    def create(self, topic: str, partitions: int, retention: float | None) -> None:
        kept = {"cleanup.policy": "compact"} if retention is None else {"retention.ms": f"{retention:.0f}000"}
        new = NewTopic(topic, num_partitions=partitions, config=kept)
        self.admin.create_topics([new], operation_timeout=300)[topic].result()

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(30)
        wait_until(lambda: topic not in self.admin.list_topics(timeout=300).topics, "the topic is gone")

    def append(self, topic: str, partition: int, times: list[float]) -> None:
        producer = Producer(self.client)
        for number, at in enumerate(times):
            producer.produce(
                topic, key=f"{number}", value=b"x", partition=partition, timestamp=int(at * 1000)
            )
        assert producer.flush(60) == 0

    def expire(self, topic: str, partition: int, before: int) -> None:
        gone = TopicPartition(topic, partition, before)
        # Only topics that delete may be asked to.
        self.admin.delete_records([gone])[gone].result()

    def told(self, group: str, topic: str, partitions: int) -> Positions:
        consumer = Consumer({**self.client, "group.id": group})
        try:
            wanted = [TopicPartition(topic, number) for number in range(partitions)]
            return {topic: {one.partition: one.offset for one in consumer.committed(wanted, timeout=300)}}
        finally:
            consumer.close()

    def test_what_the_cluster_does_not_take_is_a_sentence(self) -> None:
        self.create("busy", 1, WEEK)
        member = Consumer({**self.client, "group.id": "members"})
        try:
            member.subscribe(["busy"])
            wait_until(lambda: member.poll(0.1) is None and member.assignment(), "the group has a member")
            with pytest.raises(InvalidRequest, match="a group that nobody consumes with"):
                self.log.commit("members", {"busy": {0: 0}})
        finally:
            member.close()
        with pytest.raises(InvalidRequest, match=r"sasl\.pasword.*check the options of KafkaTopics"):
            KafkaTopics(self.client["bootstrap.servers"], {"sasl.pasword": "x"}).open().bounds(["busy"])

    def test_a_broker_that_is_not_there_is_a_sentence(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(topic_log, "SECONDS", 1)
        with pytest.raises(Unavailable, match=r"kafka://127\.0\.0\.1:1 did not answer"):
            KafkaTopics("127.0.0.1:1").open().bounds(["orders"])
        with pytest.raises(InvalidRequest, match="KAFKA_SECRET_NOT_SET"):
            KafkaTopics("127.0.0.1:1", {"sasl.password": "env:KAFKA_SECRET_NOT_SET"}).open()
