"""One topic, its position topic and the transactions that write both."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
    Uuid,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.cimpl import NewTopic

from dagster_ckpt.core.ids import CoordinatorEpoch
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import CheckpointError, Fenced, InvalidRequest, OutcomeUnknown, Unavailable
from dagster_ckpt.spark.sink.port import AttemptId, SinkPosition

SECONDS = 60
"""How long a call waits for the cluster."""
_BESIDE = ".dagster_ckpt"
"""Ends the name of a position topic."""
_TRANSACTIONS = "dagster_ckpt/"
"""Transactional ids begin with it."""
_TRANSACTION_MS = 600_000
"""Longest transaction; brokers allow 15 minutes by default."""
_WARNINGS = 4
"""Of the client's messages; it has one at a lower level for every connection that ends."""
_OPEN_SECONDS = 10
"""How long a reader waits for open transactions that hide later records of the position topic."""
_NEWEST = 64
"""Offsets at the end of the position topic that are read first: a publish takes two."""
_SINK = "sink"
"""In a position's record, beside the position: uid of the sink that has written it."""
_TOPIC_ID = "topic_id"
"""The same: id of the topic that the rows are in; empty: the broker keeps none."""
_FENCED = (
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
)

_REFUSED = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError.POLICY_VIOLATION,
    KafkaError.TOPIC_EXCEPTION,
)
"""Errors that come again however often the same is tried."""
_FORBIDDEN = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)
_CLIENT_BYTES = 1_000_000
"""Largest message of librdkafka, where ``message.max.bytes`` says no other."""
_ENVELOPE = 256
"""Bytes around one message that the topic's limit counts too."""

NO_SUCH_TOPIC = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
_NO_ID = ("None", str(Uuid(0, 0)))
"""What the client says of a topic without one."""

_ANY, _POSITIONS = -1, 0
"""Partitions: where the key lies, and the one that positions are in, however many others have given their topic."""
_PARTITIONER = {"partitioner": "murmur2_random"}
"""Java's, which Spark, Flink and Kafka Streams have: a key lies in one partition, whoever wrote it."""

_READING = {
    "group.id": "dagster_ckpt",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    "fetch.wait.max.ms": 10,  # the end of the topic is what is waited for
}

Message = tuple[bytes | None, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """Settings of a topic that its messages have to fit."""

    most_bytes: int
    """Of key and value of one message, so that topic and producer take it."""
    needs_key: bool
    """The topic is compacted."""
    forgets_positions: bool = False
    """The position topic, which others have made, deletes its records after a while."""


class Broker:
    """A topic as one pipeline writes it. Connections live for one step."""

    def __init__(
        self,
        servers: str,
        options: Mapping[str, str],
        topic: str,
        *,
        pipeline: str,
        uid: str,
        previous: Sequence[str] = (),
        shared_with: Collection[str] = (),
    ) -> None:
        """``previous``: names that the pipeline had before: it goes on from their positions, and fences them.

        ``shared_with``: pipelines that write to the topic, too.
        """
        self.topic, self.positions = topic, f"{topic}{_BESIDE}"
        self.place = f"kafka://{servers}/{topic}"
        if topic.endswith(_BESIDE):
            raise InvalidRequest(
                f"{self.place} has a name of topics that hold positions of sinks: give another"
            )
        self._pipeline, self._uid = pipeline, uid
        self._names, self._shared_with = (pipeline, *previous), frozenset(shared_with)
        given = {name: resolved(name, value) for name, value in options.items()}
        self._has_topics = False
        self._client = {"log_level": _WARNINGS, **given, "bootstrap.servers": servers}

    def create_topics(self) -> None:
        """Make the topics that are missing; the position topic keeps the newest position of each pipeline."""
        if self._has_topics:
            return
        admin = AdminClient(self._client)
        existing = self._topics(admin)
        compacted = {"cleanup.policy": "compact"}
        wanted = [NewTopic(self.topic), NewTopic(self.positions, num_partitions=1, config=compacted)]
        missing = [topic for topic in wanted if topic.topic not in existing]
        for created in admin.create_topics(missing, operation_timeout=SECONDS).values() if missing else ():
            try:
                created.result(SECONDS)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise self.classified(error) from error
        self._refuse_forbidden(admin)
        self._has_topics = True

    def _refuse_forbidden(self, admin: AdminClient) -> None:
        """Raise InvalidRequest where this user may not do what a publish does: nothing was read or written yet."""
        needed = {self.topic: {AclOperation.WRITE}, self.positions: {AclOperation.READ, AclOperation.WRITE}}
        asked = admin.describe_topics(
            TopicCollection([*needed]), include_authorized_operations=True, request_timeout=SECONDS
        )
        for topic, answer in asked.items():
            try:
                granted = answer.result(SECONDS).authorized_operations
            except KafkaException as error:
                if error.args[0].code() in NO_SUCH_TOPIC:  # made just now: not every broker has heard of it
                    continue
                raise self.classified(error) from error
            if granted and not needed[topic].issubset(granted):  # brokers of before 2.3 do not tell
                missing = ", ".join(sorted(one.name for one in needed[topic].difference(granted)))
                raise self._forbidden(f"no {missing} on topic {topic}")

    def _forbidden(self, why: str) -> InvalidRequest:
        return InvalidRequest(
            f"{self.place} refuses this user ({why}): it needs WRITE on topic {self.topic}, READ and WRITE on "
            f"{self.positions} (CREATE on what is to be made), and WRITE on transactional ids that begin with "
            f"'{_TRANSACTIONS}'"
        )

    def topic_settings(self) -> TopicSettings:
        """Return how the topic is set up, as far as this user may know."""
        client = int(self._client.get("message.max.bytes", _CLIENT_BYTES))
        admin = AdminClient(self._client)
        rows, positions = (self._settings(admin, topic) for topic in (self.topic, self.positions))
        topic = int(rows.get("max.message.bytes") or client + _ENVELOPE) - _ENVELOPE
        return TopicSettings(
            most_bytes=min(client, topic),
            needs_key="compact" in rows.get("cleanup.policy", ""),
            forgets_positions="delete" in positions.get("cleanup.policy", ""),
        )

    def _settings(self, admin: AdminClient, topic: str) -> dict[str, str]:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        try:
            entries = admin.describe_configs([resource], request_timeout=SECONDS)[resource].result(SECONDS)
        except KafkaException as error:
            if error.args[0].code() in (*NO_SUCH_TOPIC, KafkaError.TOPIC_AUTHORIZATION_FAILED):
                return {}
            raise self.classified(error) from error
        except TimeoutError as error:
            raise Unavailable(f"{self.place} did not answer, or does not know this user: retry") from error
        return {name: str(getattr(entry, "value", "")) for name, entry in entries.items()}

    def position(self, attempt: AttemptId | None = None, *, is_fenced: bool = False) -> SinkPosition | None:
        """Return the newest committed position; a topic that was removed since, or made again, shows nothing.

        ``is_fenced``: no former producer is at work, so a transaction that is still open is another pipeline's.

        Raises InvalidRequest where another sink of this very ``attempt`` has written it: nothing else tells two
        spellings of one cluster. A sink that was renamed since finds an older attempt's. Likewise for an ``attempt``
        of a pipeline that never wrote it, where readers find another one's rows.
        """
        records = self._records(is_fenced=is_fenced)
        record = next((one for name, one in reversed(records) if name in self._names), None)
        if record is None:
            if attempt is not None and (why := self._why_foreign(records)):
                raise InvalidRequest(why)
            return None
        position = self._shown(record)
        is_of_now = attempt is not None and attempt == AttemptId(
            position.lineage, CoordinatorEpoch(position.epoch)
        )
        writer = record.get(_SINK, self._uid)  # positions of before have none
        if writer != self._uid and is_of_now:
            raise InvalidRequest(
                f"{self.place} is the topic that sink {writer!r} writes, under another spelling: rows of the one "
                "would be taken for the other's. Give each sink a topic of its own"
            )
        return position

    def why_foreign(self) -> str:
        """Return why a pipeline that never wrote the topic may not: readers find another one's rows; empty: it may."""
        return self._why_foreign(self._records(is_fenced=False))

    def _why_foreign(self, records: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
        for name, record in dict(records).items():
            if name not in (*self._names, *self._shared_with) and self._shown(record).head is not None:
                return (
                    f"{self.place} shows rows of pipeline {name!r}, and they would be there twice if "
                    f"{self._pipeline!r} is that pipeline under another name: name the old one "
                    f"(previous_names=[{name!r}]) and restore its newest snapshot, or give the sink another topic; "
                    f"where both are to write to this one, say so: shared_with=({name!r},)"
                )
        return ""

    def _shown(self, record: Mapping[str, Any]) -> SinkPosition:
        """Return the position of a record, as its topic is now."""
        position = SinkPosition(**{name: at for name, at in record.items() if name not in (_SINK, _TOPIC_ID)})
        topic_id = record.get(_TOPIC_ID)
        if topic_id and position.head is not None and self._topic_id() != topic_id:
            return replace(position, head=None, through_batch=None)
        return position

    def _records(self, *, is_fenced: bool) -> list[tuple[str, dict[str, Any]]]:
        """Return positions by the pipeline that wrote them, oldest first: the newest at least, or its own are there."""
        consumer = Consumer({**self._client, **_READING})
        try:
            if self.positions not in consumer.list_topics(timeout=SECONDS).topics:
                return []
            found = self._read(consumer, newest=_NEWEST, is_fenced=is_fenced)
            is_there = any(name in self._names for name, _ in found)
            return found if is_there else self._read(consumer, newest=None, is_fenced=is_fenced)
        except KafkaException as error:
            raise self.classified(error) from error
        finally:
            consumer.close()

    def begin(self) -> Producer:
        """Return a producer that fences all earlier ones; what they had not committed is aborted."""
        try:
            return [self._producer(name) for name in reversed(self._names)][-1]
        except KafkaException as error:
            raise self.classified(error) from error

    def _producer(self, name: str) -> Producer:
        settings = {
            "transactional.id": f"{_TRANSACTIONS}{name}/{self.topic}",
            "transaction.timeout.ms": _TRANSACTION_MS,
        }
        producer = Producer({**_PARTITIONER, **self._client, **settings})
        producer.init_transactions(SECONDS)
        return producer

    def write(self, producer: Producer, messages: Iterable[Message], position: SinkPosition) -> None:
        """Send messages and position in one transaction, and commit it."""
        said = {_SINK: self._uid, _TOPIC_ID: self._topic_id()}
        try:
            producer.begin_transaction()
            for key, value in messages:
                self.send(producer, self.topic, key, value)
            record = json.dumps({**asdict(position), **said})
            for name in self._names:  # under a former one a run of the old code finds that it was replaced
                self.send(producer, self.positions, name.encode(), record.encode(), partition=_POSITIONS)
        except KafkaException as error:
            raise self.classified(error) from error
        try:
            self.commit(producer)
        except KafkaException as error:
            if error.args[0].txn_requires_abort():
                with suppress(KafkaException):  # the next producer's first step is to end it
                    producer.abort_transaction(SECONDS)
                raise self.classified(error) from error
            if error.args[0].code() in _FENCED:
                raise self.classified(error) from error
            raise OutcomeUnknown(
                f"{self.place} did not answer to the commit ({error.args[0].str()}): repeat it, what happened is "
                "recognized"
            ) from error

    def _topic_id(self) -> str:
        """Return the id that tells the topic from later topics of its name; empty: it is not there, or has none."""
        try:
            return topic_ids(AdminClient(self._client), [self.topic], SECONDS).get(self.topic, "")
        except KafkaException as error:
            raise self.classified(error) from error

    def send(
        self, producer: Producer, topic: str, key: bytes | None, value: bytes | None, *, partition: int = _ANY
    ) -> None:
        """Hand a message over; wait where too many are on their way."""
        while True:
            try:
                producer.produce(topic, value=value, key=key, partition=partition)
            except BufferError:
                producer.poll(1)
            else:
                producer.poll(0)
                return

    def commit(self, producer: Producer) -> None:
        """Commit the transaction, once everything sent has arrived."""
        producer.commit_transaction(SECONDS)

    def classified(self, error: KafkaException) -> CheckpointError:
        """Return the error that a failure before the commit means: nothing of it will be seen."""
        cause: KafkaError = error.args[0]
        if cause.code() in _FENCED:
            return Fenced(f"another process publishes to {self.place} as pipeline {self._pipeline!r}")
        if cause.code() in _FORBIDDEN:
            return self._forbidden(cause.str())
        if cause.code() in _REFUSED:
            return InvalidRequest(f"{self.place} refuses these rows, none is visible: {cause.str()}")
        return Unavailable(f"{self.place} did not carry it out, no row is visible ({cause.str()}): retry")

    def _topics(self, admin: AdminClient) -> set[str]:
        try:
            return set(admin.list_topics(timeout=SECONDS).topics)
        except KafkaException as error:
            raise self.classified(error) from error

    def _read(
        self, consumer: Consumer, *, newest: int | None, is_fenced: bool
    ) -> list[tuple[str, dict[str, Any]]]:
        found: list[tuple[str, dict[str, Any]]] = []
        place = TopicPartition(self.positions, _POSITIONS)
        low, high = consumer.get_watermark_offsets(place, SECONDS)
        first = low if newest is None else max(low, high - newest)
        consumer.assign([TopicPartition(self.positions, _POSITIONS, first)])
        seconds = SECONDS
        while (message := consumer.poll(seconds)) is not None:
            failure, key, value = message.error(), message.key(), message.value()
            if failure is None and key is not None and value is not None:
                found.append((key.decode(), parse_json(value)))
            elif failure is not None and failure.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                continue  # offsets are assigned: no group is asked for any
            elif failure is not None and failure.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(failure)
            elif failure is not None:
                end = consumer.get_watermark_offsets(place, cached=True)[1]
                if not self._shared_with or (message.offset() or 0) >= end:
                    return found
                # Behind another's open transaction there may be records of this pipeline.
                seconds = _OPEN_SECONDS
        if seconds == _OPEN_SECONDS and not is_fenced:
            return found  # the transaction may be of a process that died, which nobody has fenced
        raise Unavailable(f"{self.place} did not answer, or has another pipeline's open transaction: retry")


def topic_ids(admin: AdminClient, topics: Collection[str], seconds: int) -> dict[str, str]:
    """Return the topics' ids; one that is not there, or that a broker of before 2.8 keeps, has none."""
    found = {}
    asked = admin.describe_topics(TopicCollection(list(topics)), request_timeout=seconds) if topics else {}
    for topic, answer in asked.items():
        try:
            found[topic] = str(answer.result(seconds).topic_id)
        except KafkaException as error:
            if error.args[0].code() not in NO_SUCH_TOPIC:
                raise
    return {topic: number for topic, number in found.items() if number not in _NO_ID}


def resolved(name: str, value: Any) -> Any:
    """Return a setting; ``env:NAME`` is the content of that variable. Raises InvalidRequest where it is not set."""
    if not isinstance(value, str) or not value.startswith("env:"):
        return value
    variable = value.removeprefix("env:")
    if not os.environ.get(variable):
        raise InvalidRequest(f"{name!r} is named by the variable {variable}, which is not set: set it")
    return os.environ[variable]
