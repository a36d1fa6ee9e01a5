"""``VersionedSink``: the port of sinks, for every format that the engine has a backend of."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic

import pyarrow as pa

from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.core.restore.horizon import Pin
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound
from dagster_ckpt.ext.tables.engine import Backend, Engine, OriginState, V
from dagster_ckpt.ext.tables.marks import refuse_other_key, text_of_key
from dagster_ckpt.ext.tables.rewrite import latest_rows
from dagster_ckpt.ext.tables.roll_back import (
    fork,
    refuse_fork,
    roll_back,
    shown_state,
    why_no_way,
    why_not_exchanged,
    why_not_kept,
)
from dagster_ckpt.ext.tables.staged_files import StagedFiles
from dagster_ckpt.ext.tables.version import State, Version
from dagster_ckpt.spark.channel.schema import arrow_schema, parsed_schema
from dagster_ckpt.spark.sink.accepts import refuse_nested_key
from dagster_ckpt.spark.sink.committables import (
    PreparedBatch,
    batches_with_rows,
    from_last_replacing,
    shown_files,
)
from dagster_ckpt.spark.sink.port import (
    AlreadyPublished,
    AttemptId,
    Difference,
    LaterRows,
    Published,
    RolledBack,
    Sink,
    SinkContext,
    SinkCut,
    SinkPosition,
)
from dagster_ckpt.spark.sink.rows import PlainFiles, PublishedRows
from dagster_ckpt.spark.sink.staged_rows import refuse_unwritable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class VersionedRows(PublishedRows):
    """One state, and batches on top of it."""

    def __init__(
        self,
        backend: Backend[Any],
        version: Version | None,
        number: int | None = None,
        prepared: tuple[PreparedBatch, ...] = (),
    ) -> None:
        super().__init__(backend.place, "" if number is None else str(number))
        self._backend, self._version, self._number, self._prepared = backend, version, number, prepared

    def files(self) -> PlainFiles | None:
        """Return the state's files, where no batch has to be added."""
        if self._version is None or self._number is None or self._prepared:
            return None
        return self._version.files_at(self._number)

    def to_arrow(self) -> pa.Table:
        """Read the state's files, and those that the cut had prepared."""
        batches, replaces = from_last_replacing(self._prepared)
        parts = staged = self._backend.staged.rows_of_batches(batches)
        if not replaces and self._version is not None:
            committed = self._backend.read(self._version, self._number)
            parts = parts if committed is None else [committed, *parts]
        if not parts:
            return self._no_rows()
        rows = pa.concat_tables(parts, promote_options="permissive")
        return latest_rows(rows, self._backend.key) if staged and self._backend.key else rows

    def _no_rows(self) -> pa.Table:
        """Return no rows, with the columns that the table has, so that a reader who names one goes on."""
        if self._version is None or self._version.number is None:
            return pa.schema([]).empty_table()
        now = OriginState(source=self._backend, version=self._version, number=self._version.number)
        fields = json.dumps({"type": "struct", "fields": self._backend.columns(now)})
        return arrow_schema(parsed_schema(fields)).empty_table()


def rows_of(backend: Backend[V], cut: SinkCut | None) -> PublishedRows:
    """Return the rows that readers find, or those of a cut. Raises NotFound, Corrupt."""
    version = backend.load()
    if cut is None:
        if version is None:
            raise NotFound(f"there is no table at {backend.place} yet: it is made with the first rows")
        return VersionedRows(backend, version, version.number)
    head = cut.snapshot.head
    batches = batches_with_rows(cut.batches)
    if version is None:
        if head is not None:
            raise Corrupt(f"there is no table at {backend.place}: it was removed, and the rows with it")
        return VersionedRows(backend, None, None, batches)
    whole = version.showing(cut.checkpoint_id) if batches else None
    if whole is not None:
        return VersionedRows(backend, version, whole.number)
    if head is None:
        return VersionedRows(backend, version, version.mark.base if version.mark else None, batches)
    return VersionedRows(backend, version, shown_state(version, head).number, batches)


def difference(backend: Backend[Any], cut: SinkCut) -> Difference | None:
    """Return how many rows the table shows, and how many at the cut; None: its metadata does not tell.

    Raises Corrupt where rows of the cut are gone.
    """
    version: Version | None = backend.load()
    batches = batches_with_rows(cut.batches)
    whole = version.showing(cut.checkpoint_id) if version is not None and batches else None
    prepared, replaces = shown_files(() if whole is not None else batches)
    backend.staged.refuse_changed(prepared)
    then = whole or _at_head(backend, version, cut.snapshot.head)
    if version is not None and then is not None:
        backend.refuse_lost(version, then)
    now = 0 if version is None or version.number is None else version.rows_at(version.number)
    kept = 0 if then is None or version is None or replaces else version.rows_at(then.number)
    if now is None or kept is None:
        return None
    mark = None if version is None else version.mark
    shown = None if mark is None else mark.head
    return Difference(
        is_same=not prepared and shown == (None if then is None or then.mark is None else then.mark.head),
        by_key=mark is not None and mark.key not in ("", text_of_key(())),
        rows_now=now,
        rows_then=kept + sum(file.rows for file in prepared),
    )


def _at_head(backend: Backend[Any], version: Version | None, head: int | None) -> State | None:
    if head is None:
        return None
    found = None if version is None else version.showing(head)
    if found is None:
        raise Corrupt(
            f"table {backend.place} does not tell of checkpoint {head}: it was removed, or is another one, or keeps "
            "less than the snapshots. Bring it back from a backup, or choose a later checkpoint"
        )
    return found


_EVERY = 16
"""Checkpoints between two clean-ups."""
_EVERY_IN_STORE = 96
"""Likewise in an object store, where the log costs a request an entry; fewer than the files that a step merges."""
_ADVICE = "Take a newer savepoint before that, and clean up with dagster-ckpt maintain only, which keeps it"


class VersionedSink(Sink, Generic[V]):
    """The part of a sink that does not depend on the format."""

    _context: SinkContext
    _engine: Engine[V]
    _merges: bool
    """The table is kept small beside publishing."""
    _asked = 0

    @property
    def staged(self) -> StagedFiles:
        """The files that are staged for the table."""
        return self._engine.staged

    @property
    def place(self) -> str:
        """The table's address."""
        return self._engine.place

    def position(self) -> SinkPosition | None:
        """Return the newest mark in the table; before there is one, who took over."""
        version = self._engine.backend.load(reads_on=True)
        found = version.position if version is not None else None
        if version is not None:
            version.let_go()
        if found is not None:
            return found
        owner = self._engine.owner()
        return None if owner is None else owner.position()

    # --- rows -------------------------------------------------------------------------------------------------

    def check(self, frame: DataFrame) -> None:
        """Refuse columns that this table has otherwise, and a folder that rows cannot be staged in."""
        row_schema = frame.schema.json()
        try:
            columns = self._engine.backend.columns([row_schema])
        except InvalidRequest as error:
            raise InvalidRequest(f"table {self.place} cannot take these rows: {error}") from error
        refuse_nested_key(f"table {self.place}", row_schema, self._context.key)
        version = self._engine.backend.load()
        if version is not None:
            refuse_other_key(version.mark, self._context.key, self.place)
            self._engine.backend.refuse_unfit(version, columns)
        refuse_unwritable(self.place, self.staged.root)

    def flush(self, batches: Sequence[PreparedBatch]) -> None:
        """Wait until the staged files are on disk, or in the table's object store."""
        self.staged.flush([file for batch in batches for file in batch.files])

    def refuse_lost(self, batches: Sequence[PreparedBatch]) -> None:
        """Read each staged file: of a table in an object store there may be none on this disk to wait for."""
        self.staged.refuse_changed([file for batch in batches for file in batch.files])

    def refuse_unfit(self, batches: Sequence[PreparedBatch]) -> None:
        """Compare the staged columns with the table as it is now, and what may be written to it."""
        version = self._engine.backend.load()
        if version is not None:
            self._engine.refuse_unfit(version, batches)

    def waiting_rows(self, batches: Sequence[PreparedBatch]) -> Iterator[pa.Table]:
        """Yield the rows file by file."""
        for batch in batches:
            for file in batch.files:
                yield self.staged.rows_of_batch(batch, file)

    def publish(self, batches: Sequence[PreparedBatch], permit: CommitPermit) -> Published | AlreadyPublished:
        """Make the batches visible in one commit."""
        self._upload(batches)
        attempt = AttemptId(permit.lineage, permit.epoch)
        done = self._engine.publish(attempt, batches, permit.checkpoint_id)
        self.staged.forget_copies(file for batch in batches for file in batch.files)
        return done

    def rows(self, cut: SinkCut | None = None) -> PublishedRows:
        """Read one state."""
        return rows_of(self._engine.backend, cut)

    def checkpoints_of(self, batches: Iterable[int]) -> Mapping[int, int]:
        """Read it from the versions that the table has not forgotten."""
        version = self._engine.backend.load()
        return {} if version is None else version.checkpoints_of(batches)

    def _upload(self, batches: Sequence[PreparedBatch]) -> None:
        """Upload what a restored directory has brought, and is not in the table's object store."""
        self.staged.upload(file for batch in batches for file in batch.files)

    # --- attempts ---------------------------------------------------------------------------------------------

    def take_over(self) -> None:
        """Commit no rows: from here on older attempts are refused by the table."""
        self.staged.forget_copies()
        self._engine.take_over(self._context.attempt())

    def roll_back(self, cut: SinkCut | None, later: LaterRows) -> RolledBack:
        """Go back to the state of a cut, and add what it had prepared."""
        self._upload(() if cut is None else cut.batches)
        return roll_back(self._engine, self._context.attempt(), cut, later)

    def cannot_roll_back(self, cut: SinkCut | None) -> str:
        """Return the reason against a roll-back: rows that are gone, or whose rows would leave."""
        return why_no_way(self._engine, cut)

    def why_not_exchanged(self) -> str:
        """Look for rows of before the sink's first, and for what others have committed since."""
        return why_not_exchanged(self._engine)

    def why_not_kept(self, cut: SinkCut) -> str:
        """Follow the states that what is shown was made of."""
        return why_not_kept(self._engine, cut)

    def difference(self, cut: SinkCut) -> Difference | None:
        """Compare the state that readers see with that of a cut."""
        return difference(self._engine.backend, cut)

    def refuse_fork(self, cut: SinkCut) -> None:
        """Raise where this table, or the cut's, does not allow it."""
        refuse_fork(self._engine, cut)

    def fork(self, cut: SinkCut) -> str:
        """Begin with the rows of a cut of another table of the format."""
        return fork(self._engine, self._context.attempt(), cut)

    def pins(self, cut: SinkCut) -> Sequence[Pin]:
        """Return the state that the cut goes back to, and until when others may leave it alone."""
        version, head = self._engine.backend.load(), cut.snapshot.head
        why, found = self.cannot_roll_back(cut), None
        if version is not None:
            whole = version.showing(cut.checkpoint_id) if cut.batches else None
            found = whole or (version.showing(head) if head is not None else None)
        named = f"{version.word} {found.number} of table" if version is not None and found else "table"
        until = None if version is None or found is None or why else version.kept_until(found)
        advice = why or ("" if until is None else _ADVICE)
        return (Pin(what=f"{named} {self.place}", is_there=not why, until=until, advice=advice),)

    # --- upkeep -----------------------------------------------------------------------------------------------

    @abstractmethod
    def keep_small(self, version: V, needed: Sequence[TableSnapshot]) -> None:
        """Merge some small files, and remove some of what neither readers nor these cuts need, in a bounded step."""

    @abstractmethod
    def clean_up(self, needed: Sequence[TableSnapshot], waiting: Sequence[PreparedBatch]) -> int:
        """Remove staged files that no state, cut or batch needs; return how many folders went."""

    def collect_garbage(self, needed: Sequence[TableSnapshot], waiting: Sequence[PreparedBatch]) -> int:
        """Keep the table small, and remove what nothing needs.

        The first time, and then after some publishes each: both read all that the table's metadata lists.
        """
        self._asked += 1
        is_local = self.staged.table_dir is not None
        if self._asked % (_EVERY if is_local else _EVERY_IN_STORE) != 1:
            return 0
        attempt = self._context.attempt()
        version = self._engine.newest(attempt, reads_on=True) if self._merges else None
        if version is not None:
            self.keep_small(version, needed)
        return self.clean_up(needed, waiting)
