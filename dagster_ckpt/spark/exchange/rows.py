"""A micro-batch's rows, written by tasks to an object store: each task names what it has written to the driver.

Not by Spark's file writers: those rename, which an object store does by copying, and need its connector in every
session. Here a task writes one object, and what a task that failed or was repeated has left is named by nobody. So
nothing is listed, renamed or counted: the names that the driver gets are the rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.spark.exchange.mounts import Exchange
from dagster_ckpt.spark.exchange.objects import RemoteFolder
from dagster_ckpt.spark.files import DataFile, bounded_by_pyarrow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_SAID = "name string, rows bigint, bytes bigint, value bigint"
_ROW_GROUP_BYTES = 64 * 1024 * 1024
"""Bytes of Arrow data that are kept in memory until they are written as one row group."""

Said = dict[int | None, list[DataFile]]


def write_rows(
    frame: DataFrame, exchange: Exchange, folder: Path, root: Path, target: pa.Schema, *, by: str = ""
) -> Said:
    """Write the rows as Parquet of the schema ``target``; return the files, named relative to ``root``.

    Their order is that of Spark's partitions, as of files that Spark writes itself. ``by``: a column of whole numbers
    that is not in ``target``; the rows of each have files of their own, by it. Without one they are those of None.
    """
    task = _writes(exchange.below(folder), target, frame.columns.index(by) if by else None)
    # mapInArrow looks columns up by name: names may have dots in them, or be there twice.
    numbered = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
    inside = folder.relative_to(root).as_posix()
    found: Said = {}
    for name, rows, size, value in sorted(numbered.mapInArrow(task, _SAID).collect()):
        found.setdefault(value, []).append(DataFile(f"{inside}/{name}", rows, size))
    return found


def _writes(
    remote: RemoteFolder, target: pa.Schema, by: int | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches):  # type: ignore[no-untyped-def]  # Spark takes hints for those of pandas
        return write_part(batches, remote, target, by)

    return task


def write_part(
    batches: Iterator[pa.RecordBatch], remote: RemoteFolder, target: pa.Schema, by: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Write the rows of one task as one object, or one for each value of column ``by``; yield what says of them.

    Which is the name, rows, size and value of each; nothing where there are no rows.
    """
    import pyarrow as pa

    objects: dict[int | None, _Object] = {}
    for batch in batches:
        for value, rows in _by_value(batch, by):
            if value not in objects:
                objects[value] = _Object(remote, target)
            objects[value].add(rows)
    for value, one in objects.items():
        said = {"name": one.name, "rows": one.rows, "bytes": one.close(), "value": value}
        yield pa.RecordBatch.from_pylist([said], schema=_said())


def _said() -> pa.Schema:
    import pyarrow as pa

    numbers = [pa.field(name, pa.int64()) for name in ("rows", "bytes", "value")]
    return pa.schema([pa.field("name", pa.string()), *numbers])


def _by_value(batch: pa.RecordBatch, by: int | None) -> Iterator[tuple[int | None, pa.RecordBatch]]:
    if by is None or not batch.num_rows:
        yield from [(None, batch)] if batch.num_rows else []
        return
    import pyarrow as pa
    import pyarrow.compute as pc

    column, others = batch.column(by), [n for n in range(batch.num_columns) if n != by]
    rows = pa.RecordBatch.from_arrays([batch.column(n) for n in others], [str(n) for n in others])
    for value in pc.unique(column).to_pylist():
        yield value, rows.filter(pc.equal(column, value))


class _Object:
    """An object that one task writes, a row group at a time."""

    def __init__(self, remote: RemoteFolder, target: pa.Schema) -> None:
        import pyarrow.parquet as pq
        from pyspark import TaskContext

        context = TaskContext.get()
        number = context.partitionId() if context is not None else 0
        self.name, self.rows = f"part-{number:05d}-{uuid.uuid4().hex}.parquet", 0
        self._target, self._waiting, self._size = target, list[Any](), 0
        self._opened = ExitStack()
        self._stream = self._opened.enter_context(remote.write(self.name))
        bounded = bounded_by_pyarrow(target)
        self._writer = pq.ParquetWriter(self._stream, target, store_schema=False, write_statistics=bounded)

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(_as(rows, self._target))
        self._size += self._waiting[-1].nbytes
        self.rows += rows.num_rows
        if self._size >= _ROW_GROUP_BYTES:
            self._write()

    def close(self) -> int:
        """Make the object whole, and return its size."""
        if self._waiting:
            self._write()
        self._writer.close()
        size: int = self._stream.tell()
        self._opened.close()
        return size

    def _write(self) -> None:
        import pyarrow as pa

        self._writer.write_table(pa.Table.from_batches(self._waiting, self._target))
        self._waiting, self._size = [], 0


def _as(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(batch.columns, target, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)
