"""Second phase: what a checkpoint covers becomes one commit of the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import Corrupt
from dagster_ckpt.ext.delta.adds import add_actions
from dagster_ckpt.ext.delta.bounds import wanted_bounds
from dagster_ckpt.ext.delta.columns import (
    Column,
    columns_together,
    delta_columns,
    new_columns,
    refuse_columns,
    refuse_table,
    schema_of,
    table_columns,
)
from dagster_ckpt.ext.delta.lake import Lake, Outside, Raced, Version
from dagster_ckpt.ext.delta.upsert import upsert
from dagster_ckpt.spark.sink.committables import PreparedBatch, batches_with_rows, shown_files
from dagster_ckpt.spark.sink.log_table import text_of_key
from dagster_ckpt.spark.sink.owner import Owner, note_owner, read_owner
from dagster_ckpt.spark.sink.port import AlreadyPublished, AttemptId, Published
from dagster_ckpt.spark.sink.positions import not_shown, refuse_fenced
from dagster_ckpt.spark.sink.table_files import StagedFiles, folder_of

if TYPE_CHECKING:
    from deltalake.transaction import AddAction, RemoveAction


@dataclass(frozen=True)
class Writer:
    """Everything that one attempt writes to a table with."""

    lake: Lake
    staged: StagedFiles
    key: tuple[str, ...]
    is_complete: bool
    owner_path: Path

    @property
    def only_appends(self) -> bool:
        """True where no file ever leaves the table, but by a roll-back."""
        return not (self.key or self.is_complete)

    # --- whose it is ------------------------------------------------------------------------------------------

    def owner(self) -> Owner | None:
        """Return the attempt that took over before there was a table."""
        return read_owner(self.owner_path)

    def newest(self, attempt: AttemptId, *, reads_on: bool = False) -> Version | None:
        """Return the newest version. Raises Fenced when a newer attempt owns the table."""
        version = self.lake.load(reads_on=reads_on)
        # The table first: a newer attempt writes its note and looks for the table then, so one sees the other.
        owner = self.owner()
        if owner is not None:
            refuse_fenced(self.lake.uri, owner.position(), attempt)
        if version is not None:
            refuse_fenced(self.lake.uri, version.position, attempt)
            self._refuse_forgotten(version, attempt)
        return version

    def _refuse_forgotten(self, version: Version, attempt: AttemptId) -> None:
        """Raise Corrupt where this history has published, and the log has lost every commit that says what."""
        if version.mark is None and version.table.transaction_version(self.lake.app_id(attempt.lineage)):
            raise Corrupt(
                f"the log of table {self.lake.uri} no longer tells what was published to it: others' commits are all "
                "that is left of it. Keep it longer (delta.logRetentionDuration), and restore into a new table"
            )

    def own(self, attempt: AttemptId) -> Version | None:
        """Return the newest version, with a note of this attempt for as long as there is none. Raises Raced."""
        version = self.newest(attempt)
        if version is None or version.mark is None:
            note_owner(self.owner_path, attempt)
            return self.newest(attempt)
        if version.mark.reapply:
            self._reapply(version, attempt, version.mark.reapply)
        return version

    def _reapply(self, version: Version, attempt: AttemptId, said: dict[str, str]) -> None:
        """Set properties again that a roll-back took with it, and begin again on top of it."""
        mark = version.next_mark(attempt, reapply={})
        version.commit(mark, lambda table, p: Outside.set_properties(table, said, p))
        raise Raced

    # --- rows -------------------------------------------------------------------------------------------------

    def publish(
        self, attempt: AttemptId, batches: Sequence[PreparedBatch], checkpoint: int
    ) -> Published | AlreadyPublished:
        """Make the batches above the table's position visible as a checkpoint's."""

        def step() -> Published | AlreadyPublished:
            version = self.newest(attempt, reads_on=True)
            new = not_shown(version.position if version is not None else None, batches)
            if not batches_with_rows(new):
                return AlreadyPublished()
            version = version or self.created(attempt, new)
            number = version.number
            published = self.add(version, attempt, new, checkpoint)
            self.lake.leave(version, number)
            return published

        return self.lake.repeat(step)

    def created(self, attempt: AttemptId, batches: Sequence[PreparedBatch]) -> Version:
        """Make the table with the columns of these batches; raises Raced: who owns it is asked again."""
        columns = _columns(batches)
        refuse_columns(columns, key=self.key, partition_by=self.lake.partition_by)
        self.staged.footers([file for batch in batches for file in batch.files])
        self.lake.create(schema_of(columns), wanted_bounds(columns, self.key), attempt)
        raise Raced

    def add(
        self,
        version: Version,
        attempt: AttemptId,
        batches: Sequence[PreparedBatch],
        head: int,
        **changes: Any,
    ) -> Published:
        """Commit these batches on top of a version, which shows ``head`` then. Raises Raced: to be repeated."""
        table, columns, read = version.table, _columns(batches), version.number
        partition_by = None if self.key else self.lake.partition_by
        refuse_table(table, self.lake.uri, only_appends=self.only_appends, partition_by=partition_by)
        refuse_columns(columns, key=self.key, partition_by=self.lake.partition_by)
        extra = new_columns(table, columns, self.lake.uri)
        files, replaces = shown_files(batches)
        # Rows by key have no folders of partitions, also those that replace all.
        rewrites = bool(self.key) and (not replaces or bool(table.metadata().partition_columns))
        newest = version.mark.checkpoint if version.mark is not None else None
        mark = version.next_mark(
            attempt,
            checkpoint=max(head, newest or 0) or None,
            head=head,
            through_batch=max(batch.batch_id for batch in batches),
            key=text_of_key(self.key),
            staged=tuple(sorted({folder_of(file.staged, self.staged.area) for file in files})),
            rewrites=rewrites,
        ).model_copy(update=changes)
        if extra and not replaces:
            self._add_columns(version, attempt, extra)
        actions: Sequence[AddAction | RemoveAction]
        if rewrites:
            self.staged.refuse_changed(files)
            actions = upsert(table, self.staged, files, key=self.key, is_alone=replaces)
        else:
            actions = add_actions(table, self.staged, files)
        mode = "overwrite" if replaces else "append"
        schema = schema_of([*table_columns(table), *extra])
        version.commit(mark, lambda t, p: Outside.write(t, actions, p, mode=mode, schema=schema))
        return Published(
            rows=sum(file.rows for file in files),
            bytes=sum(file.bytes for file in files),
            files=len(files),
            version=str(read + 1),
        )

    def _add_columns(self, version: Version, attempt: AttemptId, extra: Sequence[Column]) -> None:
        """Add columns in a commit of their own, and begin again on top of it."""
        mark = version.next_mark(attempt)
        version.commit(mark, lambda table, p: Outside.add_columns(table, schema_of(extra), p))
        raise Raced

    def take_over(self, attempt: AttemptId) -> None:
        """Fence older attempts."""

        def step() -> None:
            version = self.own(attempt)
            if version is not None:
                version.fence(attempt)

        self.lake.repeat(step)


def _columns(batches: Sequence[PreparedBatch]) -> list[Column]:
    """Return the columns of all these batches."""
    return columns_together([delta_columns(batch.row_schema) for batch in batches])
