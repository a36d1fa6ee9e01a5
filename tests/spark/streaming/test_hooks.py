"""Hooks in streams: state across restarts and savepoints, and a hook that hangs while the stream runs on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.request import CheckpointRequest, Failed
from tests.lab.lab import Lab
from tests.lab.streams import Running, until
from tests.spark.hooked import Diary, hooked
from tests.spark.streaming.pipelines import Numbers, read_rows


@pytest.fixture
def numbers(tmp_path: Path) -> Numbers:
    made = Numbers(tmp_path / "numbers")
    made.put(5)
    return made


@pytest.fixture
def diary(tmp_path: Path) -> Diary:
    return Diary(tmp_path)


def calls(diary: Diary) -> list[list[object]]:
    return [entry for entry in diary.read() if entry[0] != "source"]


def checkpoint(running: Running, diary: Diary, number: int) -> None:
    """Take a checkpoint and wait until the hook has heard of its completion."""
    running.checkpoint()
    until(lambda: ["complete", number] in diary.read(), running)


def until_published(running: Running, lab: Lab, numbers: Numbers) -> None:
    rows = Counter((n, "fast") for n in range(numbers.count))
    until(lambda: bool(running.checkpoint()) and read_rows(lab.tables) == rows, running)


def test_a_stream_restores_its_hook_after_a_query_died_a_kill_and_a_stop_with_savepoint(
    lab: Lab, tmp_path: Path, numbers: Numbers, diary: Diary
) -> None:
    pipeline = hooked(tmp_path)
    running = lab.start(pipeline)
    checkpoint(running, diary, 1)
    checkpoint(running, diary, 2)
    assert calls(diary) == [["reset"], ["trigger", 1], ["complete", 1], ["trigger", 2], ["complete", 2]]
    diary.clear()
    running.service.current.stages["rows"].query.stop()
    until(lambda: ["source", 2] in diary.read(), running)
    assert calls(diary)[:2] == [["close"], ["restore", 2, 2]], "once, by the attempt that follows"
    numbers.put(5)
    checkpoint(running, diary, 3)
    running.crash()
    running.join()
    diary.clear()

    again = lab.start(pipeline)
    assert diary.read()[0] == ["restore", 3, 3]
    again.stop_with_savepoint()
    assert calls(diary)[-3:] == [["trigger", 4], ["complete", 4], ["close"]]
    diary.clear()
    last = lab.start(pipeline)
    assert diary.read()[0] == ["restore", 4, 4]
    until_published(last, lab, numbers)
    last.stop()
    assert sum(read_rows(lab.tables).values()) == numbers.count


def test_a_hook_that_hangs_fails_checkpoints_by_name_while_the_stream_runs_on(
    lab: Lab, tmp_path: Path, numbers: Numbers, diary: Diary
) -> None:
    pipeline = hooked(tmp_path, patience=5.0, tolerable_failed_checkpoints=0)
    running = lab.start(pipeline)
    checkpoint(running, diary, 1)
    for order, why in (("hang", "did not answer within 5 s"), ("fail", "the ledger is closed")):
        diary.say(order)
        number = CheckpointId(running.coordinator.record.next_id)
        running.coordinator.trigger(CheckpointRequest())
        until(lambda n=number: isinstance(running.status_of(n), Failed), running)  # type: ignore[misc]
        failed = running.status_of(number)
        assert isinstance(failed, Failed)
        assert "'ledger'" in failed.message
        assert why in failed.message
        diary.say("")
    numbers.put(5)
    until_published(running, lab, numbers)
    assert running.service.restarts == 0
    running.stop()
