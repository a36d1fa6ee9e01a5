"""Settings of a stream show their effect in a real run, from whichever place they are given."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt import SourceBatch
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.messages import CheckpointFailureReason
from dagster_ckpt.core.request import CheckpointRequest, Completed, Rejected
from dagster_ckpt.spark.streaming.gate import Hold
from dagster_ckpt.spark.streaming.progress import ProgressWatch, StreamProgress
from dagster_ckpt.spark.streaming.run import EndOfData
from dagster_ckpt.spark.streaming.sources import is_behind
from tests.lab.lab import Lab
from tests.lab.pipelines import sink, source, wired
from tests.lab.streams import Running, until
from tests.spark.streaming.pipelines import Numbers, read_numbers, read_rows, straight


def old_and_new(folder: Path, **settings: Any) -> Any:
    """One source, one table."""
    return wired(
        "old_and_new",
        source("numbers", lambda spark: read_numbers(spark, folder), **settings),
        sink("rows", lambda numbers: numbers.selectExpr("n", "'fast' AS path")),
    )


def test_while_a_source_says_it_has_a_backlog_its_interval_counts(lab: Lab, tmp_path: Path) -> None:
    """CheckpointIntervalDuringBacklogITCase: no checkpoints during the backlog, and again when it is over."""
    numbers = Numbers(tmp_path / "numbers")

    def is_old(batch: SourceBatch) -> bool:
        return not any("000003" in path for path in batch.files)

    numbers.put(2)
    running = lab.start(
        old_and_new(numbers.folder, is_backlog=is_old), interval="300 ms", interval_during_backlog=0
    )
    until(lambda: takes_none_for(2.5, running), running)
    numbers.put(2)
    numbers.put(2)
    running.wait_for_checkpoints(2)


def takes_none_for(seconds: float, running: Running) -> bool:
    before = len(running.completed())
    time.sleep(seconds)
    return len(running.completed()) == before


def test_a_source_that_spark_holds_back_behind_what_it_knows_of_has_a_backlog() -> None:
    assert is_behind({"sources": [{"endOffset": {"t": {"0": 5}}, "latestOffset": {"t": {"0": 9}}}]})
    assert not is_behind({"sources": [{"endOffset": {"t": {"0": 9}}, "latestOffset": {"t": {"0": 9}}}]})
    assert not is_behind({"sources": [{"endOffset": {"logOffset": 4}, "latestOffset": None}]})
    assert not is_behind({})


def test_the_first_periodic_checkpoint_comes_after_the_initial_delay(lab: Lab, tmp_path: Path) -> None:
    numbers = Numbers(tmp_path / "numbers")
    numbers.put(2)
    running = lab.start(straight(numbers.folder), interval="1 h", initial_delay="100 ms")
    running.wait_for_checkpoints(1)


def test_without_checkpoints_after_the_end_a_bounded_stream_takes_none_and_the_next_run_publishes(
    lab: Lab, tmp_path: Path
) -> None:
    numbers = Numbers(tmp_path / "numbers")
    numbers.put(5)
    pipeline = old_and_new(numbers.folder, boundedness="bounded")
    running = lab.launch(pipeline, checkpoints_after_tasks_finish=False)
    assert running.join() == EndOfData(None)
    assert running.completed() == []
    assert read_rows(lab.tables) == Counter()

    again = lab.launch(pipeline)
    end = again.join()
    assert isinstance(end, EndOfData)
    assert end.checkpoint_id is not None
    assert table_of(lab) == list(range(5))


def test_without_checkpoints_after_the_end_one_ended_source_refuses_them_all(
    lab: Lab, tmp_path: Path
) -> None:
    some, ever = Numbers(tmp_path / "some"), Numbers(tmp_path / "ever")
    some.put(2)
    running = lab.start(two_sources(some.folder, ever.folder), checkpoints_after_tasks_finish=False)
    current = running.current
    until(lambda: current.stages[StageUid("some")].is_ended, running)
    refused = running.coordinator.trigger(CheckpointRequest())
    assert isinstance(refused, Rejected)
    assert refused.reason is CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING
    assert "checkpoints_after_tasks_finish is off" in refused.message
    [told] = [line for line in running.reporter.said if "has ended" in line]
    assert "source some has ended" in told
    assert "takes no checkpoint from now on" in told


def two_sources(some: Path, ever: Path) -> Any:
    """A bounded source and an unbounded one, in one table."""

    return wired(
        "two_sources",
        source("some", lambda spark: read_numbers(spark, some), boundedness="bounded"),
        source("ever", lambda spark: read_numbers(spark, ever)),
        sink("rows", lambda some, ever: some.unionByName(ever).selectExpr("n", "'fast' AS path")),
    )


@pytest.mark.parametrize("is_left_out", [False, True])
def test_the_in_flight_data_of_one_checkpoint_is_left_out_of_a_restore(
    lab: Lab, tmp_path: Path, is_left_out: bool
) -> None:
    numbers = Numbers(tmp_path / "numbers")
    pipeline = straight(numbers.folder)
    numbers.put(2)
    running = lab.start(pipeline, unaligned=True)
    until(lambda: bool(running.checkpoint()) and sum(read_rows(lab.tables).values()) == 2, running)
    current = running.current
    rows = current.stages[StageUid("rows")]
    rows.gate.hold(Hold.BOUNDARY)
    numbers.put(3)
    until(lambda: rows.worker.inputs[StageUid("numbers")].backlog > 0, running)
    overtaken = running.outcome(running.trigger())
    assert isinstance(overtaken, Completed)
    assert sum(stage.metrics.persisted_in_flight for stage in overtaken.metadata.stages) > 0
    running.crash()
    running.join()

    number = overtaken.metadata.checkpoint_id
    options = RestoreOptions.of(
        restore_from=overtaken.location.uri, without_channel_state_of=number if is_left_out else number + 1
    )
    again = lab.start(pipeline, restore=options)
    numbers.put(1)
    wanted = [0, 1, 5] if is_left_out else [0, 1, 2, 3, 4, 5]
    until(lambda: bool(again.checkpoint()) and table_of(lab)[-1] == 5, again)
    assert table_of(lab) == wanted


def table_of(lab: Lab) -> list[int]:
    return sorted(n for n, _ in read_rows(lab.tables).elements())


def test_what_is_told_of_a_stream_shows_its_latest_checkpoints(lab: Lab, tmp_path: Path) -> None:
    numbers = Numbers(tmp_path / "numbers")
    numbers.put(2)
    told: list[list[int]] = []

    def tell(_: StreamProgress, history: Any) -> None:
        told.append([row.checkpoint_id for row in history if isinstance(row, CheckpointStatistics)])

    running = lab.start(straight(numbers.folder))
    watch = ProgressWatch(tell=tell, tell_every=0.1)
    for _ in range(3):
        running.checkpoint()
    current = running.current

    def seen() -> bool:
        watch.tick(current, restarts=0)
        return bool(told)

    until(seen, running)
    assert told[0] == [3, 2, 1]
