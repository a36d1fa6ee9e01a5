"""The run dies when a barrier reaches a stage: every stage of a diamond, every mode; nothing is lost or doubled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.spark.streaming.snapshot_job import SnapshotJob
from tests.streaming.lab import Running, StreamLab, until
from tests.streaming.pipelines import (
    Numbers,
    diamond,
    expected_rows,
    expected_totals,
    read_rows,
    read_totals,
)

STAGES = ("numbers", "fast", "slow", "met", "rows", "totals")
MODES: dict[str, dict[str, Any]] = {
    "aligned": {},
    "unaligned": {"unaligned": True},
    "aligned_with_timeout": {"unaligned": True, "aligned_checkpoint_timeout": 0.05},
}


class _DeadJob(SnapshotJob):
    """A snapshot that the death of the process overtook."""

    def start(self) -> None: ...


def crash_at(running: Running, uid: str) -> Callable[[], bool]:
    """Let the run die when the next barrier is in the log of ``uid`` and nothing of its snapshot is stored."""
    running.wait_until_running()
    current = running.service.current
    assert current is not None
    worker = current.stages[StageUid(uid)].worker
    make = worker.make_job
    dead = threading.Event()

    def make_dead(cut: Any, stage: Any) -> SnapshotJob:
        job = make(cut, stage)
        threading.Thread(target=lambda: (running.crash(), dead.set()), daemon=True).start()
        return _DeadJob(
            **{name: getattr(job, name) for name in SnapshotJob.__dataclass_fields__ if name[0] != "_"}
        )

    worker.make_job = make_dead
    return dead.is_set


def feed(numbers: Numbers, files: int) -> None:
    for _ in range(files):
        numbers.put(5)


@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_dies_at_any_barrier_restores_exactly(lab: StreamLab, tmp_path: Path, mode: str) -> None:
    numbers = Numbers(tmp_path / "numbers")
    pipeline = diamond(numbers.folder, **MODES[mode])
    for uid in STAGES:
        running = lab.start(pipeline)
        feed(numbers, 3)
        running.checkpoint()
        feed(numbers, 3)
        is_dead = crash_at(running, uid)
        running.trigger()
        until(is_dead, 90, running)
        running.join()
    running = lab.start(pipeline)
    feed(numbers, 1)
    settle(lab, running, numbers.count)
    running.stop()


def test_a_run_that_reads_at_least_once_loses_nothing_wherever_it_dies(
    lab: StreamLab, tmp_path: Path
) -> None:
    numbers = Numbers(tmp_path / "numbers")
    pipeline = diamond(numbers.folder, mode="at_least_once")
    for uid in STAGES:
        running = lab.start(pipeline)
        feed(numbers, 3)
        running.checkpoint()
        feed(numbers, 3)
        is_dead = crash_at(running, uid)
        running.trigger()
        until(is_dead, 90, running)
        running.join()
    running = lab.start(pipeline)
    feed(numbers, 1)
    wanted = expected_rows(numbers.count)
    until(lambda: not wanted - read_rows(lab.tables), 150, running)
    assert set(read_rows(lab.tables)) == set(wanted), "a row that never was there"
    least = expected_totals(numbers.count)
    until(
        lambda: all(read_totals(lab.tables).get(k, (0, 0))[1] >= n for k, (_, n) in least.items()),
        60,
        running,
    )
    running.stop()


def settle(lab: StreamLab, running: Running, count: int) -> None:
    """Take checkpoints until every row is published; none is there twice, whenever one looks."""
    until_then = time.monotonic() + 150
    while time.monotonic() < until_then:
        running.checkpoint()
        seen = read_rows(lab.tables)
        assert not seen - expected_rows(count), "rows are there twice"
        # Tables of one checkpoint may lie apart by what was in flight; both come to hold everything.
        if seen == expected_rows(count) and read_totals(lab.tables) == expected_totals(count):
            return
    raise AssertionError(f"rows are missing: {sorted((expected_rows(count) - seen).elements())[:10]}")
