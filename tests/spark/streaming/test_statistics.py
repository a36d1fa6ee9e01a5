"""Counts, summary and history of a real stream, as they are in the store when it is over."""

from __future__ import annotations

import time
from pathlib import Path

from dagster_ckpt import checkpoint_statistics
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatus
from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.request import CheckpointRequest, Failed
from tests.lab.lab import Lab
from tests.lab.streams import until
from tests.spark.hooked import Diary, hooked
from tests.spark.streaming.pipelines import Numbers


def test_the_numbers_of_a_stream_are_in_the_store_and_right(lab: Lab, tmp_path: Path) -> None:
    numbers = Numbers(tmp_path / "numbers")
    numbers.put(5)
    began = time.time()
    pipeline = hooked(tmp_path, num_retained=1)
    running = lab.start(pipeline)
    running.checkpoint()
    numbers.put(5)
    until(lambda: running.service.current.stages["numbers"].worker.batches.current.batch == 1, running)
    running.checkpoint()
    Diary(tmp_path).say("fail")
    number = CheckpointId(running.coordinator.record.next_id)
    running.coordinator.trigger(CheckpointRequest())
    until(lambda: isinstance(running.status_of(number), Failed), running)
    Diary(tmp_path).say("")
    running.checkpoint(kind=CheckpointKind.SAVEPOINT)
    here = running.coordinator.statistics()
    running.stop()
    again = lab.start(pipeline)
    again.stop()

    found = checkpoint_statistics(lab.coordinator.deployment(), pipeline.name)
    assert (found.counts.total, found.counts.completed, found.counts.failed, found.in_progress) == (
        4,
        3,
        1,
        0,
    )
    assert found.summary == here.summary, "the store knows what the process knew"
    assert [row.checkpoint_id for row in found.history] == [4, 3, 2, 1]
    savepoint, failed, latest, first = found.history
    assert (found.latest_savepoint, found.latest_failed, found.latest_completed) == (
        savepoint,
        failed,
        latest,
    )
    assert first.status in (CheckpointStatus.SUBSUMED, CheckpointStatus.DISCARDED)
    assert failed.failure_reason == "TRIGGER_CHECKPOINT_FAILURE"
    assert (found.restored_id, found.counts.restored) == (2, 1)
    assert found.restored_at is not None
    for row in (first, latest, savepoint):
        assert row.acknowledged == row.subtasks == 2
        assert began < row.triggered_at <= (row.latest_ack_at or 0) <= (row.ended_at or 0) < time.time()
        assert 0 < row.bytes_new <= row.bytes_full
        assert row.metadata_size > 0
        assert row.path
    assert latest.bytes_full > first.bytes_full
    durations = found.summary.duration
    assert durations is not None
    assert durations.count == 3
    assert 0 < durations.minimum <= durations.average <= durations.maximum
    sizes = found.summary.bytes_full
    assert sizes is not None
    assert sizes.total == sum(row.bytes_full for row in (first, latest, savepoint))
