"""Topics as a source reads them: their ends, their clocks, and the consumer group that is told positions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from time import monotonic, sleep
from typing import TypeVar

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec

from dagster_ckpt.core.restore.horizon import Bounds, Positions, TopicBounds, TopicClock
from dagster_ckpt.errors import CheckpointError, InvalidRequest, Unavailable
from dagster_ckpt.ext.kafka.broker import NO_SUCH_TOPIC, resolved, topic_ids
from dagster_ckpt.ext.kafka.topics import KafkaTopics

T = TypeVar("T")

SECONDS = 30
"""How long a question may take."""
_READING = {
    "group.id": "dagster_ckpt",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 10,
    "auto.offset.reset": "earliest",
    "queued.min.messages": 1,  # one record of each partition is wanted
}
_NO_COORDINATOR_YET = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)
"""A cluster's first group waits until the topic of offsets is made, and any group while its broker changes."""
_PAUSE = 0.2
_BUSY_GROUP = (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS)
_REFUSED = (
    KafkaError._INVALID_ARG,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
)


class KafkaLog:
    """The topics of one origin. Connections live for one question."""

    def __init__(self, origin: KafkaTopics) -> None:
        self.place = f"kafka://{origin.bootstrap_servers}"
        given = {name: resolved(name, value) for name, value in origin.options.items()}
        self._client = {"log_level": 0, **given, "bootstrap.servers": origin.bootstrap_servers}

    def bounds(self, topics: Collection[str]) -> TopicBounds:
        """Return the ends of every partition of these topics; a topic that is not there is left out."""
        with self._asking():
            admin = AdminClient(self._client)
            there = admin.list_topics(timeout=SECONDS).topics
            partitions = [
                TopicPartition(topic, number)
                for topic in topics
                if topic in there and there[topic].error is None
                for number in there[topic].partitions
            ]
            if not partitions:
                return {}
            earliest = _offsets(admin, partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
            latest = _offsets(admin, partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        found: dict[str, dict[int, Bounds]] = {}
        for one in partitions:
            place = (one.topic, one.partition)
            if place in earliest and place in latest:
                ends = Bounds(earliest=earliest[place], latest=latest[place])
                found.setdefault(one.topic, {})[one.partition] = ends
        return found

    def ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """Return the topics' ids; one that is not there, or that a broker of before 2.8 keeps, has none."""
        with self._asking():
            return topic_ids(AdminClient(self._client), topics, SECONDS)

    def clocks(self, positions: Positions) -> Mapping[str, TopicClock]:
        """Return how long records are kept, and of when those are that would be read next."""
        if not positions:
            return {}
        with self._asking():
            admin = AdminClient(self._client)
            resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in positions]
            answers = admin.describe_configs(resources, request_timeout=SECONDS)
            kept = {resource.name: _retention(answer.result(SECONDS)) for resource, answer in answers.items()}
            asked = {topic: at for topic, at in positions.items() if kept.get(topic) is not None}
            times = self._times(asked) if asked else {}
        return {
            topic: TopicClock(retention=kept.get(topic), times=times.get(topic, {})) for topic in positions
        }

    def commit(self, group: str, positions: Positions) -> None:
        """Tell a consumer group these positions, as its committed offsets."""
        until = monotonic() + SECONDS
        with self._asking():
            admin = AdminClient(self._client)
            while True:
                try:
                    self._commit(admin, group, positions)
                except KafkaException as error:
                    if error.args[0].code() not in _NO_COORDINATOR_YET or monotonic() > until:
                        raise
                    sleep(_PAUSE)
                else:
                    return

    @staticmethod
    def _commit(admin: AdminClient, group: str, positions: Positions) -> None:
        told = [ConsumerGroupTopicPartitions(group, list(_partitions(positions)))]
        answers = admin.alter_consumer_group_offsets(told, request_timeout=SECONDS)
        for one in answers[group].result(SECONDS).topic_partitions:
            if one.error is not None:
                raise KafkaException(one.error)

    def _times(self, positions: Positions) -> dict[str, dict[int, float]]:
        """Read one record of each partition, for its time; a partition without one has none."""
        consumer = Consumer({**self._client, **_READING})
        waiting = {(one.topic, one.partition): one for one in _partitions(positions)}
        found: dict[str, dict[int, float]] = {}
        until = monotonic() + SECONDS
        try:
            consumer.assign(list(waiting.values()))
            while waiting:
                message = consumer.poll(max(until - monotonic(), 0))
                if message is None:
                    raise Unavailable(f"{self.place} sent no record within {SECONDS} s: ask again")
                place = _place(message)
                if place not in waiting:
                    continue
                consumer.pause([waiting.pop(place)])
                kind, milliseconds = message.timestamp()
                if message.error() is None and kind != TIMESTAMP_NOT_AVAILABLE:
                    found.setdefault(place[0], {})[place[1]] = milliseconds / 1000
        finally:
            consumer.close()
        return found

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise self._classified(error.args[0]) from error
        except TimeoutError as error:
            raise Unavailable(f"{self.place} did not answer within {SECONDS} s: ask again") from error

    def _classified(self, cause: KafkaError) -> CheckpointError:
        if cause.code() in _BUSY_GROUP:
            return InvalidRequest(
                f"{self.place} takes no offsets of a group that has members ({cause.str()}): give KafkaTopics a group "
                "that nobody consumes with"
            )
        if cause.code() in _REFUSED:
            return InvalidRequest(
                f"{self.place} refuses to answer ({cause.str()}): check the options of KafkaTopics, and grant its user "
                "DESCRIBE, DESCRIBE_CONFIGS and READ on the topics"
            )
        return Unavailable(f"{self.place} did not answer ({cause.str()}): ask again")


def _partitions(positions: Positions) -> Iterator[TopicPartition]:
    for topic, partitions in positions.items():
        for partition, at in partitions.items():
            yield TopicPartition(topic, partition, at)


def _place(message: Message) -> tuple[str, int]:
    """Return topic and partition of a message, or of the end of one; anything else is raised."""
    failure = message.error()
    topic, partition = message.topic(), message.partition()
    if (failure is not None and failure.code() != KafkaError._PARTITION_EOF) or None in (topic, partition):
        raise KafkaException(failure)
    assert topic is not None
    assert partition is not None
    return topic, partition


def _offsets(
    admin: AdminClient, partitions: Iterable[TopicPartition], spec: OffsetSpec
) -> dict[tuple[str, int], int]:
    found = {}
    asked = admin.list_offsets(dict.fromkeys(partitions, spec), request_timeout=SECONDS)
    for one, answer in asked.items():
        try:
            found[(one.topic, one.partition)] = int(_result(answer).offset)
        except KafkaException as error:
            if error.args[0].code() not in NO_SUCH_TOPIC:
                raise
    return found


def _result(answer: Future[T]) -> T:
    return answer.result(SECONDS)


def _retention(settings: Mapping[str, object]) -> float | None:
    """Return the seconds a topic keeps its records; None: it compacts only, or keeps them for ever."""
    policy = str(getattr(settings.get("cleanup.policy"), "value", "delete"))
    milliseconds = int(str(getattr(settings.get("retention.ms"), "value", "-1") or "-1"))
    return None if "delete" not in policy or milliseconds < 0 else milliseconds / 1000
