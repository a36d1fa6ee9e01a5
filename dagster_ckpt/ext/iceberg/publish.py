"""Second phase: what a checkpoint covers becomes one snapshot of the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pyiceberg.manifest import DataFile
from pyiceberg.table import Transaction
from pyiceberg.types import NestedField

from dagster_ckpt.ext.iceberg.columns import (
    columns_together,
    iceberg_columns,
    new_columns,
    refuse_columns,
    refuse_table,
    schema_of,
)
from dagster_ckpt.ext.iceberg.lake import Change, Lake, Raced
from dagster_ckpt.ext.iceberg.upsert import upsert
from dagster_ckpt.ext.iceberg.version import Version
from dagster_ckpt.spark.files import batch_folder_name
from dagster_ckpt.spark.sink.committables import PreparedBatch, TableFile, batches_with_rows, shown_files
from dagster_ckpt.spark.sink.log_table import text_of_key
from dagster_ckpt.spark.sink.owner import Owner, note_owner, read_owner
from dagster_ckpt.spark.sink.port import AlreadyPublished, AttemptId, Published
from dagster_ckpt.spark.sink.positions import not_shown, refuse_fenced
from dagster_ckpt.spark.sink.table_files import StagedFiles

Rewrite = Callable[[Transaction], tuple[Sequence[DataFile], Sequence[DataFile]]]


@dataclass(frozen=True)
class Writer:
    """Everything that one attempt writes to a table with."""

    lake: Lake
    open_staged: Callable[[], StagedFiles]
    key: tuple[str, ...]
    owner_path: Path

    @property
    def staged(self) -> StagedFiles:
        """The table's staged files: where they are is asked of the catalog."""
        return self.open_staged()

    @cached_property
    def location(self) -> str:
        """Where the table's files lie: where they were staged."""
        return self.lake.location

    # --- whose it is ------------------------------------------------------------------------------------------

    def owner(self) -> Owner | None:
        """Return the attempt that took over before there was a table."""
        return read_owner(self.owner_path)

    def newest(self, attempt: AttemptId) -> Version | None:
        """Return the newest version. Raises Fenced when a newer attempt owns the table."""
        version = self.lake.load()
        # The table first: a newer attempt writes its note and looks for the table then, so one sees the other.
        owner = self.owner()
        if owner is not None:
            refuse_fenced(self.lake.place, owner.position(), attempt)
        if version is not None and version.mark is not None:
            refuse_fenced(self.lake.place, version.mark.position(), attempt)
        return version

    def own(self, attempt: AttemptId) -> Version | None:
        """Return the newest version, with a note of this attempt for as long as no snapshot tells it."""
        version = self.newest(attempt)
        if version is None or version.mark is None:
            note_owner(self.owner_path, attempt)
            return self.newest(attempt)
        return version

    def take_over(self, attempt: AttemptId) -> None:
        """Fence older attempts."""

        def step() -> None:
            version = self.own(attempt)
            if version is not None:
                self.fence(version, attempt)

        self.lake.repeat(step)

    def fence(self, version: Version, attempt: AttemptId, **changes: Any) -> None:
        """Commit no rows, so that older attempts are refused from here on."""
        mark = version.next_mark(attempt, **changes)
        if mark != version.mark:
            self.lake.commit(version, Change(mark=mark))

    # --- rows -------------------------------------------------------------------------------------------------

    def publish(
        self, attempt: AttemptId, batches: Sequence[PreparedBatch], checkpoint: int
    ) -> Published | AlreadyPublished:
        """Make the batches above the table's position visible as a checkpoint's."""

        def step() -> Published | AlreadyPublished:
            version = self.newest(attempt)
            mark = version.mark if version is not None else None
            new = not_shown(mark.position() if mark is not None else None, batches)
            if not batches_with_rows(new):
                return AlreadyPublished()
            return self.add(version or self.created(new), attempt, new, checkpoint)

        return self.lake.repeat(step)

    def created(self, batches: Sequence[PreparedBatch]) -> Version:
        """Make the table with the columns of these batches; raises Raced: who owns it is asked again."""
        columns = _columns(batches)
        refuse_columns(columns, key=self.key, partition_by=self.lake.partition_by)
        self.staged.footers([file for batch in batches for file in batch.files])
        self.lake.create(schema_of(columns))
        raise Raced

    def add(
        self,
        version: Version,
        attempt: AttemptId,
        batches: Sequence[PreparedBatch],
        head: int,
        *,
        back_to: int | None = None,
        set_aside: str = "",
        is_emptied: bool = False,
        **changes: Any,
    ) -> Published:
        """Commit these batches on top of a version, which shows ``head`` then. Raises Raced: to be repeated."""
        columns = _columns(batches)
        partition_by = self.lake.partition_by
        refuse_table(version.table, self.lake.place, partition_by=partition_by, is_keyed=bool(self.key))
        refuse_columns(columns, key=self.key, partition_by=partition_by)
        files, replaces = shown_files(batches)
        mark = version.next_mark(attempt, **changes)
        mark = mark.model_copy(
            update={
                "checkpoint": max(head, mark.checkpoint or 0) or None,
                "head": head,
                "through_batch": max(batch.batch_id for batch in batches),
                "key": text_of_key(self.key),
            }
        )
        staged, location = self.staged, self.location
        staged.footers(files)  # what is gone is named before anything is written
        merges = bool(self.key) and not replaces
        through = max(batch.batch_id for batch in batches)
        change = Change(
            mark=mark,
            columns=new_columns(version.table, columns, self.lake.place),
            back_to=back_to,
            set_aside=set_aside,
            staged=() if merges else [f"{location}/{file.staged}" for file in files],
            replaces=replaces or is_emptied,
            rewrite=self._merged(attempt, through, files, is_alone=is_emptied) if merges else None,
        )
        number = self.lake.commit(version, change)
        return Published(
            rows=sum(file.rows for file in files),
            bytes=sum(file.bytes for file in files),
            files=len(files),
            version=str(number),
        )

    def _merged(
        self, attempt: AttemptId, through: int, files: Sequence[TableFile], *, is_alone: bool
    ) -> Rewrite:
        """Return what writes the files that rows by key touch; they lie in a folder of this try's own."""
        staged = self.staged
        folder = f"{self.location}/{staged.area}/{int(attempt.epoch)}/{batch_folder_name(through)}"
        return lambda transaction: upsert(
            transaction, staged, files, key=self.key, folder=folder, is_alone=is_alone
        )


def _columns(batches: Sequence[PreparedBatch]) -> list[NestedField]:
    """Return the columns of all these batches."""
    return columns_together([iceberg_columns(batch.row_schema) for batch in batches])
