"""One step of a table of a database: rows, before-images and position change in one transaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dagster_ckpt.errors import Corrupt
from dagster_ckpt.ext.sql.images import Images
from dagster_ckpt.ext.sql.load import append, append_staged, drop_staged, stage, upsert_staged
from dagster_ckpt.ext.sql.positions import CHANGED, Positions, Publish, RowChange, way
from dagster_ckpt.ext.sql.table import CHECKPOINT, TableTransaction
from dagster_ckpt.spark.sink.port import SinkCut, SinkPosition
from dagster_ckpt.spark.sink.staged_rows import StagedRows

WhyNoWay = Callable[[SinkPosition | None, SinkCut | None], str]
"""Returns why there is no way from a position to a cut, asked in the transaction."""


class SqlTransaction:
    """One transaction of a sink, which holds its position's row."""

    def __init__(
        self,
        table: TableTransaction,
        positions: Positions,
        position: SinkPosition | None,
        *,
        place: str,
        keeps_before_images: bool,
        why_no_way: WhyNoWay,
    ) -> None:
        self._table, self._connection, self._positions = table, table.connection, positions
        self._position, self._place, self._keeps = position, place, keeps_before_images
        self.why_no_way = why_no_way

    def position(self) -> SinkPosition | None:
        """Return the position that the transaction holds."""
        return self._position

    def commit(self, rows: StagedRows, position: SinkPosition) -> str:
        """Write rows and position; the transaction's end makes both visible."""
        schema, columns = rows.spark_schema, None
        if self._position is None and self._table.has_rows():
            self._positions.note_rows_before(self._connection)
        if schema is not None and position.head is not None:
            had = self._positions.columns(self._connection)
            self._table.fit(schema, self._place, had, with_checkpoints=self._has_marks)
            usual = RowChange.UPSERTED if self._table.key else RowChange.APPENDED
            change = RowChange.REPLACED if rows.replaces else usual
            columns = had.union(schema.names) if len(rows) else None
            self._write(rows, position.head, change, had)
            if self._keeps:
                self._note(position, change, len(rows))
        self._positions.write(self._connection, position, columns)
        self._position = position
        return "" if position.head is None else str(position.head)

    def go_to(self, before: SinkPosition, head: int | None) -> SinkPosition:
        """Undo and redo publishes until the table shows what it showed at ``head``."""
        steps = way(self._positions.tree(self._connection), before.head, head)
        if steps is None:
            raise Corrupt(f"{self._place}: publishes between {before.head} and {head} are gone")
        images = Images(self._table)
        images.fit()
        had = self._positions.columns(self._connection)
        wanted = self._table.copied(images.query(steps)) if self._table.triggers else None
        for publish in steps.undo:
            # Where rows are to be shown others' changes were refused before.
            if head is None and not self._images_of(publish).is_as_written(publish, had):
                self._positions.add(self._connection, replace(publish, rows=CHANGED))
            self._images_of(publish).undo(publish.checkpoint_id, publish.change)
        for publish in steps.redo:
            self._images_of(publish).redo(publish.checkpoint_id, publish.change)
        if wanted is not None:
            self._table.refuse_other_than(wanted, had)
            self._table.execute(f"DROP TABLE {wanted}")
        self._position = replace(before, head=head, through_batch=steps.through_batch)
        return self._position

    def _images_of(self, publish: Publish) -> Images:
        """Return the side tables by the key that the publish went by."""
        key = self._table.key if publish.key is None else publish.key
        return Images(TableTransaction(self._connection, self._table.name, key))

    @property
    def _has_marks(self) -> bool:
        return self._keeps and not self._table.key

    def _write(self, rows: StagedRows, checkpoint: int, change: RowChange, had: frozenset[str]) -> None:
        reader, table = rows.reader(), self._table
        marks = {CHECKPOINT: checkpoint} if self._has_marks else {}
        columns = [*reader.schema.names, *marks]
        is_staged = bool(table.key or marks) or any(trigger.is_before for trigger in table.triggers)
        if is_staged:
            stage(table, reader, marks)
        images = Images(table) if self._keeps else None
        if images is not None:
            images.fit()
            images.keep(checkpoint, change)
        if change is RowChange.REPLACED:
            table.execute(f"DELETE FROM {table.table()}")
            if table.triggers and table.has_rows():
                table.refuse_as_written()
        if table.key:
            there = [column.name for column in table.kept_columns()]
            upsert_staged(table, columns, [c for c in there if c in had - {*columns}])
        elif is_staged:
            append_staged(table, columns)
        else:
            append(table, reader)
        if images is not None:
            images.keep_written(checkpoint, change, columns)
        if is_staged:
            drop_staged(table)

    def _note(self, position: SinkPosition, change: RowChange, rows: int) -> None:
        before = self._position
        publish = Publish(
            checkpoint_id=position.head or 0,
            parent=before.head if before is not None else None,
            parent_through=before.through_batch if before is not None else None,
            through_batch=position.through_batch,
            change=change,
            key=self._table.key,
            lineage=position.lineage,
            rows=self._table.count() if change is RowChange.REPLACED else rows,
        )
        if change is RowChange.UPSERTED:
            publish = replace(publish, rows=Images(self._table).written(publish))
        self._positions.add(self._connection, publish)
