"""The table of a fork: it begins with the rows that another table of the same database had at a cut.

In one transaction: what has to be undone is undone on a copy that nobody sees, so the origin is only read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.sql.images import Images
from dagster_ckpt.ext.sql.names import RESERVED, SqlName
from dagster_ckpt.ext.sql.others import OthersAtWork
from dagster_ckpt.ext.sql.positions import Positions, Publish, UndoPath, other_key, shown_publishes, way
from dagster_ckpt.ext.sql.table import CHECKPOINT, TableTransaction
from dagster_ckpt.spark.sink.committables import batches_with_rows
from dagster_ckpt.spark.sink.port import AttemptId, SinkCut, SinkPosition
from dagster_ckpt.spark.sink.positions import SEED, refuse_fenced, why_another_history

_COPY = SqlName(schema="", name=f"{RESERVED}fork")
"""Temporary table: the origin's rows, brought to the cut."""
_COPIED = ("", "undo", "set_aside")


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginTable:
    """The table that a fork begins from, in the fork's transaction."""

    name: SqlName
    positions: Positions
    cut: SinkCut
    is_complete: bool
    """A publish without rows empties it."""

    @property
    def text(self) -> str:
        """The cut, as the fork writes it down."""
        return f"{self.cut.snapshot.uri} at checkpoint {self.cut.checkpoint_id}"

    def steps(self, connection: Connection, key: tuple[str, ...]) -> tuple[int | None, UndoPath]:
        """Return the head of the cut and the way to it, which is read for as long as the transaction lasts.

        Raises InvalidRequest where the rows between them are not kept, or somebody else changed or removed them.
        """
        wanted, shown, steps = self._way(connection, key)
        if wanted is None:
            return wanted, steps
        table, place = TableTransaction(connection, self.name, key), self.cut.snapshot.uri
        if not table.exists():
            raise InvalidRequest(f"table {place} was removed, and its rows with it: bring it back")
        others = OthersAtWork(table, self.positions, place, otherwise="or fork from another checkpoint")
        if why := others.why_not_read(steps, shown, wanted, is_complete=self.is_complete):
            raise InvalidRequest(why)
        return wanted, steps

    def _way(self, connection: Connection, key: tuple[str, ...]) -> tuple[int | None, int | None, UndoPath]:
        cut, now = self.cut, self.positions.lock_any(connection)
        tree = self.positions.tree(connection)
        shown = now.head if now is not None else None
        wanted = cut.snapshot.head
        if batches_with_rows(cut.batches):
            wanted = int(cut.checkpoint_id)
            if wanted != shown and wanted not in tree:
                raise InvalidRequest(
                    f"{cut.snapshot.uri} was never published the rows that the snapshot had prepared, or does not keep "
                    "before-images: fork from a checkpoint that it shows, or give the sink another place with "
                    "fork(..., sinks={...})"
                )
        shown_by = self.positions.shown_by(connection, wanted)
        if why := why_another_history(cut.snapshot.uri, shown_by, cut):
            raise InvalidRequest(why)
        if now is not None and wanted == shown:
            self._refuse_other_key(shown_publishes(tree, wanted), key)
            return wanted, shown, UndoPath((), (), now.through_batch)
        found = way(tree, shown, wanted) if now is not None else None
        if found is None and (now is not None or wanted is not None):
            raise InvalidRequest(
                f"{cut.snapshot.uri} shows checkpoint {shown}, and the rows between it and checkpoint {wanted} are not "
                "kept (SqlTable(..., keep_before_images=True) keeps them): fork from its newest checkpoint, or give "
                "the sink another place with fork(..., sinks={...})"
            )
        steps = found or UndoPath((), (), None)
        self._refuse_other_key((*steps.undo, *steps.redo, *shown_publishes(tree, wanted)), key)
        return wanted, shown, steps

    def _refuse_other_key(self, publishes: Iterable[Publish], key: tuple[str, ...]) -> None:
        other = other_key(publishes, key)
        if other is not None and other.key is not None:
            raise InvalidRequest(
                f"the rows of {self.cut.snapshot.uri} were written by the key {list(other.key)}, and the fork's sink "
                f"has {f'the key {list(key)}' if key else 'none'}: rows of one key could be there several times. Give "
                "it that key"
            )


def first_steps(
    target: TableTransaction,
    positions: Positions,
    before: SinkPosition | None,
    origin: OriginTable,
    *,
    place: str,
) -> tuple[int | None, UndoPath] | None:
    """Return the head and the way to what a fork begins with; None: it has begun with that.

    Raises InvalidRequest where there are other rows, or no way.
    """
    is_new = before is None or before.checkpoint_id is None
    if before is not None and is_new and positions.origin(target.connection) == origin.text:
        return None
    if target.has_rows() or not is_new:
        raise InvalidRequest(
            f"{place} has rows already: give the fork a table of its own, fork(..., sinks={{...}})"
        )
    return origin.steps(target.connection, target.key)


def fork(
    target: TableTransaction, positions: Positions, attempt: AttemptId, origin: OriginTable, *, place: str
) -> str:
    """Begin with the rows of a cut; repeating it changes nothing. Raises InvalidRequest where there are other rows."""
    connection = target.connection
    before = positions.lock(connection)
    refuse_fenced(place, before, attempt)
    done = f"{place} begins with the rows of {origin.text}"
    found = first_steps(target, positions, before, origin, place=place)
    if found is None:
        assert before is not None
        positions.write(connection, _position(attempt, before.head, before.through_batch))
        return done
    wanted, steps = found
    if wanted is not None:
        _fill(target, TableTransaction(connection, origin.name, target.key), steps)
    begun_at = _position(attempt, None if wanted is None else SEED, steps.through_batch)
    positions.write(connection, begun_at, origin.positions.columns(connection))
    positions.note_origin(connection, origin.text)
    return done


def _position(attempt: AttemptId, head: int | None, through: int | None) -> SinkPosition:
    return SinkPosition(
        lineage=attempt.lineage, epoch=attempt.epoch, checkpoint_id=None, head=head, through_batch=through
    )


def _fill(target: TableTransaction, source: TableTransaction, steps: UndoPath) -> None:
    columns = {column.name: column.type for column in source.kept_columns() if column.name != CHECKPOINT}
    if not target.exists():
        target.create(columns)
    shown = source
    if steps.undo or steps.redo:
        shown = TableTransaction(source.connection, _COPY, source.key)
        for suffix in _COPIED:
            name = source.name.with_suffix(suffix) if suffix else source.name
            copy = _COPY.with_suffix(suffix) if suffix else _COPY
            source.copied(f"SELECT * FROM {source.table(name)}", copy)
        images = Images(shown)
        images.fit()
        for publish in steps.undo:
            images.undo(publish.checkpoint_id, publish.change)
        for publish in steps.redo:
            images.redo(publish.checkpoint_id, publish.change)
    taken = [column.name for column in target.kept_columns() if column.name in columns]
    if why := target.why_not_written(str(target.name), taken):
        raise InvalidRequest(why)
    listed = target.list_of(taken)
    target.execute(
        f"INSERT INTO {target.table()} ({listed}) {target.even_identities}SELECT {listed} FROM {shown.table()}"
    )
    if target.triggers:
        target.refuse_other_than(shown.table(), taken)
