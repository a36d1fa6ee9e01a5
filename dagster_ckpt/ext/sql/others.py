"""Others at work on a table's rows: what a restore would miss of ours, or overwrite of theirs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import takewhile

from dagster_ckpt.core.units import counted
from dagster_ckpt.ext.sql.history import Publish, RowChange, Tree, UndoPath, other_key, shown_publishes, way
from dagster_ckpt.ext.sql.images import Images
from dagster_ckpt.ext.sql.table import TableTransaction
from dagster_ckpt.spark.sink.positions import named

_STAY = UndoPath((), (), None)
_OR = "keep the rows (roll_back_tables: false), or begin without state (restore_from: none)"


class OthersAtWork:
    """A table whose before-images are kept, in a transaction that reads it."""

    def __init__(self, table: TableTransaction, tree: Tree, place: str, had: Collection[str]) -> None:
        """``had``: columns that rows of the sink have had; others of the table are the user's own."""
        self._tree, self._place, self._table, self._had = tree, place, table, had
        self._images = Images(table)

    def why_not(self, shown: int, head: int | None) -> str:
        """Return why the table cannot go from what it shows to a head, because of others; empty: it can."""
        steps = (way(self._tree, shown, head) if head != shown else None) or _STAY
        if why_other_key(self._place, steps, self._table.key):
            return ""  # there is no way, which is told of them all
        if self._shown(shown) and not self._images.are_there:
            return why_removed("tables with what its publishes have changed are gone", self._place)
        if why := self._images.why_other_types():
            return f"{why}, {_OR}"
        ways = {shown: _STAY, **({} if head is None or steps is _STAY else {head: steps})}
        for at, path in ways.items():
            number, rows = self._images.gone(self._shown(at), path)
            if rows:
                return why_removed(
                    f"{counted(rows, 'row')} that checkpoint {number} published are gone", self._place
                )
        return self._why_changed(steps, head)

    def _shown(self, head: int | None) -> list[Publish]:
        """Return the publishes shown at a head, without those by another key: theirs are not found by this one."""
        return [one for one in shown_publishes(self._tree, head) if not other_key([one], self._table.key)]

    def _why_changed(self, steps: UndoPath, head: int | None) -> str:
        """Say so of a row that the way would overwrite, or that would not be as our publishes wrote it."""
        newest = list(takewhile(lambda one: one.change is not RowChange.REPLACED, steps.undo))
        is_by_key = all(one.change is RowChange.UPSERTED for one in newest)
        all_columns = {column.name for column in self._table.columns()}
        there = self._table.name.with_suffix("set_aside")
        if row := self._images.changed(newest, _STAY, all_columns if is_by_key else self._had):
            return (
                f"the row with {row} of {self._place} was changed by somebody else, which going back to {named(head)} "
                f"would undo: give it the values again that {there} has, {_OR}"
            )
        shown = takewhile(
            lambda one: not other_key([one], self._table.key), shown_publishes(self._tree, head)
        )
        if row := self._images.changed(list(shown), steps, self._had):
            return (
                f"the row with {row} of {self._place} was changed by somebody else and would not be as {named(head)} "
                f"showed it: give it the values again that {there} has, choose another checkpoint, {_OR}"
            )
        return ""


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


def why_columns_gone(
    place: str, publishes: Iterable[Publish], had: Collection[str], table: TableTransaction, *, is_cut: bool
) -> str:
    """Return why rows cannot be taken back, or a cut's be shown, in a table whose columns others renamed or removed.

    Rows are found by their key, and a column that is spelled another way is the side tables' own one to SQLite.
    """
    there = {column.name for column in table.columns()}
    keys = {column for publish in publishes for column in publish.key or ()}
    spelled = {column.lower() for column in there}
    lost = sorted(one for one in {*had} - {*there} if one in keys or one.lower() in spelled)
    if lost:
        return (
            f"columns {lost}, by which the rows of {place} are taken back, were renamed or removed by somebody else: "
            "give them their names again (ALTER TABLE ... RENAME COLUMN), keep the rows (roll_back_tables: false), or "
            "name another table"
        )
    gone = sorted({*had} - there) if is_cut else []
    return why_removed(f"columns {gone} are gone", place) if gone else ""


def why_no_steps(table: TableTransaction, steps: UndoPath, had: Collection[str], place: str) -> str:
    """Return why a way cannot be gone because of what somebody removed, or made of the table; empty: it can."""
    if why := table.why_not_written(place, had):
        return why
    images = Images(table)
    lost = images.incomplete(steps)
    if lost is None:
        return images.why_other_types()
    return why_removed(f"what checkpoint {lost} has changed is gone", place)


def why_removed(what: str, place: str) -> str:
    """Return the refusal of a restore that would miss rows or columns."""
    return f"{what} from {place}, which somebody else removed: bring them back, {_OR}"
