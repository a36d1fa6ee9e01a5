"""Simulated worlds: fixed seeds end exact, a seed goes one way only, and what may not be is found and told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.root import ROOT
from tests.sim.judge import Finding, truth
from tests.sim.outside import Table
from tests.sim.scheduler import Process, Scheduler
from tests.sim.world import World, play, shortened

MANY = int(os.environ.get("SIM_SEEDS", "0"))
SEEDS = range(1, MANY + 1) if MANY else (4, 11, 12)
"""Worlds that are played: some small ones; ``make mutants`` says how many."""


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
    world.judge.sides = 1
    table = Table("rows", tmp_path, world.weather, rows=[rows])
    if not named:
        assert world.judge.counts(table) == [3]
        assert truth([3]) == rows
        return
    with pytest.raises(Finding, match=named):
        world.judge.counts(table)


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
