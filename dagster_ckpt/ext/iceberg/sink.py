"""``IcebergSink``: an Iceberg table behind the port of sinks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.errors import NotFound
from dagster_ckpt.ext.iceberg.backend import IcebergBackend
from dagster_ckpt.ext.iceberg.catalogs import identifier_of, settings_of
from dagster_ckpt.ext.iceberg.columns import (
    PART,
    accepted,
    columns_of_partitions,
    schema_columns,
)
from dagster_ckpt.ext.iceberg.joint import CatalogJoint
from dagster_ckpt.ext.iceberg.lake import OF_TABLES_KEPT_SMALL, Lake, reading
from dagster_ckpt.ext.iceberg.target import IcebergTable
from dagster_ckpt.ext.iceberg.together import keeping, step_at_hand
from dagster_ckpt.ext.iceberg.upkeep import Garbage, ReadManifests, maintained, merge_small, planned
from dagster_ckpt.ext.iceberg.version import IcebergVersion
from dagster_ckpt.spark.quoting import quoted
from dagster_ckpt.spark.sink.accepts import Accepts
from dagster_ckpt.spark.sink.committables import PreparedBatch
from dagster_ckpt.spark.sink.port import (
    AlreadyPublished,
    AttemptId,
    Joint,
    Published,
    SinkContext,
    SinkDescription,
    Upkeep,
)
from dagster_ckpt.spark.sink.staged_rows import stage_rows
from dagster_ckpt.spark.sink.versioned.columns import spelt
from dagster_ckpt.spark.sink.versioned.engine import Engine
from dagster_ckpt.spark.sink.versioned.marks import SinkNames
from dagster_ckpt.spark.sink.versioned.sink import VersionedSink

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class IcebergSink(VersionedSink[IcebergVersion]):
    """An Iceberg table of any catalog that pyiceberg knows."""

    kind: ClassVar[str] = "iceberg"

    def __init__(self, target: IcebergTable, context: SinkContext) -> None:
        self._context = context
        self._merges = target.upkeep == "auto"
        kept = (
            OF_TABLES_KEPT_SMALL
            if self._merges and OF_TABLES_KEPT_SMALL.keys().isdisjoint(target.properties)
            else {}
        )
        lake = Lake(
            settings=settings_of(target.catalog, context.table_dir),
            identifier=identifier_of(target.table or context.name),
            partition_by=target.partition_by,
            given_location=target.location,
            properties=kept | target.properties,
        )
        names = SinkNames.of(context, target.shared_with)
        self._backend = IcebergBackend(lake, names, context.work_dir, context.key)
        self._engine = Engine(self._backend, names, context.work_dir / "owner.json")
        self._read = ReadManifests()

    @property
    def partition_by(self) -> tuple[str, ...]:
        """Columns whose values tell staged files apart."""
        return () if self._context.key else self._backend.lake.partition_by

    @property
    def accepts(self) -> Accepts:
        """Values and types that Iceberg's own rules and its readers allow, in partitions that it has or gets."""
        return accepted(self.partition_by, self._backend.lake.table())

    @property
    def joint(self) -> Joint | None:
        """The catalog, where it changes several tables in one request."""
        return CatalogJoint.of(self._backend.lake.settings)

    def publish(self, batches: Sequence[PreparedBatch], permit: CommitPermit) -> Published | AlreadyPublished:
        """Make the batches visible in one commit: of this table, or of all that are published in this step."""
        step = step_at_hand()
        if step is None:
            return super().publish(batches, permit)
        self._upload(batches)
        with keeping(step):
            done = self._engine.publish(
                AttemptId(permit.lineage, permit.epoch), batches, permit.checkpoint_id
            )
        files = [file for batch in batches for file in batch.files]
        step.afterwards.append(lambda: self.staged.forget_copies(files))
        return done

    def prepare(self, frame: DataFrame, batch_id: BatchId) -> PreparedBatch:
        """Stage a micro-batch below the table's location, or in the sink's own folder where that is an object store.

        The rows of a partition have files of their own; unlike folders of Hive, the files keep the column.
        """
        attempt = self._context.attempt()
        row_schema = frame.schema.json()
        parts = self.partition_by
        for number, name in enumerate(parts):
            # Spark puts null and "" into one folder: a letter in front tells them apart.
            column = frame[quoted(name)].cast("string")
            frame = frame.withColumn(f"{PART}{number}", _prefixed(column))
        return stage_rows(
            frame,
            batch_id,
            attempt,
            root=self.staged.root,
            staged=self.staged.folder(attempt.epoch),
            replaces=self._context.is_complete,
            row_schema=row_schema,
            partition_by=[f"{PART}{number}" for number in range(len(parts))],
        )

    # --- upkeep -----------------------------------------------------------------------------------------------

    def keep_small(self, version: IcebergVersion, needed: Sequence[TableSnapshot]) -> None:
        """Merge some small files."""
        merge_small(self._backend, version, self._context.attempt())

    def clean_up(self, needed: Sequence[TableSnapshot], waiting: Sequence[PreparedBatch]) -> int:
        """Expire snapshots of ours, and remove staged files, that nothing needs."""
        attempt = self._context.attempt()
        return Garbage(self._engine, attempt, time.time(), needed, waiting, self._read).collect()

    def upkeep(self, needed: Sequence[TableSnapshot]) -> Sequence[Upkeep]:
        """Return which files would be merged, and which snapshots expired."""
        return planned(self._backend, needed)

    def maintain(self, needed: Sequence[TableSnapshot]) -> Sequence[Upkeep]:
        """Merge small files, and expire snapshots of ours that neither readers nor these cuts need."""
        return maintained(self._backend, needed)

    def describe(self) -> SinkDescription:
        """Return the description that any reader of the table finds."""
        version = self._backend.load()
        if version is None:
            raise NotFound(f"there is no table at {self.place} yet: it is made with the first rows")
        table = version.table
        with reading(self.place):
            files = [task.file for task in table.scan().plan_files()]
        return SinkDescription(
            place=self.place,
            columns=tuple(
                (column["name"], spelt(column["type"])) for column in schema_columns(table.schema())
            ),
            rows=sum(file.record_count for file in files),
            bytes=sum(file.file_size_in_bytes for file in files),
            version=str(version.number or ""),
            details={
                "format": "iceberg",
                "location": table.location(),
                "files": str(len(files)),
                "snapshots": str(len(version.snapshots)),
                "partitioned by": ", ".join(columns_of_partitions(table)),
            },
        )


def _prefixed(column: Column) -> Column:
    from pyspark.sql import functions

    return functions.concat(functions.lit("v"), column)
