"""The tree of a table's publishes: ways from one to another, and what no way needs any more. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

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
