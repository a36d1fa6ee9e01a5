"""What sinks into tables with a log of their own have in common (Delta, Iceberg).

Spark stages plain Parquet files below the table, and a commit names them; a mark in the commits says what the table has
seen of the sink. How a commit is made, and how the table goes back, is each format's own.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, Literal, Protocol, TypeVar

import pyarrow as pa

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.core.model import Record
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.spark.sink.committables import PreparedBatch, shown_files
from dagster_ckpt.spark.sink.latest import latest_rows
from dagster_ckpt.spark.sink.owner import Owner
from dagster_ckpt.spark.sink.port import (
    AlreadyPublished,
    AttemptId,
    Published,
    Sink,
    SinkContext,
    SinkCut,
    SinkPosition,
)
from dagster_ckpt.spark.sink.rows import PublishedRows
from dagster_ckpt.spark.sink.table_files import StagedFiles

MARK_PREFIX = "dagster_ckpt."
"""Begins the names of a mark's fields in the metadata of a commit."""


class TableMark(Record):
    """What the table has seen of one sink, in the metadata of a commit as ``dagster_ckpt.<name>``."""

    format_version: Literal[1] = 1
    pipeline: str
    sink: str
    lineage: str
    epoch: int
    checkpoint: int | None = None
    """Newest checkpoint that was ever published."""
    head: int | None = None
    """Checkpoint whose rows the table shows; 0: a fork's first rows."""
    through_batch: int | None = None
    base: int | None = None
    """State of the table before our first commit, where others' rows were there first; None: the table is ours."""
    origin: str = ""
    """Where a fork's first rows come from."""
    key: str = ""
    """Key that its rows were written by, as JSON; empty: none was, or before this was kept."""

    def position(self) -> SinkPosition:
        """Return it in the port's words."""
        return SinkPosition(
            lineage=self.lineage,
            epoch=self.epoch,
            checkpoint_id=self.checkpoint,
            head=self.head,
            through_batch=self.through_batch,
        )


def text_of_key(key: Sequence[str]) -> str:
    """Return a key as marks have it; the order of its columns means nothing."""
    return json.dumps(sorted(key))


def refuse_other_key(mark: TableMark | None, key: Sequence[str], place: str) -> None:
    """Raise InvalidRequest where rows that a table shows were written by another key, or by none: some would be there
    twice.
    """
    if mark is None or mark.head is None or mark.key in ("", text_of_key(key)):
        return
    was = parse_json(mark.key)
    raise InvalidRequest(
        f"the rows of table {place} were written {f'by the key {was}' if was else 'without a key'}, and the sink has "
        f"{f'the key {sorted(key)}' if key else 'none'} now: rows of one key could be there several times. Give it "
        "another table, or write all rows again (restore_from: none)"
    )


def why_not(find_way: Callable[[], object]) -> str:
    """Return why the way to a cut cannot be found, in one sentence; empty: it can."""
    try:
        find_way()
    except (Corrupt, InvalidRequest) as error:
        return " ".join(str(error).split())
    return ""


class LogTableWriter(Protocol):
    """Commits of one sink."""

    @property
    def staged(self) -> StagedFiles:
        """The table's staged files."""

    @property
    def key(self) -> tuple[str, ...]:
        """Key columns."""

    def owner(self) -> Owner | None:
        """Return the attempt that took over before there was a table."""

    def take_over(self, attempt: AttemptId) -> None:
        """Fence older attempts."""

    def publish(
        self, attempt: AttemptId, batches: Sequence[PreparedBatch], checkpoint: int
    ) -> Published | AlreadyPublished:
        """Make the batches above the table's position visible."""


W = TypeVar("W", bound=LogTableWriter)


class LogTableRows(PublishedRows):
    """One state of the table; with the batches that a cut had prepared, where no state shows them."""

    def __init__(
        self, place: str, version: str, writer: LogTableWriter, prepared: tuple[PreparedBatch, ...]
    ) -> None:
        super().__init__(place, version)
        self._writer, self._prepared = writer, prepared

    @abstractmethod
    def of_table(self) -> pa.Table | None:
        """Read the state's files; None: there is no table at it. Raises Corrupt where they are gone."""

    def to_arrow(self) -> pa.Table:
        """Read the state's files, and those that the cut had prepared."""
        files, replaces = shown_files(self._prepared)
        parts = self._writer.staged.rows_of(files)
        committed = None if replaces else self.of_table()
        if committed is not None:
            parts.insert(0, committed)
        if not parts:
            return pa.schema([]).empty_table()
        rows = pa.concat_tables(parts, promote_options="permissive")
        return latest_rows(rows, self._writer.key) if files and self._writer.key else rows


class LogTableSink(Sink, Generic[W]):
    """The half of a sink that does not depend on the format."""

    _context: SinkContext
    _writer: W

    @abstractmethod
    def newest_mark(self) -> TableMark | None:
        """Return the newest mark of this sink in the table; None: no table, or none in it."""

    def position(self) -> SinkPosition | None:
        """Return the newest mark in the table; before there is one, who took over."""
        mark = self.newest_mark()
        if mark is not None:
            return mark.position()
        owner = self._writer.owner()
        return None if owner is None else owner.position()

    def flush(self, batches: Sequence[PreparedBatch]) -> None:
        """Wait until the staged files are on disk, or in the table's object store."""
        self._writer.staged.flush([file for batch in batches for file in batch.files])

    def refuse_lost(self, batches: Sequence[PreparedBatch]) -> None:
        """Read each staged file: of a table in an object store there may be none on this disk to wait for."""
        self._writer.staged.refuse_changed([file for batch in batches for file in batch.files])

    def publish(self, batches: Sequence[PreparedBatch], permit: CommitPermit) -> Published | AlreadyPublished:
        """Make the batches visible in one commit."""
        self._upload(batches)
        attempt = AttemptId(permit.lineage, permit.epoch)
        done = self._writer.publish(attempt, batches, permit.checkpoint_id)
        self._writer.staged.forget_copies(file for batch in batches for file in batch.files)
        return done

    def take_over(self) -> None:
        """Commit no rows: from here on older attempts are refused by the table."""
        self._writer.staged.forget_copies()
        self._writer.take_over(self._context.attempt())

    def _upload(self, batches: Sequence[PreparedBatch]) -> None:
        """Upload what a restored directory has brought, and is not in the table's object store."""
        self._writer.staged.upload(file for batch in batches for file in batch.files)

    def _upload_cut(self, cut: SinkCut | None) -> None:
        if cut is not None:
            self._upload(cut.batches)
