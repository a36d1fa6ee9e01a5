"""Positions in the database: a row for each table that a pipeline writes, one for each publish that can be undone.

Both tables lie beside the user's table, in its schema: they are changed in the same transaction.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    MetaData,
    Table,
    Text,
    delete,
    insert,
    inspect,
    select,
    text,
    update,
)

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.sql.names import SqlName
from dagster_ckpt.spark.sink.port import SinkContext, SinkPosition

CHANGED = -1
"""Rows of a publish that left as others had made them: it is not done again."""


class RowChange(StrEnum):
    """Change of the rows that were there, by a publish."""

    APPENDED = "appended"
    UPSERTED = "upserted"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """One publish whose before-images are kept."""

    checkpoint_id: int
    parent: int | None
    """Publish that it was made on; None: on nothing."""
    parent_through: int | None
    """Last micro-batch shown before it."""
    through_batch: int | None
    change: RowChange
    key: tuple[str, ...] | None = None
    """Key that it went by; None: written before this was kept."""
    rows: int | None = None
    """Rows that it wrote, of which a restore finds out whether they are still there; None: their keys tell it."""
    lineage: str = ""
    """History that it is of: another deployment's has the same numbers."""

    def is_by(self, key: tuple[str, ...]) -> bool:
        """Tell whether it went by this key, whose columns have no order."""
        return self.key is None or sorted(self.key) == sorted(key)


@dataclass(frozen=True, slots=True)
class UndoPath:
    """Steps from one state to another."""

    undo: tuple[Publish, ...]
    redo: tuple[Publish, ...]
    through_batch: int | None
    """Last micro-batch that is shown at its end."""


Tree = Mapping[int, Publish]


def way(tree: Tree, start: int | None, end: int | None) -> UndoPath | None:
    """Return the way from one head to another, None being no rows; None when a step of it is not known."""
    up, down = _chain(tree, start), _chain(tree, end)
    mine, theirs = contained(tree, start), contained(tree, end)
    undo = [publish for publish in up if publish.checkpoint_id not in theirs]
    redo = [publish for publish in reversed(down) if publish.checkpoint_id not in mine]
    top = undo[-1].parent if undo else start
    bottom = redo[0].parent if redo else end
    if top != bottom:
        return None
    through = redo[-1].through_batch if redo else undo[-1].parent_through if undo else None
    return UndoPath(tuple(undo), tuple(redo), through)


def contained(tree: Tree, head: int | None) -> set[int]:
    """Return the publishes that a head contains, as far down as they are known."""
    return {publish.checkpoint_id for publish in _chain(tree, head)}


def is_below(tree: Tree, checkpoint: int, head: int | None) -> bool:
    """Tell whether a head was made on the rows of a checkpoint; one that is forgotten is below all, but nothing."""
    chain = _chain(tree, head)
    if head is None or checkpoint in tree:
        return checkpoint in contained(tree, head)
    return checkpoint == head or not chain or chain[-1].parent is not None


def no_longer_needed(tree: Tree, heads: Collection[int | None]) -> set[int]:
    """Return the publishes that lie on no way between two of these heads: all of them contain them."""
    chains = [contained(tree, head) for head in heads]
    return set.intersection(*chains) if chains else set()


def shown_publishes(tree: Tree, head: int | None) -> list[Publish]:
    """Return the publishes whose rows are all still there at a head, newest first: what replaces all is the last."""
    found = []
    for publish in _chain(tree, head):
        found.append(publish)
        if publish.change is RowChange.REPLACED:
            break
    return found


def other_key(publishes: Iterable[Publish], key: tuple[str, ...]) -> Publish | None:
    """Return the first publish that went by another key than this one; None: none did."""
    return next((one for one in publishes if one.change is RowChange.UPSERTED and not one.is_by(key)), None)


def wrote_rows(tree: Tree, head: int | None) -> bool:
    """Tell whether any rows were written up to a head; what is not kept may have written some."""
    chain = _chain(tree, head)
    return not chain or chain[-1].parent is not None or any(publish.rows != 0 for publish in chain)


def _chain(tree: Tree, head: int | None) -> list[Publish]:
    """Return the publishes that a head contains, newest first, as far down as they are known."""
    found = []
    while head is not None and head in tree:
        found.append(tree[head])
        head = tree[head].parent
    return found


_WORD, _PUBLISHES = "dagster_ckpt_positions", "dagster_ckpt_publishes"
_VERSION = 2
"""Of a publish as it is written down; 1: ``rows`` are those that were staged, of which some may have had one key."""
_FORK = 0
"""Number in ``dagster_ckpt_publishes`` of a fork's beginning, which nothing undoes."""
_BEFORE = -1
"""Likewise, of a note that others' rows were there before the sink's first position."""
_SHOWN = -2
"""Likewise, of the publish that is shown (``parent``) and its history: also where no before-images are kept."""


class Positions:
    """Positions of one schema, as one sink reads and writes them."""

    def __init__(self, name: SqlName, context: SinkContext, place: str) -> None:
        self._name, self._context, self._place = name, context, place
        self._metadata = MetaData(schema=name.schema or None)
        self._positions = Table(
            _WORD,
            self._metadata,
            Column("table_name", Text, primary_key=True),
            Column("pipeline", Text, nullable=False),
            Column("uid", Text, nullable=False),
            Column("lineage", Text, nullable=False),
            Column("epoch", BigInteger, nullable=False),
            Column("checkpoint_id", BigInteger),
            Column("head", BigInteger),
            Column("through_batch", BigInteger),
            Column("columns", Text, nullable=False, default="[]"),
        )
        self._publishes = Table(
            _PUBLISHES,
            self._metadata,
            Column("table_name", Text, primary_key=True),
            Column("checkpoint_id", BigInteger, primary_key=True, autoincrement=False),
            Column("parent", BigInteger),
            Column("parent_through", BigInteger),
            Column("through_batch", BigInteger),
            Column("change", Text, nullable=False),
            Column("rows", BigInteger),
            Column("key_columns", Text),
            Column("format_version", Integer, nullable=False, default=_VERSION),
        )
        self._kept = self._publishes.c

    # --- the position ---------------------------------------------------------------------------------------

    def read(self, connection: Connection) -> SinkPosition | None:
        """Return the position; None when this pipeline never wrote the table."""
        row = self._row(connection)
        return None if row is None or self._why_foreign(row) else _position(row)

    def why_foreign(self, connection: Connection) -> str:
        """Return why this pipeline may not write the table, which another one writes; empty: it may."""
        row = self._row(connection)
        return "" if row is None else self._why_foreign(row)

    def lock(self, connection: Connection) -> SinkPosition | None:
        """Return the position, which nobody else changes until the transaction ends.

        Raises InvalidRequest when the table belongs to another pipeline.
        """
        self._create(connection)
        row = self._row(connection, is_locked=True)
        if row is None:
            return None
        if why := self._why_foreign(row):
            raise InvalidRequest(why)
        self._refuse_sibling(row)
        return _position(row)

    def lock_any(self, connection: Connection) -> SinkPosition | None:
        """Return the table's position, whichever pipeline writes it, and let nobody change it meanwhile."""
        row = self._row(connection, is_locked=True)
        return None if row is None else _position(row)

    def columns(self, connection: Connection) -> frozenset[str]:
        """Return the columns that rows of the sink have had; others of the table are the user's own."""
        row = self._row(connection)
        return frozenset() if row is None else frozenset(parse_json(row.columns))

    def write(
        self, connection: Connection, position: SinkPosition, columns: Collection[str] | None = None
    ) -> None:
        """Make this the position; ``columns``: those that rows have had until now, where they are others."""
        values: dict[str, Any] = {
            "pipeline": self._context.pipeline,
            "uid": self._context.uid,
            "lineage": position.lineage,
            "epoch": position.epoch,
            "checkpoint_id": position.checkpoint_id,
            "head": position.head,
            "through_batch": position.through_batch,
        }
        if columns is not None:
            values["columns"] = json.dumps(sorted(columns))
        there = update(self._positions).where(self._positions.c.table_name == self._name.compared)
        if connection.execute(there.values(**values)).rowcount == 0:
            connection.execute(insert(self._positions).values(table_name=self._name.compared, **values))
        self._note_head(connection, position)

    # --- publishes that can be undone -----------------------------------------------------------------------

    def tree(self, connection: Connection) -> dict[int, Publish]:
        """Return the publishes that can be undone or done again."""
        if not self._has_publishes(connection):
            return {}
        mine = (self._kept.table_name == self._name.compared) & (self._kept.checkpoint_id > _FORK)
        found = connection.execute(select(self._publishes).where(mine))
        return {
            row.checkpoint_id: Publish(
                checkpoint_id=row.checkpoint_id,
                parent=row.parent,
                parent_through=row.parent_through,
                through_batch=row.through_batch,
                change=RowChange(row.change),
                rows=row.rows if row.format_version > 1 or not row.rows else None,
                **_told(row),
            )
            for row in found
        }

    def add(self, connection: Connection, publish: Publish) -> None:
        """Write down a publish; one of the same number is replaced."""
        self.forget(connection, {publish.checkpoint_id})
        connection.execute(
            insert(self._publishes).values(
                table_name=self._name.compared,
                checkpoint_id=publish.checkpoint_id,
                parent=publish.parent,
                parent_through=publish.parent_through,
                through_batch=publish.through_batch,
                change=publish.change.value,
                rows=publish.rows,
                key_columns=json.dumps({"key": publish.key, "lineage": publish.lineage}),
            )
        )

    def forget(self, connection: Connection, checkpoints: set[int]) -> None:
        """Remove publishes that nobody goes back over."""
        mine = self._kept.table_name == self._name.compared
        gone = self._kept.checkpoint_id.in_(sorted(checkpoints))
        connection.execute(delete(self._publishes).where(mine, gone))

    # --- notes that nothing undoes --------------------------------------------------------------------------

    def origin(self, connection: Connection) -> str:
        """Return the snapshot that a fork began with; empty: it is none, or has not begun."""
        return self._noted(connection, _FORK)

    def note_origin(self, connection: Connection, origin: str) -> None:
        """Write it down, in the transaction that brings its rows."""
        self._note(connection, _FORK, origin)

    def had_rows_before(self, connection: Connection) -> bool:
        """Tell whether others' rows were there before the sink's first position."""
        return bool(self._noted(connection, _BEFORE))

    def note_rows_before(self, connection: Connection) -> None:
        """Write down that they are, in the transaction that writes the first position."""
        self._note(connection, _BEFORE, "rows")

    def noted_head(self, connection: Connection) -> tuple[bool, int | None]:
        """Tell whether the table of publishes notes what is shown, and return that."""
        if not self._has_publishes(connection):
            return False, None
        mine = (self._kept.table_name == self._name.compared) & (self._kept.checkpoint_id == _SHOWN)
        row = connection.execute(select(self._kept.parent).where(mine)).one_or_none()
        return row is not None, None if row is None else row.parent

    def _note_head(self, connection: Connection, position: SinkPosition) -> None:
        """Write down what is shown, and whose history that is of: a publish's own, a new one's is the position's."""
        if self.noted_head(connection) != (True, position.head):
            lineage = next(iter(self.shown_by(connection, position.head)), position.lineage)
            told = json.dumps({"lineage": lineage})
            self._note(connection, _SHOWN, "shown", parent=position.head, key_columns=told)

    def shown_by(self, connection: Connection, head: int | None) -> set[str]:
        """Return the history whose publish has this number; empty: it is not known."""
        if head is None or not self._has_publishes(connection):
            return set()
        number = self._kept.checkpoint_id
        is_head = (number == head) | ((number == _SHOWN) & (self._kept.parent == head))
        mine = self._kept.table_name == self._name.compared
        found = select(self._kept.key_columns).where(mine, is_head)
        return {_told(row)["lineage"] for row in connection.execute(found) if "lineage" in _told(row)}

    def _noted(self, connection: Connection, number: int) -> str:
        mine = self._kept.table_name == self._name.compared
        found = select(self._kept.change).where(mine, self._kept.checkpoint_id == number)
        return str(connection.execute(found).scalar() or "")

    def _note(self, connection: Connection, number: int, text: str, **more: Any) -> None:
        self.forget(connection, {number})
        values = {"table_name": self._name.compared, "checkpoint_id": number, "change": text, **more}
        connection.execute(insert(self._publishes).values(**values))

    # --- parts ----------------------------------------------------------------------------------------------

    def _has_publishes(self, connection: Connection) -> bool:
        return inspect(connection).has_table(_PUBLISHES, schema=self._metadata.schema)

    def _row(self, connection: Connection, *, is_locked: bool = False) -> Any:
        if not inspect(connection).has_table(_WORD, schema=self._metadata.schema):
            return None
        mine = select(self._positions).where(self._positions.c.table_name == self._name.compared)
        return connection.execute(mine.with_for_update() if is_locked else mine).one_or_none()

    def _create(self, connection: Connection) -> None:
        if connection.dialect.name == "postgresql":
            # A row that is not there yet cannot be locked.
            connection.execute(
                text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": self._place}
            )
        there = inspect(connection)
        if not all(there.has_table(name, schema=self._metadata.schema) for name in (_WORD, _PUBLISHES)):
            self._metadata.create_all(connection)  # also one that somebody removed

    def _why_foreign(self, row: Any) -> str:
        if row.pipeline in self._context.pipelines:
            return ""
        return (
            f"{self._place} is written by pipeline {row.pipeline!r}: give {self._context.pipeline!r} a table of its "
            f"own, or, where it was renamed, name the old one (previous_names=[{row.pipeline!r}])"
        )

    def _refuse_sibling(self, row: Any) -> None:
        """Raise InvalidRequest where another sink of this very attempt has taken the table over.

        One that was renamed since finds an older attempt's row. Two spellings of one table are told by nothing else.
        """
        attempt = self._context.attempt()
        is_of_now = (row.lineage, row.epoch) == (attempt.lineage, attempt.epoch)
        if row.uid != self._context.uid and is_of_now:
            raise InvalidRequest(
                f"{self._place} is the table that sink {row.uid!r} writes, under another spelling: rows of the one "
                "would be taken for the other's. Give each sink a table of its own"
            )


def _position(row: Any) -> SinkPosition:
    return SinkPosition(
        lineage=row.lineage,
        epoch=row.epoch,
        checkpoint_id=row.checkpoint_id,
        head=row.head,
        through_batch=row.through_batch,
    )


def _told(row: Any) -> dict[str, Any]:
    """Return the key and history in a publish's row; of one that an older version wrote the key alone, or nothing."""
    told = parse_json(row.key_columns or "{}")
    told = told if isinstance(told, dict) else {"key": told}
    return told | {"key": None if told.get("key") is None else tuple(told["key"])}
