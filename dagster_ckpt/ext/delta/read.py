"""The rows of one version of a Delta table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_ckpt.errors import Corrupt, NotFound
from dagster_ckpt.ext.delta.lake import Version, reading
from dagster_ckpt.ext.delta.marks import version_of
from dagster_ckpt.ext.delta.publish import Writer
from dagster_ckpt.spark.sink.committables import PreparedBatch, batches_with_rows
from dagster_ckpt.spark.sink.log_table import LogTableRows
from dagster_ckpt.spark.sink.port import SinkCut
from dagster_ckpt.spark.sink.rows import PublishedRows

if TYPE_CHECKING:
    from deltalake import DeltaTable


class DeltaRows(LogTableRows):
    """One version; with the batches that a cut had prepared, where no version shows them."""

    def __init__(
        self, writer: Writer, table: DeltaTable | None, prepared: tuple[PreparedBatch, ...] = ()
    ) -> None:
        super().__init__(writer.lake.uri, "" if table is None else str(table.version()), writer, prepared)
        self._table = table

    def of_table(self) -> pa.Table | None:
        """Read the version's files."""
        if self._table is None:
            return None
        with reading(self.place):
            try:
                return self._table.to_pyarrow_table().replace_schema_metadata()
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
    batches = batches_with_rows(cut.batches)
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
