"""The rows of one version of a Delta table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_ckpt.errors import Corrupt, NotFound
from dagster_ckpt.spark.delta.lake import Version, reading
from dagster_ckpt.spark.delta.marks import version_of
from dagster_ckpt.spark.delta.publish import Writer, shown_files
from dagster_ckpt.spark.sink.committables import PreparedBatch
from dagster_ckpt.spark.sink.latest import latest_rows
from dagster_ckpt.spark.sink.port import SinkCut
from dagster_ckpt.spark.sink.rows import PublishedRows

if TYPE_CHECKING:
    from deltalake import DeltaTable


class DeltaRows(PublishedRows):
    """One version; with the batches that a cut had prepared, where no version shows them."""

    def __init__(
        self, writer: Writer, table: DeltaTable | None, prepared: tuple[PreparedBatch, ...] = ()
    ) -> None:
        super().__init__(writer.lake.uri, "" if table is None else str(table.version()))
        self._writer, self._table, self._prepared = writer, table, prepared

    def to_arrow(self) -> pa.Table:
        """Read the version's files."""
        files, replaces = shown_files(self._prepared)
        parts = [self._writer.staged.rows(file).replace_schema_metadata() for file in files]
        if self._table is not None and not replaces:
            parts.insert(0, self._of_version(self._table))
        if not parts:
            return pa.schema([]).empty_table()
        rows = pa.concat_tables(parts, promote_options="permissive")
        return latest_rows(rows, self._writer.key) if files and self._writer.key else rows

    def _of_version(self, table: DeltaTable) -> pa.Table:
        with reading(self.place):
            try:
                return table.to_pyarrow_table().replace_schema_metadata()
            except FileNotFoundError as error:
                raise Corrupt(
                    f"table {self.place} can no longer show version {self.version}: {error}. Choose a later "
                    "checkpoint, or load the newest rows"
                ) from error


def rows_of(writer: Writer, cut: SinkCut | None) -> PublishedRows:
    """Return the rows of the newest version, or of a cut. Raises NotFound, Corrupt."""
    version = writer.lake.load()
    if cut is None:
        if version is None:
            raise NotFound(f"there is no table at {writer.lake.uri} yet: it is made with the first rows")
        return DeltaRows(writer, version.table)
    batches = tuple(batch for batch in cut.batches if batch.files or batch.replaces)
    if version is None:
        if cut.snapshot.head is not None:
            raise Corrupt(f"there is no table at {writer.lake.uri}: it was removed, and the rows with it")
        return DeltaRows(writer, None, batches)
    whole = version_of(version.history, cut.checkpoint_id) if batches else None
    if whole is not None:
        return DeltaRows(writer, writer.lake.at(whole.version))
    return DeltaRows(writer, _at_head(version, cut.snapshot.head), batches)


def _at_head(version: Version, head: int | None) -> DeltaTable | None:
    lake, mark = version.lake, version.mark
    if head is None:
        return None if mark is None or mark.base is None else lake.at(mark.base)
    found = version_of(version.history, head)
    if found is None:
        raise Corrupt(
            f"the log of table {lake.uri} has no version that shows checkpoint {head}: it is older than "
            "delta.logRetentionDuration, or the table is another one. Choose a later checkpoint"
        )
    return lake.at(found.version)
