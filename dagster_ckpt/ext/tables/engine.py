"""Engine of sinks into tables with versions: what is published, by whom, and once; the methods a format gives it.

Every step reads the table, decides, and commits on exactly what was read: whoever comes second decides again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.errors import Corrupt, InvalidRequest, Unavailable
from dagster_ckpt.ext.tables.columns import Column
from dagster_ckpt.ext.tables.marks import Mark, SinkNames, text_of_batches, text_of_key
from dagster_ckpt.ext.tables.staged_files import StagedFiles, StagedFolder, folder_of
from dagster_ckpt.ext.tables.version import State, Version
from dagster_ckpt.spark.sink.committables import PreparedBatch, batches_with_rows, shown_files
from dagster_ckpt.spark.sink.port import AlreadyPublished, AttemptId, Published, Upkeep
from dagster_ckpt.spark.sink.positions import Owner, not_shown, note_owner, read_owner, refuse_fenced

V = TypeVar("V", bound=Version)


class Raced(Exception):
    """Somebody committed after the state that was read: read again, decide again."""


class Halfway(Raced):
    """A part of the change was committed, and its mark says so: read again, decide again."""


@dataclass(frozen=True, kw_only=True)
class OriginState:
    """A state of another table, whose rows a fork begins with."""

    source: Any
    """Backend of that table."""
    version: Any
    """The table as it was read."""
    number: int


@dataclass(frozen=True, kw_only=True)
class Change:
    """One step: everything in it becomes visible together, or in steps of which each leaves a state that marks tell."""

    mark: Mark
    """What is said of the state after it."""
    back_to: int | None = None
    """State that is gone back to first; None: the newest stays."""
    is_emptied: bool = False
    """All rows leave first."""
    between: Mark | None = None
    """What is said of the state after that, where it is one of its own."""
    aside: str = ""
    """At what the rows that leave can be read."""
    batches: Sequence[PreparedBatch] = ()
    """Batches whose rows are added, or merged by key, or replace all others."""
    copied: OriginState | None = None
    """Rows that replace all others."""
    properties: dict[str, str] = field(default_factory=dict)
    """Properties of the table that are set."""

    @property
    def goes_back(self) -> bool:
        """True where rows leave, or come back."""
        return self.back_to is not None or self.is_emptied


class Backend(Protocol[V]):
    """One table of one format, as one sink works on it."""

    @property
    def place(self) -> str:
        """The table, for people and checkpoints."""

    @property
    def staged(self) -> StagedFiles:
        """The table's staged files."""

    @property
    def key(self) -> tuple[str, ...]:
        """Key columns."""

    def load(self, *, reads_on: bool = False) -> V | None:
        """Return the table as it is, or None where there is none.

        ``reads_on``: from where the last caller let it go, if that is still the same.
        """

    def create(self, columns: Sequence[Column], mark: Mark) -> None:
        """Make the table, without rows, unless somebody did."""

    def columns(self, what: Sequence[str] | OriginState) -> list[Column]:
        """Return the columns of batches with these schemas together, as the format keeps them, or those of a table's
        state. Raises InvalidRequest for one that the format, or this sink, cannot have.
        """

    def refuse_unfit(self, version: V, columns: Sequence[Column]) -> None:
        """Raise InvalidRequest for rows with these columns, or a table that rows cannot be added to."""

    def commit(self, version: V, change: Change) -> str:
        """Commit on top of exactly this version; return the format's name of the new state.

        Raises Raced when this is no longer the newest version, Halfway when one step of several was made.
        """

    def read(self, version: V, number: int | None) -> pa.Table | None:
        """Return the rows of a state (None: of before the first one). Raises Corrupt where they are gone."""

    def refuse_lost(self, version: V, state: State | None) -> None:
        """Raise Corrupt, naming it, where a file of a state is gone (None: all rows leave); InvalidRequest where the
        table goes back to none.
        """

    def elsewhere(self, place: str) -> Backend[V]:
        """Return another table of the same format. Raises InvalidRequest where it cannot be reached from here."""


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


TARGET = 100 * 1024 * 1024
"""Bytes from which a file is left as it is."""
MERGED = "small files merged"
LATE = "a publish was faster: the next time"


def nothing_is_old(what: str) -> Upkeep:
    """Return the note on work that is left alone while no cut goes back to the table."""
    return Upkeep(
        what=what,
        note="no retained checkpoint or savepoint has published to this table: nothing can be called old",
    )


@dataclass(frozen=True)
class AttemptGarbage(Generic[V]):
    """Garbage that an attempt removes, at a moment."""

    engine: Engine[V]
    attempt: AttemptId
    now: float
    needed: Sequence[TableSnapshot]
    waiting: Sequence[PreparedBatch]

    def is_over(self, version: V | None, folder: StagedFolder) -> bool:
        """True where nothing of a folder is to be published any more, whether it was or not."""
        mark = version.mark if version is not None else None
        through = mark.through_batch if mark is not None else None
        is_shown = through is not None and folder.batch_id <= through
        return folder.epoch < self.attempt.epoch or (folder.epoch == self.attempt.epoch and is_shown)
