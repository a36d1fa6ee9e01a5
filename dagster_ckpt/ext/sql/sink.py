"""A table of a database as a sink: every step is one transaction, in which rows and position change together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from sqlalchemy import Connection

from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound
from dagster_ckpt.ext.sql.database import Database, resolved_url
from dagster_ckpt.ext.sql.fork import OriginTable, first_steps, fork
from dagster_ckpt.ext.sql.history import (
    Publish,
    RowChange,
    is_below,
    no_longer_needed,
    way,
    wrote_rows,
)
from dagster_ckpt.ext.sql.images import Images
from dagster_ckpt.ext.sql.load import append, stage, upsert_staged
from dagster_ckpt.ext.sql.names import SqlName
from dagster_ckpt.ext.sql.others import OthersAtWork, why_nameless, why_no_steps, why_other_key, why_removed
from dagster_ckpt.ext.sql.positions import Positions
from dagster_ckpt.ext.sql.read import NoRows, SqlRows
from dagster_ckpt.ext.sql.table import CHECKPOINT, TableTransaction
from dagster_ckpt.ext.sql.target import SqlTable as SqlTarget
from dagster_ckpt.spark.sink.accepts import Accepts
from dagster_ckpt.spark.sink.committables import PreparedBatch, batches_with_rows
from dagster_ckpt.spark.sink.port import Joint, SinkContext, SinkCut, SinkDescription, SinkPosition, Upkeep
from dagster_ckpt.spark.sink.positions import named
from dagster_ckpt.spark.sink.rows import PublishedRows
from dagster_ckpt.spark.sink.staged_rows import StagedRows
from dagster_ckpt.spark.sink.staged_sink import StagedSink, StepTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
        with self._database.reading() as connection:
            had = self.positions.columns(connection)
            self._table(connection).refuse_unfit(frame.schema, self.place, had)

    def refuse_unfit(self, batches: Sequence[PreparedBatch]) -> None:
        """Compare the staged columns with the table as it is now."""
        schema = self._rows(batches).spark_schema
        with self._database.reading() as connection:
            if schema is not None:
                had = self.positions.columns(connection)
                self._table(connection).refuse_unfit(schema, self.place, had)

    @contextmanager
    def exclusively(self) -> Iterator[StepTarget]:
        """Begin a transaction that holds the position's row."""
        with self._database.transaction() as connection:
            yield SqlTransaction(self, connection, self._shown(connection, self.positions.lock(connection)))

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
            table = self._table(connection)
            if (why := why_no_steps(table, found, self.place)) or cut is not None:
                return why or why_other_key(self.place, found, self.context.key)
            there = {column.name for column in table.columns()}
            had = self.positions.columns(connection)
            return why_nameless(self.place, (*found.undo, *found.redo), had, there)
        return (
            f"{self.place} shows {named(before.head)}, and the rows between it and {named(head)} are not kept: "
            "restore the newest checkpoint, keep the rows (roll_back_tables: false), or name another table; "
            "SqlTable(..., keep_before_images=True) keeps them from then on"
        )

    def is_made_on(self, before: SinkPosition | None, checkpoint: int) -> bool:
        """Follow the publishes that are kept."""
        with self._database.reading() as connection:
            tree = self.positions.tree(connection)
        return is_below(tree, checkpoint, before.head if before is not None else None)

    def why_other_rows(self, before: SinkPosition | None, cut: SinkCut | None) -> str:
        """Say so where somebody else removed what the table has to show, or changed what would be overwritten, and
        where it is another pipeline's.
        """
        why = self._why_foreign() if before is None else super().why_other_rows(before, cut)
        if why or cut is None or before is None or before.head is None:
            return why
        with self._database.reading() as connection:
            tree, table = self.positions.tree(connection), self._table(connection)
            had = self.positions.columns(connection)
            there = {column.name for column in table.columns()}
            if why := why_nameless(self.place, tree.values(), had, there):
                return why
            if lost := had - there:
                return why_removed(f"columns {sorted(lost)} are gone", self.place)
            has_to_show = had and not self.context.is_complete and wrote_rows(tree, before.head)
            if has_to_show and not table.has_rows():
                return why_removed(f"all rows up to checkpoint {before.head} are gone", self.place)
            if not self.keeps_before_images:
                return ""
            return OthersAtWork(table, tree, self.place).why_not(before.head, cut.snapshot.head)

    def _why_foreign(self) -> str:
        with self._database.reading() as connection:
            return self.positions.why_foreign(connection)

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
        return OriginTable(name=theirs, positions=positions, cut=cut)

    def collect_garbage(self, needed: Sequence[TableSnapshot], waiting: Sequence[PreparedBatch]) -> int:
        """Remove staged files, and the before-images that lie on no way between these cuts and the table."""
        return super().collect_garbage(needed, waiting) + self._forget(needed)

    def upkeep(self, needed: Sequence[TableSnapshot]) -> Sequence[Upkeep]:
        """Return the publishes that no way needs."""
        return (
            (Upkeep(what=_FORGOTTEN, files=len(self._unneeded(needed))),) if self.keeps_before_images else ()
        )

    def maintain(self, needed: Sequence[TableSnapshot]) -> Sequence[Upkeep]:
        """Forget them, with what they changed."""
        found = self.upkeep(needed)
        if any(upkeep.files for upkeep in found):
            self._forget(needed)
        return found

    def _unneeded(self, needed: Sequence[TableSnapshot]) -> set[int]:
        """Return the publishes no cut needs; none where no cut says how far back a checkpoint in progress may go."""
        if not any(snapshot.head is not None for snapshot in needed):
            return set()
        with self._database.reading() as connection:
            position, tree = self.positions.read(connection), self.positions.tree(connection)
        return set() if position is None else no_longer_needed(tree, _heads(position, needed))

    def _forget(self, needed: Sequence[TableSnapshot]) -> int:
        with self._database.reading() as connection:
            position, tree = self.positions.read(connection), self.positions.tree(connection)
        if position is None or not no_longer_needed(tree, _heads(position, needed)):
            return 0
        with self._database.transaction() as connection:
            position = self.positions.lock(connection) or position
            done = no_longer_needed(self.positions.tree(connection), _heads(position, needed))
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
            self._query_at(connection, head)
        return SqlRows(
            self._database, self.name, self.place, str(head or ""), lambda later: self._query_at(later, head)
        )

    def _query_at(self, connection: Connection, head: int | None) -> str:
        """Return the query of the rows that were shown at a publish. Raises Corrupt where they are not kept."""
        position, tree = self.positions.read(connection), self.positions.tree(connection)
        now = None if position is None else position.head
        steps = way(tree, now, head)
        if steps is None or not self._table(connection).exists():
            wanted = "no rows" if head is None else f"the rows of checkpoint {head}"
            raise Corrupt(
                f"{self.place} shows checkpoint {now}, and what it would take to show {wanted} is not kept: load a "
                "newer checkpoint, or the newest rows"
            )
        if why := why_other_key(self.place, steps, self.context.key):
            raise InvalidRequest(why)
        return Images(self._table(connection)).query(steps)

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


class SqlTransaction:
    """One transaction of the sink."""

    def __init__(self, sink: SqlSink, connection: Connection, position: SinkPosition | None) -> None:
        self._sink, self._connection, self._position = sink, connection, position
        self._table = TableTransaction(connection, sink.name, sink.context.key)

    def position(self) -> SinkPosition | None:
        """Return the position that the transaction holds."""
        return self._position

    def commit(self, rows: StagedRows, position: SinkPosition) -> str:
        """Write rows and position; the transaction's end makes both visible."""
        schema, columns = rows.spark_schema, None
        if schema is not None and position.head is not None:
            had = self._sink.positions.columns(self._connection)
            self._table.fit(schema, self._sink.place, had, with_checkpoints=self._has_marks)
            usual = RowChange.UPSERTED if self._table.key else RowChange.APPENDED
            change = RowChange.REPLACED if rows.replaces else usual
            columns = had.union(schema.names) if len(rows) else None
            self._write(rows, position.head, change, had)
            if self._sink.keeps_before_images:
                self._note(position, change, len(rows))
        self._sink.positions.write(self._connection, position, columns)
        self._position = position
        return "" if position.head is None else str(position.head)

    def why_no_way(self, before: SinkPosition | None, cut: SinkCut | None) -> str:
        """Say so where a before-image on the way was not kept."""
        return self._sink.why_no_way_in(self._connection, before, cut)

    def go_to(self, before: SinkPosition, head: int | None) -> SinkPosition:
        """Undo and redo publishes until the table shows what it showed at ``head``."""
        steps = way(self._sink.positions.tree(self._connection), before.head, head)
        if steps is None:
            raise Corrupt(f"{self._sink.place}: publishes between {before.head} and {head} are gone")
        Images(self._table).fit()
        for publish in steps.undo:
            self._images_of(publish).undo(publish.checkpoint_id, publish.change)
        for publish in steps.redo:
            self._images_of(publish).redo(publish.checkpoint_id, publish.change)
        self._position = replace(before, head=head, through_batch=steps.through_batch)
        return self._position

    def _images_of(self, publish: Publish) -> Images:
        """Return the side tables by the key that the publish went by."""
        key = self._table.key if publish.key is None else publish.key
        return Images(TableTransaction(self._connection, self._table.name, key))

    @property
    def _has_marks(self) -> bool:
        return self._sink.keeps_before_images and not self._table.key

    def _write(self, rows: StagedRows, checkpoint: int, change: RowChange, had: frozenset[str]) -> None:
        reader = rows.reader()
        if self._table.key:
            stage(self._table, reader)
        if self._sink.keeps_before_images:
            images = Images(self._table)
            images.fit()
            images.keep(checkpoint, change)
        if change is RowChange.REPLACED:
            self._table.execute(f"DELETE FROM {self._table.table()}")
        if self._table.key:
            there = [column.name for column in self._table.kept_columns()]
            upsert_staged(
                self._table, names := reader.schema.names, [c for c in there if c in had - {*names}]
            )
        else:
            append(self._table, reader, marks={CHECKPOINT: checkpoint} if self._has_marks else {})
        if self._sink.keeps_before_images and change is RowChange.UPSERTED:
            Images(self._table).keep_written(checkpoint)

    def _note(self, position: SinkPosition, change: RowChange, rows: int) -> None:
        before = self._position
        publish = Publish(
            checkpoint_id=position.head or 0,
            parent=before.head if before is not None else None,
            parent_through=before.through_batch if before is not None else None,
            through_batch=position.through_batch,
            change=change,
            key=self._table.key,
            rows=self._table.count() if change is RowChange.REPLACED else rows,
        )
        if change is RowChange.UPSERTED:
            publish = replace(publish, rows=Images(self._table).written(publish))
        self._sink.positions.add(self._connection, publish)


def _heads(position: SinkPosition, needed: Sequence[TableSnapshot]) -> list[int | None]:
    return [position.head, *(snapshot.head for snapshot in needed)]
