"""A sink whose rows wait as Parquet in its own folder until their checkpoint is complete: base of sinks into databases,
topics, functions, and of your own.

A subclass says ``place`` and ``position``, and carries out ``commit``. Everything else is the same for all of them.
"""

from __future__ import annotations

import fcntl
import shutil
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, assert_never

from dagster_ckpt.core.ids import BatchId, CheckpointId, CoordinatorEpoch
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.core.restore.horizon import Pin
from dagster_ckpt.core.units import counted
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound
from dagster_ckpt.spark.channel.schema import arrow_schema
from dagster_ckpt.spark.files import batch_of
from dagster_ckpt.spark.sink.committables import (
    THROUGH,
    PreparedBatch,
    copied_notes,
    forget_before,
    merge_through,
    note_through,
    published_in,
    put_back,
    remove_copies,
    staged_by,
    through_at,
)
from dagster_ckpt.spark.sink.port import (
    AlreadyPublished,
    AttemptId,
    LaterRows,
    Published,
    RolledBack,
    Sink,
    SinkContext,
    SinkCut,
    SinkDescription,
    SinkPosition,
)
from dagster_ckpt.spark.sink.positions import (
    CutRelation,
    is_renamed,
    last_shown,
    lies,
    named,
    not_shown,
    note_renamed,
    position_at_cut,
    published_position,
    refuse_fenced,
    refuse_renamed,
    taken_over,
    to_publish,
    why_another_history,
    why_behind,
    why_left,
)
from dagster_ckpt.spark.sink.staged_rows import StagedRows, flush_staged, refuse_unwritable, stage_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


class StepTarget(Protocol):
    """Place on which a sink's steps act: the sink itself, or a transaction it has begun."""

    def position(self) -> SinkPosition | None:
        """Return the position that the outside has seen."""

    def commit(self, rows: StagedRows, position: SinkPosition) -> str:
        """Make rows and position the outside's, both or neither."""

    def why_no_way(self, before: SinkPosition | None, cut: SinkCut | None) -> str:
        """Return why ``go_to`` cannot show the cut; empty: it can."""

    def go_to(self, before: SinkPosition, head: int | None) -> SinkPosition:
        """Show what was shown at ``head``, and return the position then."""


class StagedSink(Sink):
    """Base of sinks that read their rows back from their own folder when they publish."""

    rereads: ClassVar[bool] = True

    def __init__(self, context: SinkContext) -> None:
        self.context = context

    # --- what a subclass says -------------------------------------------------------------------------------

    @abstractmethod
    def commit(self, rows: StagedRows, position: SinkPosition) -> str:
        """Make ``rows`` visible and ``position`` the sink's, both or neither; return the outside's name of its
        state, or ``""``.

        Without rows only the position is to be kept: a new attempt fences the older ones so. With
        ``rows.replaces`` the rows replace everything that was there.
        """

    def exclusively(self) -> AbstractContextManager[StepTarget]:
        """Keep other attempts out for the length of one step. Default: a lock in the sink's folder."""
        return self._locked()

    def why_no_way(self, before: SinkPosition | None, cut: SinkCut | None) -> str:
        """Return why rows cannot leave, or come back, so that the cut is shown; empty: they can.

        Default: they never can.
        """
        shown = "nothing" if cut is None else f"checkpoint {cut.checkpoint_id}"
        shows = named(None if before is None else before.head)
        return why_behind(self.place, before, cut) or (
            f"{self.place} shows {shows} and cannot take rows back to show {shown}: restore the newest checkpoint, "
            "keep the rows (roll_back_tables: false), or name a new place"
        )

    def go_to(self, before: SinkPosition, head: int | None) -> SinkPosition:
        """Show what was shown at ``head``, and return the position then; asked for where ``why_no_way`` is empty."""
        raise NotImplementedError

    # --- the port -------------------------------------------------------------------------------------------

    def check(self, frame: DataFrame) -> None:
        """Refuse columns that Arrow has no form for, key columns that are not there, and a folder nobody can write."""
        refuse_unwritable(self.place, self._root)
        try:
            arrow_schema(frame.schema)
        except InvalidRequest as error:
            raise InvalidRequest(f"{self.place} cannot take these columns: {error}") from error
        missing = [column for column in self.context.key if column not in frame.columns]
        if missing:
            raise InvalidRequest(
                f"{self.place} has the key {missing}, which its rows do not have: {frame.columns}"
            )

    def prepare(self, frame: DataFrame, batch_id: BatchId) -> PreparedBatch:
        """Stage the rows in the sink's folder."""
        attempt = self.context.attempt()
        staged = self._staged / str(attempt.epoch)
        return stage_rows(
            frame, batch_id, attempt, root=self._root, staged=staged, replaces=self.context.is_complete
        )

    def flush(self, batches: Sequence[PreparedBatch]) -> None:
        """Wait until the staged files survive a power failure; those of published batches may be gone already.

        Raises Corrupt for others that are gone: a checkpoint with them could never be published.
        """
        found = staged_by(self._root, batches)
        lost = [batch for batch in batches if any(file.staged not in found for file in batch.files)]
        if lost:
            self.refuse_lost(not_shown(self.position(), lost))
        flush_staged([*found.values()])

    def refuse_lost(self, batches: Sequence[PreparedBatch]) -> None:
        """Read all that these batches staged; also one that was published before is to be published again."""
        self._rows(batches)

    def waiting_rows(self, batches: Sequence[PreparedBatch]) -> Iterator[pa.Table]:
        """Yield the rows as they would be published."""
        import pyarrow as pa

        reader = self._rows(batches).reader()
        return (pa.Table.from_batches([batch], reader.schema) for batch in reader)

    notes: ClassVar[tuple[str, ...]] = (THROUGH,)
    """Small files of the sink's folder that a checkpoint takes with it, beside its rows."""

    def only_here(self, batches: Sequence[PreparedBatch]) -> dict[str, Path]:
        """Return the staged files that are still there, and copies of the notes."""
        return staged_by(self._root, batches) | copied_notes(self._root, self.notes)

    def bring_back(self, folder: Path, later: Mapping[CheckpointId, CoordinatorEpoch]) -> None:
        """Put back what is missing in the sink's folder, or changed; notes are compared with those that are there."""
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            name = path.relative_to(folder).as_posix()
            if name not in self.notes or not (self._root / name).exists():
                put_back(path, self._root / name)
            else:
                self.choose_note(name, path)

    def choose_note(self, name: str, restored: Path) -> None:
        """Go on with the note that is there, with the restored one, or with both: the folder may be an older one's."""
        if name == THROUGH:
            merge_through(self._root, restored)

    def take_over(self) -> None:
        """Write this attempt into the position."""
        self._move_here()
        attempt = self.context.attempt()
        with self.exclusively() as outside:
            before = outside.position()
            refuse_fenced(self.place, before, attempt)
            after = taken_over(before, attempt)
            if after != before:
                outside.commit(self._rows(()), after)

    def publish(self, batches: Sequence[PreparedBatch], permit: CommitPermit) -> Published | AlreadyPublished:
        """Commit the batches that are not visible yet, with the permit's checkpoint as the position."""
        if permit.pipeline != self.context.pipeline:
            raise InvalidRequest(
                f"{self.place} is a sink of pipeline {self.context.pipeline!r}, the permit is for {permit.pipeline!r}"
            )
        attempt = AttemptId(permit.lineage, permit.epoch)
        with self.exclusively() as outside:
            before = outside.position()
            refuse_fenced(self.place, before, attempt)
            chosen = not_shown(before, batches)
            if not chosen:
                return AlreadyPublished()
            rows = self._rows(chosen)
            after = published_position(self.place, before, attempt, permit.checkpoint_id, chosen)
            version = self._commit(outside, rows, after)
        return Published(rows=len(rows), bytes=rows.bytes, files=len(rows.files), version=version)

    def roll_back(self, cut: SinkCut | None, later: LaterRows) -> RolledBack:
        """Show the rows of a cut: take later ones back where the sink can, and publish what the cut had prepared."""
        self._move_here()
        attempt = self.context.attempt()
        with self.exclusively() as outside:
            before = outside.position()
            refuse_fenced(self.place, before, attempt)
            match later:
                case LaterRows.KEEP:
                    kept = taken_over(before, attempt, through_batch=self._through_kept(before, cut))
                    outside.commit(self._rows(()), self._position_kept(kept))
                    return RolledBack(text="")
                case LaterRows.SET_ASIDE:
                    return self._converge(outside, before, cut, attempt)
                case _:
                    assert_never(later)

    def why_not_kept(self, cut: SinkCut) -> str:
        """Say so where what is shown was not made on the rows of the cut."""
        before, head = self.position(), cut.snapshot.head
        is_kept = head is None or self.is_made_on(before, head)
        return "" if is_kept else why_left(self.place, before.head if before is not None else None, cut)

    def is_made_on(self, before: SinkPosition | None, checkpoint: int) -> bool:
        """Tell whether the rows of a checkpoint that was published are among those shown. Default: they never leave."""
        return True

    def _through_kept(self, before: SinkPosition | None, cut: SinkCut | None) -> int | None:
        if cut is None:
            return None
        if why := self.why_not_kept(cut):
            raise InvalidRequest(why)
        shown = last_shown(
            cut.batches, lambda b: any(self.is_made_on(before, n) for n in published_in(self._root, b))
        )
        return through_at(self._root, cut.snapshot.head) if shown is None else shown

    def _position_kept(self, kept: SinkPosition) -> SinkPosition:
        """Return the position where later rows stay. Default: as it was, with this attempt at work."""
        return kept

    @property
    def never_rolls_back(self) -> str:
        """Say so for a subclass that does not override ``go_to``."""
        if type(self).go_to is not StagedSink.go_to:
            return ""
        return (
            f"{self.place} cannot take rows back: restore the newest checkpoint, keep the rows (roll_back_tables: "
            "false), or name a new place"
        )

    def cannot_roll_back(self, cut: SinkCut | None) -> str:
        """Say why the rows that were published after the cut cannot be taken back, if there are any."""
        before = self._as_shown(self.position())
        why = self.why_other_rows(before, cut) or self._why_not(before, cut)
        if not why:
            self._rows(to_publish(before, cut, is_exact=not self.never_rolls_back))
        return why

    def pins(self, cut: SinkCut) -> Sequence[Pin]:
        """Return whether later rows can leave; what the cut has staged is in its checkpoint."""
        why = self._why_not(self.position(), cut)
        return (Pin(what=self.place, is_there=not why, advice=why),)

    def why_other_rows(self, before: SinkPosition | None, cut: SinkCut | None) -> str:
        """Return why the rows that the sink shows are not those it published for the cut's history; empty: they are."""
        if cut is None or before is None or before.head is None:  # an attempt that begins is not known yet
            return ""
        return why_another_history(self.place, (before.lineage,), cut, self.context.attempt())

    def _why_not(self, before: SinkPosition | None, cut: SinkCut | None) -> str:
        where = lies(before, cut, is_exact=not self.never_rolls_back)
        return "" if where is CutRelation.AT else self.why_no_way(before, cut)

    def collect_garbage(self, needed: Sequence[TableSnapshot], waiting: Sequence[PreparedBatch]) -> int:
        """Remove the staged folders of batches that are published, or were left by an earlier attempt."""
        position = self.position()
        if position is None:
            return 0
        cuts = {batch for snapshot in needed for batch in snapshot.prepared}
        named = {Path(file.staged).parent.name for batch in waiting for file in batch.files}
        remove_copies(self._root, self.notes)
        forget_before(self._root, min(_heads(needed, position), default=0))
        removed = 0
        for folder in self._staged.glob("*/batch-*"):
            batch, epoch = batch_of(folder.name), folder.parent.name
            if batch is None or not epoch.isdecimal() or batch in cuts or folder.name in named:
                continue
            is_shown = position.through_batch is not None and batch <= position.through_batch
            if int(epoch) < position.epoch or (is_shown and int(epoch) == position.epoch):
                shutil.rmtree(folder, ignore_errors=True)
                removed += 1
        return removed

    def describe(self) -> SinkDescription:
        """Say where the rows are."""
        if self.position() is None:
            raise NotFound(f"nothing was published to {self.place} yet")
        return SinkDescription(place=self.place)

    # --- parts ----------------------------------------------------------------------------------------------

    @property
    def _root(self) -> Path:
        """Folder of the sink's own: of its former name until an attempt has begun under this one."""
        own = self.context.work_dir
        folders = (own, *self.context.former_work_dirs)
        return next((one for one in folders if one.exists() and not is_renamed(one)), own)

    def _move_here(self) -> None:
        root, own = self._root, self.context.work_dir
        if root == own:
            refuse_renamed(own, self.place)
            return
        own.parent.mkdir(parents=True, exist_ok=True)
        if is_renamed(own):  # it has its old name again
            shutil.rmtree(own)
        root.rename(own)
        if (
            root.parent != own.parent
        ):  # the sink of another pipeline's record, which knows nothing of this one's
            note_renamed(root, self.context.pipeline, self.context.uid)

    @property
    def _staged(self) -> Path:
        return self._root / "staged"

    def _rows(self, batches: Sequence[PreparedBatch]) -> StagedRows:
        return StagedRows(self._root, batches)

    def _commit(self, outside: StepTarget, rows: StagedRows, position: SinkPosition) -> str:
        if rows.batches and position.head is not None:
            note_through(self._root, position.head, rows.batches)
        return outside.commit(rows, position)

    def _converge(
        self, outside: StepTarget, before: SinkPosition | None, cut: SinkCut | None, attempt: AttemptId
    ) -> RolledBack:
        done, before = [], self._as_shown(before)
        if why := self.why_other_rows(before, cut):
            raise InvalidRequest(why)
        where = lies(before, cut, is_exact=not self.never_rolls_back)
        # What is not possible, and what is gone, is found out before anything changes.
        reason = "" if where is CutRelation.AT else outside.why_no_way(before, cut)
        if reason:
            raise Corrupt(reason) if where is CutRelation.BEHIND else InvalidRequest(reason)
        rows = self._rows(to_publish(before, cut, is_exact=not self.never_rolls_back))
        if where is not CutRelation.AT and before is not None:
            head = cut.snapshot.head if cut is not None else None
            done.append(f"went from {named(before.head)} to {named(head)}")
            before = outside.go_to(before, head)
        if rows.batches:
            done.append(f"published {counted(len(rows), 'row')} that the checkpoint had prepared")
        self._commit(outside, rows, position_at_cut(before, attempt, cut, rows.batches))
        return RolledBack(text=", ".join(done))

    def _as_shown(self, position: SinkPosition | None) -> SinkPosition | None:
        """Return the position with the last batch of what is shown: a restore that kept later rows says another."""
        if position is None or position.head is None:
            return position and replace(position, through_batch=None)
        through = through_at(self._root, position.head)
        return position if through is None else replace(position, through_batch=through)

    @contextmanager
    def _locked(self) -> Iterator[StepTarget]:
        self._root.mkdir(parents=True, exist_ok=True)
        with (self._root / "lock").open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield self


def _heads(needed: Sequence[TableSnapshot], position: SinkPosition) -> list[int]:
    return [head for head in (position.head, *(snapshot.head for snapshot in needed)) if head is not None]
