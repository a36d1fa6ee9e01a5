"""The run dies as a stage's snapshot begins: every stage, every mode; nothing is lost or doubled."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt import CheckpointedPipeline
from dagster_ckpt.core.coordinator.effects import StageAcknowledged
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.request import CheckpointRequest
from dagster_ckpt.spark.channel.sink import ChannelSink
from dagster_ckpt.spark.streaming.snapshot_job import SnapshotJob
from tests.lab.lab import Lab
from tests.lab.streams import Running, until
from tests.spark.streaming.pipelines import Numbers, expected_totals, line, read_totals, short_diamond
from tests.sweeps import third

STAGES = ("numbers", "fast", "slow", "totals")
MODES: dict[str, dict[str, Any]] = {
    "aligned": {},
    "unaligned": {"unaligned": True},
    "aligned_with_timeout": {"unaligned": True, "aligned_checkpoint_timeout": 0.05},
    "instant_unaligned": {"instant_cuts": True, "unaligned": True},
}


class _DeadJob(SnapshotJob):
    """A snapshot that the death of the process overtook."""

    def start(self) -> None: ...


def crash_at(running: Running, uid: str) -> Callable[[], bool]:
    """Let the run die when the next checkpoint is cut at ``uid`` and nothing of its snapshot is stored."""
    running.wait_until_running()
    current = running.current
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


def die_at(running: Running, uid: str) -> None:
    """Take a checkpoint at which the run dies; nobody is there any more who could say what became of it."""
    is_dead = crash_at(running, uid)
    running.coordinator.trigger(CheckpointRequest())
    until(is_dead, moves=running.moves)
    running.join()


def feed(numbers: Numbers, files: int) -> None:
    for _ in range(files):
        numbers.put(5)


def die_at_every_stage(
    lab: Lab, pipeline: CheckpointedPipeline, numbers: Numbers, history: int = 0, *, unaligned: bool = False
) -> Running:
    """Restore, complete a checkpoint, die at the next one's barrier: at stage after stage; return the next run.

    Of an unaligned checkpoint a table may show what one path has brought and the other has still under way.
    """
    for uid in third(STAGES, history):
        running = lab.start(pipeline)
        feed(numbers, 1)
        running.checkpoint()
        feed(numbers, 3)
        die_at(running, uid)
        numbers.witness.killed()
        if not unaligned:
            numbers.sees(lab.tables)
    feed(numbers, 1)
    return lab.start(pipeline)


@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_dies_at_any_barrier_restores_exactly(lab: Lab, tmp_path: Path, mode: str) -> None:
    numbers = Numbers(tmp_path / "numbers")
    pipeline = short_diamond(numbers.folder, **MODES[mode])
    unaligned = MODES[mode].get("unaligned", False)
    ends_exactly(
        die_at_every_stage(lab, pipeline, numbers, [*MODES].index(mode), unaligned=unaligned), lab, numbers
    )


def test_a_run_that_dies_at_an_instant_cut_restores_exactly(lab: Lab, tmp_path: Path) -> None:
    numbers = Numbers(tmp_path / "numbers")
    pipeline = line(numbers.folder, instant_cuts=True)
    ends_exactly(die_at_every_stage(lab, pipeline, numbers, history=2), lab, numbers)


def test_a_run_that_dies_between_a_batch_that_was_read_and_its_commit_restores_exactly(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = Numbers(tmp_path / "numbers")
    pipeline = line(numbers.folder, instant_cuts=True)
    running = lab.start(pipeline)
    feed(numbers, 2)
    running.checkpoint()
    held, dead = hold_commits(monkeypatch, running, "numbers")
    feed(numbers, 1)
    until(held.is_set, running)
    run = running.current
    stages = run.stages
    until(lambda: all(stage.is_quiet() for uid, stage in stages.items() if uid != "numbers"), running)
    number = running.trigger()
    until(lambda: acknowledged(running, number) == {"fast", "slow", "totals"}, running)
    run.loop.stop()  # the snapshot that waits for the commit ends with nothing stored
    dead.set()
    running.crash()
    running.join()
    assert int(number) not in running.completed()
    feed(numbers, 1)
    ends_exactly(lab.start(pipeline), lab, numbers)


def hold_commits(
    monkeypatch: pytest.MonkeyPatch, running: Running, uid: str
) -> tuple[threading.Event, threading.Event]:
    """Let no batch of a stage be committed any more once its rows are in the log; return (it is so, go on)."""
    held, dead = threading.Event(), threading.Event()
    append = ChannelSink.append
    log = running.service.current.stages[StageUid(uid)].worker.log  # type: ignore[union-attr]

    def append_and_hold(self: ChannelSink, frame: Any, batch_id: Any) -> Any:
        done = append(self, frame, batch_id)
        if self._log.directory == log.directory and not dead.is_set():
            held.set()
            dead.wait()
        return done

    monkeypatch.setattr(ChannelSink, "append", append_and_hold)
    return held, dead


def acknowledged(running: Running, number: int) -> set[str]:
    heard = (e for e in running.events if isinstance(e, StageAcknowledged) and e.checkpoint_id == number)
    return {str(event.uid) for event in heard}


def ends_exactly(running: Running, lab: Lab, numbers: Numbers) -> None:
    """Wait until the table has every number once, and never one twice meanwhile."""
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
    numbers.sees(lab.tables, settled=True)


def test_a_run_that_reads_at_least_once_loses_nothing_wherever_it_dies(lab: Lab, tmp_path: Path) -> None:
    numbers = Numbers(tmp_path / "numbers")
    pipeline = short_diamond(numbers.folder, mode="at_least_once")
    running = die_at_every_stage(lab, pipeline, numbers, history=1)
    wanted = expected_totals(numbers.count)

    def holds() -> bool:
        running.checkpoint()  # tables show what a checkpoint has
        seen = read_totals(lab.tables)
        assert set(seen) <= set(wanted), "a key that never was there"
        return all(
            seen.get(key, (0, 0))[0] >= total and seen.get(key, (0, 0))[1] >= times
            for key, (total, times) in wanted.items()
        )

    until(holds, running)
    running.stop()
