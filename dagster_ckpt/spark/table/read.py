"""The rows of one state of a Parquet table, whatever is published or rolled back meanwhile.

A state is what the publish log says of a head: file names that never change, or versions of buckets that are never
written again. So readers need no lock, and see all of a publish or nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.spark.channel.schema import arrow_schema, parsed_schema
from dagster_ckpt.spark.files import spark_path, spark_uri
from dagster_ckpt.spark.sink.committables import (
    PreparedBatch,
    TableFile,
    batches_with_rows,
    from_last_replacing,
)
from dagster_ckpt.spark.sink.latest import latest_rows
from dagster_ckpt.spark.sink.port import SinkCut
from dagster_ckpt.spark.sink.rows import PublishedRows
from dagster_ckpt.spark.table.buckets import SPARK_SCHEMA, concatenated, located_versions, read_file
from dagster_ckpt.spark.table.intervals import with_durations
from dagster_ckpt.spark.table.log import Table
from dagster_ckpt.spark.table.publish import locate_hidden
from dagster_ckpt.spark.table.records import BUCKET_COLUMN, Append, BucketVersion, PublishRecord, Upsert
from dagster_ckpt.spark.table.roll_back import refuse_another_publish, unique_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

_TRIES = 3
"""Files move while a state of them is located; what is gone is gone at each try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a state consists of."""

    head: int | None
    row_schema: str = ""
    files: tuple[TableFile, ...] = ()
    """Append: files, oldest first."""
    versions: dict[int, BucketVersion] | None = None
    """Upsert: version of each bucket."""
    prepared: tuple[PreparedBatch, ...] = ()
    """Upsert: batches that a cut had prepared, and no publish has merged."""


class ParquetRows(PublishedRows):
    """One state of a Parquet table."""

    def __init__(self, table: Table, cut: SinkCut | None) -> None:
        self._table = table
        if table.state().written_through and cut is not None:
            raise InvalidRequest(
                f"table {table.uri} was written at least once, so no checkpoint can tell which rows are its own: load "
                "the newest rows, without as_of"
            )
        self._shown = _steady(lambda: shown_now(table) if cut is None else shown_at(table, cut))
        super().__init__(table.uri, "" if self._shown.head is None else str(self._shown.head))

    def to_arrow(self) -> pa.Table:
        """Read the files of the state."""
        return _steady(self._read)

    def to_spark(self, spark: SparkSession) -> DataFrame:
        """Let Spark's executors read the files, where no row has to be merged first."""
        paths = _steady(self._paths)
        if self._shown.prepared or not paths:
            return super().to_spark(spark)
        base = spark_uri(self._table.paths.root)
        reader = spark.read.option("mergeSchema", "true").option("basePath", base)
        return reader.parquet(*map(spark_path, paths))

    def _paths(self) -> list[Path]:
        table, shown = self._table, self._shown
        if table.state().written_through:
            return sorted(table.paths.root.glob("part-*.parquet"))
        if isinstance(table.mode, Upsert):
            return list(located_versions(table.paths, shown.versions or {}).values())
        hidden = locate_hidden(table, shown.files)
        return [hidden.get(file.name, table.paths.published(file.name)) for file in shown.files]

    def _read(self) -> pa.Table:
        found = [read_file(path) for path in self._paths()]
        batches, replaces = from_last_replacing(self._shown.prepared)
        staged = [self._table.paths.root / file.staged for batch in batches for file in batch.files]
        added = [read_file(path).drop_columns([BUCKET_COLUMN]) for path in staged]
        parts = [part.replace_schema_metadata() for part in ((*added,) if replaces else (*found, *added))]
        if not parts:
            schema = self._shown.row_schema
            return (arrow_schema(parsed_schema(schema)) if schema else pa.schema([])).empty_table()
        rows = with_durations(concatenated(parts), self._shown.row_schema or _noted_schema([*found, *added]))
        return (
            latest_rows(rows, self._table.mode.keys)
            if added and isinstance(self._table.mode, Upsert)
            else rows
        )


def _noted_schema(parts: Sequence[pa.Table]) -> str:
    """Return Spark's own note of the columns, where no publish says them: rows that were written at least once."""
    notes = ((part.schema.metadata or {}).get(SPARK_SCHEMA, b"") for part in reversed(parts))
    return next((note.decode() for note in notes if note), "")


def shown_now(table: Table) -> Shown:
    """Return the state that is published."""
    state = table.state()
    return _of_chain(table, state.head)


def shown_at(table: Table, cut: SinkCut) -> Shown:
    """Return the state of a cut. Raises Corrupt where it can no longer be told, or is another history's."""
    batches = batches_with_rows(cut.batches)
    published = table.record(cut.checkpoint_id) if batches else None
    if published is not None:
        refuse_another_publish(table, published, cut)
        return _of_chain(table, published.checkpoint_id)
    before = _of_chain(table, cut.snapshot.head)
    schema = batches[-1].row_schema if batches else before.row_schema
    if isinstance(table.mode, Upsert):
        return Shown(head=before.head, row_schema=schema, versions=before.versions, prepared=batches)
    prepared = [file for batch in batches for file in batch.files]
    return Shown(head=before.head, row_schema=schema, files=unique_files([*before.files, *prepared]))


def _of_chain(table: Table, head: int | None) -> Shown:
    match table.mode:
        case Append():
            chain = table.lineage(head)
            schema = chain[0].row_schema if chain else ""
            return Shown(head=head, row_schema=schema, files=unique_files(_oldest_first(chain)))
        case Upsert():
            record = None if head is None else table.record(head)
            if record is None and head is not None:
                raise Corrupt(
                    f"table {table.uri}: publish {head} is gone from its log; choose a later checkpoint"
                )
            if record is None:
                return Shown(head=None, versions={})
            return Shown(head=head, row_schema=record.row_schema, versions=record.versions)


def _oldest_first(chain: list[PublishRecord]) -> Iterator[TableFile]:
    return (file for record in reversed(chain) for file in record.files)


def _steady(read: Callable[[], T]) -> T:
    for _ in range(_TRIES - 1):
        try:
            return read()
        except Corrupt:
            continue
    return read()
