"""The rows of one state of a table; with the batches that a cut had prepared, where no state shows them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dagster_ckpt.errors import Corrupt, NotFound
from dagster_ckpt.spark.sink.committables import PreparedBatch, batches_with_rows, from_last_replacing
from dagster_ckpt.spark.sink.latest import latest_rows
from dagster_ckpt.spark.sink.plain_files import PlainFiles
from dagster_ckpt.spark.sink.port import SinkCut
from dagster_ckpt.spark.sink.rows import PublishedRows
from dagster_ckpt.spark.sink.versioned.backend import Backend, V
from dagster_ckpt.spark.sink.versioned.roll_back import shown_state
from dagster_ckpt.spark.sink.versioned.version import Version


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
