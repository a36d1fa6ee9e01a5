"""A Spark checkpoint directory becomes a savepoint; the directory is only read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dagster_ckpt.core.ids import BatchId, StageUid
from dagster_ckpt.core.model import SnapshotLabel
from dagster_ckpt.errors import CheckpointError, Declined, InvalidRequest, NotFound, Unavailable
from dagster_ckpt.operations.snapshots.adopt import ADOPTED_FROM, adopt_checkpoint
from dagster_ckpt.operations.snapshots.catalog import find_snapshot
from dagster_ckpt.operations.snapshots.contents import verify_snapshot
from dagster_ckpt.spark.snapshot.restore import build_stage_directory
from dagster_ckpt.testing.faults import CrashAt, FailNext
from dagster_ckpt.testing.faulty import FaultyStorage, Operation, SimulatedCrash
from tests.operations.world import SALES, SAVEPOINTS, World
from tests.spark.snapshot.fake_checkpoint import QUERY_ID, FakeQuery

TOTALS = StageUid("totals")


def foreign(world: World, batches: int = 4) -> Path:
    """A checkpointLocation that does not have our folder names."""
    query = FakeQuery(world.folder / "theirs").commit(batches).snapshot(2)
    return query.query.rename(world.folder / "stream-checkpoint")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_an_adopted_directory_is_a_savepoint_with_what_a_restart_needs(world: World) -> None:
    directory = foreign(world)
    before = contents(directory)
    done = adopt_checkpoint(
        world.deployment,
        pipeline=SALES,
        directories={TOTALS: directory},
        now=50.0,
        label=SnapshotLabel(name="taken over"),
    )
    assert contents(directory) == before, "it is only read"
    (stage,) = done.stages
    assert (stage.batch_id, stage.query_id, stage.uncommitted_batch) == (3, QUERY_ID, None)
    found = find_snapshot(world.deployment, done.savepoint.key, SALES)
    assert verify_snapshot(found.stored).is_intact
    metadata = found.stored.metadata
    assert metadata.labels == {ADOPTED_FROM: str(directory)}
    assert (metadata.name, metadata.completed_at) == ("taken over", 50.0)
    (snapshot,) = metadata.stages
    assert json.loads(snapshot.offsets["0"]) == {"pos": 3}
    build_stage_directory(found.stored, snapshot, target_dir=world.folder / "restored")
    restored = contents(world.folder / "restored" / "query")
    assert restored.items() <= before.items()
    assert {"metadata", "offsets/3", "offsets/2", "commits/3"} <= restored.keys()


def test_an_earlier_batch_can_be_chosen(world: World) -> None:
    done = adopt_checkpoint(
        world.deployment, pipeline=SALES, directories={TOTALS: foreign(world)}, now=1.0, batch_id=BatchId(2)
    )
    assert done.stages[0].batch_id == 2


def test_a_batch_that_was_begun_and_not_committed_is_told(world: World) -> None:
    directory = foreign(world)
    (directory / "offsets/4").write_text((directory / "offsets/3").read_text())
    done = adopt_checkpoint(world.deployment, pipeline=SALES, directories={TOTALS: directory}, now=1.0)
    assert (done.stages[0].batch_id, done.stages[0].uncommitted_batch) == (3, 4)


def test_several_directories_become_one_savepoint(world: World) -> None:
    first = foreign(world)
    second = FakeQuery(world.folder / "more").commit(1).query
    done = adopt_checkpoint(
        world.deployment, pipeline=SALES, directories={TOTALS: first, StageUid("daily"): second}, now=1.0
    )
    assert [(s.uid, s.batch_id) for s in done.stages] == [("totals", 3), ("daily", 0)]
    with pytest.raises(InvalidRequest, match="one directory only"):
        adopt_checkpoint(
            world.deployment,
            pipeline=SALES,
            directories={TOTALS: first, StageUid("daily"): second},
            now=1.0,
            batch_id=BatchId(0),
        )


@pytest.mark.parametrize(
    ("prepare", "error"),
    [
        (lambda d: (d / "metadata").unlink(), NotFound),
        (lambda d: [p.unlink() for p in (d / "commits").iterdir()], InvalidRequest),
        (lambda d: [p.unlink() for p in (d / "state/0/1").glob("*.changelog")], Declined),
    ],
    ids=["no metadata", "nothing committed", "state is gone"],
)
def test_what_cannot_be_restarted_is_not_adopted(
    world: World, prepare: object, error: type[CheckpointError]
) -> None:
    directory = foreign(world)
    assert callable(prepare)
    prepare(directory)
    with pytest.raises(error):
        adopt_checkpoint(world.deployment, pipeline=SALES, directories={TOTALS: directory}, now=1.0)
    assert world.savepoints.contents == {}
    assert world.store.load(SALES) is None


def test_nothing_to_adopt_is_refused(world: World) -> None:
    with pytest.raises(InvalidRequest, match="at least one stage"):
        adopt_checkpoint(world.deployment, pipeline=SALES, directories={}, now=1.0)


def test_a_storage_that_fails_leaves_nothing_behind(world: World) -> None:
    fail = FailNext().arm(Operation.CREATE, Unavailable("disk full"), matching="*/_metadata")
    real = world.savepoints
    world.storages[SAVEPOINTS] = FaultyStorage(real, fail)
    with pytest.raises(Unavailable):
        adopt_checkpoint(world.deployment, pipeline=SALES, directories={TOTALS: foreign(world)}, now=1.0)
    assert real.contents == {}
    assert world.record().savepoints == ()


def test_killed_at_any_call_an_adoption_is_whole_or_unknown_to_the_store(world: World) -> None:
    directory = foreign(world)
    number = 1
    while True:
        one = World(world.folder / str(number))
        crash = CrashAt(number)
        real = one.savepoints
        one.storages[SAVEPOINTS] = FaultyStorage(real, crash)
        try:
            adopt_checkpoint(one.deployment, pipeline=SALES, directories={TOTALS: directory}, now=1.0)
        except SimulatedCrash:
            assert one.record().savepoints == ()
        if not crash.crashed:
            break
        number += 1
    one.storages[SAVEPOINTS] = real
    (entry,) = one.record().savepoints
    assert verify_snapshot(find_snapshot(one.deployment, str(entry.checkpoint_id), SALES).stored).is_intact
    assert number > 3
