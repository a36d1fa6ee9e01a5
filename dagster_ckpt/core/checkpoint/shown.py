"""Pointer to the checkpoint that all tables of a pipeline show, by which readers of several tables go.

Tables are published one after the other; the pointer moves, with the record's compare-and-set, once all of them were.
"""

from __future__ import annotations

from typing import NamedTuple

from pydantic import Field

from dagster_ckpt.core.model import Record, TableSnapshot


class ShownTable(Record):
    """One table as the pointer has it."""

    uri: str
    """Where its rows are."""
    head: int | None = None
    """Checkpoint whose publish it shows, by the sink's own number; None: no rows of any."""

    def as_cut(self) -> TableSnapshot:
        """Return the shown table as a cut, by which sinks read and keep its rows."""
        return TableSnapshot(uri=self.uri, head=self.head)


class ShownTables(Record):
    """Tables of one moment: those whose rows are published with checkpoints, by the uid of their sink."""

    checkpoint_id: int | None = None
    """Newest checkpoint that every one of them shows; None: they show none, the pipeline began without state."""
    tables: dict[str, ShownTable] = Field(default_factory=dict)
    """Empty: no table waits for checkpoints."""


class Moved(NamedTuple):
    """The pointer has moved, or what it points at was told for the first time."""

    before: ShownTables | None
    after: ShownTables
