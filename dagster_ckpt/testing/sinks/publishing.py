"""Contract of the first half: opened, published, fenced; rows that wait and were lost or changed are never shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dagster_ckpt.errors import Corrupt, Fenced, NotFound
from dagster_ckpt.spark.sink.committables import (
    PreparedBatch,
    aside_notes,
    is_prepared,
    prepared_batches,
    write_committable,
)
from dagster_ckpt.spark.sink.port import AlreadyPublished, AttemptId, LaterRows, Published, Sink, SinkPosition
from dagster_ckpt.spark.sink.waiting import set_aside
from dagster_ckpt.testing.sinks.base import FIRST, ContractBase
from dagster_ckpt.testing.sinks.run import AtStep, Row, RunCut, SinkRun, crash_points, in_attempt


class PublishContract(ContractBase):
    """Rows appear once, all of them, with their checkpoint, and only the newest attempt's."""

    def test_a_fresh_sink_has_seen_nothing_and_shows_nothing(self, tmp_path: Path) -> None:
        run = self.opened(tmp_path)
        assert run.sink.position() is None
        with pytest.raises(NotFound):
            run.sink.describe()
        assert run.sink.place == self.open(run.context).place
        assert self.shown(run) == []

    def test_the_position_needs_no_attempt(self, tmp_path: Path) -> None:
        run = self.begun(tmp_path)
        run.batch([(1, 1)])
        run.publish(4)

        def unknown() -> AttemptId:
            raise AssertionError("the attempt is not known yet")

        context = in_attempt(run.context, FIRST)
        object.__setattr__(context, "attempt", unknown)
        assert self.open(context).position() == run.sink.position()

    # --- published ----------------------------------------------------------------------------------------

    def test_prepared_rows_are_seen_by_nobody(self, tmp_path: Path) -> None:
        run = self.begun(tmp_path)
        run.batch([(1, 1)])
        assert self.shown(run) == []
        position = run.sink.position()
        assert position is None or (position.head, position.through_batch) == (None, None)

    def test_a_checkpoint_makes_all_its_batches_visible(self, tmp_path: Path) -> None:
        run = self.begun(tmp_path)
        run.batch([(1, 1), (2, 2)], [(3, 3)])
        run.batch([(4, 4)])
        done = run.publish(7)
        assert isinstance(done, Published)
        assert done.rows == 4
        assert self.shown(run) == run.expected()
        assert run.sink.position() == SinkPosition(
            lineage="first", epoch=1, checkpoint_id=7, head=7, through_batch=1
        )
        description = run.sink.describe()
        assert description.place == run.sink.place
        assert description.rows in (None, 4)

    def test_the_same_checkpoint_again_changes_nothing(self, tmp_path: Path) -> None:
        run = self.begun(tmp_path)
        run.batch([(1, 1)])
        run.publish(7)
        before = run.sink.position()
        again = run.reopened()
        assert isinstance(run.publish(7), AlreadyPublished)
        assert isinstance(again.publish(7), AlreadyPublished)
        assert (self.shown(run), again.sink.position()) == (run.expected(), before)

    def test_a_checkpoint_without_new_rows_changes_nothing(self, tmp_path: Path) -> None:
        run = self.begun(tmp_path)
        assert isinstance(run.publish(3), AlreadyPublished)
        run.batch([(1, 1)])
        run.publish(4)
        before = run.sink.position()
        assert isinstance(run.publish(9), AlreadyPublished)
        assert (self.shown(run), run.sink.position()) == (run.expected(), before)

    def test_checkpoints_follow_each_other(self, tmp_path: Path) -> None:
        run = self.begun(tmp_path)
        for checkpoint in (1, 2, 5):
            run.batch([(checkpoint, 0)])
            run.batch([(checkpoint, 1)])
            run.publish(checkpoint)
            assert self.shown(run) == run.expected()
            position = run.sink.position()
            assert position is not None
            assert (position.checkpoint_id, position.head) == (checkpoint, checkpoint)
            assert position.through_batch == run.next_batch - 1

    def test_a_process_that_ends_anywhere_in_a_publish_publishes_all_or_nothing(self, tmp_path: Path) -> None:
        runs: list[SinkRun] = []

        def work() -> Callable[[], object]:
            run = self.begun(tmp_path / str(len(runs)))
            runs.append(run)
            run.batch([(1, 1)])
            run.publish(1)
            run.batch([(2, 2)], [(3, 3)])
            run.batch([(4, 4)])
            return lambda: run.publish(2)

        for at in crash_points(work, self.steps()):
            run = runs[-1]
            allowed = ([(1, 1)], run.expected())
            if self.is_atomic:
                assert self.shown(run) in allowed, at
            newer = run.successor()
            newer.sink.take_over()
            assert self.shown(run) in allowed, at
            newer.publish(2)
            newer.publish(3)
            assert self.shown(run) == run.expected(), at
            assert isinstance(newer.publish(4), AlreadyPublished), at

    def test_staged_rows_that_are_gone_are_named_and_nothing_is_published(self, tmp_path: Path) -> None:
        self.skip_unless(self.stages_files, "stages no files")
        run = self.published(tmp_path, [(1, 1)])
        run.batch([(2, 2)])
        gone = run.batch([(3, 3)])
        (self.staging(run.sink, run.context).root / gone.files[0].staged).unlink()
        with pytest.raises(Corrupt, match=Path(gone.files[0].staged).name):
            run.publish(2)
        assert self.shown(run) == [(1, 1)]

    # --- fenced ----------------------------------------------------------------------------------------

    def test_a_newer_attempt_fences_an_older_one(self, tmp_path: Path) -> None:
        old = self.begun(tmp_path)
        old.batch([(1, 1)])
        newer = old.successor()
        newer.sink.take_over()
        with pytest.raises(Fenced):
            old.publish(1)
        assert self.shown(old) == []
        newer.publish(1)
        assert self.shown(old) == [(1, 1)]
        for late in (old.sink.take_over, lambda: old.roll_back(None, LaterRows.KEEP)):
            with pytest.raises(Fenced):
                late()
        position = newer.sink.position()
        assert position is not None
        assert position.epoch == 2

    def test_taking_over_twice_changes_nothing(self, tmp_path: Path) -> None:
        run = self.published(tmp_path, [(1, 1)])
        before = run.sink.position()
        run.sink.take_over()
        run.reopened().sink.take_over()
        assert (self.shown(run), run.sink.position()) == ([(1, 1)], before)

    @pytest.mark.parametrize("published", [0, 1])
    def test_nothing_of_an_older_attempt_appears_after_a_newer_one_took_over(
        self, tmp_path: Path, published: int
    ) -> None:
        """The newer one comes between any two steps of the older one's publish."""
        self.skip_unless(self.can_be_raced, "publishes under a lock")
        for number in range(1, 100):
            old = self.begun(tmp_path / str(number))
            for checkpoint in range(1, published + 1):
                old.batch([(0, checkpoint)])
                old.publish(checkpoint)
            old.batch([(1, 1)])
            newer = old.successor()
            at_take_over: list[Row] = []

            def interfere(newer: SinkRun = newer, seen: list[Row] = at_take_over) -> None:
                newer.sink.take_over()
                seen.extend(self.shown(newer))

            with AtStep(number, interfere).among(self.steps()) as at:
                try:
                    old.publish(9)
                except Fenced:
                    assert at.was_reached
            if not at.was_reached:
                break
            assert self.shown(old) == at_take_over, f"step {number}"
            newer.publish(9)
            newer.publish(10)
            assert self.shown(old) == old.expected(), f"step {number}"
        assert number > 1, "none of the steps was taken"


DAMAGES = ("lost", "a changed byte", "cut short", "exchanged")


class StagedContract(ContractBase):
    """Between a checkpoint's completion and its publish: a file that is not what was staged is named, and not shown."""

    @pytest.mark.parametrize("attempt", ["same", "next"])
    @pytest.mark.parametrize("damage", DAMAGES)
    def test_staged_rows_that_were_changed_are_named_and_nothing_is_published(
        self, tmp_path: Path, damage: str, attempt: str
    ) -> None:
        run, other, hit = self._staged_twice(tmp_path)
        self._damage(run, damage, hit, other)
        at_work = run if attempt == "same" else run.successor()
        at_work.sink.take_over()
        name = Path(hit.files[0].staged).name
        with pytest.raises(Corrupt, match=name):
            at_work.sink.refuse_lost([hit])
        with pytest.raises(Corrupt, match=name):
            at_work.sink.publish(
                [batch for batch in at_work.batches if batch is not other], at_work.permit(2)
            )
        with pytest.raises(Corrupt):
            at_work.publish(2)
        assert self.shown(run) == [(1, 1)]

    def test_staged_rows_that_are_whole_are_not_refused(self, tmp_path: Path) -> None:
        run, *batches = self._staged_twice(tmp_path)
        run.sink.refuse_lost(batches)
        newer = run.successor()
        newer.sink.take_over()
        newer.sink.refuse_lost(batches)
        newer.publish(2)
        assert self.shown(run) == newer.expected()

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_a_restore_takes_staged_rows_from_the_checkpoint_or_refuses_changed_ones(
        self, tmp_path: Path, damage: str
    ) -> None:
        """Rows of the cut are looked at before any sink is changed, whatever is done with later rows."""
        run, other, hit = self._staged_twice(tmp_path)
        at = run.cut(2)
        self._damage(run, damage, hit, other)
        newer = run.successor().in_directory_of(at)
        name = Path(hit.files[0].staged).name
        assert name in self._why_not(newer, at)
        if hit.files[0].staged in at.files:
            newer.roll_back(at)
            assert self.shown(run) == at.rows
            return
        for later in LaterRows:
            with pytest.raises(Corrupt):
                self._begin(newer, at, later)
        assert self.shown(run) == [(1, 1)]

    def test_rows_that_wait_can_be_set_aside_and_later_ones_go_on(self, tmp_path: Path) -> None:
        run, passed, later = self._staged_twice(tmp_path)
        if type(run.sink).waiting_rows is Sink.waiting_rows:
            pytest.skip("does not read its staged rows back")
        directory = tmp_path / "directory"
        for batch in (passed, later):
            write_committable(directory, batch)
        [note] = set_aside(run.sink, directory, [passed], tmp_path / "aside")
        found = pq.read_table(note.file).to_pylist()
        assert [(row["k"], row["v"]) for row in found] == [(2, 2)]
        assert prepared_batches(directory) == [later.batch_id]
        assert is_prepared(directory, passed.batch_id), "its stage does not stage it again"
        assert (note.batch_id, note.rows) == (passed.batch_id, 1)
        assert aside_notes(directory) == [note]
        run.sink.publish([later], run.permit(2))
        assert self.shown(run) == [(1, 1), (3, 3)]

    def test_rows_that_are_gone_are_passed_over_and_written_nowhere(self, tmp_path: Path) -> None:
        run, other, gone = self._staged_twice(tmp_path)
        if type(run.sink).waiting_rows is Sink.waiting_rows:
            pytest.skip("does not read its staged rows back")
        self._damage(run, "lost", gone, other)
        [note] = set_aside(run.sink, tmp_path / "directory", [gone], tmp_path / "aside")
        assert (note.rows, note.file) == (1, "")

    # --- parts --------------------------------------------------------------------------------------------------------

    def _staged_twice(self, folder: Path) -> tuple[SinkRun, PreparedBatch, PreparedBatch]:
        self.skip_unless(self.stages_files, "stages no files")
        run = self.begun(folder)
        run.batch([(1, 1)])
        run.publish(1)
        return run, run.batch([(2, 2)]), run.batch([(3, 3)])

    def _damage(self, run: SinkRun, damage: str, hit: PreparedBatch, other: PreparedBatch) -> None:
        root = self.staging(run.sink, run.context).root
        path, theirs = (root / batch.files[0].staged for batch in (hit, other))
        content = path.read_bytes()
        path.unlink()  # readers may have it under another name, which is another file then
        match damage:
            case "lost":
                pass
            case "a changed byte":
                at = content.index(b"PAR1", 1) // 3
                path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            case "cut short":
                path.write_bytes(content[: len(content) // 2])
            case "exchanged":
                path.write_bytes(theirs.read_bytes())

    def _why_not(self, run: SinkRun, at: RunCut) -> str:
        try:
            return run.sink.cannot_roll_back(at.cut)
        except Corrupt as error:
            return str(error)

    def _begin(self, run: SinkRun, at: RunCut, later: LaterRows) -> None:
        if later is LaterRows.KEEP:  # its rows go out with the next checkpoint
            run.sink.refuse_lost(at.cut.batches)
        else:
            run.roll_back(at, later)
