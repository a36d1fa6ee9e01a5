"""Maintenance of a pipeline's tables: planned, carried out, and what retained snapshots pin."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_ckpt.dagster.checks.history import horizon_result
from dagster_ckpt.errors import Corrupt, NotFound
from dagster_ckpt.operations.care.maintain import maintain_tables, plan_maintenance
from dagster_ckpt.operations.restores.horizon import restorability
from tests.operations.readers.test_load_table import played, sales
from tests.operations.world import Known, World
from tests.tables import files_in, pairs_in


def test_small_files_are_merged_and_every_retained_cut_can_be_restored(world: World) -> None:
    run = played(world)
    cuts = {}
    for number in range(1, 6):
        run.attempt.batch([(1, number), (2, number)])
        cuts[number] = run.snapshot(number, savepoint=False)
    kept = tuple(entry for entry in world.record().completed if entry.checkpoint_id in (3, 5))
    world.change(completed=kept)
    place = run.attempt.place
    before = files_in(place)
    [planned] = plan_maintenance(sales(), Known(world))
    assert files_in(place) == before, "a plan changes nothing"
    [done] = maintain_tables(sales(), Known(world))
    assert (planned.done[0].files, done.sink, done.problem, done.done[0].files) == (5, "totals", "", 5)
    assert len(files_in(place)) == 1
    run.attempt.restored(cuts[3], world.folder / "again")
    assert pairs_in(place) == cuts[3].rows


def test_nothing_is_removed_while_a_retained_snapshot_cannot_be_read(world: World) -> None:
    run = played(world, ("k",))
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
    second: list[Path] = []
    run = played(world, ("k",))
    for number in (1, 2, 3):
        run.attempt.batch([(1, number)])
        run.snapshot(number)
        second = files_in(run.attempt.place) if number == 2 else second
    pipeline = sales(("k",))
    found = restorability(pipeline, Known(world), now=0.0)
    assert [(one.key, one.is_restorable) for one in found] == [
        (f"chk-00000{number}", True) for number in (3, 2, 1)
    ]
    assert horizon_result(found).passed
    [rows_of_two] = second
    rows_of_two.unlink()
    first = restorability(pipeline, Known(world), now=0.0)[1]
    assert first.key == "chk-000002"
    assert "is gone" in first.sentence()
    result = horizon_result(restorability(pipeline, Known(world), now=0.0))
    assert not result.passed
    assert "chk-000002 can no longer be restored" in (result.description or "")
    world.damage(world.storage, f"{world.record().completed[-1].location.folder}/_metadata")
    newest = restorability(pipeline, Known(world), now=0.0)[0]
    assert not newest.is_restorable
