"""A pipeline whose sources cannot read on is refused before anything of it starts."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from dagster_ckpt import CheckpointedPipeline, spark_source
from dagster_ckpt.authoring.targets import SourceOrigin
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.model import Chain
from dagster_ckpt.core.restore.choice import Restore
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.kafka.topic_log import KafkaLog
from dagster_ckpt.ext.kafka.topics import KafkaTopics
from dagster_ckpt.spark.attempt.restore import refuse_lost_positions
from dagster_ckpt.spark.source.pins import refuse_lost
from dagster_ckpt.spark.source.positions import positions_at
from dagster_ckpt.testing import MemoryTopics
from tests.lab.pipelines import sink, wired
from tests.operations.restores.test_source_horizon import reading

AT = {"orders": {"0": '{"orders":{"0":2}}', "1": '{"logOffset":4}'}, "totals": {"0": '{"entry":3}'}}


@dataclass
class Heard:
    """What was said."""

    warnings: list[str] = field(default_factory=list)

    def info(self, message: str) -> None: ...

    def warn(self, message: str) -> None:
        self.warnings.append(message)


@pytest.fixture
def topics() -> MemoryTopics:
    made = MemoryTopics()
    made.create("orders")
    made.append("orders", 0, 10)
    return made


def test_records_that_are_gone_are_named_with_what_is_wanted_and_what_is_there(topics: MemoryTopics) -> None:
    at = positions_at(AT, (), reading(topics))
    refuse_lost(at, Heard())
    topics.expire("orders", 0, 3)
    with pytest.raises(InvalidRequest) as refused:
        refuse_lost(at, Heard())
    assert str(refused.value).startswith(
        "source orders cannot read on: offset 2 of partition 0 of topic orders (the earliest there is 3) is gone in "
        "memory://topics. Restore a newer snapshot"
    )


def test_nobody_reads_on_from_where_a_source_has_finished(topics: MemoryTopics) -> None:
    topics.expire("orders", 0, 3)
    decision = object.__new__(Restore)
    match = SimpleNamespace(uid="renamed", snapshot=SimpleNamespace(uid="orders"))
    given = {
        "metadata": SimpleNamespace(
            stages=[SimpleNamespace(uid=uid, offsets=at, topic_ids={}) for uid, at in AT.items()], chains=()
        ),
        "stages": SimpleNamespace(matches=[match]),
    }
    for name, value in given.items():
        object.__setattr__(decision, name, value)
    with pytest.raises(InvalidRequest, match="cannot read on"):
        refuse_lost_positions(reading(topics), Heard(), decision)
    refuse_lost_positions(reading(topics), Heard(), decision, lambda: {StageUid("renamed")})


def test_a_topic_that_was_made_again_and_has_grown_past_the_position_is_told_by_its_id(
    topics: MemoryTopics,
) -> None:
    """By its offsets nothing was missing: the records before the position were never read, and the run succeeded."""
    known = {"orders": topics.ids(["orders"])}
    at = positions_at(AT, (), reading(topics), known)
    refuse_lost(at, Heard())
    topics.create("orders")
    topics.append("orders", 0, 20)
    with pytest.raises(InvalidRequest, match=r"topic orders \(it was made again: its id was .*\) is gone"):
        refuse_lost(at, Heard())
    refuse_lost(positions_at(AT, (), reading(topics)), Heard())  # of a checkpoint of before: nobody knows


def test_a_chain_is_asked_by_the_source_in_it(topics: MemoryTopics) -> None:
    topics.expire("orders", 0, 3)
    chain = Chain(uid="totals", stages=("orders", "totals"))
    [at] = positions_at({"totals": AT["orders"]}, (chain,), reading(topics))
    assert (at.stage, at.source) == ("totals", "orders")
    with pytest.raises(InvalidRequest, match="source orders cannot read on"):
        refuse_lost([at], Heard())


def reading_two(first: SourceOrigin | None, second: SourceOrigin | None) -> CheckpointedPipeline:
    @spark_source(reads=first)
    def orders(spark):  # type: ignore[no-untyped-def]
        raise AssertionError("nothing starts Spark to ask")

    @spark_source(reads=second)
    def people(spark):  # type: ignore[no-untyped-def]
        raise AssertionError("nothing starts Spark to ask")

    return wired("sales", orders, people, sink("totals", lambda orders, people: orders.join(people)))


def test_offsets_of_several_places_in_one_query_are_nobodys(topics: MemoryTopics) -> None:
    """Of a chain that began before its sources said where they read: one's topic is not in the other's place."""
    both = {"totals": {"0": '{"orders":{"0":2}}', "1": '{"people":{"0":5}}'}}
    chain = Chain(uid="totals", stages=("orders", "people", "totals"))
    [at] = positions_at(both, (chain,), reading_two(topics, KafkaTopics("elsewhere:9092")))
    assert at.origin is None
    refuse_lost([at], Heard())
    [at] = positions_at(both, (chain,), reading_two(topics, topics))
    assert at.origin is topics
    [at] = positions_at(both, (chain,), reading_two(topics, None))
    assert at.origin is None, "the second log may be the other source's"
    files = {"totals": {"0": '{"orders":{"0":2}}', "1": '{"logOffset":4}'}}
    [at] = positions_at(files, (chain,), reading_two(topics, None))
    assert at.origin is topics


def test_a_log_that_does_not_answer_keeps_nobody_from_starting(topics: MemoryTopics) -> None:
    topics.is_down = True
    heard = Heard()
    refuse_lost(positions_at(AT, (), reading(topics)), heard)
    assert "topic orders of source orders is still there is not known" in heard.warnings[0]
    refuse_lost(positions_at(AT, (), reading(None)), heard)
    assert len(heard.warnings) == 1


def test_a_source_that_may_lose_records_is_warned(
    topics: MemoryTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.expire("orders", 0, 3)
    monkeypatch.setattr(KafkaLog, "bounds", lambda self, wanted: topics.bounds(wanted))
    heard = Heard()
    lossy = KafkaTopics("broker:9092", fail_on_data_loss=False)
    refuse_lost(positions_at(AT, (), reading(lossy)), heard)
    assert "records are lost: source orders cannot read on: offset 2" in heard.warnings[0]
    with pytest.raises(InvalidRequest, match="kafka://broker:9092"):
        refuse_lost(positions_at(AT, (), reading(KafkaTopics("broker:9092"))), heard)


def test_a_client_that_is_not_installed_is_a_sentence_and_keeps_nobody_from_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "dagster_ckpt.ext.kafka.topic_log", raising=False)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    heard = Heard()
    refuse_lost(positions_at(AT, (), reading(KafkaTopics("broker:9092"))), heard)
    assert "pip install 'confluent-kafka>=2.6'" in heard.warnings[0]
