"""Contract of the way back: to an earlier cut, to nothing, forward again, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dagster_ckpt.errors import CheckpointError, Fenced
from dagster_ckpt.spark.sink.port import AlreadyPublished, LaterRows, SinkPosition
from dagster_ckpt.testing.sinks.base import ContractBase
from dagster_ckpt.testing.sinks.run import RunCut, SinkRun, crash_points


class RollBackContract(ContractBase):
    """A sink shows exactly the rows of the cut that a pipeline is restored to."""

    def test_rows_leave_down_to_a_cut_and_come_back_with_a_later_one(self, tmp_path: Path) -> None:
        self.skip_unless(self.can_roll_back, "cannot roll back")
        run = self.published(tmp_path, [(1, 1)])
        early = run.cut(2)
        run.batch([(2, 2)])
        run.publish(3)
        late = run.cut(4)
        run.batch([(3, 3)])
        run.publish(5)
        back = run.restored(early)
        assert back.sink.cannot_roll_back(early.cut) == ""
        position = back.sink.position()
        assert position == SinkPosition(lineage="first", epoch=2, checkpoint_id=5, head=1, through_batch=0)
        assert self.shown(run) == early.rows
        forward = back.restored(late)
        assert self.shown(run) == late.rows
        forward.batch([(4, 4)])
        forward.publish(6)
        assert self.shown(run) == forward.expected()
        with pytest.raises(Fenced):
            back.sink.take_over()

    def test_what_a_cut_had_prepared_belongs_to_it(self, tmp_path: Path) -> None:
        run = self.published(tmp_path, [(1, 1)])
        run.batch([(2, 2)])
        run.batch([(3, 3)])
        at = run.cut(2)
        assert at.cut.snapshot.prepared == (1, 2)
        back = run.restored(at)
        assert self.shown(run) == at.rows
        position = back.sink.position()
        assert position is not None
        assert (position.head, position.through_batch) == (2, 2)
        assert isinstance(back.publish(3), AlreadyPublished)
        back.batch([(4, 4)])
        back.publish(4)
        assert self.shown(run) == back.expected()

    def test_what_a_cut_had_prepared_comes_back_on_an_empty_disk(self, tmp_path: Path) -> None:
        run = self.published(tmp_path, [(1, 1)])
        run.batch([(2, 2)])
        run.batch([(3, 3)])
        at = run.cut(2)
        run.lose_disk()
        back = run.restored(at)
        assert self.shown(run) == at.rows
        assert isinstance(back.publish(3), AlreadyPublished)
        back.batch([(4, 4)])
        back.publish(4)
        assert self.shown(run) == back.expected()

    def test_what_a_cut_had_prepared_comes_back_also_when_more_was_published(self, tmp_path: Path) -> None:
        self.skip_unless(self.can_roll_back, "cannot roll back")
        run = self.published(tmp_path, [(1, 1)])
        run.batch([(2, 2)])
        at = run.cut(2)
        run.batch([(3, 3)])
        run.publish(3)
        assert self.shown(run.restored(at)) == at.rows == [(1, 1), (2, 2)]
        run.successor(epoch=3).in_directory_of(at).roll_back(at)  # of another try: nothing is there twice
        assert self.shown(run) == at.rows

    def test_a_roll_back_to_nothing_leaves_no_rows(self, tmp_path: Path) -> None:
        self.skip_unless(self.can_roll_back, "cannot roll back")
        run = self.published(tmp_path, [(1, 1)])
        back = run.restored(None)
        assert self.shown(run) == []
        position = back.sink.position()
        assert position == SinkPosition(
            lineage="first", epoch=2, checkpoint_id=1, head=None, through_batch=None
        )
        back.batch([(5, 5)])
        back.publish(2)
        assert self.shown(run) == [(5, 5)]

    def test_a_roll_back_of_an_unused_sink_is_nothing(self, tmp_path: Path) -> None:
        run = self.opened(tmp_path)
        assert run.sink.cannot_roll_back(None) == ""
        assert run.roll_back(None).text == ""
        run.batch([(1, 1)])
        run.publish(1)
        assert self.shown(run) == [(1, 1)]

    def test_a_roll_back_to_what_is_shown_does_nothing(self, tmp_path: Path) -> None:
        run = self.published(tmp_path, [(1, 1)])
        at = run.cut(2)
        newer = run.successor()
        assert newer.sink.cannot_roll_back(at.cut) == ""
        assert newer.in_directory_of(at).roll_back(at).text == ""
        assert self.shown(run) == at.rows
        with pytest.raises(Fenced):
            run.sink.take_over()

    def test_a_sink_that_cannot_roll_back_says_so_and_changes_nothing(self, tmp_path: Path) -> None:
        self.skip_unless(not self.can_roll_back, "can roll back")
        run = self.published(tmp_path, [(1, 1)])
        at = run.cut(2)
        run.batch([(2, 2)])
        run.publish(3)
        for cut in (at, None):
            newer = run.successor()
            why = newer.sink.cannot_roll_back(None if cut is None else cut.cut)
            assert why
            assert "\n" not in why
            with pytest.raises(CheckpointError) as refused:
                newer.roll_back(cut)
            assert why in str(refused.value)
        assert self.shown(run) == run.expected()

    def test_later_rows_stay_where_that_was_chosen(self, tmp_path: Path) -> None:
        run = self.published(tmp_path, [(1, 1)])
        run.batch([(5, 5)])  # of the cut, and published for it
        at = run.cut(2)
        run.publish(2)
        run.batch([(2, 2)])
        run.publish(3)
        back = run.restored(at, LaterRows.KEEP)
        assert self.shown(run) == [(1, 1), (2, 2), (5, 5)]
        position = back.sink.position()
        assert position is not None
        assert (position.epoch, position.through_batch) == (2, 1)
        back.batch([(2, 2)])
        back.publish(4)
        assert self.shown(run) == [(1, 1), (2, 2), (2, 2), (5, 5)]

    def test_a_restore_after_one_that_kept_rows_misses_none_and_repeats_none(self, tmp_path: Path) -> None:
        """Batches that go on behind kept rows are nothing that a restore without those goes by."""
        run = self.begun(tmp_path)
        run.batch([(1, 1)])
        run.publish(1)
        early = run.cut(2)
        run.batch([(2, 2)])
        waiting = run.cut(3)
        run.publish(3)
        newest = run.cut(4)
        again = run.restored(early, LaterRows.KEEP)
        if not again.successor().sink.cannot_roll_back(waiting.cut):
            again = again.restored(waiting)
        assert self.shown(run) == waiting.rows
        for at in (early, None) if self.can_roll_back else ():
            again = again.restored(newest).restored(early, LaterRows.KEEP).restored(at)
            again.batch([(3, 3)])
            again.publish(5 if at else 6)
            assert self.shown(run) == again.expected()

    def test_rows_of_a_line_that_a_restore_left_are_kept_exactly_or_the_restore_is_refused(
        self, tmp_path: Path
    ) -> None:
        """Numbers of checkpoints and batches do not tell whose rows a table shows once a restore has gone back."""
        run = self.published(tmp_path, [(1, 1)])
        early = run.cut(2)
        run.batch([(2, 2)])
        run.publish(3)
        run.batch([(3, 3)])
        late = run.cut(4)
        run.publish(4)
        again = run.restored(early, LaterRows.SET_ASIDE if self.can_roll_back else LaterRows.KEEP)
        for checkpoint, row in ((5, (4, 4)), (6, (5, 5))):
            again.batch([row])
            again.publish(checkpoint)
        shown = self.shown(run)
        newer = again.successor().in_directory_of(late)
        why = newer.sink.why_not_kept(late.cut)
        assert bool(why) is self.can_roll_back
        if why:
            with pytest.raises(CheckpointError) as refused:
                newer.roll_back(late, LaterRows.KEEP)
            assert why in str(refused.value)
            assert self.shown(run) == shown == again.expected()
            newer.roll_back(late)
            assert self.shown(run) == late.rows
        else:
            newer.roll_back(late, LaterRows.KEEP)
        newer.batch([(6, 6)])
        newer.publish(7)
        assert self.shown(run) == sorted({*shown, (6, 6)} if not why else newer.expected())

    def test_what_a_cut_had_prepared_is_told_from_rows_of_another_line(self, tmp_path: Path) -> None:
        """Whichever line was left with the same number of batches, published or not."""
        run = self.published(tmp_path, [(1, 1)])
        early = run.cut(2)
        run.batch([(2, 2)])
        never = run.cut(3)
        if self.can_roll_back:
            run.publish(4)
        other = run.cut(4)
        again = run.restored(early)
        again.batch([(3, 3)])
        at = again.cut(6)
        if self.can_roll_back:
            assert self.shown(again.restored(other).restored(at)) == at.rows == [(1, 1), (3, 3)]
            return
        again.publish(6)
        kept = again.restored(never, LaterRows.KEEP)
        kept.publish(7)
        assert self.shown(run) == [(1, 1), (2, 2), (3, 3)]

    def test_a_process_that_ends_anywhere_in_a_roll_back_finishes_it_next_time(self, tmp_path: Path) -> None:
        self.skip_unless(self.can_roll_back, "cannot roll back")
        tries: list[tuple[SinkRun, SinkRun, RunCut]] = []

        def work() -> Callable[[], object]:
            run = self.begun(tmp_path / str(len(tries)))
            run.batch([(1, 1)])
            run.publish(1)
            run.batch([(2, 2)])
            at = run.cut(2)
            run.batch([(3, 3)])
            run.publish(3)
            newer = run.successor().in_directory_of(at)
            tries.append((run, newer, at))
            return lambda: newer.roll_back(at)

        for at_step in crash_points(work, self.steps()):
            run, newer, at = tries[-1]
            again = newer.reopened()
            again.roll_back(at)
            assert self.shown(run) == again.expected() == [(1, 1), (2, 2)], at_step
            again.batch([(9, 9)])
            again.publish(4)
            assert self.shown(run) == again.expected(), at_step
