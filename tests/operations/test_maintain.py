"""Maintenance of a pipeline's tables: planned, carried out, and what retained snapshots pin."""

from __future__ import annotations

import pytest

from dagster_ckpt.dagster.checks.horizon import horizon_result
from dagster_ckpt.errors import Corrupt, NotFound
from dagster_ckpt.operations.horizon import restorability
from dagster_ckpt.operations.maintain import maintain_tables, plan_maintenance
from dagster_ckpt.spark.table.records import Append, Upsert
from tests.operations.test_load_table import Known, played, sales
from tests.operations.world import World
from tests.spark.table.tables import restored, roll_back_to, rows_of

KEYED = Upsert(keys=("k",), buckets=2)


def test_old_versions_go_and_every_retained_cut_can_be_restored(world: World) -> None:
    run = played(world, KEYED)
    cuts = {}
    for number in range(1, 6):
        run.attempt.batch([(1, number), (2, number)])
        cuts[number] = run.snapshot(number, savepoint=False)
    record = world.record()
    kept = tuple(entry for entry in record.completed if entry.checkpoint_id in (3, 5))
    world.change(completed=kept)
    versions = run.attempt.table.paths.meta / "versions"
    before = sorted(versions.glob("*/*"))
    [planned] = plan_maintenance(sales(("k",)), Known(world))
    assert sorted(versions.glob("*/*")) == before, "a plan changes nothing"
    [done] = maintain_tables(sales(("k",)), Known(world))
    assert planned == done
    assert (done.sink, done.problem, done.done[0].files) == ("totals", "", 2)
    assert {int(path.parent.name) for path in versions.glob("*/*")} == {2, 3, 4, 5}
    assert len(list(versions.glob("*/*.digest"))) == len(list(versions.glob("*/*.parquet"))), (
        "digests go with them"
    )
    stage = world.folder / "again"
    restored(run.attempt.table, cuts[3], stage, epoch=2)
    roll_back_to(run.attempt.table, cuts[3], stage, epoch=2)
    assert rows_of(run.attempt.table.paths.root) == cuts[3].rows


def test_files_of_appended_rows_stay_and_it_says_why(world: World) -> None:
    run = played(world, Append())
    run.attempt.batch([(1, 1)])
    run.snapshot(1)
    run.attempt.batch([(2, 2)])
    run.snapshot(2)
    root = run.attempt.table.paths.root
    before = sorted((path.name, path.stat().st_ino) for path in root.glob("*.parquet"))
    [done] = maintain_tables(sales(), Known(world))
    assert "twice" in done.done[0].note
    assert "DeltaTable or an IcebergTable" in done.done[0].note
    assert sorted((path.name, path.stat().st_ino) for path in root.glob("*.parquet")) == before
    assert rows_of(root) == [(1, 1), (2, 2)]


def test_nothing_is_removed_while_a_retained_snapshot_cannot_be_read(world: World) -> None:
    run = played(world, KEYED)
    for number in (1, 2, 3):
        run.attempt.batch([(1, number)])
        run.snapshot(number)
    stored = world.record().completed[0].location
    world.damage(world.storage, f"{stored.folder}/_metadata")
    with pytest.raises(Corrupt):
        maintain_tables(sales(("k",)), Known(world))
    with pytest.raises(NotFound, match="knows no pipeline"):
        maintain_tables(sales(("k",)), Known(World(world.folder / "another")))


def test_what_a_snapshot_goes_back_to_is_asked_for_where_it_is(world: World) -> None:
    run = played(world, KEYED)
    for number in (1, 2, 3):
        run.attempt.batch([(1, number)])
        run.snapshot(number)
    pipeline = sales(("k",))
    found = restorability(pipeline, Known(world), now=0.0)
    assert [(one.key, one.is_restorable, one.days) for one in found] == [
        (f"chk-00000{number}", True, None) for number in (3, 2, 1)
    ]
    assert horizon_result(found).passed
    meta = run.attempt.table.paths.meta
    for path in [*meta.glob("versions/*2/*"), *meta.glob("staged/**/*.parquet")]:
        path.unlink()
    first = restorability(pipeline, Known(world), now=0.0)[1]
    assert first.key == "chk-000002"
    assert "is gone" in first.sentence()
    result = horizon_result(restorability(pipeline, Known(world), now=0.0))
    assert not result.passed
    assert "chk-000002 can no longer be restored" in (result.description or "")
    world.damage(world.storage, f"{world.record().completed[-1].location.folder}/_metadata")
    newest = restorability(pipeline, Known(world), now=0.0)[0]
    assert not newest.is_restorable
