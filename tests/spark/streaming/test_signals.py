"""SIGTERM ends a streaming run between two batches; SIGKILL leaves a lease, and the next run fences and restores."""

from __future__ import annotations

import signal
import subprocess
import time
from contextlib import closing
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from dagster_ckpt import SparkSessionResource, build_pipeline_definitions
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.request import RunStatus
from dagster_ckpt.core.supervision.ownership import may_be_asked
from tests.lab.child import begin, kill
from tests.progress import Sampled, exit_code, wait_until, work_of
from tests.records import find_record
from tests.spark.streaming.kill_child import coordinator
from tests.spark.streaming.pipelines import (
    Numbers,
    diamond,
    expected_rows,
    expected_totals,
    read_rows,
    read_totals,
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    return tmp_path


def start(folder: Path) -> subprocess.Popen[bytes]:
    home = {"DAGSTER_HOME": str(folder / "home")}
    return begin(folder / "child.log", "tests.spark.streaming.kill_child", str(folder), env=home)


def record(folder: Path) -> CoordinatorRecord | None:
    with closing(coordinator(folder / "lab").store()) as store:
        return find_record(store, "diamond")


def published(folder: Path, child: subprocess.Popen[bytes], count: int) -> None:
    def holds() -> bool:
        assert child.poll() is None, (folder / "child.log").read_text()[-3000:]
        tables = folder / "lab" / "tables"
        return read_rows(tables) == expected_rows(count) and read_totals(tables) == expected_totals(count)

    before = record(folder)
    next_id = 1 if before is None else before.next_id

    def moves() -> object:
        seen = record(folder)
        newest = None if seen is None else (seen.epoch, seen.status, seen.next_id, len(seen.completed))
        # Between its claim and its first checkpoint a stream starts Spark and its queries: that is work, and no more.
        starts = seen is None or seen.next_id == next_id
        return (
            newest,
            read_rows(folder / "lab" / "tables").total(),
            work_of(child.pid) if starts else 0,
        )

    wait_until(holds, f"{count} rows are published", moves=Sampled(moves, every=5.0), every=0.2)


def epoch(folder: Path) -> None:
    """Continue the pipeline with an epoch run in this process."""
    definitions = build_pipeline_definitions(
        diamond(folder / "numbers"),
        coordinator=coordinator(folder / "lab"),
        spark=SparkSessionResource(master="local[2,3]"),
    )
    with dg.DagsterInstance.from_config(str(folder / "home")) as instance:
        result = definitions.resolve_job_def("diamond").execute_in_process(
            instance=instance, raise_on_error=False
        )
    assert result.success, [e.message for e in result.get_step_failure_events()]


@pytest.mark.nightly
def test_terminating_a_stream_stops_between_two_batches_and_killing_it_loses_nothing(
    home: Path, spark: SparkSession
) -> None:
    numbers = Numbers(home / "numbers")
    numbers.put(5)
    child = start(home)
    try:
        published(home, child, 5)
        numbers.put(5)
        child.send_signal(signal.SIGTERM)
        exit_code(child, "the run ends after SIGTERM")
    finally:
        kill(child)
    ended = record(home)
    assert ended is not None
    assert (ended.status, ended.clean) == (RunStatus.CANCELED, True), (home / "child.log").read_text()[-3000:]
    assert ended.completed, "terminating keeps checkpoints, as the policy says"

    child = start(home)
    try:
        published(home, child, 10)
        adopted = record(home)
        assert adopted is not None
        assert adopted.working_directory == ended.working_directory
        numbers.put(5)
        time.sleep(0.5)
    finally:
        kill(child)
    killed = record(home)
    assert killed is not None
    assert killed.status is RunStatus.RUNNING
    assert may_be_asked(killed, killed.lease_until - 1.0 if killed.lease_until else 0.0)

    numbers.put(5)
    epoch(home)
    after = record(home)
    assert after is not None
    assert after.epoch == killed.epoch + 1
    assert read_rows(home / "lab" / "tables") == expected_rows(20)
    assert read_totals(home / "lab" / "tables") == expected_totals(20)
