"""Simulated worlds: fixed seeds end exact, a seed goes one way only, and what may not be is found and told."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.root import ROOT
from tests.sim.judge import Finding, truth
from tests.sim.outside import Table
from tests.sim.scheduler import Process, Scheduler
from tests.sim.threads import Lock
from tests.sim.world import World, play, shortened

MANY = int(os.environ.get("SIM_SEEDS", "0"))
SEEDS = range(1, MANY + 1) if MANY else (4, 5, 6, 10, 18)
"""Worlds that are played: some small ones of streams, epochs and both, with tables of both kinds; ``make mutants`` says
how many."""


@pytest.mark.parametrize("seed", SEEDS)
def test_no_row_no_savepoint_and_no_checkpoint_is_lost_whatever_happens(seed: int, tmp_path: Path) -> None:
    played = play(seed, tmp_path / "world")
    again = f'make sim ARGS="--from {seed} --seeds 1"'
    assert not played.finding, "\n".join([played.finding, *shortened(played.trace, 60), again])
    assert played.told["completed"]
    assert played.told["runs"] > 1


def test_a_seed_goes_the_same_way_in_another_process_with_other_hashes(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.sim.world import play;"
        "print(play(4, Path(sys.argv[1])).digest)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    command = [sys.executable, "-c", script, str(tmp_path / "elsewhere")]
    said = subprocess.run(
        command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    assert said.split()[-1] == play(4, tmp_path / "world").digest


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([(0, 0), (1, 1), (2, 3)], ""),
        ([(0, 0), (2, 3)], "wrong in"),
        ([(0, 0), (1, 1), (1, 1)], "doubled"),
        ([(0, 0), (1, 2)], "wrong in"),
    ],
)
def test_rows_that_are_lost_doubled_or_wrong_are_found(
    rows: list[tuple[int, int]], named: str, tmp_path: Path
) -> None:
    world = World(4, tmp_path)
    judge = world.main.judge
    judge.sides = 1
    table = Table("rows", tmp_path, world.weather, rows=[rows])
    if not named:
        assert judge.counts(table) == [3]
        assert truth([3]) == rows
        return
    with pytest.raises(Finding, match=named):
        judge.counts(table)


def test_who_waits_for_a_lock_gets_it_though_others_have_died_or_given_up(tmp_path: Path) -> None:
    scheduler: Scheduler = World(4, tmp_path).scheduler
    lock, done = Lock(), list[str]()

    def waits(timeout: float, holds: float, process: Process) -> None:
        got = lock.acquire(timeout=timeout)
        done.append(f"{process.name} {'got' if got else 'gave'} it")
        if got:
            scheduler.wait("sleep", holds)
            lock.release()

    for name, timeout, holds in (
        ("first", -1, 3.0),
        ("dies", -1, 0.0),
        ("gives", 1.0, 0.0),
        ("last", -1, 0.0),
    ):
        process = Process(name, 0.0)
        scheduler.spawn(process, "main", functools.partial(waits, timeout, holds, process), len(done) * 0.1)
        scheduler.run(scheduler.now + 0.2)
        if name == "dies":
            scheduler.kill(process)
    scheduler.run(20.0)
    assert done == ["first got it", "gives gave it", "last got it"]


def test_a_process_that_is_suspended_goes_on_later_and_one_that_is_killed_never(tmp_path: Path) -> None:
    world = World(4, tmp_path)
    scheduler: Scheduler = world.scheduler
    done: list[str] = []
    stands, dies = Process("stands", 0.0), Process("dies", 0.0)
    for process in (stands, dies):

        def work(process: Process = process) -> None:
            scheduler.wait("sleep", 1.0)
            done.append(f"{process.name} at {scheduler.now:.0f}")

        scheduler.spawn(process, "main", work)
    scheduler.run(0.5)
    stands.stands_until = 7.0
    scheduler.kill(dies)
    scheduler.run(20.0)
    assert done == ["stands at 7"]
    assert not dies.threads
