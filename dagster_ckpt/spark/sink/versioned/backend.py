"""Backend of a table format: the eight methods it gives the engine, of which one changes the table's rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from dagster_ckpt.spark.sink.committables import PreparedBatch
from dagster_ckpt.spark.sink.table_files import StagedFiles
from dagster_ckpt.spark.sink.versioned.columns import Column
from dagster_ckpt.spark.sink.versioned.marks import Mark
from dagster_ckpt.spark.sink.versioned.version import State, Version

V = TypeVar("V", bound=Version)


class Raced(Exception):
    """Somebody committed after the state that was read: read again, decide again."""


class Halfway(Raced):
    """A part of the change was committed, and its mark says so: read again, decide again."""


@dataclass(frozen=True, kw_only=True)
class OriginState:
    """A state of another table, whose rows a fork begins with."""

    source: Any
    """Backend of that table."""
    version: Any
    """The table as it was read."""
    number: int


@dataclass(frozen=True, kw_only=True)
class Change:
    """One step: everything in it becomes visible together, or in steps of which each leaves a state that marks tell."""

    mark: Mark
    """What is said of the state after it."""
    back_to: int | None = None
    """State that is gone back to first; None: the newest stays."""
    is_emptied: bool = False
    """All rows leave first."""
    between: Mark | None = None
    """What is said of the state after that, where it is one of its own."""
    aside: str = ""
    """At what the rows that leave can be read."""
    batches: Sequence[PreparedBatch] = ()
    """Batches whose rows are added, or merged by key, or replace all others."""
    copied: OriginState | None = None
    """Rows that replace all others."""
    properties: dict[str, str] = field(default_factory=dict)
    """Properties of the table that are set."""

    @property
    def goes_back(self) -> bool:
        """True where rows leave, or come back."""
        return self.back_to is not None or self.is_emptied


class Backend(Protocol[V]):
    """One table of one format, as one sink works on it."""

    @property
    def place(self) -> str:
        """The table, for people and checkpoints."""

    @property
    def staged(self) -> StagedFiles:
        """The table's staged files."""

    @property
    def key(self) -> tuple[str, ...]:
        """Key columns."""

    def load(self, *, reads_on: bool = False) -> V | None:
        """Return the table as it is, or None where there is none.

        ``reads_on``: from where the last caller let it go, if that is still the same.
        """

    def create(self, columns: Sequence[Column], mark: Mark) -> None:
        """Make the table, without rows, unless somebody did."""

    def columns(self, what: Sequence[str] | OriginState) -> list[Column]:
        """Return the columns of batches with these schemas together, as the format keeps them, or those of a table's
        state. Raises InvalidRequest for one that the format, or this sink, cannot have.
        """

    def refuse_unfit(self, version: V, columns: Sequence[Column]) -> None:
        """Raise InvalidRequest for rows with these columns, or a table that rows cannot be added to."""

    def commit(self, version: V, change: Change) -> str:
        """Commit on top of exactly this version; return the format's name of the new state.

        Raises Raced when this is no longer the newest version, Halfway when one step of several was made.
        """

    def read(self, version: V, number: int | None) -> pa.Table | None:
        """Return the rows of a state (None: of before the first one). Raises Corrupt where they are gone."""

    def refuse_lost(self, version: V, state: State | None) -> None:
        """Raise Corrupt, naming it, where a file of a state is gone (None: all rows leave); InvalidRequest where the
        table goes back to none.
        """

    def elsewhere(self, place: str) -> Backend[V]:
        """Return another table of the same format. Raises InvalidRequest where it cannot be reached from here."""
