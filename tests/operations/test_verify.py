"""Every damage to a snapshot is found and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from dagster_ckpt.errors import Unavailable
from dagster_ckpt.operations.deployment import Progress
from dagster_ckpt.operations.verify import ProblemKind, verify_snapshot
from dagster_ckpt.spark.snapshot.stored import open_snapshot
from dagster_ckpt.testing.faulty import Call, FaultyStorage, Operation
from tests.operations.world import World, data_keys

T = TypeVar("T")


class CutOff:
    """A network that carries small answers only."""

    def around(self, call: Call, proceed: Callable[[], T]) -> T:
        if call.operation is Operation.FETCH:
            raise Unavailable("the network is gone")
        return proceed()


def test_an_intact_snapshot_is_read_whole_and_progress_ends_at_its_size(world: World) -> None:
    stored = world.checkpoint(1)
    told: list[Progress] = []
    found = verify_snapshot(stored, progress=told.append)
    assert found.is_intact
    assert found.files > 5
    assert told[-1].done == told[-1].total == found.bytes


def test_every_missing_and_every_damaged_file_is_named(world: World) -> None:
    world.query().commit(2).snapshot(2)
    stored = world.checkpoint(1)
    first, second, *_ = data_keys(stored)
    del world.storage.contents[first]
    world.damage(world.storage, second)
    found = verify_snapshot(stored)
    assert [(p.problem, first.endswith(p.path) or second.endswith(p.path)) for p in found.problems] == [
        (ProblemKind.MISSING, True),
        (ProblemKind.DAMAGED, True),
    ]
    assert not found.is_intact


def test_a_damaged_file_list_is_one_problem_of_its_stage(world: World) -> None:
    stored = world.checkpoint(1)
    world.damage(world.storage, f"{stored.folder}/totals/manifest.parquet")
    (problem,) = verify_snapshot(stored).problems
    assert problem.problem is ProblemKind.UNREADABLE
    assert problem.stage == "totals"


def test_a_storage_that_cannot_be_reached_says_nothing_about_the_files(world: World) -> None:
    world.query().commit(2).snapshot(2)
    stored = world.checkpoint(1)
    faulty = FaultyStorage(world.storage, CutOff())
    with pytest.raises(Unavailable):
        verify_snapshot(open_snapshot(faulty, stored.folder))
