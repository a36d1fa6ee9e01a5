"""Rows as they were before each publish, and rows that were set aside: two side tables of the user's table.

``<name>__dagster_ckpt_undo`` holds, for each publish, the rows that it changed as they were before it (keys that were
not there: ``_dagster_ckpt_was`` is 0), and nothing for a publish that only appended.
``<name>__dagster_ckpt_set_aside`` holds what left the table in a roll-back; with it a publish is done again.
"""

from __future__ import annotations

from collections.abc import Collection

from dagster_ckpt.ext.sql.history import Publish, RowChange, UndoPath
from dagster_ckpt.ext.sql.load import STAGED
from dagster_ckpt.ext.sql.names import RESERVED, SqlName
from dagster_ckpt.ext.sql.table import CHECKPOINT, TableTransaction

PUBLISH = "_dagster_ckpt_publish"
"""Checkpoint whose publish the row is kept for."""
WAS = "_dagster_ckpt_was"
"""1: the row was there; 0: only its key is meant."""
_T, _O = f"{RESERVED}these", f"{RESERVED}others"


class Images:
    """The side tables of one table, in its transaction."""

    def __init__(self, table: TableTransaction) -> None:
        self._table = table
        self._undo = table.name.with_suffix("undo")
        self._aside = table.name.with_suffix("set_aside")

    def fit(self) -> None:
        """Give the side tables the table's columns."""
        columns = self._table.kept_columns()
        for name in (self._undo, self._aside):
            if self._table.exists(name):
                there = {column.name for column in self._table.columns(name)}
                self._table.add_columns(name, {c.name: c.type for c in columns if c.name not in there})
                continue
            quoted = self._table.quoted
            self._table.execute(
                f"CREATE TABLE {self._table.table(name)} AS SELECT CAST(0 AS BIGINT) AS {quoted(PUBLISH)}, "
                f"CAST(0 AS SMALLINT) AS {quoted(WAS)}, {self._listed()} FROM {self._table.table()} WHERE 1 = 0"
            )
            self._table.execute(
                f"CREATE INDEX {quoted(name.generated('_index'))} ON {self._table.table(name)} ({quoted(PUBLISH)})"
            )

    def keep(self, checkpoint: int, change: RowChange) -> None:
        """Write down the rows that the staged ones, or all new ones, are about to change."""
        self.forget([checkpoint])
        match change:
            case RowChange.APPENDED:
                return
            case RowChange.REPLACED:
                self._copy(self._table.name, self._undo, checkpoint)
            case RowChange.UPSERTED:
                self._copy(
                    self._table.name,
                    self._undo,
                    checkpoint,
                    f"WHERE {self._is_in(self._table.table(STAGED))}",
                )
                self._keep_absent(checkpoint)

    def undo(self, checkpoint: int, change: RowChange) -> None:
        """Set aside what a publish wrote, and bring back what was there before it."""
        self._delete(self._aside, checkpoint)
        chosen = self._written_by(checkpoint, change)
        self._copy(self._table.name, self._aside, checkpoint, chosen)
        self._table.execute(f"DELETE FROM {self._table.table()} AS {_T} {chosen}")
        if change is not RowChange.APPENDED:
            self._bring(self._undo, checkpoint, f"AND {self._table.quoted(WAS)} = 1")

    def redo(self, checkpoint: int, change: RowChange) -> None:
        """Bring back what a publish had written."""
        if change is not RowChange.APPENDED:
            self._table.execute(
                f"DELETE FROM {self._table.table()} AS {_T} {self._written_by(checkpoint, change)}"
            )
        self._bring(self._aside, checkpoint, "")
        self._delete(self._aside, checkpoint)

    def gone(self, publish: Publish, steps: UndoPath) -> int:
        """Return how many rows of a publish, shown after these steps, are not there then: others removed them."""
        shown, number = f"({self.query(steps)})", publish.checkpoint_id
        if publish.change is RowChange.UPSERTED:
            chosen = f"WHERE {self._is_of(number)} AND NOT {self._is_in(f'{shown} AS {_O}')}"
            return self._count(self._table.table(self._undo), chosen)
        there = self._count(shown, self._written_by(number, publish.change))
        return max((publish.rows or 0) - there, 0)

    def query(self, steps: UndoPath) -> str:
        """Return the query of the rows that the table would show after these steps, with the columns it has now."""
        found = f"SELECT {self._listed()} FROM {self._table.table()}"
        for publish in steps.undo:
            number, is_append = publish.checkpoint_id, publish.change is RowChange.APPENDED
            kept = self._left_by(found, number, publish.change)
            found = kept if is_append else self._with(kept, self._undo, number)
        for publish in steps.redo:
            number, is_append = publish.checkpoint_id, publish.change is RowChange.APPENDED
            kept = found if is_append else self._left_by(found, number, publish.change)
            found = self._with(kept, self._aside, number)
        return found

    def forget(self, checkpoints: Collection[int]) -> int:
        """Remove what is kept of these publishes."""
        removed = 0
        for checkpoint in checkpoints:
            removed += self._delete(self._undo, checkpoint) + self._delete(self._aside, checkpoint)
        return removed

    # --- parts ----------------------------------------------------------------------------------------------

    def _listed(self) -> str:
        return self._table.list_of([column.name for column in self._table.kept_columns()])

    def _count(self, rows: str, chosen: str) -> int:
        return int(self._table.value(f"SELECT count(*) FROM {rows} AS {_T} {chosen}"))

    def _is_of(self, checkpoint: int) -> str:
        return f"{self._table.quoted(PUBLISH)} = {int(checkpoint)}"

    def _is_in(self, other: str, condition: str = "1 = 1") -> str:
        # Not EXISTS: SQLite would read the whole of the other table, which has no index, for every row.
        key = self._table.list_of(self._table.key)
        mine = self._table.list_of(self._table.key, f"{_T}.")
        return f"({mine}) IN (SELECT {key} FROM {other} WHERE {condition})"

    def _written_by(self, checkpoint: int, change: RowChange) -> str:
        match change:
            case RowChange.APPENDED:
                return f"WHERE {_T}.{self._table.quoted(CHECKPOINT)} = {int(checkpoint)}"
            case RowChange.REPLACED:
                return ""
            case RowChange.UPSERTED:
                return f"WHERE {self._is_in(self._table.table(self._undo), self._is_of(checkpoint))}"

    def _left_by(self, rows: str, checkpoint: int, change: RowChange) -> str:
        """Return the query of those of some rows that a publish did not write."""
        mark = f"{_T}.{self._table.quoted(CHECKPOINT)}"
        match change:
            case RowChange.APPENDED:
                chosen = f"({mark} IS NULL OR {mark} <> {int(checkpoint)})"
            case RowChange.REPLACED:
                chosen = "1 = 0"
            case RowChange.UPSERTED:
                chosen = f"NOT {self._is_in(self._table.table(self._undo), self._is_of(checkpoint))}"
        return f"SELECT {self._listed()} FROM ({rows}) AS {_T} WHERE {chosen}"

    def _with(self, rows: str, source: SqlName, checkpoint: int) -> str:
        """Return the query of some rows and of what a side table keeps of a publish; columns it has not are null."""
        there = {column.name for column in self._table.columns(source)}
        columns = (column.name for column in self._table.kept_columns())
        listed = ", ".join(self._table.quoted(name) if name in there else "NULL" for name in columns)
        return (
            f"{rows} UNION ALL SELECT {listed} FROM {self._table.table(source)} "
            f"WHERE {self._is_of(checkpoint)} AND {self._table.quoted(WAS)} = 1"
        )

    def _copy(self, source: SqlName, target: SqlName, checkpoint: int, chosen: str = "") -> None:
        quoted, listed = self._table.quoted, self._listed()
        self._table.execute(
            f"INSERT INTO {self._table.table(target)} ({quoted(PUBLISH)}, {quoted(WAS)}, {listed}) "
            f"SELECT {int(checkpoint)}, 1, {listed} FROM {self._table.table(source)} AS {_T} {chosen}"
        )

    def _keep_absent(self, checkpoint: int) -> None:
        key, quoted = self._table.list_of(self._table.key), self._table.quoted
        same = " AND ".join(f"{_O}.{quoted(column)} = {_T}.{quoted(column)}" for column in self._table.key)
        self._table.execute(
            f"INSERT INTO {self._table.table(self._undo)} ({quoted(PUBLISH)}, {quoted(WAS)}, {key}) "
            f"SELECT DISTINCT {int(checkpoint)}, 0, {key} FROM {self._table.table(STAGED)} AS {_T} "
            f"WHERE NOT EXISTS (SELECT 1 FROM {self._table.table()} AS {_O} WHERE {same})"
        )

    def _bring(self, source: SqlName, checkpoint: int, condition: str) -> None:
        listed = self._listed()
        self._table.execute(
            f"INSERT INTO {self._table.table()} ({listed}) {self._table.even_identities}SELECT {listed} "
            f"FROM {self._table.table(source)} WHERE {self._is_of(checkpoint)} {condition}"
        )

    def _delete(self, name: SqlName, checkpoint: int) -> int:
        done = self._table.execute(f"DELETE FROM {self._table.table(name)} WHERE {self._is_of(checkpoint)}")
        return int(done.rowcount)
