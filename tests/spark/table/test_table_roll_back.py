"""Rolling a table back and forward, seeding a fork, and garbage collection, without Spark."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.errors import Corrupt, Fenced, InvalidRequest, NotFound
from dagster_ckpt.spark.sink.committables import prepared_batches, read_committables
from dagster_ckpt.spark.sink.port import LaterRows
from dagster_ckpt.spark.table.fork import seed_fork
from dagster_ckpt.spark.table.log import Table, create_table, open_table
from dagster_ckpt.spark.table.publish import adopt
from dagster_ckpt.spark.table.records import (
    Append,
    Upsert,
)
from dagster_ckpt.spark.table.retention import collect_garbage
from dagster_ckpt.spark.table.roll_back import check_roll_back, roll_back
from dagster_ckpt.spark.table.version_digests import digest_path
from dagster_ckpt.testing.faults import SimulatedCrash
from tests.properties import examples
from tests.spark.crashing import crash_before_change, crashes_at_every_change
from tests.spark.table.tables import (
    LINEAGE,
    PIPELINE,
    Attempt,
    Cut,
    attempt_id,
    expected,
    restored,
    roll_back_to,
    rows_of,
    sink_cut,
    sink_of,
)

MODES = [pytest.param(Append(), id="append"), pytest.param(Upsert(keys=("k",), buckets=3), id="upsert")]


def new_attempt(folder: Path, mode: Append | Upsert) -> Attempt:
    return Attempt(create_table(str(folder / "table"), pipeline=PIPELINE, mode=mode), folder / "stage-1")


def three_cuts(folder: Path, mode: Append | Upsert) -> tuple[Attempt, list[Cut]]:
    """Cuts 1 to 3, each published; cut 2 is a savepoint taken before checkpoint 3 published its batches."""
    attempt = new_attempt(folder, mode)
    attempt.batch([(1, 1), (2, 1)])
    first = attempt.cut(1)
    attempt.publish(first)
    attempt.batch([(2, 2), (3, 2)], [(4, 2)])
    savepoint = attempt.cut(2)
    attempt.batch([(4, 3), (5, 3)])
    third = attempt.cut(3)
    attempt.publish(third)
    return attempt, [first, savepoint, third]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_after_a_roll_back_the_table_holds_exactly_the_rows_of_the_cut(
    tmp_path: Path, mode: Append | Upsert, which: int
) -> None:
    attempt, cuts = three_cuts(tmp_path, mode)
    cut = cuts[which]
    follower = restored(attempt.table, cut, tmp_path / "stage-2", epoch=2)
    roll_back_to(attempt.table, cut, follower.stage_dir, epoch=2)
    assert rows_of(tmp_path / "table") == cut.rows
    follower.batch([(6, 4)])
    after = follower.cut(4)
    follower.publish(after)
    assert rows_of(tmp_path / "table") == after.rows == expected(attempt.table, [*cut.rows, (6, 4)])


@pytest.mark.parametrize("mode", MODES)
def test_a_completed_checkpoint_whose_publish_never_ran_is_published_by_the_restore(
    tmp_path: Path, mode: Append | Upsert
) -> None:
    attempt = new_attempt(tmp_path, mode)
    attempt.batch([(1, 1)])
    cut = attempt.cut(1)
    attempt.batch([(2, 2)])
    follower = restored(attempt.table, cut, tmp_path / "stage-2", epoch=2)
    assert roll_back_to(attempt.table, cut, follower.stage_dir, epoch=2).head == 1
    assert rows_of(tmp_path / "table") == [(1, 1)]
    follower.batch([(2, 20)])
    follower.publish(follower.cut(2))
    assert rows_of(tmp_path / "table") == [(1, 1), (2, 20)]


@pytest.mark.parametrize("mode", MODES)
def test_rows_that_were_rolled_back_come_back_with_a_later_cut(tmp_path: Path, mode: Append | Upsert) -> None:
    attempt, cuts = three_cuts(tmp_path, mode)
    for epoch, which in enumerate([0, 2, 1, 2, 0], start=2):
        follower = restored(attempt.table, cuts[which], tmp_path / f"stage-{epoch}", epoch=epoch)
        roll_back_to(attempt.table, cuts[which], follower.stage_dir, epoch=epoch)
        assert rows_of(tmp_path / "table") == cuts[which].rows


def test_rows_set_aside_are_kept_under_the_epoch_that_set_them_aside(tmp_path: Path) -> None:
    attempt, cuts = three_cuts(tmp_path, Append())
    restored(attempt.table, cuts[0], tmp_path / "stage-2", epoch=2)
    done = roll_back_to(attempt.table, cuts[0], tmp_path / "stage-2", epoch=2)
    assert done.set_aside == 3
    assert rows_of(tmp_path / "table" / "_dagster_ckpt" / "set_aside" / "2") == [
        (2, 2),
        (3, 2),
        (4, 2),
        (4, 3),
        (5, 3),
    ]


@pytest.mark.parametrize("mode", MODES)
def test_a_fresh_start_empties_the_table(tmp_path: Path, mode: Append | Upsert) -> None:
    attempt, _ = three_cuts(tmp_path, mode)
    roll_back(attempt.table, None, attempt_id(2))
    assert rows_of(tmp_path / "table") == []
    follower = Attempt(attempt.table, tmp_path / "s2", epoch=2)
    follower.batch([(1, 9)])
    follower.publish(follower.cut(4))
    assert rows_of(tmp_path / "table") == [(1, 9)]


@pytest.mark.parametrize("mode", MODES)
def test_a_lost_file_of_the_cut_is_named_and_nothing_moves(tmp_path: Path, mode: Append | Upsert) -> None:
    attempt, cuts = three_cuts(tmp_path, mode)
    table = tmp_path / "table"
    victims = sorted(table.glob("part-*.parquet"))[:1]
    if isinstance(mode, Upsert):
        victims = [
            *table.rglob("versions/*1/part-bucket-00001.parquet"),
            *table.rglob("staged/1/*0-*/*.parquet"),
        ]
    for victim in victims:
        victim.unlink()
    restored(attempt.table, cuts[0], tmp_path / "stage-2", epoch=2)
    before = {str(path.relative_to(table)) for path in table.rglob("*.parquet")}
    with pytest.raises(Corrupt, match=victims[-1].name):
        roll_back_to(attempt.table, cuts[0], tmp_path / "stage-2", epoch=2)
    assert {str(path.relative_to(table)) for path in table.rglob("*.parquet")} == before
    assert attempt.table.state().rolling_back_to is None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("which", [0, 1])
def test_a_roll_back_stopped_at_any_file_operation_is_finished_by_repeating_it(
    tmp_path: Path, mode: Append | Upsert, which: int
) -> None:
    attempt, cuts = three_cuts(tmp_path, mode)
    cut, other = cuts[which], cuts[2]
    for target in (cut, other):
        restored(attempt.table, target, tmp_path / f"stage-{target.checkpoint}", epoch=2)
    saved = tmp_path / "saved"
    shutil.copytree(tmp_path / "table", saved)

    def prepare() -> None:
        shutil.rmtree(tmp_path / "table")
        shutil.copytree(saved, tmp_path / "table")

    def act() -> None:
        roll_back_to(attempt.table, cut, tmp_path / f"stage-{cut.checkpoint}", epoch=2)

    for number in crashes_at_every_change(tmp_path / "table", prepare, act):
        if attempt.table.state().rolling_back_to is not None:
            with pytest.raises(InvalidRequest, match="in the middle of a roll-back"):
                adopt(attempt.table, attempt_id(3))
        if number % 2:
            roll_back_to(attempt.table, other, tmp_path / f"stage-{other.checkpoint}", epoch=3)
            assert rows_of(tmp_path / "table") == other.rows
        roll_back_to(attempt.table, cut, tmp_path / f"stage-{cut.checkpoint}", epoch=4)
        assert rows_of(tmp_path / "table") == cut.rows


def test_a_roll_back_fences_older_attempts(tmp_path: Path) -> None:
    attempt, cuts = three_cuts(tmp_path, Append())
    attempt.batch([(9, 9)])
    late = attempt.cut(4)
    for cut in cuts:
        restored(attempt.table, cut, tmp_path / f"stage-of-{cut.checkpoint}", epoch=2)
    roll_back_to(attempt.table, cuts[0], tmp_path / "stage-of-1", epoch=2)
    with pytest.raises(Fenced):
        attempt.publish(late)
    with pytest.raises(Fenced):
        roll_back_to(attempt.table, cuts[2], tmp_path / "stage-of-3", epoch=1)
    assert rows_of(tmp_path / "table") == cuts[0].rows


def test_rows_that_are_told_to_stay_stay_and_new_ones_come_on_top(tmp_path: Path) -> None:
    attempt, cuts = three_cuts(tmp_path, Append())
    follower = restored(attempt.table, cuts[0], tmp_path / "stage-2", epoch=2)
    roll_back_to(attempt.table, cuts[0], follower.stage_dir, epoch=2, later_rows=LaterRows.KEEP)
    assert rows_of(tmp_path / "table") == cuts[2].rows
    follower.batch([(6, 4)])
    follower.publish(follower.cut(4))
    assert rows_of(tmp_path / "table") == sorted([*cuts[2].rows, (6, 4)])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_fork_begins_with_the_rows_of_the_cut_and_leaves_the_source_alone(
    tmp_path: Path, mode: Append | Upsert, which: int
) -> None:
    attempt, cuts = three_cuts(tmp_path, mode)
    cut = cuts[which]
    other = restored(attempt.table, cut, tmp_path / "fork-stage", epoch=1)
    fork = new_fork(tmp_path, mode)
    seed(attempt, cut, fork, other.stage_dir)
    assert rows_of(tmp_path / "fork") == cut.rows
    assert rows_of(tmp_path / "table") == cuts[2].rows
    assert other.next_batch - 1 == fork.state().published_through
    seed(attempt, cut, fork, other.stage_dir)  # its run failed before the first checkpoint and is tried again
    assert rows_of(tmp_path / "fork") == cut.rows
    with pytest.raises(InvalidRequest, match="rows already"):
        seed(attempt, replace(cut, checkpoint=9), fork, other.stage_dir)


def collect(attempt: Attempt, needed: list[TableSnapshot]) -> int:
    done = attempt.table.state().published_through
    waiting = [n for n in prepared_batches(attempt.stage_dir) if done is None or n > done]
    return collect_garbage(attempt.table, needed, read_committables(attempt.stage_dir, waiting))


def new_fork(folder: Path, mode: Append | Upsert) -> Table:
    return create_table(str(folder / "fork"), pipeline=PipelineId("what-if"), mode=mode)


def seed(attempt: Attempt, cut: Cut, fork: Table, stage_dir: Path) -> None:
    seed_fork(attempt.table, cut=sink_cut(cut, stage_dir), target=fork, attempt=attempt_id(1))


def open_or_none(folder: Path) -> int | None:
    """The head of a table that may not exist yet."""
    try:
        return open_table(str(folder)).state().head
    except NotFound:
        return None


@pytest.mark.parametrize("mode", MODES)
def test_a_fork_stopped_at_any_file_operation_is_finished_by_repeating_it(
    tmp_path: Path, mode: Append | Upsert
) -> None:
    attempt, cuts = three_cuts(tmp_path, mode)
    restored(attempt.table, cuts[1], tmp_path / "fork-stage", epoch=1)

    def act() -> None:
        seed(attempt, cuts[1], new_fork(tmp_path, mode), tmp_path / "fork-stage")

    def prepare() -> None:
        shutil.rmtree(tmp_path / "fork", ignore_errors=True)

    for _ in crashes_at_every_change(tmp_path / "fork", prepare, act):
        if open_or_none(tmp_path / "fork") is None:
            act()
        else:
            with pytest.raises(InvalidRequest, match="rows already"):
                act()
        assert rows_of(tmp_path / "fork") == cuts[1].rows


@pytest.mark.parametrize("mode", MODES)
def test_garbage_collection_keeps_what_needed_cuts_and_the_running_attempt_need(
    tmp_path: Path, mode: Append | Upsert
) -> None:
    attempt, cuts = three_cuts(tmp_path, mode)
    attempt.batch([(7, 7)])
    needed = [cuts[1].snapshot, cuts[2].snapshot]
    adopt(attempt.table, attempt_id(2))
    collect(attempt, needed)
    collect(attempt, needed)
    assert rows_of(tmp_path / "table") == cuts[2].rows
    follower = Attempt(attempt.table, attempt.stage_dir, epoch=2, next_batch=4, processed=attempt.processed)
    after = follower.cut(4)
    follower.publish(after)
    assert rows_of(tmp_path / "table") == after.rows
    for epoch, cut in enumerate([cuts[1], cuts[2], cuts[1]], start=3):
        restored(attempt.table, cut, tmp_path / f"stage-{epoch}", epoch=epoch)
        roll_back_to(attempt.table, cut, tmp_path / f"stage-{epoch}", epoch=epoch)
        assert rows_of(tmp_path / "table") == cut.rows


def test_garbage_collection_removes_superseded_versions_and_old_committables(tmp_path: Path) -> None:
    attempt = new_attempt(tmp_path, Upsert(keys=("k",), buckets=1))
    for number in range(1, 6):
        attempt.batch([(1, number)])
        attempt.publish(attempt.cut(number))
    last = attempt.cut(6)
    assert collect(attempt, [last.snapshot]) > 0
    assert len(list((tmp_path / "table").rglob("versions/*/*.parquet"))) == 1
    assert len(list((tmp_path / "table").rglob("versions/*/*.digest"))) == 1
    assert list((tmp_path / "table").rglob("staged/1/batch-*")) == []
    assert rows_of(tmp_path / "table") == [(1, 5)]


@pytest.mark.parametrize("what", ["rewritten", "its digest damaged"])
def test_a_version_that_was_changed_is_not_shown_again(tmp_path: Path, what: str) -> None:
    attempt = new_attempt(tmp_path, Upsert(keys=("k",), buckets=1))
    attempt.batch([(1, 10)])
    first = attempt.cut(1)
    attempt.publish(first)
    attempt.batch([(1, 20)])
    attempt.publish(attempt.cut(2))
    earlier = attempt.table.paths.version(1, 0)
    if what == "rewritten":
        table = pq.read_table(earlier)
        pq.write_table(table.set_column(1, "v", pa.array([11])), earlier)
        said = "is not as it was written"
    else:
        digest_path(earlier).write_text("nothing")
        said = "is damaged"
    restored(attempt.table, first, tmp_path / "stage-2", epoch=2)
    cut = sink_cut(first, tmp_path / "stage-2")
    with pytest.raises(Corrupt, match=said):
        sink_of(attempt.table, 2).cannot_roll_back(cut)
    assert sink_of(attempt.table, 2).pins(cut)[0].is_there, "who asks every hour reads no whole table"
    with pytest.raises(Corrupt, match=said):
        roll_back_to(attempt.table, first, tmp_path / "stage-2", epoch=2)
    assert rows_of(tmp_path / "table") == [(1, 20)]


def test_a_version_of_before_digests_were_kept_is_shown(tmp_path: Path) -> None:
    attempt = new_attempt(tmp_path, Upsert(keys=("k",), buckets=1))
    attempt.batch([(1, 10)])
    first = attempt.cut(1)
    attempt.publish(first)
    attempt.batch([(1, 20)])
    attempt.publish(attempt.cut(2))
    digest_path(attempt.table.paths.version(1, 0)).unlink()
    restored(attempt.table, first, tmp_path / "stage-2", epoch=2)
    roll_back_to(attempt.table, first, tmp_path / "stage-2", epoch=2)
    assert rows_of(tmp_path / "table") == [(1, 10)]


def test_a_long_publish_log_is_merged_and_the_rows_stay_tellable(tmp_path: Path) -> None:
    attempt = new_attempt(tmp_path, Append())
    cuts = []
    for number in range(1, 271):
        attempt.batch([(number, number)])
        cuts.append(attempt.cut(number))
        attempt.publish(cuts[-1])
    needed = [cut.snapshot for cut in cuts[-5:]]
    collect(attempt, needed)
    assert len(attempt.table.records()) == 6
    restored(attempt.table, cuts[-3], tmp_path / "stage-2", epoch=2)
    roll_back_to(attempt.table, cuts[-3], tmp_path / "stage-2", epoch=2)
    assert rows_of(tmp_path / "table") == cuts[-3].rows
    restored(attempt.table, cuts[5], tmp_path / "stage-3", epoch=3)
    with pytest.raises(Corrupt, match=r"cannot be told apart; choose a later checkpoint$"):
        roll_back_to(attempt.table, cuts[5], tmp_path / "stage-3", epoch=3)
    with pytest.raises(Corrupt, match="nobody can tell which batches it shows"):
        roll_back_to(attempt.table, cuts[5], tmp_path / "stage-3", epoch=3, later_rows=LaterRows.KEEP)


_WALK = st.lists(
    st.tuples(
        st.sampled_from(["batch", "checkpoint", "savepoint", "roll_back", "adopt", "collect"]),
        st.integers(0, 30),
        st.one_of(st.none(), st.none(), st.integers(0, 12)),
    ),
    min_size=3,
    max_size=25,
)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=examples(60), deadline=None)
@given(walk=_WALK)
def test_a_random_walk_of_publishes_crashes_and_roll_backs_always_shows_the_oracles_rows(
    tmp_path_factory: pytest.TempPathFactory, mode: Append | Upsert, walk: list[tuple[str, int, int | None]]
) -> None:
    folder = tmp_path_factory.mktemp("walk")
    attempt = new_attempt(folder, mode)
    cuts: list[Cut] = []
    visible: list[tuple[int, int]] = []
    checkpoint, epoch = 0, 1
    for action, number, crash in walk:
        match action:
            case "batch":
                rows = [(number % 7, number), (number % 5 + 10, number)]
                attempt.batch(rows[:1], rows[1:]) if number % 2 else attempt.batch(rows)
            case "checkpoint" | "savepoint":
                checkpoint += 1
                cut = attempt.cut(checkpoint)
                cuts.append(cut)
                if action == "checkpoint":
                    _crashing(folder, crash, lambda cut=cut, attempt=attempt: attempt.publish(cut))
                    visible = cut.rows
            case "roll_back" if cuts:
                epoch += 1
                cut = cuts[number % len(cuts)]
                attempt = restored(attempt.table, cut, folder / f"stage-{epoch}", epoch=epoch)
                act = lambda cut=cut, attempt=attempt, epoch=epoch: roll_back_to(  # noqa: E731
                    attempt.table, cut, attempt.stage_dir, epoch=epoch
                )
                _crashing(folder, crash, act)
                visible = cut.rows
            case "adopt":
                epoch += 1
                adopt(attempt.table, attempt_id(epoch))
                attempt.epoch = epoch
            case "collect":
                collect(attempt, [cut.snapshot for cut in cuts])
        assert rows_of(folder / "table") == visible


def _crashing(folder: Path, crash: int | None, act: object) -> None:
    assert callable(act)
    if crash is not None:
        try:
            with crash_before_change(crash, folder / "table"):
                act()
        except SimulatedCrash:
            pass
    act()


@pytest.mark.parametrize("mode", MODES)
def test_a_table_whose_folder_was_removed_is_not_taken_for_an_empty_one(
    tmp_path: Path, mode: Append | Upsert
) -> None:
    _, cuts = three_cuts(tmp_path, mode)
    shutil.rmtree(tmp_path / "table")
    table = new_attempt(tmp_path, mode).table
    restored(table, cuts[2], tmp_path / "stage-2", epoch=2)
    with pytest.raises(Corrupt, match="has lost its rows"):
        roll_back_to(table, cuts[2], tmp_path / "stage-2", epoch=2)


def test_where_rows_are_gone_a_snapshot_of_another_history_is_named(tmp_path: Path) -> None:
    attempt = new_attempt(tmp_path, Append())
    attempt.batch([(1, 1)])
    cut = attempt.cut(1)
    attempt.publish(cut)
    foreign = replace(sink_cut(cut, attempt.stage_dir), lineages=frozenset({"theirs"}))
    for file in (tmp_path / "table").glob("part-*.parquet"):
        file.unlink()
    for act in (roll_back, partial(check_roll_back, reads_all=False)):
        with pytest.raises(
            Corrupt, match=f"is gone.*another history .*{LINEAGE}.*checkpoint storage and table"
        ):
            act(attempt.table, foreign, attempt_id(2))
