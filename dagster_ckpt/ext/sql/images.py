"""Rows as they were before each publish and after it: two side tables of the user's table.

``<name>__dagster_ckpt_undo`` holds, for each publish, the rows that it changed as they were before it (keys that were
not there: ``_dagster_ckpt_was`` is 0), and nothing for a publish that only appended.
``<name>__dagster_ckpt_set_aside`` holds rows as it wrote them, which tells what others made of them, and as they were
when they left the table in a roll-back; with it a publish is done again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.sql.catalog import Existing
from dagster_ckpt.ext.sql.load import STAGED
from dagster_ckpt.ext.sql.names import RESERVED, SqlName
from dagster_ckpt.ext.sql.positions import Publish, RowChange, UndoPath
from dagster_ckpt.ext.sql.table import CHECKPOINT, TableTransaction

PUBLISH = "_dagster_ckpt_publish"
"""Checkpoint whose publish the row is kept for."""
WAS = "_dagster_ckpt_was"
"""1: the row was there; 0: only its key is meant."""
_T, _O, _S = f"{RESERVED}these", f"{RESERVED}others", f"{RESERVED}steps"
_PLACE, _RANK = f"{RESERVED}place", f"{RESERVED}rank"


class Images:
    """The side tables of one table, in its transaction."""

    def __init__(self, table: TableTransaction) -> None:
        self._table = table
        self._undo = table.name.with_suffix("undo")
        self._aside = table.name.with_suffix("set_aside")

    def fit(self) -> None:
        """Give the side tables the table's columns."""
        columns = self._table.kept_columns()
        if why := self.why_other_types():
            raise InvalidRequest(why)
        for name in (self._undo, self._aside):
            if self._table.exists(name):
                there = {column.name: column.type for column in self._table.columns(name)}
                missing = {column.name: column.type for column in columns if column.name not in there}
                self._table.add_columns(name, missing)
                self._fill(name, missing)
                for column in columns if self._is_postgres else ():
                    if there.get(column.name, column.type) != column.type:
                        changed = f"ALTER COLUMN {self._table.quoted(column.name)} TYPE {column.type}"
                        self._table.execute(f"ALTER TABLE {self._table.table(name)} {changed}")
                continue
            quoted = self._table.quoted
            self._table.execute(
                f"CREATE TABLE {self._table.table(name)} AS SELECT CAST(0 AS BIGINT) AS {quoted(PUBLISH)}, "
                f"CAST(0 AS SMALLINT) AS {quoted(WAS)}, {self._listed()} FROM {self._table.table()} WHERE 1 = 0"
            )
            self._table.execute(
                f"CREATE INDEX {quoted(name.generated('_index'))} ON {self._table.table(name)} ({quoted(PUBLISH)})"
            )

    def why_other_types(self) -> str:
        """Return why what is kept is no value of a column that others gave another kind of type; empty: it is.

        Where it is of one kind, what is kept is cast: a number that somebody made wider.
        """
        now = {column.name: column for column in self._table.kept_columns()}
        for name in (self._undo, self._aside):
            for was in self._table.columns(name):
                column = now.get(was.name, was)
                if column.category != was.category:
                    change = f"ALTER COLUMN {self._table.quoted(was.name)} TYPE {was.type} USING ..."
                    return (
                        f"column {was.name!r} of table {self._table.name} was {was.type} and was made {column.type} by "
                        f"somebody else: change it back (ALTER TABLE {self._table.table()} {change}), or change it in "
                        f"{self._undo} and {self._aside} in the same way"
                    )
        return ""

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

    def keep_written(self, checkpoint: int, change: RowChange, columns: Sequence[str]) -> None:
        """Write down the rows as a publish has left them; of appended ones the columns that were staged."""
        if change is RowChange.APPENDED:
            self._copy(STAGED, self._aside, checkpoint, columns=columns)
        else:
            self._copy(self._table.name, self._aside, checkpoint, self._written_by(checkpoint, change))

    def undo(self, checkpoint: int, change: RowChange) -> None:
        """Set aside what a publish wrote, and bring back what was there before it."""
        chosen = self._written_by(checkpoint, change)
        if change is not RowChange.UPSERTED:
            self._delete(self._aside, checkpoint)
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

    def is_as_written(self, publish: Publish, columns: Collection[str]) -> bool:
        """Tell whether the table, which shows it last, has its rows as it wrote them, by these columns."""
        alike = self._alike(columns)
        if len(alike) < len(columns):
            return False  # one is gone, or has another name: it would leave without its values
        listed = ", ".join(map(self._table.comparable, alike)) or "1"
        chosen = self._written_by(publish.checkpoint_id, publish.change)
        return not self._table.found(
            f"SELECT {listed} FROM {self._table.table(self._aside)} WHERE {self._is_of(publish.checkpoint_id)} EXCEPT "
            f"SELECT {listed} FROM {self._table.table()} AS {_T} {chosen} LIMIT 1"
        )

    @property
    def are_there(self) -> bool:
        """Whether nobody removed them."""
        return self._table.exists(self._undo) and self._table.exists(self._aside)

    def kept(self, name: SqlName, publishes: Iterable[Publish]) -> dict[int, int]:
        """Return how many rows a side table keeps of publishes."""
        numbers = [publish.checkpoint_id for publish in publishes]
        if not numbers or not self._table.exists(name):
            return {}
        number = self._table.quoted(PUBLISH)
        of = f"FROM {self._table.table(name)} WHERE {_one_of(numbers)}"
        return self._counts(f"SELECT {number}, count(*) {of} GROUP BY {number}")

    def written(self, publish: Publish) -> int:
        """Return of how many rows by key a publish keeps what was there before."""
        return self.kept(self._undo, [publish]).get(publish.checkpoint_id, 0)

    def incomplete(self, steps: UndoPath) -> int | None:
        """Return a publish of which somebody removed what these steps need from the side tables; None: of none."""
        before = [one for one in (*steps.undo, *steps.redo) if one.change is RowChange.UPSERTED]
        for name, needed in ((self._undo, before), (self._aside, steps.redo)):
            there = self.kept(name, needed)
            for one in needed:
                if one.rows is not None and there.get(one.checkpoint_id, 0) != one.rows:
                    return one.checkpoint_id
        return None

    def gone(self, publishes: Sequence[Publish], steps: UndoPath) -> tuple[int, int]:
        """Return a publish, shown after these steps, of which others removed rows, and how many; 0 rows: none."""
        shown, number = f"({self.query(steps)})", self._table.quoted(PUBLISH)
        lost: dict[int, int] = {}
        if upserted := _numbers(publishes, RowChange.UPSERTED):
            lost = self._counts(
                f"SELECT {number}, count(*) FROM {self._table.table(self._undo)} AS {_T} WHERE {_one_of(upserted)} "
                f"AND {self._is_in(f'{shown} AS {_O}')} IS NOT TRUE GROUP BY {number}"
            )
        if appended := _numbers(publishes, RowChange.APPENDED):
            mark = self._table.quoted(CHECKPOINT)
            there = self._counts(f"SELECT {mark}, count(*) FROM {shown} AS {_T} GROUP BY {mark}")
            wrote = {publish.checkpoint_id: publish.rows or 0 for publish in publishes}
            lost |= {one: wrote[one] - there.get(one, 0) for one in appended}
        for publish in publishes:
            if publish.change is RowChange.REPLACED:
                there_now = int(self._table.value(f"SELECT count(*) FROM {shown} AS {_T}"))
                lost[publish.checkpoint_id] = (publish.rows or 0) - there_now
        return next(((one, n) for one, n in sorted(lost.items(), reverse=True) if n > 0), (0, 0))

    def changed(self, written: Sequence[Publish], steps: UndoPath, columns: Collection[str]) -> str:
        """Return the row, shown after these steps, that is not as the newest of these publishes wrote it; empty: none.

        ``columns``: those that are compared.
        """
        if not written:
            return ""
        order = {one.checkpoint_id: -at for at, one in enumerate(written)}
        newest = self._newest([(self._aside, order)], order)
        return self._row_of(newest, "EXCEPT", self.query(steps), columns)

    def unmarked(self, appended: Sequence[Publish], columns: Collection[str]) -> str:
        """Return a row that one of these publishes wrote and that is there without its mark; empty: none is known."""
        mark = self._table.quoted(CHECKPOINT)
        there = self._counts(f"SELECT {mark}, count(*) FROM {self._table.table()} GROUP BY {mark}")
        lost = {one.checkpoint_id: 0 for one in appended if there.get(one.checkpoint_id, 0) < (one.rows or 0)}
        if not lost:
            return ""
        rest = f"SELECT * FROM {self._table.table()} WHERE {mark} IS NULL"
        return self._row_of(self._newest([(self._aside, lost)], lost), "INTERSECT", rest, columns)

    def _row_of(self, query: str, meets: str, other: str, columns: Collection[str]) -> str:
        """Return a row of what two queries make together, by these columns, for people; empty: there is none."""
        alike, key = self._alike(columns), self._table.key
        if not alike:
            return ""
        compared = ", ".join(
            self._table.quoted(name) if name in key else self._table.comparable(name) for name in alike
        )
        told = list(key) or alike[:3]
        # No join: databases would read all that is shown for every row, as SQLite makes no index of a query in two
        # parts, and PostgreSQL expects one row.
        found = self._table.found(
            f"SELECT {self._table.list_of(told)} FROM (SELECT {compared} FROM ({query}) AS {_T} {meets} "
            f"SELECT {compared} FROM ({other}) AS {_T}) AS {_O} LIMIT 1"
        )
        return ", ".join(f"{k} = {v!r:.60}" for k, v in zip(told, found[0], strict=True)) if found else ""

    def query(self, steps: UndoPath) -> str:
        """Return the query of the rows that the table would show after these steps, with the columns it has now.

        It is flat: one that is nested for each step goes too deep for a database.
        """
        done = [*((one, False) for one in steps.undo), *((one, True) for one in steps.redo)]
        at = max((n for n, (one, _) in enumerate(done) if one.change is RowChange.REPLACED), default=-1)
        taken = done[max(at, 0) :]
        order = {one.checkpoint_id: place for place, (one, _) in enumerate(taken)}
        left = _numbers([one for one, again in taken if not again], RowChange.APPENDED)
        undone = [one.checkpoint_id for one, again in taken if not again and one.checkpoint_id not in left]
        again = [one.checkpoint_id for one, again in taken if again]
        upserted = _numbers([one for one, _ in taken], RowChange.UPSERTED)
        parts = [] if at >= 0 else [self._untouched(upserted, left)]
        if undone or again:
            parts.append(self._newest([(self._undo, undone), (self._aside, again)], order, left))
        return " UNION ALL ".join(parts)

    def forget(self, checkpoints: Collection[int]) -> int:
        """Remove what is kept of these publishes."""
        removed = 0
        for checkpoint in checkpoints:
            removed += self._delete(self._undo, checkpoint) + self._delete(self._aside, checkpoint)
        return removed

    # --- parts ----------------------------------------------------------------------------------------------

    def _listed(self) -> str:
        return self._table.list_of([column.name for column in self._table.kept_columns()])

    def _alike(self, columns: Collection[str]) -> list[str]:
        there = {column.name for column in self._table.columns(self._aside)}
        return [c.name for c in self._table.kept_columns() if c.name in there and c.name in columns]

    def _counts(self, query: str) -> dict[int, int]:
        return {int(of): int(rows) for of, rows in self._table.found(query) if of is not None}

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

    def _untouched(self, upserted: Collection[int], left: Collection[int]) -> str:
        """Return the query of the table's rows that none of these publishes wrote."""
        chosen = ["1 = 1"]
        if upserted:
            chosen.append(f"{self._is_in(self._table.table(self._undo), _one_of(upserted))} IS NOT TRUE")
        if left:
            mark = f"{_T}.{self._table.quoted(CHECKPOINT)}"
            chosen.append(f"({mark} IN ({_listed(left)})) IS NOT TRUE")
        return f"SELECT {self._listed()} FROM {self._table.table()} AS {_T} WHERE {' AND '.join(chosen)}"

    def _newest(
        self,
        sources: Iterable[tuple[SqlName, Collection[int]]],
        order: Mapping[int, int],
        left: Collection[int] = (),
    ) -> str:
        """Return the query of what side tables keep of publishes: of each key the last in this order.

        ``left``: publishes whose appended rows have left since.
        """
        number = self._table.quoted(PUBLISH)
        kept = " UNION ALL ".join(self._kept(name, of) for name, of in sources if of)
        place = f"{_S}.column2"
        key = self._table.list_of(self._table.key, f"{_O}.")
        rank = f"row_number() OVER (PARTITION BY {key} ORDER BY {place} DESC)" if key else "1"
        ranked = (
            f"SELECT {_O}.*, {place} AS {_PLACE}, {rank} AS {_RANK} FROM ({kept}) AS {_O} "
            f"JOIN ({_pairs(order)}) AS {_S} ON {_S}.column1 = {_O}.{number}"
        )
        chosen = f"{_RANK} = 1 AND {self._table.quoted(WAS)} = 1"
        if left:
            later = {one: order[one] for one in left}
            chosen += (
                f" AND NOT EXISTS (SELECT 1 FROM ({_pairs(later)}) AS {_S} WHERE {_S}.column1 = "
                f"{_T}.{self._table.quoted(CHECKPOINT)} AND {_S}.column2 > {_T}.{_PLACE})"
            )
        return f"SELECT {self._listed()} FROM ({ranked}) AS {_T} WHERE {chosen}"

    def _kept(self, source: SqlName, checkpoints: Collection[int]) -> str:
        """Return the query of what a side table keeps of publishes; columns it has not are null."""
        there = {column.name: column.type for column in self._table.columns(source)}
        listed = ", ".join(
            self._cast(self._table.quoted(c.name) if c.name in there else "NULL", there.get(c.name), c)
            for c in self._table.kept_columns()
        )
        ours = self._table.list_of([PUBLISH, WAS])
        return f"SELECT {ours}, {listed} FROM {self._table.table(source)} WHERE {_one_of(checkpoints)}"

    def _cast(self, value: str, was: str | None, column: Existing) -> str:
        is_other = was != column.type and self._is_postgres
        return (
            f"{f'CAST({value} AS {column.type})' if is_other else value} AS {self._table.quoted(column.name)}"
        )

    @property
    def _is_postgres(self) -> bool:
        return self._table.dialect.name == "postgresql"

    def _has_key_of(self, other: str) -> str:
        quoted = self._table.quoted
        return " AND ".join(f"{other}.{quoted(column)} = {_T}.{quoted(column)}" for column in self._table.key)

    def _fill(self, name: SqlName, columns: Iterable[str]) -> None:
        """Give kept rows the values that the table has in columns that others added: a default is not null."""
        for column in map(self._table.quoted, columns if self._table.key else ()):
            self._table.execute(
                f"UPDATE {self._table.table(name)} AS {_T} SET {column} = (SELECT {_O}.{column} FROM "
                f"{self._table.table()} AS {_O} WHERE {self._has_key_of(_O)})"
            )

    def _copy(
        self,
        source: SqlName,
        target: SqlName,
        checkpoint: int,
        chosen: str = "",
        columns: Sequence[str] | None = None,
    ) -> None:
        quoted, listed = (
            self._table.quoted,
            self._listed() if columns is None else self._table.list_of(list(columns)),
        )
        self._table.execute(
            f"INSERT INTO {self._table.table(target)} ({quoted(PUBLISH)}, {quoted(WAS)}, {listed}) "
            f"SELECT {int(checkpoint)}, 1, {listed} FROM {self._table.table(source)} AS {_T} {chosen}"
        )

    def _keep_absent(self, checkpoint: int) -> None:
        key, quoted = self._table.list_of(self._table.key), self._table.quoted
        self._table.execute(
            f"INSERT INTO {self._table.table(self._undo)} ({quoted(PUBLISH)}, {quoted(WAS)}, {key}) "
            f"SELECT DISTINCT {int(checkpoint)}, 0, {key} FROM {self._table.table(STAGED)} AS {_T} "
            f"WHERE NOT EXISTS (SELECT 1 FROM {self._table.table()} AS {_O} WHERE {self._has_key_of(_O)})"
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


def _numbers(publishes: Sequence[Publish], change: RowChange) -> list[int]:
    return [publish.checkpoint_id for publish in publishes if publish.change is change]


def _listed(checkpoints: Iterable[int]) -> str:
    return ", ".join(str(int(checkpoint)) for checkpoint in checkpoints)


def _one_of(checkpoints: Iterable[int]) -> str:
    return f"{PUBLISH} IN ({_listed(checkpoints)})"


def _pairs(order: Mapping[int, int]) -> str:
    """Return a query of two columns, which databases call ``column1`` and ``column2``."""
    return "VALUES " + ", ".join(f"({int(checkpoint)}, {int(place)})" for checkpoint, place in order.items())
