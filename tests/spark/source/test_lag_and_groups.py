"""How far behind a snapshot's sources are, and the groups that are told of it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dagster_ckpt.core.coordinator.effects import CheckpointCompleted
from dagster_ckpt.core.model import CheckpointKind, CheckpointMetadata
from dagster_ckpt.dagster.reports.asset import position_metadata
from dagster_ckpt.ext.kafka.topic_log import KafkaLog
from dagster_ckpt.ext.kafka.topics import KafkaTopics
from dagster_ckpt.spark.source.positions import QUIET, GroupOffsets, LagReader, total_lag
from dagster_ckpt.testing import MemoryTopics
from tests.operations.restores.test_source_horizon import reading, source_at
from tests.spark.source.test_source_pins import Heard


@pytest.fixture
def topics() -> MemoryTopics:
    made = MemoryTopics()
    made.create("orders", 2)
    made.append("orders", 0, 10)
    return made


def completed(number: int, positions: str = '{"orders":{"0":7,"1":0}}') -> CheckpointMetadata:
    return CheckpointMetadata(
        pipeline="sales",
        checkpoint_id=number,
        kind=CheckpointKind.CHECKPOINT,
        epoch=1,
        triggered_at=1.0,
        completed_at=2.0,
        stages=(source_at(positions),),
    )


def test_the_lag_is_what_lies_after_the_positions_and_is_a_number_of_the_asset(topics: MemoryTopics) -> None:
    found = LagReader(pipeline=reading(topics)).read(completed(1))
    assert [(one.partition, one.offset, one.latest, one.lag) for one in found[0].partitions] == [
        (0, 7, 10, 3),
        (1, 0, 0, 0),
    ]
    assert position_metadata(found)["lag"].value == 3
    unasked = LagReader(pipeline=reading(None)).read(completed(1))
    assert total_lag(unasked) is None
    assert set(position_metadata(unasked)) == {"positions"}
    assert position_metadata(LagReader(pipeline=None).read(completed(1, '{"logOffset":3}'))) == {}
    [stage] = completed(1).stages
    finished = completed(1).model_copy(update={"stages": (stage.model_copy(update={"finished": True}),)})
    over = LagReader(pipeline=reading(topics)).read(finished)
    assert [(one.offset, one.lag) for one in over[0].partitions] == [(7, None), (0, None)], "never late again"


def test_a_log_that_does_not_answer_is_left_alone_for_a_while(topics: MemoryTopics) -> None:
    now = 100.0
    reader = LagReader(pipeline=reading(topics), clock=lambda: now)
    topics.is_down = True
    assert "did not answer" in reader.read(completed(1))[0].problem
    topics.is_down = False
    assert "did not answer" in reader.read(completed(2))[0].problem
    now += QUIET + 1
    assert total_lag(reader.read(completed(3))) == 3


def test_a_group_is_told_completed_checkpoints_and_a_fork_tells_nobody(
    topics: MemoryTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KafkaLog, "commit", lambda self, group, positions: topics.commit(group, positions))
    pipeline = reading(KafkaTopics("broker:9092", group="tools"))
    heard = Heard()
    groups = GroupOffsets(pipeline, heard)

    def hear(number: int, positions: str) -> None:
        metadata = completed(number, positions)
        kind = CheckpointKind.CHECKPOINT
        groups(
            CheckpointCompleted(
                checkpoint_id=cast(Any, number),
                kind=kind,
                metadata=metadata,
                uri="",
                statistics=cast(Any, None),
            )
        )
        if (thread := groups.thread) is not None:
            thread.join()

    hear(1, '{"orders":{"0":7}}')
    hear(2, '{"orders":{"0":9}}')
    assert topics.groups == {"tools": {"orders": {0: 9}}}
    topics.is_down = True
    hear(3, '{"orders":{"0":10}}')
    assert "group 'tools' was not told the offsets of checkpoint 3" in heard.warnings[0]
    assert GroupOffsets.wanted(pipeline)
    assert not GroupOffsets.wanted(pipeline.fork("side", table_dir="/tables"))
    assert not GroupOffsets.wanted(reading(KafkaTopics("broker:9092")))
