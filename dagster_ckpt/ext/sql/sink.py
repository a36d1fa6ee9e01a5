"""A table of a database as a sink: every step is one transaction, in which rows and position change together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from sqlalchemy import Connection

from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound
from dagster_ckpt.ext.sql.catalog import Existing
from dagster_ckpt.ext.sql.columns import arrow_type
from dagster_ckpt.ext.sql.database import Database, resolved_url
from dagster_ckpt.ext.sql.fork import OriginTable, first_steps, fork
from dagster_ckpt.ext.sql.images import Images
from dagster_ckpt.ext.sql.names import RESERVED, SqlName
from dagster_ckpt.ext.sql.others import OthersAtWork
from dagster_ckpt.ext.sql.positions import Positions, is_below, no_longer_needed, way
from dagster_ckpt.ext.sql.table import CHECKPOINT, TableTransaction
from dagster_ckpt.ext.sql.target import SqlTable as SqlTarget
from dagster_ckpt.ext.sql.transaction import SqlTransaction
from dagster_ckpt.spark.sink.accepts import Accepts
from dagster_ckpt.spark.sink.committables import PreparedBatch, batches_with_rows
from dagster_ckpt.spark.sink.port import Joint, SinkContext, SinkCut, SinkDescription, SinkPosition, Upkeep
from dagster_ckpt.spark.sink.positions import named, why_another_history
from dagster_ckpt.spark.sink.rows import PublishedRows
from dagster_ckpt.spark.sink.staged_rows import StagedRows
from dagster_ckpt.spark.sink.staged_sink import StagedSink, StepTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Query = Callable[[Connection], str]
"""Returns the query of a table's rows, of the columns that hold a value of their own."""


class SqlRows(PublishedRows):
    """Rows of one state, read once: every form of them has the same."""

    def __init__(
        self, database: Database, name: SqlName, place: str, version: str = "", query: Query | None = None
    ) -> None:
        """``query``: of the rows of an older state; None: the newest."""
        super().__init__(place, version)
        self._database, self._name, self._query = database, name, query

    def to_arrow(self) -> pa.Table:
        """Read all rows."""
        return self._rows

    @cached_property
    def _rows(self) -> pa.Table:
        with self._database.at_one_moment() as connection:
            table = TableTransaction(connection, self._name, ())
            existing = table.columns() if self._query is None else table.kept_columns()
            columns = [column for column in existing if column.name != CHECKPOINT]
            names = tuple(column.name for column in columns)
            rows = table.table() if self._query is None else f"({self._query(connection)}) AS {RESERVED}shown"
            found = table.execute(f"SELECT {table.list_of(names)} FROM {rows}").all()
            is_sqlite = table.dialect.name == "sqlite"
        values = list(zip(*found, strict=True)) or [() for _ in columns]
        arrays = [_array(column, of, is_sqlite=is_sqlite) for column, of in zip(columns, values, strict=True)]
        return pa.Table.from_arrays(arrays, names=list(names))


class NoRows(PublishedRows):
    """No rows, of a table that is not there yet."""

    def to_arrow(self) -> pa.Table:
        """Return none, and no columns."""
        return pa.schema([]).empty_table()


def _array(column: Existing, values: Sequence[Any], *, is_sqlite: bool) -> pa.Array:
    """Return a column's values; of a type of Arrow's own choice where the declared one has no counterpart."""
    wanted = arrow_type(column.type, is_sqlite=is_sqlite)
    plain = [
        float(value) if isinstance(value, int) and pa.types.is_floating(wanted) else value for value in values
    ]
    try:
        if is_sqlite and pa.types.is_boolean(wanted):
            return pa.array([None if value is None else bool(value) for value in plain], wanted)
        if is_sqlite and pa.types.is_temporal(wanted):
            return pa.array(plain, pa.string()).cast(wanted)
        return pa.array(plain, None if pa.types.is_null(wanted) else wanted)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return pa.array(plain)


_FORGOTTEN = "publishes whose before-images are removed"


class SqlSink(StagedSink):
    """One table, written by one pipeline."""

    kind: ClassVar[str] = "sql"

    def __init__(self, target: SqlTarget, context: SinkContext) -> None:
        super().__init__(context)
        url = resolved_url(target.url)
        self.name = SqlName.parsed(target.table or context.name, url.get_backend_name())
        given = target.keep_before_images
        self.keeps_before_images = bool(context.key) if given is None else given
        self._database = Database(url)
        self.positions = Positions(self.name, context, self.place)

    @property
    def place(self) -> str:
        """The database and the table, without user or password."""
        return f"{self._database.place}#{self.name.place}"

    @property
    def joint(self) -> Joint:
        """The database: tables in it show one checkpoint."""
        return self._database

    def position(self) -> SinkPosition | None:
        """Read the table's row of ``dagster_ckpt_positions``; a table that was removed shows nothing."""
        with self._database.reading() as connection:
            return self._shown(connection, self.positions.read(connection))

    def _shown(self, connection: Connection, noted: SinkPosition | None) -> SinkPosition | None:
        if noted is None or noted.head is None or self._table(connection).exists():
            return noted
        return replace(noted, head=None, through_batch=None)

    def _table(self, connection: Connection) -> TableTransaction:
        return TableTransaction(connection, self.name, self.context.key)

    @property
    def accepts(self) -> Accepts:
        """Values that the database has types for, and that every row of the table needs."""
        with self._database.reading() as connection:
            table = self._table(connection)
            return table.dialect.accepts(self.context.key, table.needed_in_every_row())

    def check(self, frame: DataFrame) -> None:
        """Compare the rows with the table, if it exists."""
        super().check(frame)
        self._refuse_unfit(frame.schema)

    def refuse_unfit(self, batches: Sequence[PreparedBatch]) -> None:
        """Compare the staged columns with the table as it is now."""
        schema = self._rows(batches).spark_schema
        if schema is not None:
            self._refuse_unfit(schema)

    def _refuse_unfit(self, schema: StructType) -> None:
        with self._database.reading() as connection:
            table = self._table(connection)
            table.refuse_unfit(schema, self.place, self.positions.columns(connection))
            if self.keeps_before_images and (why := Images(table).why_other_types()):
                raise InvalidRequest(why)

    @contextmanager
    def exclusively(self) -> Iterator[StepTarget]:
        """Begin a transaction that holds the position's row."""
        with self._database.transaction() as connection:
            yield SqlTransaction(
                self._table(connection),
                self.positions,
                self._shown(connection, self.positions.lock(connection)),
                place=self.place,
                keeps_before_images=self.keeps_before_images,
                why_no_way=partial(self.why_no_way_in, connection),
            )

    def commit(self, rows: StagedRows, position: SinkPosition) -> str:
        """Carry out one step in a transaction of its own."""
        with self.exclusively() as outside:
            return outside.commit(rows, position)

    @property
    def never_rolls_back(self) -> str:
        """Say so where no before-images are kept."""
        if self.keeps_before_images:
            return ""
        return (
            f"{self.place} keeps no before-images: restore the newest checkpoint, keep the rows (roll_back_tables: "
            "false), or name another table; SqlTable(..., keep_before_images=True) keeps them from then on"
        )

    def why_no_way(self, before: SinkPosition | None, cut: SinkCut | None) -> str:
        """Say so where a before-image on the way was not kept."""
        with self._database.reading() as connection:
            return self.why_no_way_in(connection, before, cut)

    def why_no_way_in(self, connection: Connection, before: SinkPosition | None, cut: SinkCut | None) -> str:
        """Return why there is no way from a position to a cut."""
        tree = self.positions.tree(connection)
        head = cut.snapshot.head if cut is not None else None
        if before is None:
            return super().why_no_way(before, cut)
        if head is not None and not self._table(connection).exists():
            return (
                f"table {self.place} was removed, and its rows with it: bring it back from a backup, or read all data "
                "again (restore_from: none)"
            )
        if (found := way(tree, before.head, head)) is not None:
            others = OthersAtWork(self._table(connection), self.positions, self.place)
            return others.why_not_written() or others.why_no_way(found, is_cut=cut is not None)
        return (
            f"{self.place} shows {named(before.head)}, and the rows between it and {named(head)} are not kept: "
            "restore the newest checkpoint, keep the rows (roll_back_tables: false), or name another table; "
            "SqlTable(..., keep_before_images=True) keeps them from then on"
        )

    def why_not_exchanged(self) -> str:
        """Look for rows that no publish wrote; where not all before-images are kept, for those of before the first."""
        with self._database.reading() as connection:
            position, table = self.positions.read(connection), self._table(connection)
            if not table.exists():
                return ""
            steps = way(self.positions.tree(connection), None if position is None else position.head, None)
            if steps is None or Images(table).incomplete(steps) is not None:
                has_others = self.positions.had_rows_before(connection)
            else:
                query = f"SELECT 1 FROM ({Images(table).query(steps)}) AS {RESERVED}before LIMIT 1"
                has_others = bool(table.found(query))
        return f"{self.place} has rows of somebody else, which would leave as well" if has_others else ""

    def is_made_on(self, before: SinkPosition | None, checkpoint: int) -> bool:
        """Follow the publishes that are kept."""
        with self._database.reading() as connection:
            tree = self.positions.tree(connection)
        return is_below(tree, checkpoint, before.head if before is not None else None)

    def why_other_rows(self, before: SinkPosition | None, cut: SinkCut | None) -> str:
        """Say so where somebody else removed what the table has to show, or changed what would be overwritten, and
        where it is another pipeline's.
        """
        if why := self._why_foreign() if before is None else super().why_other_rows(before, cut):
            return why
        with self._database.reading() as connection:
            table = self._table(connection)
            if before is None and not table.has_rows():
                return ""
            others = OthersAtWork(table, self.positions, self.place)
            why = others.why_of_other_moments(None if before is None else before.head)
            if why or cut is None or before is None or before.head is None:
                return why
            shown_by = self.positions.shown_by(connection, cut.snapshot.head)
            why = why_another_history(self.place, shown_by, cut, self.context.attempt())
            is_complete = self.context.is_complete
            return why or others.why_not_shown(before.head, cut.snapshot.head, is_complete=is_complete)

    def _why_foreign(self) -> str:
        """Return why rows that are there without a position are no business of this sink, or cannot be told apart."""
        with self._database.reading() as connection:
            why, table = self.positions.why_foreign(connection), self._table(connection)
            beside = [self.name.with_suffix(suffix) for suffix in ("undo", "set_aside")]
            if why or not (table.has_rows() and any(map(table.exists, beside))):
                return why
        return (
            f"{self.place} has rows that were published, and its row of dagster_ckpt_positions, which tells them from "
            "those of others, is gone: bring it back, or empty the table and begin without state (restore_from: none)"
        )

    def refuse_fork(self, cut: SinkCut) -> None:
        """Raise where this table, or the cut's, does not allow it."""
        origin = self._origin(cut)
        with self._database.transaction() as connection:
            before = self.positions.read(connection)
            first_steps(self._table(connection), self.positions, before, origin, place=self.place)

    def fork(self, cut: SinkCut) -> str:
        """Begin with the rows of a cut of another table of the same database."""
        origin = self._origin(cut)
        with self._database.transaction() as connection:
            table = self._table(connection)
            return fork(table, self.positions, self.context.attempt(), origin, place=self.place)

    def _origin(self, cut: SinkCut) -> OriginTable:
        ours = f"{self._database.place}#"
        if not cut.snapshot.uri.startswith(ours):
            raise InvalidRequest(
                f"{self.place} can begin with rows of its own database only, and those of the snapshot are in "
                f"{cut.snapshot.uri}: fork(..., sinks={{{self.context.uid!r}: SqlTable(url of that database, another "
                "table)})"
            )
        theirs = SqlName.parsed(cut.snapshot.uri.removeprefix(ours), self._database.backend)
        positions = Positions(theirs, self.context, cut.snapshot.uri)
        return OriginTable(name=theirs, positions=positions, cut=cut, is_complete=self.context.is_complete)

    def collect_garbage(self, needed: Sequence[TableSnapshot], waiting: Sequence[PreparedBatch]) -> int:
        """Remove staged files, and the before-images that lie on no way between these cuts and the table."""
        return super().collect_garbage(needed, waiting) + self._forget(needed)

    def upkeep(self, needed: Sequence[TableSnapshot]) -> Sequence[Upkeep]:
        """Return the publishes no way needs; none where no cut says how far back a checkpoint in progress may go."""
        if not self.keeps_before_images:
            return ()
        is_known = any(snapshot.head is not None for snapshot in needed)
        return (Upkeep(what=_FORGOTTEN, files=len(self._unneeded(needed)) if is_known else 0),)

    def maintain(self, needed: Sequence[TableSnapshot]) -> Sequence[Upkeep]:
        """Forget them, with what they changed."""
        found = self.upkeep(needed)
        if any(upkeep.files for upkeep in found):
            self._forget(needed)
        return found

    def _unneeded(self, needed: Sequence[TableSnapshot]) -> set[int]:
        with self._database.reading() as connection:
            position, tree = self.positions.read(connection), self.positions.tree(connection)
        return set() if position is None else no_longer_needed(tree, _heads(position, needed))

    def _forget(self, needed: Sequence[TableSnapshot]) -> int:
        if not self._unneeded(needed):
            return 0
        with self._database.transaction() as connection:
            position = self.positions.lock(connection)
            tree = self.positions.tree(connection)
            done = set() if position is None else no_longer_needed(tree, _heads(position, needed))
            self.positions.forget(connection, done)
            return Images(self._table(connection)).forget(done)

    def rows(self, cut: SinkCut | None = None) -> PublishedRows:
        """Read the table as it is, or by its before-images as it was at a cut whose rows were published."""
        if cut is not None:
            return self._rows_at(cut)
        with self._database.reading() as connection:
            if not self._table(connection).exists():
                raise NotFound(f"nothing was published to {self.place} yet")
        return SqlRows(self._database, self.name, self.place)

    def _rows_at(self, cut: SinkCut) -> PublishedRows:
        if not self.keeps_before_images:
            raise InvalidRequest(
                f"{self.place} keeps no before-images, so it shows its newest rows only: SqlTable(..., "
                "keep_before_images=True) keeps them from then on; a fork of the checkpoint has its rows too"
            )
        with self._database.at_one_moment() as connection:
            waited = bool(batches_with_rows(cut.batches))
            head = cut.checkpoint_id if waited else cut.snapshot.head
            if waited and head not in self.positions.tree(connection):
                raise InvalidRequest(
                    f"{self.place} has not published all rows of checkpoint {cut.checkpoint_id}: load its newest "
                    "rows, or run the pipeline, which publishes them"
                )
            if head is None and not self._table(connection).exists():
                return NoRows(self.place)
            shown_by = self.positions.shown_by(connection, head)
            if why := why_another_history(self.place, shown_by, cut):
                raise InvalidRequest(why)
            # A moment of readers is of no history: where it is the newest, it is the table as they find it.
            query = partial(self._query_at, head=head, is_exact=bool(cut.lineages))
            query(connection)
        return SqlRows(self._database, self.name, self.place, str(head or ""), query)

    def _query_at(self, connection: Connection, *, head: int | None, is_exact: bool) -> str:
        """Return the query of the rows that were shown at a publish.

        Raises Corrupt where they are not kept, InvalidRequest where somebody else changed or removed them.
        """
        position, tree = self.positions.read(connection), self.positions.tree(connection)
        now = None if position is None else position.head
        steps = None if position is None and head is not None else way(tree, now, head)
        if steps is None or not self._table(connection).exists():
            wanted = "no rows" if head is None else f"the rows of checkpoint {head}"
            raise Corrupt(
                f"{self.place} shows checkpoint {now}, and what it would take to show {wanted} is not kept: load a "
                "newer checkpoint, or the newest rows"
            )
        table = self._table(connection)
        others = OthersAtWork(table, self.positions, self.place, otherwise="or load the newest rows")
        if head is not None and (is_exact or now != head):
            why = others.why_not_read(steps, now, head, is_complete=self.context.is_complete)
        else:
            why = others.why_no_way(steps, is_cut=False)
        if why:
            raise InvalidRequest(why)
        return Images(table).query(steps)

    def describe(self) -> SinkDescription:
        """Return the description of the table's columns."""
        with self._database.reading() as connection:
            position = self.positions.read(connection)
            table = self._table(connection)
            if position is None or not table.exists():
                raise NotFound(f"nothing was published to {self.place} yet")
            columns = [column for column in table.columns() if column.name != CHECKPOINT]
        return SinkDescription(
            place=self.place,
            columns=tuple((column.name, column.type) for column in columns),
            version="" if position.head is None else str(position.head),
            details={"before-images": "kept" if self.keeps_before_images else "not kept"},
        )


def _heads(position: SinkPosition, needed: Sequence[TableSnapshot]) -> list[int | None]:
    return [position.head, *(snapshot.head for snapshot in needed)]
