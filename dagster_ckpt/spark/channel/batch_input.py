"""Input of one micro-batch, read again outside of its query: all of it, or some of its rows by their places.

Rows have places in the order of channels, entries and files, so that they can be halved, and left out one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.core.ids import BatchId, LogPosition, StageUid
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.channel.positions import channel_positions
from dagster_ckpt.spark.channel.schema import arrow_schema, conformed, parsed_schema
from dagster_ckpt.spark.exchange.mounts import exchange_of
from dagster_ckpt.spark.exchange.objects import RemoteFolder
from dagster_ckpt.spark.files import AS_WRITTEN, spark_path
from dagster_ckpt.spark.quoting import quoted
from dagster_ckpt.spark.snapshot.capture import read_offsets

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
    reader = spark.read.options(**options, **AS_WRITTEN).schema(schema)
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


@dataclass(frozen=True, slots=True)
class _Span:
    """A file of the batch, and the place of its first row."""

    channel: StageUid
    path: Path
    first: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchInput:
    """Rows that one micro-batch has read of its stage's channels."""

    channels: tuple[StageUid, ...]
    """As the stage's function takes them, a channel as often as it does."""
    logs: Mapping[StageUid, ChannelLog]
    spans: tuple[_Span, ...] = ()

    @classmethod
    def of(
        cls,
        channels: Sequence[StageUid],
        logs: Mapping[StageUid, ChannelLog],
        names: Mapping[str, StageUid],
        query: Path,
        batch: BatchId,
    ) -> BatchInput:
        """Return the input of a batch that is planned and not committed; ``names``: stages by names in offsets.

        Raises InvalidRequest where two readers of one channel stand at different places.
        """
        ends = _positions(query, batch, names)
        starts = _positions(query, BatchId(batch - 1), names) if batch else {}
        spans: list[_Span] = []
        first = 0
        for channel, log in logs.items():
            start = starts.get(channel, log.start)
            for entry in log.files_between(start, ends.get(channel, start)):
                for file in entry.files:
                    spans.append(_Span(channel, log.directory / file.name, first, file.rows))
                    first += file.rows
        return cls(channels=tuple(channels), logs=logs, spans=tuple(spans))

    def plus(self, files: Iterable[tuple[StageUid, Path, int]]) -> BatchInput:
        """Return the input with rows behind its own: files with a channel's columns, and how many rows each has."""
        spans, first = [*self.spans], self.rows
        for channel, path, rows in files:
            spans.append(_Span(channel, path, first, rows))
            first += rows
        return replace(self, spans=tuple(spans))

    @property
    def rows(self) -> int:
        """Number of rows, and so the place behind the last one."""
        return self.spans[-1].first + self.spans[-1].rows if self.spans else 0

    def channel_at(self, place: int) -> StageUid:
        """Return the channel that a row is of."""
        return self._span_at(place).channel

    def file_at(self, place: int) -> tuple[Path, int]:
        """Return the file that has a row, and the row's number in it."""
        span = self._span_at(place)
        return span.path, place - span.first

    def _span_at(self, place: int) -> _Span:
        return next(span for span in reversed(self.spans) if span.first <= place)

    def whole(self, spark: SparkSession) -> list[DataFrame]:
        """Return all rows, a frame for each channel, with nothing said of their order."""
        return [self._read(spark, channel, self.spans) for channel in self.channels]

    def some(self, spark: SparkSession, start: int, stop: int, without: Collection[int]) -> list[DataFrame]:
        """Return the rows from one place up to another but these, a frame for each channel, in no order."""
        return [
            self._plain(channel, self._rows(spark, channel, start, stop, without))
            for channel in self.channels
        ]

    def all_but(self, spark: SparkSession, without: Collection[int]) -> list[DataFrame]:
        """Return the rows at all places but these, in their order: of two rows of one key the later one counts."""
        found = ((channel, self._rows(spark, channel, 0, self.rows, without)) for channel in self.channels)
        return [self._plain(channel, rows.sort(PLACE)) for channel, rows in found]

    def row(self, spark: SparkSession, place: int) -> DataFrame:
        """Return the row at a place."""
        channel = self.channel_at(place)
        return self._plain(channel, self._rows(spark, channel, place, place + 1, ()))

    def _plain(self, channel: StageUid, rows: DataFrame) -> DataFrame:
        return rows.select(*(rows[quoted(name)] for name in self._schema(channel).names))

    def schemas(self) -> dict[StageUid, StructType]:
        """Return the columns of each channel."""
        return {channel: self._schema(channel) for channel in self.logs}

    def _schema(self, channel: StageUid) -> StructType:
        return parsed_schema(self.logs[channel].read_schema())

    def _rows(
        self, spark: SparkSession, channel: StageUid, start: int, stop: int, without: Collection[int]
    ) -> DataFrame:
        """Return rows of a channel, each with its place."""
        from pyspark.sql import functions as f

        rows = self._read(
            spark,
            channel,
            [one for one in self.spans if one.first < stop and one.first + one.rows > start],
            with_places=True,
        )
        # A condition on a task is joined with no other: those of the stage see only these rows.
        wanted = (f.col(PLACE) >= start) & (f.col(PLACE) < stop) & ~f.col(PLACE).isin([*without])
        return rows.where(wanted & (f.spark_partition_id() >= 0))

    def _read(
        self, spark: SparkSession, channel: StageUid, spans: Sequence[_Span], *, with_places: bool = False
    ) -> DataFrame:
        mine = [one for one in spans if one.channel == channel]
        places = [one.first for one in mine] if with_places else None
        return read_rows(spark, [one.path for one in mine], self._schema(channel), places)


def _positions(query: Path, batch: BatchId, names: Mapping[str, StageUid]) -> dict[StageUid, LogPosition]:
    offsets = read_offsets(query, batch)
    found = channel_positions(offsets, names)
    if found != channel_positions(offsets, names, max):
        raise InvalidRequest(
            f"batch {batch} has read one of its stage's inputs twice, and differently far, so that it cannot be read "
            "again: read each input once in the stage's function"
        )
    return found
