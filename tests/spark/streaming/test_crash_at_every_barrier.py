"""The run dies when a barrier reaches a stage: every stage of a diamond, every mode; nothing is lost or doubled."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.spark.streaming.snapshot_job import SnapshotJob
from tests.spark.streaming.lab import Running, StreamLab, until
from tests.spark.streaming.pipelines import Numbers, expected_totals, read_totals, short_diamond

if TYPE_CHECKING:
    from dagster_ckpt import CheckpointedPipeline

STAGES = ("numbers", "fast", "slow", "totals")
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


def die_at_every_stage(lab: StreamLab, pipeline: CheckpointedPipeline, numbers: Numbers) -> Running:
    """Restore, complete a checkpoint, die at the next one's barrier: for every stage; return the run after that."""
    for uid in STAGES:
        running = lab.start(pipeline)
        feed(numbers, 2)
        running.checkpoint()
        feed(numbers, 3)
        is_dead = crash_at(running, uid)
        running.trigger()
        until(is_dead, running)
        running.join()
    feed(numbers, 1)
    return lab.start(pipeline)


@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_dies_at_any_barrier_restores_exactly(lab: StreamLab, tmp_path: Path, mode: str) -> None:
    numbers = Numbers(tmp_path / "numbers")
    pipeline = short_diamond(numbers.folder, **MODES[mode])
    running = die_at_every_stage(lab, pipeline, numbers)
    wanted = expected_totals(numbers.count)

    def holds() -> bool:
        running.checkpoint()
        seen = read_totals(lab.tables)
        for key, (total, times) in seen.items():
            assert total <= wanted[key][0], "rows were counted twice"
            assert times <= wanted[key][1], "rows were counted twice"
        return seen == wanted

    until(holds, running)
    running.stop()


def test_a_run_that_reads_at_least_once_loses_nothing_wherever_it_dies(
    lab: StreamLab, tmp_path: Path
) -> None:
    numbers = Numbers(tmp_path / "numbers")
    pipeline = short_diamond(numbers.folder, mode="at_least_once")
    running = die_at_every_stage(lab, pipeline, numbers)
    wanted = expected_totals(numbers.count)

    def holds() -> bool:
        seen = read_totals(lab.tables)
        assert set(seen) <= set(wanted), "a key that never was there"
        return all(
            seen.get(key, (0, 0))[0] >= total and seen.get(key, (0, 0))[1] >= times
            for key, (total, times) in wanted.items()
        )

    until(holds, running)
    running.stop()
