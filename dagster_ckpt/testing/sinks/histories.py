"""Contract of histories: another one on top, one that is not ours, a fork, and what nobody needs any more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch
from dagster_ckpt.errors import Fenced, InvalidRequest
from dagster_ckpt.spark.sink.port import AttemptId, LaterRows, Sink, SinkPosition
from dagster_ckpt.spark.sink.positions import as_fork_began, refuse_where_impossible
from dagster_ckpt.testing.sinks.base import ContractBase
from dagster_ckpt.testing.sinks.run import SinkRun, in_attempt


class HistoryContract(ContractBase):
    """Numbers are unique within a history; a place may see several, one after the other."""

    def test_a_new_history_goes_on_above_the_old_ones_numbers(self, tmp_path: Path) -> None:
        old = self.begun(tmp_path)
        old.batch([(1, 1)])
        old.batch([(2, 2)])
        old.publish(5)
        later = LaterRows.SET_ASIDE if self.can_roll_back else LaterRows.KEEP
        new = old.restored(None, later, epoch=7, lineage="second")
        left = [] if self.can_roll_back else [(1, 1), (2, 2)]
        assert self.shown(new) == left
        position = new.sink.position()
        assert position is not None
        assert (position.lineage, position.epoch, position.through_batch) == ("second", 7, None)
        assert position.checkpoint_id in (5, None)
        new.batch([(3, 3)])  # batch 0 of its own history
        new.publish(6)
        assert self.shown(new) == [*left, (3, 3)]
        assert new.sink.position() == SinkPosition(
            lineage="second", epoch=7, checkpoint_id=6, head=6, through_batch=0
        )
        with pytest.raises(Fenced):
            old.sink.take_over()

    def test_a_new_history_may_begin_with_an_old_cut(self, tmp_path: Path) -> None:
        self.skip_unless(self.can_roll_back, "cannot roll back")
        old = self.published(tmp_path, [(1, 1)])
        old.batch([(2, 2)])
        at = old.cut(2)
        old.publish(2)
        old.batch([(3, 3)])
        old.publish(3)
        new = old.restored(at, epoch=4, lineage="second")
        assert self.shown(new) == at.rows
        new.batch([(4, 4)])
        again = new.cut(4)
        new.publish(4)
        assert self.shown(new) == new.expected() == [(1, 1), (2, 2), (4, 4)]
        new.batch([(5, 5)])
        new.publish(5)
        assert self.shown(new.restored(again)) == again.rows

    def test_the_position_names_the_history_that_was_seen(self, tmp_path: Path) -> None:
        theirs = self.begun(tmp_path)
        theirs.batch([(1, 1)])
        theirs.publish(3)
        context = in_attempt(theirs.context, AttemptId("ours", CoordinatorEpoch(1)))
        position = self.open(context).position()
        assert position is not None
        assert (position.lineage, position.checkpoint_id) == ("first", 3)

    def test_another_history_that_has_seen_less_is_fenced(self, tmp_path: Path) -> None:
        theirs = self.begun(tmp_path).successor(epoch=5)
        theirs.sink.take_over()
        theirs.batch([(1, 1)])
        theirs.publish(3)
        context = in_attempt(theirs.context, AttemptId("ours", CoordinatorEpoch(4)))
        with pytest.raises(Fenced):
            self.open(context).take_over()
        assert self.shown(theirs) == [(1, 1)]

    # --- forks -------------------------------------------------------------------------------------------------

    def fork_of(self, run: SinkRun, folder: Path) -> SinkRun:
        """Return the first attempt of another pipeline, with a place of its own."""
        fork = self.opened(folder, pipeline="fork", key=run.context.key)
        assert fork.sink.place != run.sink.place, (
            "pipelines of the same folder share a place: tell them apart"
        )
        return fork

    def test_a_fork_begins_with_the_rows_of_a_cut_and_the_origin_keeps_its_own(self, tmp_path: Path) -> None:
        self.skip_unless(self.can_fork, "cannot fork")
        run = self.published(tmp_path, [(1, 1)])
        run.batch([(2, 2)])
        at = run.cut(2)
        run.publish(2)
        run.batch([(3, 3)])
        run.publish(3)
        seen = run.sink.position()
        fork = self.fork_of(run, tmp_path).in_directory_of(at)
        for _ in range(2):  # a fork whose run failed at once begins again
            fork.sink.refuse_fork(at.cut)
            assert fork.sink.fork(at.cut)
            assert self.shown(fork) == at.rows == [(1, 1), (2, 2)]
        begun = fork.cut(1)
        fork.batch([(4, 4)])
        fork.publish(2)
        assert self.shown(fork) == fork.expected() == [(1, 1), (2, 2), (4, 4)]
        assert (self.shown(run), run.sink.position()) == (run.expected(), seen)
        if self.can_roll_back:
            assert self.shown(fork.restored(begun)) == at.rows
            began = replace(at.cut, snapshot=as_fork_began(at.cut.snapshot, fork.sink.place), batches=())
            again = fork.successor()
            again.batch([(5, 5)])
            again.publish(3)
            again = again.successor()
            again.sink.roll_back(replace(began, lineages=frozenset()), LaterRows.SET_ASIDE)
            assert self.shown(again) == at.rows, "a fork that goes back to its beginning"

    def test_a_fork_takes_no_place_that_has_rows(self, tmp_path: Path) -> None:
        self.skip_unless(self.can_fork, "cannot fork")
        run = self.published(tmp_path, [(1, 1)])
        at = run.cut(2)
        other = self.fork_of(run, tmp_path)
        other.sink.take_over()
        other.batch([(8, 8)])
        other.publish(1)
        asked = other.successor().sink
        for act in (asked.refuse_fork, asked.fork):  # before all, if it can tell
            if getattr(act, "__func__", None) is not Sink.refuse_fork:
                with pytest.raises(InvalidRequest):
                    act(at.cut)
        assert self.shown(other) == [(8, 8)]

    def test_a_sink_that_cannot_fork_says_what_to_do(self, tmp_path: Path) -> None:
        self.skip_unless(not self.can_fork, "can fork")
        run = self.published(tmp_path, [(1, 1)])
        fork = self.fork_of(run, tmp_path).sink
        for act in (fork.refuse_fork, fork.fork):
            with pytest.raises(InvalidRequest, match="fork"):
                act(run.cut(2).cut)

    def test_a_fork_of_a_fork_begins_with_its_rows_and_one_that_is_forked_again_has_each_once(
        self, tmp_path: Path
    ) -> None:
        self.skip_unless(self.can_fork, "cannot fork")
        run = self.published(tmp_path, [(1, 1)])
        run.batch([(2, 2)])
        at = run.cut(2)
        run.publish(2)
        fork = self.fork_of(run, tmp_path).in_directory_of(at)
        fork.sink.fork(at.cut)
        begun = fork.cut(1)
        fork.batch([(3, 3)])
        fork.publish(2)
        later = fork.cut(2)
        for number, cut in enumerate((begun, later)):
            again = self.opened(tmp_path, pipeline=f"again{number}").in_directory_of(cut)
            again.sink.fork(cut.cut)
            assert self.shown(again) == cut.rows
            again.batch([(4, 4)])
            again.publish(3)
            assert self.shown(again) == again.expected()
        second = fork.successor().in_directory_of(at)
        try:
            second.sink.fork(at.cut)
        except InvalidRequest:
            assert self.shown(second) == fork.expected()
            return
        assert self.shown(second) == at.rows
        second.batch([(5, 5)])
        second.publish(4)
        assert self.shown(second) == second.expected() == [(1, 1), (2, 2), (5, 5)]

    # --- other names -------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(("uid", "of"), [("renamed", "shop"), ("orders", "store"), ("renamed", "store")])
    def test_a_sink_that_says_its_former_name_goes_on_with_its_rows_and_back_to_before(
        self, tmp_path: Path, uid: str, of: str
    ) -> None:
        """Its own, its pipeline's, or both."""
        run = self.begun(tmp_path)
        self.skip_unless(self.keeps_its_place(run), "has another place under another name")
        run.batch([(1, 1)])
        run.publish(1)
        early = run.cut(1)
        run.batch([(2, 2)])
        run.publish(2)
        run.batch([(3, 3)])
        at = run.cut(3)
        new = run.renamed(uid, "orders", of=of).in_directory_of(at)
        assert new.sink.position() == run.sink.position()
        new.roll_back(at)
        assert self.shown(new) == at.rows == [(1, 1), (2, 2), (3, 3)]
        new.batch([(4, 4)])
        new.publish(4)
        assert self.shown(new) == new.expected()
        new.sink.collect_garbage([early.cut.snapshot, new.cut(4).cut.snapshot], [])
        with pytest.raises((Fenced, InvalidRequest)):
            run.sink.take_over()
        if self.can_roll_back:  # also when nobody says the former name any more, and under that again
            before = () if of == "shop" else (uid,)
            for later in (new.renamed(uid, epoch=7), new.renamed("orders", *before, epoch=8)):
                later.in_directory_of(early).roll_back(early)
                assert self.shown(later) == early.rows
                later.batch([(5, 5)])
                later.publish(int(later.attempt.epoch))
                assert self.shown(later) == later.expected()

    def test_a_sink_that_does_not_say_its_former_name_is_refused(self, tmp_path: Path) -> None:
        """Its rows would be there twice."""
        run = self.begun(tmp_path)
        self.skip_unless(self.keeps_its_place(run), "has another place under another name")
        run.batch([(1, 1)])
        run.publish(1)
        new = run.renamed("renamed")
        beginning = [(new.context.uid, new.sink, None)]
        with pytest.raises(InvalidRequest, match="previous_uids"):
            refuse_where_impossible(beginning, since=CheckpointId(2))
        assert self.shown(run) == [(1, 1)]

    def test_a_sink_that_spells_the_place_of_another_otherwise_is_refused(self, tmp_path: Path) -> None:
        """Both began before there was a table: a restore took the rows of the one for another writer's."""
        run = self.begun(tmp_path)
        self.skip_unless(self.keeps_its_place(run), "has another place under another name")
        self.skip_unless(self.says_whose, "does not say whose rows it shows")
        other = run.renamed("renamed", epoch=int(run.attempt.epoch))
        run.batch([(1, 1)])

        def publish_both() -> None:
            other.sink.take_over()
            run.publish(1)
            other.batch([(2, 2)])
            other.publish(1)

        with pytest.raises(InvalidRequest, match=r"twice if|under another spelling"):
            publish_both()
        assert self.shown(run) in ([], [(1, 1)])

    def keeps_its_place(self, run: SinkRun) -> bool:
        """Tell whether the sink ends at the same place under another name."""
        return run.renamed("renamed").sink.place == run.sink.place

    # --- garbage -----------------------------------------------------------------------------------------------

    def test_what_cuts_and_waiting_batches_need_stays(self, tmp_path: Path) -> None:
        run = self.published(tmp_path, [(1, 1)])
        run.batch([(2, 2)])
        at = run.cut(2)
        run.publish(2)
        run.batch([(3, 3)])
        run.publish(3)
        waiting = run.batch([(4, 4)])
        newest = run.cut(4)
        for _ in range(2):
            run.sink.collect_garbage([at.cut.snapshot, newest.cut.snapshot], [waiting])
        assert self.shown(run) == [(1, 1), (2, 2), (3, 3)]
        run.publish(4)
        assert self.shown(run) == run.expected()
        if self.can_roll_back:
            back = run.restored(at)
            assert self.shown(run) == at.rows
            back.sink.collect_garbage([at.cut.snapshot, newest.cut.snapshot], [])
            assert self.shown(back.restored(newest)) == newest.rows

    def test_what_an_aborted_attempt_staged_is_removed(self, tmp_path: Path) -> None:
        self.skip_unless(self.stages_files, "stages no files")
        run = self.published(tmp_path, [(1, 1)])
        at = run.cut(2)
        lost = run.batch([(2, 2)])
        back = run.restored(at)
        own = back.batch([(3, 3)])
        assert back.sink.collect_garbage([at.cut.snapshot], [own]) >= 1
        root = self.staging(run.sink, run.context).root
        assert not (root / lost.files[0].staged).exists()
        back.publish(3)
        assert self.shown(run) == back.expected() == [(1, 1), (3, 3)]
