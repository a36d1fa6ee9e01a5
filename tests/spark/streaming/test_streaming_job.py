"""The streaming job as a Dagster run: live events, savepoints and stops asked from other runs, epochs around it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from dagster_ckpt import (
    CheckpointedPipeline,
)
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.request import RunStatus
from dagster_ckpt.dagster.runs.turn import ANSWER_TIMEOUT
from dagster_ckpt.spark.streaming.gate import Hold
from dagster_ckpt.spark.streaming.service import Interrupted
from tests import progress
from tests.lab.lab import Lab
from tests.lab.streams import until
from tests.spark.streaming.pipelines import (
    Numbers,
    diamond,
    expected_rows,
    expected_totals,
    read_rows,
    read_totals,
)


@dataclass
class JobRun:
    """A job that runs in a thread."""

    thread: threading.Thread
    results: list[dg.ExecuteInProcessResult] = field(default_factory=list)

    def join(self) -> dg.ExecuteInProcessResult:
        progress.join(self.thread, "the run ends")
        return self.results[0]


@dataclass
class Jobs:
    """Jobs of one pipeline, which may run in threads."""

    lab: Lab
    pipeline: CheckpointedPipeline

    @property
    def tables(self) -> Path:
        return self.lab.tables

    def run(self, job: str, **ops: Any) -> dg.ExecuteInProcessResult:
        return self.lab.run(self.pipeline, job, ops)

    def launch(self, job: str, **ops: Any) -> JobRun:
        run = JobRun(threading.Thread(target=lambda: run.results.append(self.run(job, **ops)), daemon=True))
        run.thread.start()
        return run

    def record(self) -> CoordinatorRecord:
        return self.lab.record(self.pipeline)

    def checkpoints(self) -> int:
        return len(self.lab.materializations(self.pipeline))

    def says(self, job: str, text: str) -> bool:
        """Tell whether a run of a job has logged this."""
        instance = self.lab.instance
        runs = instance.get_runs(dg.RunsFilter(job_name=job))
        return any(text in line.user_message for run in runs for line in instance.all_logs(run.run_id))

    def wait(self, stream: JobRun, holds: Callable[[], bool]) -> None:
        """Wait for something that a running stream brings about."""

        def check() -> None:
            assert stream.thread.is_alive(), "the stream has ended"

        def moves() -> object:
            return self.checkpoints(), read_rows(self.tables).total()

        seldom = progress.Sampled(moves, every=5.0)
        progress.wait_until(holds, progress.source_of(holds), moves=seldom, check=check, every=0.2)


@pytest.fixture
def numbers(tmp_path: Path) -> Numbers:
    return Numbers(tmp_path / "numbers")


@pytest.fixture
def jobs(lab: Lab, numbers: Numbers) -> Jobs:
    lab.settings = {"interval": 1.0, "tolerable_failed_checkpoints": 100}
    return Jobs(lab, diamond(numbers.folder))


def test_epoch_stream_and_epoch_continue_one_another_and_other_runs_reach_the_stream(
    jobs: Jobs, numbers: Numbers, spark: SparkSession
) -> None:
    numbers.put(10)
    assert jobs.run("diamond").success
    assert read_rows(jobs.tables) == expected_rows(10)
    record = jobs.record()
    assert (record.next_id, len(record.completed)) == (2, 1), "the timer is the stream's, not the epoch's"

    numbers.put(10)
    before = jobs.checkpoints()
    stream = jobs.launch("diamond_streaming", stream={"progress_interval": 2.0})
    jobs.wait(stream, lambda: read_rows(jobs.tables) == expected_rows(20))
    jobs.wait(stream, lambda: jobs.checkpoints() > before)

    skipped = jobs.run("diamond", restore={"concurrent_runs": "skip"})
    assert skipped.success
    assert len([e for e in skipped.all_events if e.is_step_skipped]) == len(jobs.pipeline.stages) + 1

    savepoint = jobs.run("diamond_savepoint", savepoint={"name": "by hand"})
    assert savepoint.success
    record = jobs.record()
    assert [s.trigger.name for s in record.savepoints] == ["by hand"]

    numbers.put(10)
    stopped = jobs.run("diamond_savepoint", savepoint={"action": "stop", "name": "the end"})
    assert stopped.success
    assert stream.join().success
    record = jobs.record()
    assert (record.status, record.clean) == (RunStatus.SUSPENDED, True)
    assert [s.trigger.name for s in record.savepoints] == ["by hand", "the end"]

    numbers.put(10)
    assert jobs.run("diamond").success
    assert read_rows(jobs.tables) == expected_rows(40)
    assert read_totals(jobs.tables) == expected_totals(40)

    assert spark.range(1).count() == 1, "a run stopped a session that others use"

    restored = jobs.run("diamond", restore={"restore_from": record.savepoints[-1].location.uri})
    assert restored.success
    assert read_rows(jobs.tables) == expected_rows(40)
    assert read_totals(jobs.tables) == expected_totals(40)


@pytest.mark.nightly
def test_a_checkpoint_asked_by_another_run_is_taken_by_the_stream(jobs: Jobs, numbers: Numbers) -> None:
    numbers.put(10)
    stream = jobs.launch("diamond_streaming")
    jobs.wait(stream, lambda: read_rows(jobs.tables) == expected_rows(10) and jobs.checkpoints() > 0)
    asked = jobs.run("diamond_savepoint", savepoint={"action": "checkpoint", "scope": "full"})
    assert asked.success
    record = jobs.record()
    numbers.put(10)
    queued = jobs.launch("diamond")
    jobs.wait(stream, lambda: jobs.says("diamond", "waiting: run"))
    assert jobs.run("diamond_savepoint", savepoint={"action": "stop"}).success
    assert stream.join().success
    assert queued.join().success, "an epoch run took the pipeline away from the stream"
    assert read_rows(jobs.tables) == expected_rows(20)
    [number] = [o.checkpoint_id for o in record.operations if o.request_id == f"checkpoint-{asked.run_id}"]
    events = jobs.lab.materializations(jobs.pipeline)
    [shown] = [event for event in events if event.partition == f"chk-{number:06d}"]
    assert shown.metadata["kind"].value == "full_checkpoint"
    # What is new counts from the report before, and that may be some checkpoints ago.
    assert shown.metadata["bytes_new"].value >= shown.metadata["bytes_full"].value
    assert record.owner == stream.results[0].run_id, "the stream took it and went on"


@pytest.mark.nightly
def test_a_savepoint_of_a_stream_that_was_stopped_holds_the_rows_that_were_on_their_way(
    lab: Lab, jobs: Jobs, numbers: Numbers
) -> None:
    numbers.put(10)
    running = lab.start(jobs.pipeline)
    until(lambda: bool(running.checkpoint()) and read_rows(jobs.tables) == expected_rows(10), running)
    current = running.current
    met = current.stages[StageUid("met")]
    met.gate.hold(Hold.SAVEPOINT)
    numbers.put(10)
    until(lambda: all(channel.backlog for channel in met.worker.inputs.values()), running)
    assert running.stop() == Interrupted(clean=True)

    assert jobs.run("diamond_savepoint", savepoint={"name": "by hand"}).success
    record = jobs.record()
    assert jobs.run("diamond", restore={"restore_from": record.savepoints[-1].location.uri}).success
    assert read_rows(jobs.tables) == expected_rows(20)
    assert read_totals(jobs.tables) == expected_totals(20)


def test_stopping_a_pipeline_that_does_not_stream_says_so(jobs: Jobs, numbers: Numbers) -> None:
    numbers.put(10)
    began = time.monotonic()
    result = jobs.run("diamond_savepoint", savepoint={"action": "stop"})
    assert not result.success
    error = result.get_step_failure_events()[0].step_failure_data.error
    assert error is not None
    assert "no streaming run" in error.to_string()
    assert time.monotonic() - began < ANSWER_TIMEOUT, "it waited for an answer of nobody"
