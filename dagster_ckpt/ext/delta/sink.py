"""``DeltaSink``: a Delta table behind the port of sinks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.core.paths import local_path
from dagster_ckpt.errors import InvalidRequest, NotFound
from dagster_ckpt.ext.delta.backend import DeltaBackend
from dagster_ckpt.ext.delta.columns import accepted, table_columns
from dagster_ckpt.ext.delta.lake import Lake, reading
from dagster_ckpt.ext.delta.target import DeltaTable
from dagster_ckpt.ext.delta.upkeep import (
    LOG_IS_OURS,
    Garbage,
    maintained,
    merge_small,
    pinned_versions,
    planned,
    trimmed,
    vacuumed,
)
from dagster_ckpt.ext.delta.version import REPLACED_FILES_STAY, RETENTION, DeltaVersion
from dagster_ckpt.ext.tables.engine import Engine
from dagster_ckpt.ext.tables.marks import SinkNames
from dagster_ckpt.ext.tables.sink import VersionedSink
from dagster_ckpt.spark.sink.accepts import Accepts, refuse_collated
from dagster_ckpt.spark.sink.committables import PreparedBatch
from dagster_ckpt.spark.sink.port import SinkContext, SinkDescription, Upkeep
from dagster_ckpt.spark.sink.staged_rows import stage_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LOG_PROPERTIES = frozenset({"delta.logRetentionDuration", "delta.enableExpiredLogCleanup"})
"""Whoever sets one of them decides how long the log is."""


class DeltaSink(VersionedSink[DeltaVersion]):
    """A Delta table, local or in an object store."""

    kind: ClassVar[str] = "delta"

    def __init__(self, target: DeltaTable, context: SinkContext) -> None:
        self._context = context
        lake = Lake(
            uri=_resolved(target.uri or context.name, context.table_dir),
            partition_by=target.partition_by,
            storage_options=target.storage_options,
        )
        names = SinkNames.of(context, target.shared_with)
        self._merges = target.upkeep == "auto"
        is_local = lake.root is not None  # in an object store Delta itself shortens the log, by age
        self._trims = self._merges and is_local and _LOG_PROPERTIES.isdisjoint(target.properties)
        self._backend = DeltaBackend.of(
            lake,
            names,
            context.work_dir,
            key=context.key,
            keep_days=context.keep_days,
            is_complete=context.is_complete,
            properties=({RETENTION: REPLACED_FILES_STAY} if self._replaces or self._merges else {})
            | (LOG_IS_OURS if self._trims else {})
            | target.properties,
        )
        self._engine = Engine(self._backend, names, context.work_dir / "owner.json")

    @property
    def _replaces(self) -> bool:
        """True where checkpoints replace files: such a table that is made here lets the old ones go soon."""
        return bool(self._context.key) or self._context.is_complete

    @property
    def partition_by(self) -> tuple[str, ...]:
        """Columns whose values are folders of staged files."""
        return self._backend.partition_by

    @property
    def accepts(self) -> Accepts:
        """Values and types that Delta's own rules and its readers allow, in partitions that it has or gets."""
        version = self._backend.load()
        there = () if version is None else version.table.metadata().partition_columns
        return accepted(tuple(dict.fromkeys([*self._backend.lake.partition_by, *there])))

    def check(self, frame: DataFrame) -> None:
        """Refuse texts that Spark cannot name folders by, beside what no table of versions takes."""
        refuse_collated(
            self.place, self.partition_by, frame, "partition", "Spark names no folder by its values"
        )
        super().check(frame)

    def prepare(self, frame: DataFrame, batch_id: BatchId) -> PreparedBatch:
        """Stage a micro-batch below the table's folder, or in the sink's own where the table is in an object store."""
        attempt = self._context.attempt()
        return stage_rows(
            frame,
            batch_id,
            attempt,
            root=self.staged.root,
            staged=self.staged.folder(attempt.epoch),
            replaces=self._context.is_complete,
            partition_by=self.partition_by,
        )

    @property
    def own_folder(self) -> Path | None:
        """The table's folder, whose log names files relative to it."""
        return self._backend.lake.root

    # --- upkeep -----------------------------------------------------------------------------------------------

    def keep_small(self, version: DeltaVersion, needed: Sequence[TableSnapshot]) -> None:
        """Merge some small files, and remove what a key has replaced, and the log's oldest entries."""
        if merge_small(self._backend, version, self._context.attempt()):
            version = self._backend.load(reads_on=True) or version
        if self._context.key:
            vacuumed(version, needed)
        if self._trims:
            trimmed(version, needed)
        version.let_go()

    def clean_up(self, needed: Sequence[TableSnapshot], waiting: Sequence[PreparedBatch]) -> int:
        """Remove staged files that no version, cut or batch needs."""
        return Garbage(self._engine, self._context.attempt(), time.time(), needed, waiting).collect()

    def pinned_versions(self, needed: Sequence[TableSnapshot]) -> list[int]:
        """Return the versions that cuts go back to: give them to ``vacuum(keep_versions=...)``."""
        version = self._backend.load()
        return [] if version is None else pinned_versions(version, needed)

    def upkeep(self, needed: Sequence[TableSnapshot]) -> Sequence[Upkeep]:
        """Return which files OPTIMIZE and VACUUM would touch."""
        return planned(self._backend, needed)

    def maintain(self, needed: Sequence[TableSnapshot]) -> Sequence[Upkeep]:
        """OPTIMIZE, and VACUUM that keeps the versions of these cuts."""
        return maintained(self._backend, needed)

    def describe(self) -> SinkDescription:
        """Return the description that any reader of the table finds."""
        version = self._backend.load()
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
    path = local_path(uri)
    if path is not None and path != uri and not path.startswith("/"):
        raise InvalidRequest(f"{uri!r} is no folder of this machine: write file:///path, or a path")
    return uri.rstrip("/") if path is None else str(table_dir / path)


def _type_name(kind: object) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])  # type: ignore[index]
