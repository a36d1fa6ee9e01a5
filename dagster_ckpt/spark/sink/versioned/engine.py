"""Engine of sinks into tables with versions: what is published, by whom, and once; the format only commits.

Every step reads the table, decides, and commits on exactly what was read: whoever comes second decides again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from dagster_ckpt.errors import Corrupt, InvalidRequest, Unavailable
from dagster_ckpt.spark.sink.committables import PreparedBatch, batches_with_rows, shown_files
from dagster_ckpt.spark.sink.owner import Owner, note_owner, read_owner
from dagster_ckpt.spark.sink.port import AlreadyPublished, AttemptId, Published
from dagster_ckpt.spark.sink.positions import not_shown, refuse_fenced
from dagster_ckpt.spark.sink.table_files import StagedFiles, folder_of
from dagster_ckpt.spark.sink.versioned.backend import Backend, Change, Raced, V
from dagster_ckpt.spark.sink.versioned.marks import Mark, SinkNames, text_of_batches, text_of_key

T = TypeVar("T")

_TRIES = 100
"""Commits that others may put in front of ours before we give up for now."""


@dataclass(frozen=True)
class Engine(Generic[V]):
    """Everything that one attempt does to a table."""

    backend: Backend[V]
    names: SinkNames
    owner_path: Path

    @property
    def place(self) -> str:
        """The table."""
        return self.backend.place

    @property
    def staged(self) -> StagedFiles:
        """The table's staged files."""
        return self.backend.staged

    def repeat(self, step: Callable[[], T]) -> T:
        """Return the result of ``step``, which reads and commits; again while others commit in between."""
        for _ in range(_TRIES):
            try:
                return step()
            except Raced:
                continue
        raise Unavailable(
            f"table {self.place}: others committed {_TRIES} times in a row before we could; it is tried again"
        )

    # --- whose it is ------------------------------------------------------------------------------------------

    def owner(self) -> Owner | None:
        """Return the attempt that took over before there was a table."""
        return read_owner(self.owner_path)

    def newest(self, attempt: AttemptId, *, reads_on: bool = False) -> V | None:
        """Return the newest version. Raises Fenced when a newer attempt owns the table, Corrupt where it forgot us."""
        version = self.backend.load(reads_on=reads_on)
        # The table first: a newer attempt writes its note and looks for the table then, so one sees the other.
        owner = self.owner()
        if owner is not None:
            refuse_fenced(self.place, owner.position(), attempt)
        if version is not None:
            refuse_fenced(self.place, version.position, attempt)
            if version.mark is None and version.is_forgotten(attempt.lineage):
                raise Corrupt(
                    f"the log of table {self.place} no longer tells what was published to it: others' commits are all "
                    "that is left of it. Keep it longer (delta.logRetentionDuration), and restore into a new table"
                )
        return version

    def own(self, attempt: AttemptId) -> V | None:
        """Return the newest version, with a note of this attempt for as long as no state tells it. Raises Raced."""
        version = self.newest(attempt)
        if version is None or version.mark is None:
            note_owner(self.owner_path, attempt)
            return self.newest(attempt)
        if version.mark.reapply:
            mark = version.next_mark(attempt, reapply={})
            self.backend.commit(version, Change(mark=mark, properties=version.mark.reapply))
            raise Raced
        return version

    def refuse_foreign(self, version: V) -> None:
        """Raise InvalidRequest where the table shows rows of a sink that may be this one under another name."""
        mark = version.foreign()
        if mark is not None:
            raise InvalidRequest(self.names.why_foreign(mark, self.place))

    def refuse_put_back(self, version: V) -> None:
        """Raise InvalidRequest where somebody else put the table back to before a restore of this pipeline."""
        if why := version.why_put_back():
            raise InvalidRequest(why)

    def take_over(self, attempt: AttemptId) -> None:
        """Fence older attempts."""

        def step() -> None:
            version = self.own(attempt)
            if version is not None:
                self.refuse_foreign(version)
                self.refuse_put_back(version)
                self.fence(version, attempt)

        self.repeat(step)

    def fence(self, version: V, attempt: AttemptId, **changes: Any) -> None:
        """Commit no rows, so that older attempts are refused from here on."""
        mark = version.next_mark(attempt, **changes)
        if version.mark is None or mark != version.mark.lasting:
            self.backend.commit(version, Change(mark=mark))

    # --- rows -------------------------------------------------------------------------------------------------

    def publish(
        self, attempt: AttemptId, batches: Sequence[PreparedBatch], checkpoint: int
    ) -> Published | AlreadyPublished:
        """Make the batches above the table's position visible as a checkpoint's."""

        def step() -> Published | AlreadyPublished:
            version = self.newest(attempt, reads_on=True)
            if version is not None:
                self.refuse_put_back(version)
            new = not_shown(version.position if version is not None else None, batches)
            if not batches_with_rows(new):
                if version is not None:
                    version.let_go()
                return AlreadyPublished()
            version = version or self.created(attempt, new)
            # When this sink took over, the table of one that spells the place otherwise was not there yet.
            self.refuse_foreign(version)
            return self.add(version, attempt, new, checkpoint)

        return self.repeat(step)

    def created(self, attempt: AttemptId, batches: Sequence[PreparedBatch]) -> V:
        """Make the table with the columns of these batches; raises Raced: who owns it is asked again."""
        columns = self.backend.columns([batch.row_schema for batch in batches])
        self.staged.footers([file for batch in batches for file in batch.files])
        self.backend.create(columns, self.first_mark(attempt))
        raise Raced

    def first_mark(self, attempt: AttemptId) -> Mark:
        """Return the mark of a table that is made."""
        return Mark(
            pipeline=self.names.pipeline,
            sink=self.names.uid,
            lineage=attempt.lineage,
            epoch=int(attempt.epoch),
        )

    def refuse_unfit(self, version: V, batches: Sequence[PreparedBatch]) -> None:
        """Raise InvalidRequest for batches that a table cannot take, as it is now."""
        self.backend.refuse_unfit(version, self.backend.columns([batch.row_schema for batch in batches]))

    def add(
        self, version: V, attempt: AttemptId, batches: Sequence[PreparedBatch], head: int, **how: Any
    ) -> Published:
        """Commit these batches on top of a version, which shows ``head`` then. Raises Raced: to be repeated.

        ``how``: further parts of the ``Change``.
        """
        self.refuse_unfit(version, batches)
        files, _ = shown_files(batches)
        newest = version.mark.checkpoint if version.mark is not None else None
        mark = (how.get("between") or version.next_mark(attempt)).model_copy(
            update={
                "checkpoint": max(head, newest or 0) or None,
                "head": head,
                "through_batch": max(batch.batch_id for batch in batches),
                "key": text_of_key(self.backend.key),
                "batches": text_of_batches(batches),
                "staged": tuple(sorted({folder_of(file.staged, self.staged.area) for file in files})),
            }
        )
        state = self.backend.commit(version, Change(mark=mark, batches=batches, **how))
        return Published(
            rows=sum(file.rows for file in files),
            bytes=sum(file.bytes for file in files),
            files=len(files),
            version=state,
            position=mark.position(),
        )
