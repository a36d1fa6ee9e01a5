"""A micro-batch's rows, written by tasks to an object store: each task names what it has written to the driver.

Not by Spark's file writers: those rename, which an object store does by copying, and need its connector in every
session. Here a task writes one object, and what a task that failed or was repeated has left is named by nobody. So
nothing is listed, renamed or counted: the names that the driver gets are the rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.spark.exchange.mounts import Exchange
from dagster_ckpt.spark.exchange.objects import RemoteFolder
from dagster_ckpt.spark.files import DataFile, bounded_by_pyarrow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_SAID = "name string, rows bigint, bytes bigint"
_ROW_GROUP_BYTES = 64 * 1024 * 1024
"""Bytes of Arrow data that are kept in memory until they are written as one row group."""


def write_rows(
    frame: DataFrame, exchange: Exchange, folder: Path, root: Path, target: pa.Schema
) -> tuple[DataFile, ...]:
    """Write the rows as Parquet of the schema ``target``; return the files, named relative to ``root``.

    Their order is that of Spark's partitions, as of files that Spark writes itself.
    """
    task = _writes(exchange.below(folder), target)
    # mapInArrow looks columns up by name: names may have dots in them, or be there twice.
    numbered = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
    said = numbered.mapInArrow(task, _SAID).collect()
    inside = folder.relative_to(root).as_posix()
    return tuple(
        sorted((DataFile(f"{inside}/{name}", rows, size) for name, rows, size in said), key=lambda f: f.name)
    )


def _writes(
    remote: RemoteFolder, target: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches):  # type: ignore[no-untyped-def]  # Spark takes hints for those of pandas
        return write_part(batches, remote, target)

    return task


def write_part(
    batches: Iterator[pa.RecordBatch], remote: RemoteFolder, target: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Write the rows of one task as one object; yield its name, rows and size, or nothing where it has no rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark import TaskContext

    groups = _row_groups(batches, target)
    first = next(groups, None)
    if first is None:
        return
    context = TaskContext.get()
    number = context.partitionId() if context is not None else 0
    name, rows = f"part-{number:05d}-{uuid.uuid4().hex}.parquet", first.num_rows
    with remote.write(name) as stream:
        bounded = bounded_by_pyarrow(target)
        with pq.ParquetWriter(stream, target, store_schema=False, write_statistics=bounded) as writer:
            writer.write_table(first)
            for group in groups:
                rows += group.num_rows
                writer.write_table(group)
        size = stream.tell()
    yield pa.RecordBatch.from_pydict({"name": [name], "rows": [rows], "bytes": [size]})


def _row_groups(batches: Iterator[pa.RecordBatch], target: pa.Schema) -> Iterator[pa.Table]:
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(_as(batch, target))
            size += waiting[-1].nbytes
            if size >= _ROW_GROUP_BYTES:
                yield pa.Table.from_batches(waiting, target)
                waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting, target)


def _as(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(batch.columns, target, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)
