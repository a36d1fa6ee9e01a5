"""Others at work on a table's rows: what a restore, a fork or a reader would miss of ours, or overwrite of theirs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import takewhile

from dagster_ckpt.core.units import counted
from dagster_ckpt.ext.sql.images import Images
from dagster_ckpt.ext.sql.positions import (
    Positions,
    Publish,
    RowChange,
    UndoPath,
    other_key,
    shown_publishes,
    way,
    wrote_rows,
)
from dagster_ckpt.ext.sql.table import CHECKPOINT, TableTransaction
from dagster_ckpt.spark.sink.positions import named

_STAY = UndoPath((), (), None)
_OF_RESTORE = "keep the rows (roll_back_tables: false), or begin without state (restore_from: none)"


class OthersAtWork:
    """A table and its publishes, in a transaction that reads them."""

    def __init__(
        self, table: TableTransaction, positions: Positions, place: str, *, otherwise: str = _OF_RESTORE
    ) -> None:
        """``otherwise``: what to do where what was changed is not brought back."""
        self._table, self._place, self._or = table, place, otherwise
        self._tree = positions.tree(table.connection)
        self._noted = positions.noted_head(table.connection)
        self._had: Collection[str] = positions.columns(table.connection)
        """Columns that rows of the sink have had; others of the table are the user's own."""
        self._images = Images(table)

    # --- a way from one head to another ---------------------------------------------------------------------

    def why_no_way(self, steps: UndoPath, *, is_cut: bool) -> str:
        """Return why it cannot be gone, because of what somebody removed, renamed or retyped; empty: it can."""
        lost = self._images.incomplete(steps)
        if lost is not None:
            return self._removed(f"what checkpoint {lost} has changed is gone")
        why = self._images.why_other_types() or self._why_columns_gone(
            (*steps.undo, *steps.redo), is_cut=is_cut
        )
        if why or is_cut:
            return why or why_other_key(self._place, steps, self._table.key)
        appended = list(takewhile(lambda one: one.change is RowChange.APPENDED, steps.undo))
        if appended and (row := self._images.unmarked(appended, self._had)):
            return (
                f"the row with {row} of {self._place} was published, and its value in the column {CHECKPOINT}, by "
                "which it is taken back, is gone: empty the table (DELETE FROM), or name another table"
            )
        return ""

    def why_not_written(self) -> str:
        """Return why rows that come back would not be there as they were; empty: nothing is known to."""
        return self._table.why_not_written(self._place, self._had)

    # --- rows -----------------------------------------------------------------------------------------------

    def why_of_other_moments(self, shown: int | None) -> str:
        """Return why the position that shows this is not of the same moment as the rows, or as what is kept of them;
        empty: it may be.
        """
        if not self._table.exists():
            return ""
        marks = [f"max({self._table.quoted(c.name)})" for c in self._table.columns() if c.name == CHECKPOINT]
        newest = self._table.value(f"SELECT {marks[0]} FROM {self._table.table()}") if marks else None
        is_noted, head = self._noted
        if int(newest or 0) <= (shown or 0) and (not is_noted or head == shown):
            return ""
        other = (
            f"rows of checkpoint {newest}"
            if int(newest or 0) > (shown or 0)
            else f"publishes up to {named(head)}"
        )
        return (
            f"{self._place} has {other}, and its row of dagster_ckpt_positions, which shows {named(shown)}, is of "
            "another moment: load all tables of one backup, or drop this one with those beside it and begin without "
            "state (restore_from: none)"
        )

    def why_not_read(self, steps: UndoPath, shown: int | None, head: int, *, is_complete: bool) -> str:
        """Return why the rows of a head are not found as they were, in a table that shows another, by these steps."""
        why = self.why_of_other_moments(shown) or self.why_no_way(steps, is_cut=True)
        if why or shown is None:
            return why
        return self.why_not_shown(shown, head, is_complete=is_complete, is_read=True)

    def why_not_shown(self, shown: int, head: int | None, *, is_complete: bool, is_read: bool = False) -> str:
        """Return why the table, which shows a head, would not show another as it was, because of others; empty: it
        would. ``is_complete``: a publish without rows empties it; ``is_read``: nothing is changed.
        """
        has_to_show = self._had and not is_complete and wrote_rows(self._tree, shown)
        if has_to_show and not self._table.has_rows():
            return self._removed(f"all rows up to checkpoint {shown} are gone")
        if why := self._why_columns_gone(self._tree.values(), is_cut=True):
            return why
        steps = (way(self._tree, shown, head) if head != shown else None) or _STAY
        if not self._shown(shown) or why_other_key(self._place, steps, self._table.key):
            return ""  # nothing is kept to compare it with, or there is no way, which is told of them all
        return self._why_not_kept(steps, shown, head, is_read) or self._why_changed(steps, head, is_read)

    def _why_not_kept(self, steps: UndoPath, shown: int, head: int | None, is_read: bool) -> str:
        """Say so where rows of ours are gone, or what is kept of them."""
        if not self._images.are_there:
            return self._removed("tables with what its publishes have changed are gone")
        if why := self._images.why_other_types():
            return f"{why}, {self._or}"
        ways = {} if is_read else {shown: _STAY}
        if head is not None:
            ways[head] = steps
        for at, path in ways.items():
            number, rows = self._images.gone(self._shown(at), path)
            if rows:
                return self._removed(f"{counted(rows, 'row')} that checkpoint {number} published are gone")
        return ""

    def _shown(self, head: int | None) -> list[Publish]:
        """Return the publishes shown at a head, without those by another key: theirs are not found by this one."""
        return [one for one in shown_publishes(self._tree, head) if not other_key([one], self._table.key)]

    def _why_changed(self, steps: UndoPath, head: int | None, is_read: bool) -> str:
        """Say so of a row that the way would overwrite, or that would not be as our publishes wrote it."""
        newest = list(takewhile(lambda one: one.change is not RowChange.REPLACED, steps.undo))
        is_by_key = all(one.change is RowChange.UPSERTED for one in newest)
        all_columns = {column.name for column in self._table.columns()}
        there = self._table.name.with_suffix("set_aside")
        overwritten = () if is_read else newest
        if row := self._images.changed(overwritten, _STAY, all_columns if is_by_key else self._had):
            return (
                f"the row with {row} of {self._place} was changed by somebody else, which going back to {named(head)} "
                f"would undo: give it the values again that {there} has, {self._or}"
            )
        shown = takewhile(
            lambda one: not other_key([one], self._table.key), shown_publishes(self._tree, head)
        )
        if row := self._images.changed(list(shown), steps, self._had):
            return (
                f"the row with {row} of {self._place} was changed by somebody else and would not be as {named(head)} "
                f"showed it: give it the values again that {there} has, choose another checkpoint, {self._or}"
            )
        return ""

    # --- columns --------------------------------------------------------------------------------------------

    def _why_columns_gone(self, publishes: Iterable[Publish], *, is_cut: bool) -> str:
        """Return why rows cannot be taken back, or a cut's be shown, where others renamed or removed columns.

        Rows are found by their key, or by the checkpoint that appended them, and a column that is spelled another way
        is the side tables' own one to SQLite.
        """
        there = {column.name for column in self._table.columns()}
        found_by = {
            column
            for publish in publishes
            for column in ((CHECKPOINT,) if publish.change is RowChange.APPENDED else publish.key or ())
        }
        spelled = {column.lower() for column in there}
        gone = {*self._had} - there
        lost = sorted((found_by - there) | {one for one in gone if one.lower() in spelled})
        if lost:
            return (
                f"columns {lost}, by which the rows of {self._place} are taken back, were renamed or removed by "
                f"somebody else: give them their names again (ALTER TABLE ... RENAME COLUMN), {self._or}"
            )
        return self._removed(f"columns {sorted(gone)} are gone") if gone and is_cut else ""

    def _removed(self, what: str) -> str:
        return f"{what} from {self._place}, which somebody else removed: bring them back, {self._or}"


def why_other_key(place: str, steps: UndoPath, key: tuple[str, ...]) -> str:
    """Return why no cut is gone to over publishes by another key than the sink's; empty: there are none."""
    other = other_key((*steps.undo, *steps.redo), key)
    if other is None or other.key is None:
        return ""
    return (
        f"the rows of checkpoint {other.checkpoint_id} went to {place} by the key {list(other.key)}, and the sink has "
        f"{f'the key {list(key)}' if key else 'none'} now: choose a later checkpoint, give it that key again, or begin "
        "without state (restore_from: none)"
    )
