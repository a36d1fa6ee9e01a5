"""The rows of one state of a table, with batches that a cut had prepared where no state shows them; how many differ."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dagster_ckpt.errors import Corrupt, NotFound
from dagster_ckpt.spark.sink.committables import (
    PreparedBatch,
    batches_with_rows,
    from_last_replacing,
    shown_files,
)
from dagster_ckpt.spark.sink.latest import latest_rows
from dagster_ckpt.spark.sink.plain_files import PlainFiles
from dagster_ckpt.spark.sink.port import Difference, SinkCut
from dagster_ckpt.spark.sink.rows import PublishedRows
from dagster_ckpt.spark.sink.versioned.backend import Backend, V
from dagster_ckpt.spark.sink.versioned.marks import text_of_key
from dagster_ckpt.spark.sink.versioned.roll_back import shown_state
from dagster_ckpt.spark.sink.versioned.version import State, Version


class VersionedRows(PublishedRows):
    """One state, and batches on top of it."""

    def __init__(
        self,
        backend: Backend[Any],
        version: Version | None,
        number: int | None = None,
        prepared: tuple[PreparedBatch, ...] = (),
    ) -> None:
        super().__init__(backend.place, "" if number is None else str(number))
        self._backend, self._version, self._number, self._prepared = backend, version, number, prepared

    def files(self) -> PlainFiles | None:
        """Return the state's files, where no batch has to be added."""
        if self._version is None or self._number is None or self._prepared:
            return None
        return self._version.files_at(self._number)

    def to_arrow(self) -> pa.Table:
        """Read the state's files, and those that the cut had prepared."""
        batches, replaces = from_last_replacing(self._prepared)
        parts = staged = self._backend.staged.rows_of_batches(batches)
        if not replaces and self._version is not None:
            committed = self._backend.read(self._version, self._number)
            parts = parts if committed is None else [committed, *parts]
        if not parts:
            return pa.schema([]).empty_table()
        rows = pa.concat_tables(parts, promote_options="permissive")
        return latest_rows(rows, self._backend.key) if staged and self._backend.key else rows


def rows_of(backend: Backend[V], cut: SinkCut | None) -> PublishedRows:
    """Return the rows that readers find, or those of a cut. Raises NotFound, Corrupt."""
    version = backend.load()
    if cut is None:
        if version is None:
            raise NotFound(f"there is no table at {backend.place} yet: it is made with the first rows")
        return VersionedRows(backend, version, version.number)
    head = cut.snapshot.head
    batches = batches_with_rows(cut.batches)
    if version is None:
        if head is not None:
            raise Corrupt(f"there is no table at {backend.place}: it was removed, and the rows with it")
        return VersionedRows(backend, None, None, batches)
    whole = version.showing(cut.checkpoint_id) if batches else None
    if whole is not None:
        return VersionedRows(backend, version, whole.number)
    if head is None:
        return VersionedRows(backend, version, version.mark.base if version.mark else None, batches)
    return VersionedRows(backend, version, shown_state(version, head).number, batches)


def difference(backend: Backend[Any], cut: SinkCut) -> Difference | None:
    """Return how many rows the table shows, and how many at the cut; None: its metadata does not tell.

    Raises Corrupt where rows of the cut are gone.
    """
    version: Version | None = backend.load()
    batches = batches_with_rows(cut.batches)
    whole = version.showing(cut.checkpoint_id) if version is not None and batches else None
    prepared, replaces = shown_files(() if whole is not None else batches)
    backend.staged.refuse_changed(prepared)
    then = whole or _at_head(backend, version, cut.snapshot.head)
    if version is not None and then is not None:
        backend.refuse_lost(version, then)
    now = 0 if version is None or version.number is None else version.rows_at(version.number)
    kept = 0 if then is None or version is None or replaces else version.rows_at(then.number)
    if now is None or kept is None:
        return None
    mark = None if version is None else version.mark
    shown = None if mark is None else mark.head
    return Difference(
        is_same=not prepared and shown == (None if then is None or then.mark is None else then.mark.head),
        by_key=mark is not None and mark.key not in ("", text_of_key(())),
        rows_now=now,
        rows_then=kept + sum(file.rows for file in prepared),
    )


def _at_head(backend: Backend[Any], version: Version | None, head: int | None) -> State | None:
    if head is None:
        return None
    found = None if version is None else version.showing(head)
    if found is None:
        raise Corrupt(
            f"table {backend.place} does not tell of checkpoint {head}: it was removed, or is another one, or keeps "
            "less than the snapshots. Bring it back from a backup, or choose a later checkpoint"
        )
    return found
