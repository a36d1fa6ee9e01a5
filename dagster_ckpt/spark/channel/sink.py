"""Writing a stage's micro-batches to its channel log, in every output mode.

One mechanism, ``foreachBatch``: Spark writes the batch with its own Parquet writer into a fresh folder, then
the driver appends one data entry. The entry is the commit; it is written once per batch id, so a replayed batch
is recognized before any work is done. Why not a Python streaming sink: docs/decisions/0006-channel-log.md.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.channel.entries import AlreadyAppended, AppendResult
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.channel.schema import arrow_schema, channel_schema_json, parsed_schema
from dagster_ckpt.spark.cluster.counted import CountedRows
from dagster_ckpt.spark.exchange.mounts import exchange_of, forget_remote
from dagster_ckpt.spark.exchange.task_files import write_rows
from dagster_ckpt.spark.files import DataFile, batch_folder_name, parquet_files, refresh_listing, spark_uri

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


PLAIN_PARQUET = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.fieldId.write.enabled": "false",
    "spark.sql.variant.writeShredding.enabled": "false",
}
"""Forms that every Parquet reader understands, whatever the session has: dates before 1582 as they are, too; and no
numbers of fields that columns brought along, by which readers of Iceberg tables would take one column for another."""


CODEC = "lz4_raw"
"""Rows are read again within seconds: as small as with Snappy, Spark's default, and cheaper to write and to read."""


def _as_they_are(frame: DataFrame, folder: Path, root: Path, batch_id: BatchId) -> tuple[DataFile, ...]:
    return write_staged(frame, folder, root, codec=CODEC)


Processing = Callable[["DataFrame", BatchId], AbstractContextManager["DataFrame"]]


def _as_they_came(frame: DataFrame, batch_id: BatchId) -> AbstractContextManager[DataFrame]:
    return nullcontext(frame)


class ChannelSink:
    """The function to hand to ``DataStreamWriter.foreachBatch`` of a stage that has a channel log.

    Raises InvalidRequest at once when the stage produces a column that a channel cannot carry. ``marked``: as
    ``channel_schema_json`` has it. ``write``: writes a batch's files, as ``BatchFiles`` has it; ``replay``: runs
    a batch that is in the log; ``processed``: makes of a batch's rows those that are written; ``note``: called when a
    batch's files are there, before it is in the log.
    """

    def __init__(
        self,
        log: ChannelLog,
        schema: StructType,
        *,
        marked: bool = False,
        write: Callable[[DataFrame, Path, Path, BatchId], tuple[DataFile, ...]] = _as_they_are,
        replay: Callable[[DataFrame], None] | None = None,
        processed: Processing = _as_they_came,
        note: Callable[[BatchId], None] = lambda batch: None,
    ) -> None:
        schema_json = channel_schema_json(schema, marked=marked)
        arrow_schema(parsed_schema(schema_json))
        log.write_schema(schema_json)
        self._log = log
        self._write = write
        self._replay = replay or run_only
        self._processed = processed
        self._note = note

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Stage and append one micro-batch; the second try of a batch that is in the log appends nothing."""
        self.append(frame, BatchId(batch_id))

    def append(self, frame: DataFrame, batch_id: BatchId) -> AppendResult:
        """Stage and append one micro-batch, and tell whether the log had it already."""
        there = self._log.find_batch(batch_id)
        if there is not None:
            self._replay(frame)
            return there
        folder = self._log.data_folder / batch_folder_name(batch_id)
        with self._processed(frame, batch_id) as rows:
            files = self._write(rows, folder, self._log.directory, batch_id)
        self._note(batch_id)
        result = self._log.append_data(batch_id, files)
        if not files or isinstance(result, AlreadyAppended):
            shutil.rmtree(folder, ignore_errors=True)
            forget_remote(self._log.directory, [file.name for file in files])
        return result


def run_only(frame: DataFrame) -> None:
    """Run a replayed micro-batch without keeping its rows: its state has to be computed all the same.

    Spark commits the state that this run of the batch wrote; without one the next batch would find none.
    """
    frame.write.format("noop").mode("overwrite").save()


def write_staged(
    frame: DataFrame, folder: Path, root: Path, partition_by: Sequence[str] = (), codec: str | None = None
) -> tuple[DataFile, ...]:
    """Write a micro-batch's rows below a new folder as plain Parquet; return the files, named relative to ``root``.

    ``codec``: Spark's name of a compression; by default the session's. Raises Unavailable where the files
    that are found do not hold the rows that were written. Where the folder's rows lie in an object store they
    are there then, and not in the folder.
    """
    exchange = exchange_of(folder)
    if exchange is not None:
        if partition_by:
            raise InvalidRequest(
                f"rows in folders of {', '.join(partition_by)} cannot be staged in {exchange.remote.uri} yet: leave "
                "partition_by out, or give work_dir a folder that all machines mount"
            )
        return tuple(write_rows(frame, exchange, folder, root, arrow_schema(frame.schema)).get(None, ()))
    counted = CountedRows(frame)
    # foreachBatch hands out a session of the query's own: these settings reach no other query.
    for name, value in PLAIN_PARQUET.items():
        frame.sparkSession.conf.set(name, value)
    writer = counted.frame.write.mode("error")
    if codec is not None:
        writer = writer.option("compression", codec)
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    (
        writer.option("mapreduce.fileoutputcommitter.algorithm.version", "2")
        .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
        # Of long text a file would say nothing at all, and delta-rs takes that for "no value is null".
        .option("parquet.statistics.truncate.length", "64")
        .parquet(spark_uri(folder))
    )
    files = parquet_files(root, folder)
    if not counted.agrees_with(files, folder):
        refresh_listing(folder)
        files = parquet_files(root, folder)
        counted.compare(files, folder)
    return files


def write_apart(frame: DataFrame, by: str, folder: Path, root: Path) -> dict[int, list[DataFile]]:
    """Write rows as ``write_staged`` does; return the files by the values of a column, which is in none of them.

    ``by``: a column of whole numbers, none of them NULL.
    """
    exchange = exchange_of(folder)
    found: dict[int, list[DataFile]] = {}
    if exchange is not None:
        target = arrow_schema(frame.drop(by).schema)
        for value, files in write_rows(frame, exchange, folder, root, target, by=by).items():
            found[int(value or 0)] = files
        return found
    for file in write_staged(frame, folder, root, partition_by=(by,), codec=CODEC):
        found.setdefault(int(Path(file.name).parent.name.rpartition("=")[2]), []).append(file)
    return found
