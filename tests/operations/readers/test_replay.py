"""What a replay begins with, and whose tables are moved out of its way."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.ids import CoordinatorEpoch
from dagster_ckpt.core.restore.facts import RestoreLine
from dagster_ckpt.errors import InvalidRequest, NotFound
from dagster_ckpt.operations.readers.blue_green import compare_readers, swap_readers
from dagster_ckpt.operations.readers.replay import (
    admits_replay,
    moment_of,
    plan_replay,
    set_side_tables_aside,
)
from dagster_ckpt.runtime.attempt_setup import Occupied, admit_anyone
from dagster_ckpt.sinks import SqlTable
from tests.operations.readers.test_blue_green import GREEN, Site, sales
from tests.operations.world import SALES, World
from tests.tables import pairs_in


@pytest.fixture
def site(world: World) -> Site:
    """Two checkpoints of the pipeline, triggered at seconds 1 and 2; its fork has not run."""
    site = Site(world)
    site.publish(site.blue, 1, [(1, 10)])
    site.publish(site.blue, 2, [(2, 20)])
    return site


def test_a_moment_is_read_as_people_write_it_and_a_snapshot_is_none() -> None:
    day = 86400.0
    assert (
        moment_of("1970-01-02")
        == moment_of(" 1970-01-02 00:00 ")
        == moment_of("1970-01-02T01:00+01:00")
        == day
    )
    assert [moment_of(text) for text in ("savepoint-7", "chk-31", "31", "latest", "17.11.2026")] == [None] * 5


def test_the_nearest_snapshot_before_a_moment_is_taken_and_a_named_one_as_it_is(site: Site) -> None:
    def start(since: str) -> str:
        return plan_replay(site.green, since, site.known).key

    assert start("1970-01-01T00:00:02.5") == "chk-000002"
    assert start("1970-01-01T00:00:02.4") == "chk-000001", "it may have read what came after"
    assert start("1970-01-01T00:00:01.5") == "chk-000001"
    assert start("chk-1") == "chk-000001"
    with pytest.raises(NotFound, match="the oldest, chk-000001, was complete at 1970-01-01 00:00:01 UTC"):
        start("1970-01-01")


def test_what_a_restore_has_left_behind_is_no_beginning(site: Site) -> None:
    first, second = site.world.record().completed
    site.world.change(completed=(first, second.model_copy(update={"left_by": 2})))
    assert plan_replay(site.green, "2026-11-17", site.known).key == "chk-000001"


def test_what_a_pipeline_that_began_again_without_state_had_before_is_no_beginning(site: Site) -> None:
    first, second = site.world.record().completed
    without_state = RestoreLine(since=CoordinatorEpoch(2), base=None)
    site.world.change(completed=(first, second.model_copy(update={"epoch": 2})), line=without_state)
    with pytest.raises(NotFound, match="the oldest, chk-000002, was complete at"):
        plan_replay(site.green, "1970-01-01T00:00:02", site.known)
    assert plan_replay(site.green, "2026-11-17", site.known).key == "chk-000002"


def test_a_savepoint_that_a_version_before_has_not_marked_is_no_beginning_after_a_restore(site: Site) -> None:
    site.world.savepoint(9)
    assert plan_replay(site.green, "2026-11-17", site.known).key == "savepoint-000009"
    base = site.world.record().completed[0].known
    site.world.change(line=RestoreLine(since=CoordinatorEpoch(2), base=base))
    assert plan_replay(site.green, "2026-11-17", site.known).key == "chk-000001"


def test_side_tables_are_moved_beside_themselves_and_only_those_that_were_written(site: Site) -> None:
    assert set_side_tables_aside(site.green, site.known, label="r0") == ()
    site.publish(site.green, 1, [(7, 70)])
    site.world.change(GREEN, latest_completed=1)
    with pytest.raises(InvalidRequest, match=r"'sales_green' has run before.*\(again\)"):
        plan_replay(site.green, "chk-1", site.known)
    plan_replay(site.green, "chk-1", site.known, again=True)
    [place] = set_side_tables_aside(site.green, site.known, label="r1")
    assert place == str(site.world.folder / "green" / ".set_aside" / "r1" / "totals")
    assert pairs_in(Path(place)) == [(7, 70)]
    assert not (site.world.folder / "green" / "totals").exists()
    assert site.own(site.blue) == [(1, 10), (2, 20)]


def test_a_table_of_another_pipeline_is_never_moved(site: Site) -> None:
    fork = site.blue.fork("sales_again", table_dir=str(site.world.folder / "tables"))
    plan_replay(fork, "chk-1", site.known, again=True)
    assert set_side_tables_aside(fork, site.known, label="r1") == (), (
        "it is not the fork's: its run is refused"
    )
    assert site.own(site.blue) == [(1, 10), (2, 20)]


def test_a_fork_that_serves_readers_and_a_pipeline_that_is_no_fork_do_not_replay(site: Site) -> None:
    site.publish(site.green, 1, [(1, 10), (2, 20)])
    swap_readers(site.green, site.known)
    with pytest.raises(InvalidRequest, match="'sales_green' serves readers of 'sales'"):
        plan_replay(site.green, "chk-1", site.known, again=True)
    with pytest.raises(InvalidRequest, match="'sales' is no fork: a replay writes side tables"):
        plan_replay(site.blue, "chk-1", site.known)


def test_a_table_of_another_kind_that_nobody_has_written_to_holds_no_replay_up(site: Site) -> None:
    url = f"sqlite:///{site.world.folder / 'shop.db'}"
    fork = sales(SqlTable(url)).fork("other", table_dir="/t", sinks={"totals": SqlTable(url, "other")})
    assert plan_replay(fork, "chk-1", site.known).origin == SALES
    assert set_side_tables_aside(fork, site.known, label="r1") == ()


def test_what_another_replay_has_finished_while_one_waited_is_not_claimed(site: Site) -> None:
    def claim(again: bool = False, root: str = "mine") -> None:
        record = site.world.record(GREEN)
        admits_replay(site.green, admit_anyone, named=site.known, again=again, root=root)(record)

    plan_replay(site.green, "chk-1", site.known, again=True, root="mine")
    site.publish(site.green, 1, [(7, 70)])
    claim()
    site.world.change(GREEN, latest_completed=1, root="theirs")
    for act in (claim, lambda: plan_replay(site.green, "chk-1", site.known, root="mine")):
        with pytest.raises(InvalidRequest, match=r"'sales_green' has run before.*\(again\)"):
            act()
    claim(again=True)
    claim(root="theirs")
    plan_replay(site.green, "chk-1", site.known, root="theirs")
    swap_readers(site.green, site.known, approved=compare_readers(site.green, site.known).approval)
    for again, root in ((True, "mine"), (False, "theirs")):
        with pytest.raises(InvalidRequest, match="'sales_green' serves readers of 'sales'"):
            claim(again, root)


def test_whoever_was_faster_is_told_before_what_it_has_written(site: Site) -> None:
    def admit(record: CoordinatorRecord) -> None:
        raise Occupied("looking again")

    site.publish(site.green, 1, [(7, 70)])
    site.world.change(GREEN, latest_completed=1, root="theirs")
    with pytest.raises(Occupied):
        admits_replay(site.green, admit, named=site.known, again=False, root="mine")(site.world.record(GREEN))


def test_tables_that_readers_find_are_not_set_aside(site: Site) -> None:
    site.publish(site.green, 1, [(1, 10), (2, 20)])
    swap_readers(site.green, site.known)
    with pytest.raises(InvalidRequest, match="'sales_green' serves readers of 'sales'"):
        set_side_tables_aside(site.green, site.known, label="r1")
    assert site.read() == [(1, 10), (2, 20)]
