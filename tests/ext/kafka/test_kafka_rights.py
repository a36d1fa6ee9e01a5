"""A broker that asks who may do what: a sink without its rights is refused in one sentence, before it reads a row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AclBinding, AclPermissionType, AdminClient, ResourcePatternType
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from dagster_ckpt.core.ids import CoordinatorEpoch
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.kafka.sink import KafkaSink
from dagster_ckpt.sinks import KafkaTopic
from dagster_ckpt.spark.sink.port import AttemptId
from tests.adapters.servers import KafkaBroker, kafka_broker
from tests.conftest import started
from tests.contract.test_kafka_sink import context_in
from tests.needs import needs

pytestmark = [pytest.mark.nightly, pytest.mark.slow]

DESCRIBE, READ, WRITE = AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE
TRANSACTIONS = "dagster_ckpt/"
Rights = tuple[tuple[AclOperation, ...], tuple[AclOperation, ...], bool]
"""On the topic, on its positions, and whether the transactional ids may be used."""
MISSING: dict[str, tuple[Rights, str]] = {
    "everything": (((), (), False), "Authorization failed"),
    "the positions": (((WRITE,), (), True), "Authorization failed"),
    "reading the positions": (((WRITE,), (WRITE,), True), "Topic authorization failed"),
    "writing the positions": (((WRITE,), (READ,), True), "no WRITE on topic {}.dagster_ckpt"),
    "writing the topic": (((DESCRIBE,), (READ, WRITE), True), "no WRITE on topic {}"),
    "transactional ids": (((WRITE,), (READ, WRITE), False), "Transactional Id authorization failed"),
}


@pytest.fixture(scope="module")
@needs("kafka")
def guarded() -> Iterator[KafkaBroker]:
    """A real broker with users."""
    with started(kafka_broker(has_users=True)) as broker:
        yield broker


def sink_with(broker: KafkaBroker, folder: Path, topic: str, rights: Rights) -> KafkaSink:
    """Return the sink of a user with these rights, on a topic that is there."""
    admin = AdminClient(broker.client())
    positions = f"{topic}.dagster_ckpt"
    compacted = {"cleanup.policy": "compact"}
    made = [NewTopic(topic, num_partitions=1), NewTopic(positions, num_partitions=1, config=compacted)]
    of_topic, of_positions, has_transactions = rights
    given = [(ResourceType.TOPIC, topic, one) for one in of_topic]
    given += [(ResourceType.TOPIC, positions, one) for one in of_positions]
    if has_transactions:
        given.append((ResourceType.TRANSACTIONAL_ID, f"{TRANSACTIONS}shop/{topic}", WRITE))
    bindings = [
        AclBinding(
            kind, name, ResourcePatternType.LITERAL, "User:app", "*", operation, AclPermissionType.ALLOW
        )
        for kind, name, operation in given
    ]
    for asked in (admin.create_topics(made), admin.create_acls(bindings) if bindings else {}):
        for answer in asked.values():
            answer.result(60)
    options = {name: value for name, value in broker.client("app").items() if "bootstrap" not in name}
    attempt = AttemptId("first", CoordinatorEpoch(1))
    return KafkaSink(KafkaTopic(broker.address, topic, options=options), context_in(folder, attempt))


@pytest.mark.parametrize("missing", MISSING)
def test_a_sink_without_a_right_is_refused_before_it_takes_over(
    guarded: KafkaBroker, tmp_path: Path, missing: str
) -> None:
    """`retry`, said again and again; one that may not write its topic was told once a checkpoint was complete."""
    rights, said = MISSING[missing]
    topic = missing.replace(" ", "_")
    with pytest.raises(InvalidRequest, match=r"refuses this user \(.*WRITE on transactional ids") as refused:
        sink_with(guarded, tmp_path, topic, rights).take_over()
    assert said.format(topic) in str(refused.value)


def test_a_sink_with_the_rights_that_are_named_needs_no_others(guarded: KafkaBroker, tmp_path: Path) -> None:
    sink = sink_with(guarded, tmp_path, "allowed", ((WRITE,), (READ, WRITE), True))
    sink.take_over()
    position = sink.position()
    assert position is not None
    assert position.epoch == 1
