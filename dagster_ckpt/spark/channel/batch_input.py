"""Input of one micro-batch, read again outside of its query: all of it, or some of its rows by their places.

Rows have places in the order of channels, entries and files, so that they can be halved, and left out one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.core.ids import BatchId, LogPosition, StageUid
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.channel.positions import channel_positions
from dagster_ckpt.spark.channel.rows_again import PLACE, read_rows
from dagster_ckpt.spark.channel.schema import parsed_schema
from dagster_ckpt.spark.quoting import quoted
from dagster_ckpt.spark.snapshot.capture import read_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


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
