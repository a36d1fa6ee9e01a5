"""Rows of staged files, read again outside of their query: from the disk, or from the object store that they lie in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.spark.channel.schema import arrow_schema, conformed
from dagster_ckpt.spark.exchange.mounts import exchange_of
from dagster_ckpt.spark.exchange.objects import RemoteFolder
from dagster_ckpt.spark.files import spark_path

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

PLACE = "_dagster_ckpt_place"
"""Column of the place that a row has among those of all files."""


def read_rows(
    spark: SparkSession, paths: Sequence[Path], schema: StructType, firsts: Sequence[int] | None = None
) -> DataFrame:
    """Return the rows of files, all of one folder's attempt.

    ``firsts``: the place of each file's first row; with them the rows have the column ``PLACE``.
    """
    from pyspark.sql import functions as f

    exchange = exchange_of(paths[0]) if paths else None
    if not paths:
        nothing = spark.createDataFrame([], schema)
        return nothing if firsts is None else nothing.withColumn(PLACE, f.lit(0).cast("bigint"))
    if exchange is not None:
        task = _reads(
            exchange.remote, [exchange.key_of(path) for path in paths], firsts, arrow_schema(schema)
        )
        return _of_tasks(spark, len(paths), task, schema, "" if firsts is None else PLACE)
    options = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
    reader = spark.read.options(**options, datetimeRebaseMode="CORRECTED").schema(schema)
    rows = reader.parquet(*map(spark_path, paths))
    if firsts is None:
        return rows
    file = rows.metadataColumn("_metadata")
    files = (
        (f.lit(path.name), f.lit(first).cast("bigint")) for path, first in zip(paths, firsts, strict=True)
    )
    place = f.create_map(*chain.from_iterable(files))[file["file_name"]] + file["row_index"]
    return rows.select("*", place.alias(PLACE))


def _of_tasks(
    spark: SparkSession,
    number: int,
    task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: StructType,
    place: str,
) -> DataFrame:
    """Return the rows of a task for each file, in the files' order."""
    from pyspark.sql.types import LongType, StructField, StructType

    fields = [*schema.fields, *([StructField(place, LongType())] if place else [])]
    numbered = StructType([StructField(f"c{n}", one.dataType) for n, one in enumerate(fields)])
    rows = spark.range(number, numPartitions=number).mapInArrow(task, numbered)
    return rows.toDF(*(one.name for one in fields))


def _reads(
    remote: RemoteFolder, keys: Sequence[str], firsts: Sequence[int] | None, target: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    names = [f"c{number}" for number in range(len(target) + (firsts is not None))]

    def task(batches):  # type: ignore[no-untyped-def]  # Spark takes hints for those of pandas
        import pyarrow as pa

        for number in chain.from_iterable(batch.column(0).to_pylist() for batch in batches):
            place = 0 if firsts is None else firsts[number]
            for file in remote.parquet_files([keys[number]]):
                for found in file.iter_batches():
                    columns = conformed(found, target).columns
                    if firsts is not None:
                        columns = [*columns, pa.array(range(place, place + found.num_rows), pa.int64())]
                    place += found.num_rows
                    yield pa.RecordBatch.from_arrays(columns, names)

    return task
