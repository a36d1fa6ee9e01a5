"""The rows of one snapshot of an Iceberg table."""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.table import DataScan

from dagster_ckpt.errors import Corrupt, NotFound
from dagster_ckpt.ext.iceberg.lake import reading
from dagster_ckpt.ext.iceberg.publish import Writer
from dagster_ckpt.ext.iceberg.version import Version
from dagster_ckpt.spark.sink.committables import PreparedBatch, batches_with_rows
from dagster_ckpt.spark.sink.log_table import LogTableRows
from dagster_ckpt.spark.sink.port import SinkCut
from dagster_ckpt.spark.sink.rows import PublishedRows


class IcebergRows(LogTableRows):
    """One snapshot; with the batches that a cut had prepared, where no snapshot shows them."""

    def __init__(
        self,
        writer: Writer,
        version: Version | None,
        snapshot: int | None,
        prepared: tuple[PreparedBatch, ...] = (),
    ) -> None:
        super().__init__(writer.lake.place, "" if snapshot is None else str(snapshot), writer, prepared)
        self._read, self._snapshot = version, snapshot

    def of_table(self) -> pa.Table | None:
        """Read the snapshot's files."""
        if self._read is None:
            return None
        table = self._read.table
        if self._snapshot is None:
            return table.schema().as_arrow().empty_table().replace_schema_metadata()
        with reading(self.place):
            try:
                scan = DataScan(table.metadata, table.io, snapshot_id=self._snapshot)
                return scan.to_arrow().replace_schema_metadata()
            except FileNotFoundError as error:
                raise Corrupt(
                    f"table {self.place} can no longer show snapshot {self.version}: {error}. Choose a later "
                    "checkpoint, or load the newest rows"
                ) from error


def rows_of(writer: Writer, cut: SinkCut | None) -> PublishedRows:
    """Return the rows that readers find, or those of a cut. Raises NotFound, Corrupt."""
    version = writer.lake.load()
    if cut is None:
        if version is None:
            raise NotFound(f"there is no table at {writer.lake.place} yet: it is made with the first rows")
        return IcebergRows(writer, version, version.current)
    head = cut.snapshot.head
    batches = batches_with_rows(cut.batches)
    if version is None:
        if head is not None:
            raise Corrupt(f"there is no table at {writer.lake.place}: it was removed, and the rows with it")
        return IcebergRows(writer, None, None, batches)
    whole = version.showing(cut.checkpoint_id) if batches else None
    if whole is not None:
        return IcebergRows(writer, version, whole.snapshot_id)
    if head is None:
        return IcebergRows(writer, version, version.mark.base if version.mark is not None else None, batches)
    found = version.showing(head)
    if found is None:
        raise Corrupt(
            f"table {version.place} has no snapshot that shows checkpoint {head}: it was expired, or the table is "
            "another one. Choose a later checkpoint"
        )
    return IcebergRows(writer, version, found.snapshot_id, batches)
