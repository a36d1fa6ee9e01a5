"""Aligned checkpoints of a running diamond."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.request import Completed
from tests.lab.lab import Lab
from tests.lab.streams import until
from tests.spark.streaming.pipelines import (
    Numbers,
    diamond,
    expected_rows,
    expected_totals,
    read_rows,
    read_totals,
    straight,
)


def test_checkpoints_complete_while_the_queries_run_and_publish_what_lies_before_their_barriers(
    lab: Lab, tmp_path: Path
) -> None:
    numbers = Numbers(tmp_path / "numbers")
    pipeline = diamond(numbers.folder)
    numbers.put(10)
    running = lab.start(pipeline, local_backup=True)
    for _ in range(3):
        numbers.put(10)
        running.checkpoint()
        seen = sum(read_rows(lab.tables).values())
        assert seen % 20 == 0
    until(lambda: running.service.current.stages["numbers"].worker.batches.current.batch == 3, running)
    running.checkpoint()
    until(lambda: read_rows(lab.tables) == expected_rows(numbers.count), running)
    assert read_totals(lab.tables) == expected_totals(numbers.count)
    newest = str(running.completed()[-1])
    copies = {folder.name: os.listdir(folder) for folder in (lab.folder / "work/diamond/local").iterdir()}
    assert copies == {uid: [newest] for uid in pipeline.stages}, "only the newest checkpoint is kept here"
    running.stop()


@pytest.mark.nightly
def test_a_stream_at_rest_passes_barriers_without_a_batch_and_goes_on_from_such_a_checkpoint(
    lab: Lab, tmp_path: Path
) -> None:
    numbers = Numbers(tmp_path / "numbers")
    pipeline = diamond(numbers.folder)
    numbers.put(10)
    running = lab.start(pipeline)
    until(lambda: bool(running.checkpoint()) and read_rows(lab.tables) == expected_rows(10), running)
    first, last = [batches_of(running.checkpoint()) for _ in range(4)][::3]
    assert first == last
    running.crash()
    running.join()

    again = lab.start(pipeline)
    numbers.put(10)
    until(lambda: bool(again.checkpoint()) and read_rows(lab.tables) == expected_rows(20), again)
    assert read_totals(lab.tables) == expected_totals(20)
    again.stop()


def batches_of(done: Completed) -> dict[str, int | None]:
    return {stage.uid: stage.batch_id for stage in done.metadata.stages}


@pytest.mark.nightly
def test_a_stream_that_is_executed_again_keeps_what_its_first_try_completed(lab: Lab, tmp_path: Path) -> None:
    numbers = Numbers(tmp_path / "numbers")
    pipeline = straight(numbers.folder)
    running = lab.start(pipeline)
    numbers.put(5)
    until(lambda: bool(running.checkpoint()) and read_rows(lab.tables).total() == 5, running)
    savepoint = running.checkpoint(kind=CheckpointKind.SAVEPOINT)
    running.stop()

    again = RestoreOptions(restore_from=savepoint.location.uri)
    tried = lab.start(pipeline, restore=again, root="asked-once")
    assert lab.record(pipeline).restored_id == savepoint.metadata.checkpoint_id
    numbers.put(5)
    until(lambda: bool(tried.checkpoint()) and read_rows(lab.tables).total() == 10, tried)
    tried.crash()
    tried.join()
    newest = tried.completed()[-1]

    retried = lab.start(pipeline, restore=again, root="asked-once")
    assert lab.record(pipeline).restored_id == newest
    assert read_rows(lab.tables).total() == 10
    retried.stop()
