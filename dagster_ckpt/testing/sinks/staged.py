"""Contract of what waits: staged rows that were lost or changed meanwhile are never shown."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dagster_ckpt.errors import Corrupt
from dagster_ckpt.spark.sink.committables import (
    PreparedBatch,
    aside_notes,
    is_prepared,
    prepared_batches,
    write_committable,
)
from dagster_ckpt.spark.sink.port import LaterRows, Sink
from dagster_ckpt.spark.sink.waiting import set_aside
from dagster_ckpt.testing.sinks.base import ContractBase
from dagster_ckpt.testing.sinks.run import RunCut, SinkRun

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
