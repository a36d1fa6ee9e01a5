"""``DeltaSink``: a Delta table behind the port of sinks."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from dagster_ckpt.authoring.targets import DeltaTable
from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.core.restore.horizon import Pin
from dagster_ckpt.errors import InvalidRequest, NotFound
from dagster_ckpt.ext.delta.columns import (
    accepted,
    delta_columns,
    new_columns,
    refuse_columns,
    refuse_table,
    table_columns,
)
from dagster_ckpt.ext.delta.fork import fork
from dagster_ckpt.ext.delta.garbage import Garbage, pinned_versions
from dagster_ckpt.ext.delta.lake import Lake, reading
from dagster_ckpt.ext.delta.marks import Mark
from dagster_ckpt.ext.delta.publish import Writer
from dagster_ckpt.ext.delta.read import rows_of
from dagster_ckpt.ext.delta.remote import staged_files
from dagster_ckpt.ext.delta.roll_back import roll_back, way_to
from dagster_ckpt.ext.delta.upkeep import maintained, pins, planned
from dagster_ckpt.spark.sink.accepts import Accepts
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
    from pyspark.sql import DataFrame


class DeltaSink(LogTableSink[Writer]):
    """A Delta table, local or in an object store."""

    kind: ClassVar[str] = "delta"

    def __init__(self, target: DeltaTable, context: SinkContext) -> None:
        self._context = context
        self._lake = Lake(
            uri=_resolved(target.uri, context.table_dir),
            pipeline=context.pipeline,
            uid=context.uid,
            partition_by=target.partition_by,
            storage_options=target.storage_options,
        )
        self._staged = staged_files(self._lake, context.work_dir)
        self._writer = Writer(
            lake=self._lake,
            staged=self._staged,
            key=context.key,
            is_complete=context.is_complete,
            owner_path=context.work_dir / "owner.json",
        )

    @property
    def place(self) -> str:
        """The table's path or URI."""
        return self._lake.uri

    @property
    def staged(self) -> StagedFiles:
        """The files that are staged for the table."""
        return self._staged

    @property
    def partition_by(self) -> tuple[str, ...]:
        """Columns whose values are folders of staged files."""
        return () if self._context.key else self._lake.partition_by

    def newest_mark(self) -> Mark | None:
        """Return the newest mark in the table's log."""
        version = self._lake.load()
        return None if version is None else version.mark

    # --- rows -------------------------------------------------------------------------------------------------

    @property
    def accepts(self) -> Accepts:
        """What Delta's own rules and its readers allow."""
        return accepted(self.partition_by)

    def check(self, frame: DataFrame) -> None:
        """Refuse columns that this table has otherwise."""
        columns = delta_columns(frame.schema.json())
        refuse_columns(columns, key=self._context.key, partition_by=self._lake.partition_by)
        refuse_nested_key(f"table {self.place}", frame.schema.json(), self._context.key)
        version = self._lake.load()
        if version is not None:
            refuse_other_key(version.mark, self._context.key, self.place)
            partition_by = None if self._context.key else self._lake.partition_by
            refuse_table(
                version.table,
                self.place,
                only_appends=self._writer.only_appends,
                partition_by=partition_by,
            )
            new_columns(version.table, columns, self.place)

    def prepare(self, frame: DataFrame, batch_id: BatchId) -> PreparedBatch:
        """Stage a micro-batch below the table's folder, or in the sink's own where the table is in an object store."""
        attempt = self._context.attempt()
        return stage_rows(
            frame,
            batch_id,
            attempt,
            root=self._staged.root,
            staged=self._staged.folder(attempt.epoch),
            replaces=self._context.is_complete,
            partition_by=self.partition_by,
        )

    # --- attempts ---------------------------------------------------------------------------------------------

    def roll_back(self, cut: SinkCut | None, later: LaterRows) -> RolledBack:
        """Restore the version of a cut, and add what it had prepared."""
        self._upload_cut(cut)
        return roll_back(self._writer, self._context.attempt(), cut, later)

    def cannot_roll_back(self, cut: SinkCut | None) -> str:
        """Return what is gone, or whose rows would leave."""
        return why_not(lambda: way_to(self._writer, self._lake.load(), cut))

    def fork(self, cut: SinkCut) -> str:
        """Begin with the rows of a cut of another Delta table."""
        return fork(self._writer, self._context.attempt(), cut)

    # --- upkeep -----------------------------------------------------------------------------------------------

    def collect_garbage(self, needed: Sequence[TableSnapshot], waiting: Sequence[PreparedBatch]) -> int:
        """Remove staged files that no version, cut or batch needs."""
        attempt = self._context.attempt()
        return Garbage(self._writer, attempt, time.time(), needed, waiting).collect()

    def pinned_versions(self, needed: Sequence[TableSnapshot]) -> list[int]:
        """Return the versions that cuts go back to: give them to ``vacuum(keep_versions=...)``."""
        version = self._lake.load()
        return [] if version is None else pinned_versions(version, needed)

    def pins(self, cut: SinkCut) -> Sequence[Pin]:
        """Return the version that the cut goes back to."""
        return pins(self._writer, cut)

    def upkeep(self, needed: Sequence[TableSnapshot]) -> Sequence[Upkeep]:
        """Return which files OPTIMIZE and VACUUM would touch."""
        return planned(self._lake, needed)

    def maintain(self, needed: Sequence[TableSnapshot]) -> Sequence[Upkeep]:
        """OPTIMIZE, and VACUUM that keeps the versions of these cuts."""
        return maintained(self._lake, needed)

    def rows(self, cut: SinkCut | None = None) -> PublishedRows:
        """Read one version."""
        return rows_of(self._writer, cut)

    def describe(self) -> SinkDescription:
        """Return what any reader of the table finds."""
        version = self._lake.load()
        if version is None:
            raise NotFound(f"there is no table at {self.place} yet: it is made with the first rows")
        with reading(self.place):
            table, metadata = version.table, version.table.metadata()
            sizes = table.get_add_actions(flatten=True).column("size_bytes").to_pylist()
            rows = table.count()
        return SinkDescription(
            place=self.place,
            columns=tuple((c["name"], _type_name(c["type"])) for c in table_columns(table)),
            rows=rows,
            bytes=sum(sizes),
            version=str(version.number),
            details={
                "format": "delta",
                "files": str(len(sizes)),
                "partitioned by": ", ".join(metadata.partition_columns),
            },
        )


def _resolved(uri: str, table_dir: Path) -> str:
    """Return a table's address: a path, or a URI with a scheme of its own."""
    if not uri:
        raise InvalidRequest("a Delta table needs a path or a URI: DeltaTable('orders')")
    plain = re.sub(r"^file:(//)?(?=/)", "", uri).rstrip("/")
    return plain if "://" in plain else str(table_dir / plain)


def _type_name(kind: object) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])  # type: ignore[index]
