"""``IcebergSink``: an Iceberg table behind the port of sinks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from pyiceberg.table import Table

from dagster_ckpt.authoring.targets import IcebergTable
from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.errors import NotFound
from dagster_ckpt.ext.iceberg.catalogs import identifier_of, settings_of
from dagster_ckpt.ext.iceberg.columns import (
    ACCEPTED,
    iceberg_columns,
    new_columns,
    refuse_columns,
    refuse_table,
    spelt,
)
from dagster_ckpt.ext.iceberg.expiry import ReadManifests
from dagster_ckpt.ext.iceberg.fork import fork
from dagster_ckpt.ext.iceberg.garbage import Garbage
from dagster_ckpt.ext.iceberg.lake import Lake, reading
from dagster_ckpt.ext.iceberg.marks import Mark
from dagster_ckpt.ext.iceberg.publish import Writer
from dagster_ckpt.ext.iceberg.read import rows_of
from dagster_ckpt.ext.iceberg.roll_back import roll_back, way_to
from dagster_ckpt.ext.iceberg.staged import staged_files
from dagster_ckpt.ext.iceberg.upkeep import maintained, planned
from dagster_ckpt.spark.quoting import quoted
from dagster_ckpt.spark.sink.committables import PreparedBatch
from dagster_ckpt.spark.sink.key_columns import refuse_nested_key
from dagster_ckpt.spark.sink.log_table import LogTableSink, refuse_other_key, why_not
from dagster_ckpt.spark.sink.port import (
    LaterRows,
    RolledBack,
    SinkContext,
    SinkCut,
    SinkDescription,
    Upkeep,
)
from dagster_ckpt.spark.sink.rows import PublishedRows
from dagster_ckpt.spark.sink.staging import stage_rows
from dagster_ckpt.spark.sink.table_files import StagedFiles

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PART = "_dagster_ckpt_part_"


class IcebergSink(LogTableSink[Writer]):
    """An Iceberg table of any catalog that pyiceberg knows."""

    kind: ClassVar[str] = "iceberg"

    def __init__(self, target: IcebergTable, context: SinkContext) -> None:
        self._context = context
        self._lake = Lake(
            settings=settings_of(target.catalog, context.table_dir),
            identifier=identifier_of(target.table or context.name),
            pipeline=context.pipeline,
            uid=context.uid,
            partition_by=target.partition_by,
            given_location=target.location,
            properties=dict(target.properties),
        )
        self._read = ReadManifests()
        self._writer = Writer(
            lake=self._lake,
            open_staged=lambda: self._staged,
            key=context.key,
            owner_path=context.work_dir / "owner.json",
        )

    @cached_property
    def _staged(self) -> StagedFiles:
        return staged_files(self._lake, self._context.work_dir)

    @property
    def place(self) -> str:
        """The catalog and the table's name in it."""
        return self._lake.place

    def newest_mark(self) -> Mark | None:
        """Return the newest mark in the table's snapshots."""
        version = self._lake.load()
        return None if version is None else version.mark

    # --- rows -------------------------------------------------------------------------------------------------

    accepts = ACCEPTED

    def check(self, frame: DataFrame) -> None:
        """Refuse columns that this table has otherwise."""
        columns = iceberg_columns(frame.schema.json())
        refuse_columns(columns, key=self._context.key, partition_by=self._lake.partition_by)
        refuse_nested_key(f"table {self.place}", frame.schema.json(), self._context.key)
        version = self._lake.load()
        if version is not None:
            refuse_other_key(version.mark, self._context.key, self.place)
            self._refuse_table(version.table)
            new_columns(version.table, columns, self.place)
        assert self._lake.location  # raises where it is not known

    def _refuse_table(self, table: Table) -> None:
        partition_by, is_keyed = self._lake.partition_by, bool(self._context.key)
        refuse_table(table, self.place, partition_by=partition_by, is_keyed=is_keyed)

    def prepare(self, frame: DataFrame, batch_id: BatchId) -> PreparedBatch:
        """Stage a micro-batch below the table's location, or in the sink's own folder where that is an object store.

        The rows of a partition have files of their own; unlike folders of Hive, the files keep the column.
        """
        attempt = self._context.attempt()
        row_schema = frame.schema.json()
        parts = [] if self._context.key else list(self._lake.partition_by)
        for number, name in enumerate(parts):
            # Spark puts null and "" into one folder: a letter in front tells them apart.
            column = frame[quoted(name)].cast("string")
            frame = frame.withColumn(f"{_PART}{number}", _prefixed(column))
        return stage_rows(
            frame,
            batch_id,
            attempt,
            root=self._staged.root,
            staged=self._staged.folder(attempt.epoch),
            replaces=self._context.is_complete,
            row_schema=row_schema,
            partition_by=[f"{_PART}{number}" for number in range(len(parts))],
        )

    # --- attempts ---------------------------------------------------------------------------------------------

    def roll_back(self, cut: SinkCut | None, later: LaterRows) -> RolledBack:
        """Go back to the snapshot of a cut, and add what it had prepared."""
        self._upload_cut(cut)
        return roll_back(self._writer, self._context.attempt(), cut, later)

    def cannot_roll_back(self, cut: SinkCut | None) -> str:
        """Return what is gone, or whose rows would leave."""
        return why_not(lambda: way_to(self._writer, self._lake.load(), cut))

    def fork(self, cut: SinkCut) -> str:
        """Begin with the rows of a cut of another Iceberg table."""
        return fork(self._writer, self._context.attempt(), cut)

    # --- upkeep -----------------------------------------------------------------------------------------------

    def collect_garbage(self, needed: Sequence[TableSnapshot], waiting: Sequence[PreparedBatch]) -> int:
        """Expire snapshots of ours, and remove staged files, that nothing needs."""
        attempt = self._context.attempt()
        return Garbage(self._writer, attempt, time.time(), needed, waiting, self._read).collect()

    def upkeep(self, needed: Sequence[TableSnapshot]) -> Sequence[Upkeep]:
        """Return which files would be merged, and which snapshots expired."""
        return planned(self._lake, needed)

    def maintain(self, needed: Sequence[TableSnapshot]) -> Sequence[Upkeep]:
        """Merge small files, and expire snapshots of ours that neither readers nor these cuts need."""
        return maintained(self._lake, needed)

    def rows(self, cut: SinkCut | None = None) -> PublishedRows:
        """Read one snapshot."""
        return rows_of(self._writer, cut)

    def describe(self) -> SinkDescription:
        """Return what any reader of the table finds."""
        version = self._lake.load()
        if version is None:
            raise NotFound(f"there is no table at {self.place} yet: it is made with the first rows")
        table = version.table
        with reading(self.place):
            files = [task.file for task in table.scan().plan_files()]
        schema = table.schema()
        parts = (schema.find_column_name(part.source_id) or part.name for part in table.spec().fields)
        return SinkDescription(
            place=self.place,
            columns=tuple((column.name, spelt(column.field_type)) for column in schema.fields),
            rows=sum(file.record_count for file in files),
            bytes=sum(file.file_size_in_bytes for file in files),
            version=str(version.current or ""),
            details={
                "format": "iceberg",
                "location": table.location(),
                "files": str(len(files)),
                "snapshots": str(len(version.snapshots)),
                "partitioned by": ", ".join(parts),
            },
        )


def _prefixed(column: Column) -> Column:
    from pyspark.sql import functions

    return functions.concat(functions.lit("v"), column)
