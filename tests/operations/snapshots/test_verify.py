"""Every damage to a snapshot is found and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from dagster_ckpt.core.model import FileKind, TableSnapshot
from dagster_ckpt.errors import Unavailable
from dagster_ckpt.operations.deployment import ByteProgress
from dagster_ckpt.operations.readers.load_table import with_tables
from dagster_ckpt.operations.snapshots.contents import ProblemKind, verify_snapshot
from dagster_ckpt.spark.snapshot.state_files import planned
from dagster_ckpt.spark.snapshot.stored import open_snapshot
from dagster_ckpt.testing.faulty import Call, FaultyStorage, Operation
from tests.operations.world import World, data_keys
from tests.tables import Attempt, files_in

T = TypeVar("T")


class CutOff:
    """A network that carries small answers only."""

    def around(self, call: Call, proceed: Callable[[], T]) -> T:
        if call.operation is Operation.FETCH:
            raise Unavailable("the network is gone")
        return proceed()


def test_an_intact_snapshot_is_read_whole_and_progress_ends_at_its_size(world: World) -> None:
    stored = world.checkpoint(1)
    told: list[ByteProgress] = []
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


# --- tables -----------------------------------------------------------------------------------------------------


def test_files_of_a_table_that_a_snapshot_counts_on_are_asked_for(world: World) -> None:
    attempt = Attempt(world.folder / "totals", world.query().root)
    for number in (1, 2):
        attempt.batch([(number, number)])
        attempt.publish(attempt.cut(number))
    attempt.batch([(3, 3)])
    cut = attempt.cut(3)
    extra = [planned(attempt.stage_dir, name, FileKind.COMMITTABLE) for name in cut.committables]
    stored = world.checkpoint(3, batches=1, table=cut.snapshot, extra=extra)

    def found() -> list[tuple[str, str]]:
        verified = with_tables(verify_snapshot(stored), stored)
        assert verified.is_intact == (not verified.problems)
        assert verified.remarks == ()
        return [(problem.path, problem.message) for problem in verified.problems]

    assert found() == []
    [staged] = set(attempt.place.rglob("*.parquet")) - set(files_in(attempt.place))
    whole = staged.read_bytes()
    staged.write_bytes(bytes(len(whole)))
    [(path, message)] = found()
    assert path == str(attempt.place)
    assert staged.name in message
    staged.write_bytes(whole)
    first, _ = sorted(files_in(attempt.place))
    whole = first.read_bytes()
    first.write_bytes(whole[:-1])
    assert found()[0][1].startswith(f"{first} has {len(whole) - 1} bytes and had {len(whole)}")
    first.unlink()
    assert found()[0][1].startswith(f"{first} is gone")


def test_a_table_that_is_not_there_is_a_problem_and_one_that_cannot_be_asked_is_named(world: World) -> None:
    gone = TableSnapshot(uri=str(world.folder / "gone"), head=1, sink="delta")
    stored = world.checkpoint(1, table=gone)
    assert not with_tables(verify_snapshot(stored), stored).is_intact
    stored = world.checkpoint(2, table=TableSnapshot(uri="topic", head=1, sink="kafka"))
    found = with_tables(verify_snapshot(stored), stored)
    assert found.is_intact
    assert "(topic) was not asked" in found.remarks[0]
