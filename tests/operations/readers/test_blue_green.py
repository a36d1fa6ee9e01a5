"""Readers of a pipeline's name: compared with a fork, swapped to it in one step, swapped back."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from dagster_ckpt import CheckpointedPipeline, load_table
from dagster_ckpt.core import paths
from dagster_ckpt.core.checkpoint.tables import ServedTable
from dagster_ckpt.core.ids import CheckpointId, PipelineId, StageUid
from dagster_ckpt.core.model import CheckpointKind, FileKind, StageSnapshot, TableSnapshot
from dagster_ckpt.errors import InvalidRequest, NotFound, Unavailable
from dagster_ckpt.operations.deployment import Operator, audit_of
from dagster_ckpt.operations.readers.blue_green import (
    Swapped,
    compare_readers,
    swap_back,
    swap_readers,
)
from dagster_ckpt.operations.readers.open_sink import own_table
from dagster_ckpt.ports import AuditRow, Committed, Conflict, HistoryRow
from dagster_ckpt.sinks import SqlTable
from dagster_ckpt.spark.snapshot.state_files import PlannedFile, planned
from dagster_ckpt.spark.snapshot.upload import UploadMode
from dagster_ckpt.testing.memory import MemoryCoordinatorStore
from dagster_ckpt.testing.sinks.keys import pairs
from tests.lab.pipelines import sink, source, wired
from tests.operations.world import SALES, Known, World
from tests.tables import Attempt

GREEN, BLUE2 = PipelineId("sales_green"), PipelineId("sales_next")


def sales(to: Any = None) -> CheckpointedPipeline:
    return wired(
        "sales",
        source("orders", lambda spark: spark),
        sink("totals", lambda orders: orders, key=["k"], to=to),
    )


@dataclass
class Site:
    """A pipeline and its fork, whose tables a test writes."""

    world: World

    def __post_init__(self) -> None:
        self.blue = sales()
        self.green = self.blue.fork(GREEN, table_dir=str(self.world.folder / "green"))
        self.known = Known(self.world)
        self.writers: dict[str, Attempt] = {}

    def publish(self, pipeline: CheckpointedPipeline, number: int, rows: Sequence[tuple[int, int]]) -> None:
        """Publish rows with a checkpoint of the pipeline."""
        name = pipeline.name
        if name not in self.writers:
            place = self.known.resolved_table_dir(pipeline) / "totals"
            root = self.world.query("totals").root if pipeline is self.blue else self.world.folder / name
            self.writers[name] = Attempt(place, root, name, ("k",))
        writer = self.writers[name]
        writer.batch(rows)
        cut = writer.cut(number)
        extra = [planned(writer.stage_dir, path, FileKind.COMMITTABLE) for path in cut.committables]
        self.checkpoint(pipeline, number, table=cut.snapshot, extra=extra)
        writer.publish(cut)

    def checkpoint(
        self,
        pipeline: CheckpointedPipeline,
        number: int,
        offsets: dict[str, str] | None = None,
        table: TableSnapshot | None = None,
        extra: Sequence[PlannedFile] = (),
    ) -> None:
        """Complete a checkpoint of the pipeline."""
        world, name = self.world, pipeline.name
        uid = "totals" if pipeline is self.blue else name
        world.query(uid).commit(1)
        source = StageSnapshot(uid="orders", parallelism=1, offsets=offsets or {}, batch_id=0)
        folder = paths.CheckpointPaths(name).checkpoint(CheckpointId(number))
        kind = CheckpointKind.CHECKPOINT
        taken = world.take(
            number,
            folder,
            world.storage,
            UploadMode.INCREMENTAL,
            kind,
            uid=uid,
            pipeline=name,
            others=(source,),
            table=table,
            extra=extra,
        )
        world.remember(taken)

    def read(self) -> list[tuple[int, int]]:
        """What readers find who know the first pipeline only."""
        return pairs(load_table(self.blue, "totals", coordinator=self.known).to_arrow())

    def own(self, pipeline: CheckpointedPipeline) -> list[tuple[int, int]]:
        return pairs(own_table(pipeline, StageUid("totals"), self.known).rows().to_arrow())


@pytest.fixture
def site(world: World) -> Site:
    """The fork has another value of one key, and one more key."""
    site = Site(world)
    site.publish(site.blue, 1, [(1, 10), (2, 20)])
    site.publish(site.green, 1, [(1, 10), (2, 21), (3, 30)])
    return site


# --- comparing ----------------------------------------------------------------------------------------------------


def test_a_comparison_tells_rows_by_key_and_changes_nothing(site: Site) -> None:
    found = compare_readers(site.green, site.known)
    assert (found.name, found.serving, found.candidate, found.is_same) == (SALES, SALES, GREEN, False)
    assert found.lines == (
        "sales_green compared with sales, which serves sales",
        "totals: 1 row the same, 1 added, 0 missing, 1 changed",
    )
    assert found == compare_readers(site.green, site.known)
    assert site.read() == [(1, 10), (2, 20)]
    narrow = compare_readers(site.green, site.known, only={"k": "1"})
    assert narrow.lines[1] == "totals: the same 1 row"
    assert not narrow.is_same, "the other rows were not looked at"


def test_tables_without_rows_are_told_apart_from_tables_that_differ(world: World) -> None:
    site = Site(world)
    for pipeline in (site.blue, site.green):
        site.checkpoint(pipeline, 1)
    assert compare_readers(site.green, site.known).lines[1] == "totals: neither has rows yet"
    site.publish(site.blue, 2, [(1, 1)])
    found = compare_readers(site.green, site.known)
    assert found.lines[1] == "totals: sales_green has no rows yet"
    assert not found.is_same


def test_only_a_fork_that_has_run_can_be_compared(site: Site) -> None:
    with pytest.raises(InvalidRequest, match=r"'sales' is no fork: .*pipeline.fork"):
        compare_readers(site.blue, site.known)
    other = site.blue.fork("sales_other", table_dir="/nowhere")
    with pytest.raises(NotFound, match="knows no pipeline 'sales_other'"):
        compare_readers(other, site.known)


# --- swapping -----------------------------------------------------------------------------------------------------


def test_readers_are_swapped_to_the_fork_and_back_and_the_audit_says_who_did_it(site: Site) -> None:
    opened = load_table(site.blue, "totals", coordinator=site.known)
    approval = compare_readers(site.green, site.known).approval
    ann = Operator(who="ann", shown=("1 changed",))
    done = swap_readers(site.green, site.known, approved=approval, operator=ann, run_id="r1")
    place = str(site.world.folder / "green" / "totals")
    assert done == Swapped(name=SALES, serving=GREEN, before=SALES, places={"totals": place})
    assert site.read() == [(1, 10), (2, 21), (3, 30)]
    assert pairs(opened.to_arrow()) == [(1, 10), (2, 20)], "who has opened the old table keeps it"
    site.publish(site.green, 2, [(4, 40)])
    assert site.read() == [(1, 10), (2, 21), (3, 30), (4, 40)], "what the fork publishes is served"
    site.publish(site.blue, 2, [(2, 22)])
    back = swap_back(site.green, site.known, operator=Operator(who="bob"))
    assert (back.serving, back.before) == (SALES, GREEN)
    assert site.read() == [(1, 10), (2, 22)], "what the old one published meanwhile is there"
    told = [
        (row.what, row.key, row.who, row.run_id, row.shown) for row in audit_of(site.world.deployment, SALES)
    ]
    assert told == [
        (
            "swapped back",
            "sales",
            "bob",
            "",
            "readers of sales find the tables of sales, and no longer of sales_green",
        ),
        ("swapped", "sales_green", "ann", "r1", "1 changed"),
    ]


def test_tables_that_are_the_same_need_no_approval_and_others_do(site: Site) -> None:
    with pytest.raises(InvalidRequest) as refused:
        swap_readers(site.green, site.known)
    assert str(refused.value) == (
        "totals: 1 row the same, 1 added, 0 missing, 1 changed: nothing was swapped. Compare them, and approve what "
        "you find (approved)"
    )
    assert site.read() == [(1, 10), (2, 20)]
    site.publish(site.blue, 2, [(2, 21), (3, 30)])
    assert swap_readers(site.green, site.known).serving == GREEN


def test_a_comparison_is_stale_once_a_table_has_changed_and_that_can_be_allowed(site: Site) -> None:
    approval = compare_readers(site.green, site.known).approval
    site.publish(site.blue, 2, [(5, 50)])
    with pytest.raises(InvalidRequest, match="have changed since the comparison that is approved"):
        swap_readers(site.green, site.known, approved=approval)
    site.checkpoint(site.blue, 3)
    fresh = compare_readers(site.green, site.known).approval
    site.checkpoint(site.blue, 4)  # without rows
    assert swap_readers(site.green, site.known, approved=fresh).serving == GREEN
    swap_back(site.green, site.known)
    assert swap_readers(site.green, site.known, approved=approval, allow_stale=True).serving == GREEN


@pytest.mark.parametrize("allowed", [False, True])
def test_an_approval_of_other_pipelines_never_counts(site: Site, allowed: bool) -> None:
    other = site.blue.fork(BLUE2, table_dir=str(site.world.folder / "next"))
    site.publish(other, 1, [(1, 1)])
    approval = compare_readers(other, site.known).approval
    with pytest.raises(InvalidRequest, match="another comparison than that of 'sales', which serves"):
        swap_readers(site.green, site.known, approved=approval, allow_stale=allowed)
    with pytest.raises(InvalidRequest, match="'yes' is no approval"):
        swap_readers(site.green, site.known, approved="yes", allow_stale=allowed)


def test_a_fork_that_is_behind_in_a_topic_is_refused_and_that_can_be_allowed(site: Site) -> None:
    site.checkpoint(site.blue, 2, {"0": '{"orders": {"0": 12, "1": 7}}'})
    site.checkpoint(site.green, 2, {"0": '{"orders": {"0": 10, "1": 7}}'})
    found = compare_readers(site.green, site.known)
    assert found.lines[-1] == "sales_green is behind: it is 2 records behind in partition 0 of topic orders"
    with pytest.raises(InvalidRequest, match=r"behind 'sales': it is 2 records.*\(allow_behind\)"):
        swap_readers(site.green, site.known, approved=found.approval)
    assert site.read() == [(1, 10), (2, 20)]
    assert swap_readers(site.green, site.known, approved=found.approval, allow_behind=True).serving == GREEN


def test_a_fork_is_taken_for_behind_where_nobody_knows_what_the_serving_one_has_read(site: Site) -> None:
    swap_readers(site.green, site.known, approved=compare_readers(site.green, site.known).approval)
    other = site.blue.fork(BLUE2, table_dir=str(site.world.folder / "next"))
    site.publish(other, 1, [(1, 10), (2, 20)])
    assert compare_readers(other, site.known).behind == ()
    site.world.change(GREEN, completed=(), savepoints=())  # as where green has a store of its own
    told = f"what {GREEN} has read is in a store that is not known here"
    found = compare_readers(other, site.known)
    assert found.behind == (told,)
    with pytest.raises(InvalidRequest, match=told):
        swap_readers(other, site.known, approved=found.approval)


def test_a_fork_without_a_checkpoint_is_behind(world: World) -> None:
    site = Site(world)
    site.checkpoint(site.blue, 1)
    world.change(GREEN, epoch=1)
    with pytest.raises(InvalidRequest, match="it has completed no checkpoint yet"):
        swap_readers(site.green, site.known)


def test_what_serves_already_and_what_does_not_serve_are_refused(site: Site) -> None:
    with pytest.raises(
        InvalidRequest, match="readers of 'sales' find its own tables: there is nothing to swap back"
    ):
        swap_back(site.green, site.known)
    swap_readers(site.green, site.known, approved=compare_readers(site.green, site.known).approval)
    with pytest.raises(InvalidRequest, match="'sales_green' serves 'sales' already"):
        swap_readers(site.green, site.known)
    other = site.blue.fork(BLUE2, table_dir=str(site.world.folder / "next"))
    with pytest.raises(
        InvalidRequest, match="find the tables of 'sales_green' by now, and not those of 'sales_next'"
    ):
        swap_back(other, site.known)


def test_a_fork_of_what_serves_takes_its_place_and_the_way_back_leads_to_it(site: Site) -> None:
    swap_readers(site.green, site.known, approved=compare_readers(site.green, site.known).approval)
    third = site.green.fork(BLUE2, table_dir=str(site.world.folder / "next"))
    site.publish(third, 1, [(1, 10), (2, 21), (3, 30)])
    found = compare_readers(third, site.known)
    assert (found.name, found.serving, found.is_same) == (SALES, GREEN, True)
    swap_readers(third, site.known)
    site.publish(third, 2, [(9, 90)])
    assert site.read()[-1] == (9, 90)
    back = swap_back(third, site.known)
    assert back.serving == GREEN
    assert site.read() == [(1, 10), (2, 21), (3, 30)]
    assert swap_back(site.green, site.known).serving == BLUE2, "the way back has a way back"


def test_of_two_swaps_at_once_one_is_made_and_the_other_refused(site: Site) -> None:
    other = site.blue.fork(BLUE2, table_dir=str(site.world.folder / "next"))
    site.publish(other, 1, [(1, 1)])
    approvals = {f.name: compare_readers(f, site.known).approval for f in (site.green, other)}
    both, said = threading.Barrier(2), []

    class Meeting(MemoryCoordinatorStore):
        def compare_and_set(
            self,
            pipeline: PipelineId,
            expected: int,
            body: str,
            history: Sequence[HistoryRow] = (),
            audit: Sequence[AuditRow] = (),
            **more: Any,
        ) -> Committed | Conflict:
            if audit and len(said) == 0 and both.n_waiting < 2 and not both.broken:
                with contextlib.suppress(threading.BrokenBarrierError):
                    both.wait(timeout=300)  # both have looked, none has written
                both.abort()
            return super().compare_and_set(pipeline, expected, body, history, audit, **more)

    meeting = Meeting()
    for name in site.world.store.pipelines():
        stored = site.world.store.load(name)
        assert stored is not None
        for version in range(stored.version):
            meeting.compare_and_set(name, version, stored.body)
    site.world.store = meeting

    def swap(fork: CheckpointedPipeline) -> None:
        try:
            said.append(swap_readers(fork, site.known, approved=approvals[fork.name]).serving)
        except InvalidRequest as error:
            said.append(str(error))

    threads = [threading.Thread(target=swap, args=(fork,)) for fork in (site.green, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winner = next(text for text in said if text in (GREEN, BLUE2))
    [loser] = [text for text in said if text != winner]
    assert loser.startswith(f"readers of 'sales' find the tables of {winner!r} by now")
    assert site.read() == site.own(site.green if winner == GREEN else other)
    assert [row.key for row in audit_of(site.world.deployment, SALES)] == [winner]


def test_a_swap_that_was_not_written_leaves_readers_where_they_were(site: Site) -> None:
    approval = compare_readers(site.green, site.known).approval

    class Gone(MemoryCoordinatorStore):
        def compare_and_set(self, *given: Any, **more: Any) -> Committed | Conflict:
            raise Unavailable("the database is away")

    whole, gone = site.world.store, Gone()
    gone.__dict__.update(whole.__dict__)
    site.world.store = gone
    with pytest.raises(Unavailable):
        swap_readers(site.green, site.known, approved=approval)
    site.world.store = whole
    assert site.read() == [(1, 10), (2, 20)]
    assert swap_readers(site.green, site.known, approved=approval).serving == GREEN, (
        "the comparison still counts"
    )


# --- reading ------------------------------------------------------------------------------------------------------


def test_snapshots_are_the_pipelines_own_whoever_serves(site: Site) -> None:
    swap_readers(site.green, site.known, approved=compare_readers(site.green, site.known).approval)
    assert site.own(site.blue) == [(1, 10), (2, 20)]
    then = load_table(site.blue, "totals", coordinator=site.known, as_of="chk-1")
    assert pairs(then.to_arrow()) == [(1, 10), (2, 20)]


def test_readers_whose_code_leads_to_another_place_are_refused(site: Site) -> None:
    swap_readers(site.green, site.known, approved=compare_readers(site.green, site.known).approval)
    record = site.world.record()
    assert record.serving is not None
    moved = record.serving.model_copy(
        update={"tables": {"totals": ServedTable(name="totals", place="/elsewhere")}}
    )
    site.world.change(serving=moved)
    with pytest.raises(
        InvalidRequest, match="served by pipeline 'sales_green' from /elsewhere, and this code"
    ):
        site.read()
    site.world.change(serving=record.serving.model_copy(update={"tables": {}}))
    with pytest.raises(
        NotFound, match="pipeline 'sales_green' serves the tables of 'sales' and has no 'totals'"
    ):
        site.read()


def test_a_table_of_a_database_is_found_by_its_name_there(world: World) -> None:
    url = f"sqlite:///{world.folder / 'shop.db'}"
    blue = sales(SqlTable(url))
    green = blue.fork(
        GREEN, table_dir=str(world.folder / "green"), sinks={"totals": SqlTable(url, "totals_green")}
    )
    site = Site(world)
    site.blue, site.green = blue, green
    for pipeline in (blue, green):
        site.checkpoint(pipeline, 1)
    with sqlite3.connect(world.folder / "shop.db") as database:
        for name, rows in (("totals", [(1, 1)]), ("totals_green", [(1, 2)])):
            database.execute(f"CREATE TABLE {name} (k INTEGER, v INTEGER)")
            database.executemany(f"INSERT INTO {name} VALUES (?, ?)", rows)
    found = compare_readers(green, site.known)
    assert found.lines[1] == "totals: 0 rows the same, 0 added, 0 missing, 1 changed"
    done = swap_readers(green, site.known, approved=found.approval)
    assert done.places["totals"].endswith("shop.db#totals_green")
    assert site.read() == [(1, 2)]


def test_whoever_reads_while_readers_are_swapped_finds_one_table_or_the_other_and_never_a_mixture(
    site: Site,
) -> None:
    approval = compare_readers(site.green, site.known).approval
    tables = {tuple(site.own(site.blue)), tuple(site.own(site.green))}
    over, found, failed = threading.Event(), set(), []

    def read() -> None:
        try:
            while not over.is_set():
                found.add(tuple(site.read()))
        except Exception as error:
            failed.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(10):
        swap_readers(site.green, site.known, approved=approval)
        swap_back(site.green, site.known)
    over.set()
    for reader in readers:
        reader.join()
    assert not failed
    assert found <= tables
    assert tuple(site.read()) == tuple(site.own(site.blue))


def test_a_swap_that_is_tried_again_is_made_and_one_of_somebody_else_is_not(site: Site) -> None:
    approval = compare_readers(site.green, site.known).approval
    first = swap_readers(site.green, site.known, approved=approval, run_id="first")
    again = swap_readers(
        site.green, site.known, approved=approval, run_id="second", tries=("second", "first")
    )
    assert again == first
    assert len(audit_of(site.world.deployment, SALES)) == 1, "nothing was written again"
    with pytest.raises(InvalidRequest, match="'sales_green' serves 'sales' already"):
        swap_readers(site.green, site.known, approved=approval, run_id="third", tries=("third",))


def other(sinks: Sequence[str]) -> CheckpointedPipeline:
    """A version of the pipeline with these sinks."""
    made = [sink(uid, lambda orders: orders, key=["k"]) for uid in sinks]
    return wired("sales", source("orders", lambda spark: spark), *made)


def test_a_version_that_has_lost_a_table_or_has_a_new_one_is_told_of_it(site: Site) -> None:
    without = other(["counts"]).fork(BLUE2, table_dir=str(site.world.folder / "next"))
    site.checkpoint(without, 1)
    found = compare_readers(without, site.known)
    assert found.lines[1:] == ("counts: neither has rows yet", "totals: sales_next has no such table")
    assert not found.is_same
    with pytest.raises(InvalidRequest, match="totals: sales_next has no such table: nothing was swapped"):
        swap_readers(without, site.known)

    swap_readers(site.green, site.known, approved=compare_readers(site.green, site.known).approval)
    more = other(["totals", "counts"]).fork(BLUE2, table_dir=str(site.world.folder / "more"))
    site.publish(more, 2, [(1, 10), (2, 21), (3, 30)])
    found = compare_readers(more, site.known)
    assert found.lines[1:] == ("totals: the same 3 rows", "counts: sales_green has no such table")
    assert swap_readers(more, site.known, approved=found.approval).serving == BLUE2
    assert site.read() == [(1, 10), (2, 21), (3, 30)]
