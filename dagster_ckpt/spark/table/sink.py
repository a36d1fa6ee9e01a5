"""First phase of a table: micro-batches are staged as they run and named in a committable each.

Exactly-once: ``TableSink`` prepares, ``table_publish.publish`` makes the rows visible when the checkpoint is
complete. At-least-once: ``DirectTableSink`` makes every batch visible at once; after a failure rows may repeat.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from dagster_ckpt.core.ids import BatchId, CoordinatorEpoch
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.channel.sink import run_only, write_staged
from dagster_ckpt.spark.directories import PREPARED
from dagster_ckpt.spark.files import (
    batch_folder_name,
    create_exclusively,
    flush_to_disk,
    move_whole,
    parquet_files,
)
from dagster_ckpt.spark.sink.committables import (
    PreparedBatch,
    TableFile,
    encoded,
    prepared_batches,
    prepared_folder,
    read_committables,
)
from dagster_ckpt.spark.table.buckets import merge_into_published
from dagster_ckpt.spark.table.log import Table
from dagster_ckpt.spark.table.records import (
    BUCKET_COLUMN,
    Append,
    TableState,
    Upsert,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class TableSink:
    """The function to hand to ``DataStreamWriter.foreachBatch`` of an exactly-once sink."""

    def __init__(self, table: Table, *, stage_dir: Path, epoch: CoordinatorEpoch) -> None:
        self._table = table
        self._stage_dir = stage_dir
        self._epoch = epoch
        prepared_folder(stage_dir).mkdir(parents=True, exist_ok=True)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Prepare one micro-batch; the second try of a prepared batch stages nothing."""
        target = prepared_folder(self._stage_dir) / f"{batch_id}.json"
        if target.exists():
            run_only(frame)
            return
        batch = stage_batch(self._table, frame, BatchId(batch_id), epoch=self._epoch)
        create_exclusively(target, encoded(batch))


class DirectTableSink:
    """The function to hand to ``DataStreamWriter.foreachBatch`` of an at-least-once sink."""

    def __init__(self, table: Table, *, epoch: CoordinatorEpoch) -> None:
        self._table = table
        self._epoch = epoch

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Publish one micro-batch at once."""
        batch = stage_batch(self._table, frame, BatchId(batch_id), epoch=self._epoch)
        paths = self._table.paths
        with self._table.locked():
            match self._table.mode:
                case Append():
                    for file in batch.files:
                        move_whole(paths.root / file.staged, paths.published(file.name))
                case Upsert() as mode:
                    merge_into_published(paths, mode, batch.files)
                case _:
                    assert_never(self._table.mode)


def stage_batch(
    table: Table, frame: DataFrame, batch_id: BatchId, *, epoch: CoordinatorEpoch
) -> PreparedBatch:
    """Write the rows of a micro-batch where no reader sees them, and name them."""
    folder = table.paths.staged(epoch) / batch_folder_name(batch_id)
    folder.parent.mkdir(parents=True, exist_ok=True)
    write_staged(_with_bucket(frame, table.mode), folder)
    suffix = folder.name.rsplit("-", 1)[1]
    files = (
        TableFile(
            name=f"part-{epoch:06d}-{batch_id:010d}-{number:05d}-{suffix}.parquet",
            staged=file.name,
            rows=file.rows,
            bytes=file.bytes,
        )
        for number, file in enumerate(parquet_files(table.paths.root, folder))
    )
    return PreparedBatch(batch_id=batch_id, epoch=epoch, files=tuple(files), row_schema=frame.schema.json())


@dataclass(frozen=True, slots=True)
class TableCut:
    """Cut of a table: its position, and the committables that the checkpoint must hold."""

    snapshot: TableSnapshot
    committables: tuple[str, ...]
    """Relative to the stage's working directory."""


def table_snapshot(table: Table, *, stage_dir: Path, through_batch: BatchId | None) -> TableCut:
    """Return the table's part of a cut whose last batch is ``through_batch``: a state file and a listing are
    read.

    It needs no lock. A publish that ends meanwhile only makes the cut name batches that are visible already,
    and a roll-back recognizes those by their files' names.
    """
    state = table.state()
    batches = unpublished_batches(state, stage_dir, through_batch)
    snapshot = TableSnapshot(uri=table.uri, head=state.head, prepared=batches)
    return TableCut(snapshot, tuple(f"{PREPARED}/{batch}.json" for batch in batches))


def flush_committables(table: Table, cut: TableCut, *, stage_dir: Path) -> None:
    """Wait until the staged rows of a cut survive a power failure: call it before the checkpoint is
    acknowledged.
    """
    folders: set[Path] = set()
    for batch in read_committables(stage_dir, cut.snapshot.prepared):
        for file in batch.files:
            path = _where_it_is(table, file)
            flush_to_disk(path)
            folders.add(path.parent)
    for folder in folders:
        flush_to_disk(folder)


def unpublished_batches(state: TableState, stage_dir: Path, through_batch: BatchId | None) -> tuple[int, ...]:
    """Return the prepared batches up to ``through_batch`` that the table does not show yet."""
    done = state.published_through
    return tuple(
        batch
        for batch in prepared_batches(stage_dir)
        if through_batch is not None and batch <= through_batch and (done is None or batch > done)
    )


def _where_it_is(table: Table, file: TableFile) -> Path:
    published = table.paths.published(file.name)
    return published if published.exists() else table.paths.root / file.staged


def _with_bucket(frame: DataFrame, mode: Append | Upsert) -> DataFrame:
    match mode:
        case Append():
            return frame
        case Upsert():
            from pyspark.sql import functions as F  # noqa: N812 (everybody's name for it)

            missing = sorted(set(mode.keys) - set(frame.columns))
            if missing:
                raise InvalidRequest(
                    f"the rows have no key column {missing[0]!r}: name columns of {frame.columns}"
                )
            bucket = F.pmod(F.xxhash64(*[F.col(f"`{key}`") for key in mode.keys]), F.lit(mode.buckets))
            return frame.withColumn(BUCKET_COLUMN, bucket.cast("int"))
        case _:
            assert_never(mode)
