"""What two snapshots differ in."""

from __future__ import annotations

import pytest

from dagster_ckpt.core.model import StageSnapshot
from dagster_ckpt.operations.snapshots.diff import Presence, diff_snapshots, step_between
from tests.operations.world import World


def test_a_snapshot_does_not_differ_from_itself(world: World) -> None:
    stored = world.checkpoint(1)
    found = diff_snapshots(stored, stored)
    assert found.is_same
    assert found.stages[0].files.same > 0


def test_offsets_batches_sizes_and_files_are_compared(world: World) -> None:
    world.query().commit(2).snapshot(2)
    before = world.checkpoint(1)
    after = world.checkpoint(2, batches=3)
    found = diff_snapshots(before, after)
    (stage,) = found.stages
    assert not found.is_same
    assert stage.batches == (3, 6)
    (step,) = stage.offsets
    assert (step.start, step.end, step.units) == ('{"pos":3}', '{"pos":6}', 3)
    assert stage.files.same > 0
    assert stage.files.bytes_added == stage.bytes_full[1] - stage.files.bytes_same
    assert stage.bytes_full[0] == stage.files.bytes_same + stage.files.bytes_removed
    assert [d.name for d in stage.values] == ["watermark_ms"]
    assert found.seconds == 1.0


def test_settings_and_stateful_operators_are_compared(world: World) -> None:
    before = world.checkpoint(1)
    query = world.query()
    query.partitions = 1
    query.write(
        "state/0/_metadata/metadata",
        'v1\n{"operatorInfo":{"operatorId":0,"operatorName":"dedupe"},'
        '"stateStoreInfo":[{"storeName":"default","numColsPrefixKey":0,"numPartitions":1}]}',
    )
    after = world.savepoint(2)
    (stage,) = diff_snapshots(before, after).stages
    assert [(d.name, d.before, d.after) for d in stage.conf] == [("spark.sql.shuffle.partitions", "2", "1")]
    assert [d.name for d in stage.plan] == ["operator 0"]
    assert stage.plan[0].after == "dedupe (stores default; 1 partition)"


def test_stages_and_edges_that_came_or_went_are_named(world: World) -> None:
    gone, new = StageSnapshot(uid="gone", parallelism=1), StageSnapshot(uid="new", parallelism=1)
    before = world.checkpoint(1, others=(gone,), edges=(("gone", "totals"),))
    after = world.checkpoint(2, others=(new,), edges=(("new", "totals"),), name="later")
    found = diff_snapshots(before, after)
    assert {s.uid: s.presence for s in found.stages} == {
        "totals": Presence.BOTH,
        "gone": Presence.REMOVED,
        "new": Presence.ADDED,
    }
    assert [(e.name, e.before, e.after) for e in found.edges] == [
        ("gone -> totals", "there", None),
        ("new -> totals", None, "there"),
    ]
    assert [d.name for d in found.values] == ["name"]


@pytest.mark.parametrize(
    ("start", "end", "units"),
    [
        ('{"pos": 4}', '{"pos": 9}', 5),
        (None, '{"pos": 9}', 9),
        ('{"pos": 9}', '{"pos": 4}', -5),
        ('{"pos": 9}', None, -9),
        ('{"logOffset": 2}', '{"logOffset": 5}', 3),
        (None, '{"logOffset": 0}', 1),
        ('{"topic": {"0": 10, "1": 5}}', '{"topic": {"0": 12, "1": 9}}', 6),
        ('{"topic": {"0": 10}}', '{"topic": {"0": 12, "1": 9}}', 11),
        ("17", "20", 3),
        ('{"day": "2013-01-02"}', '{"day": "2013-01-05"}', None),
        ("no json", '{"pos": 1}', None),
        ('{"day": "2013-01-02"}', '{"day": "2013-01-02"}', 0),
        (None, None, 0),
    ],
)
def test_the_distance_of_two_offsets_is_counted_where_they_say_it(
    start: str | None, end: str | None, units: int | None
) -> None:
    assert step_between("0", start, end).units == units
