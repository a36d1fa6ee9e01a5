"""``dagster_ckpt_channel``: a channel log as a Spark streaming source that never crosses an unreleased barrier.

The reader object lives in a Python process of its own, one per query and source; it learns everything through
files: the log, and the stage's ``released`` file. Its offset is one log position, ``{"pos": p}``: entries
below ``p`` are read. Data files are read by the executors' Python workers as Arrow batches.

Options: ``path`` (the log's folder), ``channel`` (a name that its offsets carry, because Spark numbers the
sources of a query in the order of its plan and not of its inputs: a restored offset of another channel is refused),
``formerly`` (earlier names of the channel, a JSON list), ``release`` (the reading stage's
``released`` file; without it no barrier ever holds), ``max_entries`` and ``max_rows`` per micro-batch,
``parallelism`` (input partitions per batch), ``exchange_secret`` (the object store that holds the log's data files,
where they are not in its folder; its name lets Spark hide it wherever options are shown).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.datasource import DataSourceStreamReader as StreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from dagster_ckpt.core.ids import LogPosition
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.channel.entries import HoldNothing, Limit, Release, next_end
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.channel.schema import FORMAT, arrow_schema, conformed, parsed_schema
from dagster_ckpt.spark.exchange.mounts import exchange_of
from dagster_ckpt.spark.exchange.objects import RemoteFolder
from dagster_ckpt.spark.files import DataFile

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_ROWS_PER_ARROW_BATCH = 65_536
_DEFAULT_PARALLELISM = 2


def read_channel(
    spark: SparkSession,
    log_dir: str,
    *,
    channel: str | None = None,
    formerly: Sequence[str] = (),
    release_file: str | None = None,
    max_entries: int | None = None,
    max_rows: int | None = None,
) -> DataFrame:
    """Return the rows of a channel log as a streaming DataFrame, held at barriers that ``release_file``
    withholds.

    The log's schema must be written.
    """
    spark.dataSource.register(ChannelDataSource)
    options = {
        "path": str(log_dir),
        "channel": channel,
        "formerly": json.dumps(list(formerly)) if formerly else None,
        "release": release_file and str(release_file),
        "max_entries": max_entries,
        "max_rows": max_rows,
        "parallelism": _session_parallelism(spark),
        "exchange_secret": _exchange_of(Path(log_dir)),
    }
    reader = spark.readStream.format(FORMAT)
    for name, value in options.items():
        if value is not None:
            reader = reader.option(name, str(value))
    return reader.load()


class ChannelDataSource(DataSource):  # type: ignore[misc]
    """Registered as ``dagster_ckpt_channel``; see the module's docstring for its options."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``spark.readStream.format``."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the schema that the stage wrote beside the log. Raises NotFound before it has."""
        return parsed_schema(ChannelLog(_required_path(self.options)).read_schema())

    def streamReader(self, schema: StructType) -> ChannelReader:  # noqa: N802
        """Return the reader of this channel."""
        return ChannelReader(self.options, schema)


@dataclass(frozen=True)
class DataFiles(InputPartition):  # type: ignore[misc]
    """Some of a micro-batch's files, read by one task."""

    paths: tuple[str, ...]


class ChannelReader(StreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Plans micro-batches over a channel log (in the planner process), reads their files (in workers)."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._directory = _required_path(options)
        self._release_file = options.get("release")
        self._name = options.get("channel")
        self._formerly = tuple(parse_json(options.get("formerly") or "[]"))
        self._limit = Limit(entries=_positive(options, "max_entries"), rows=_positive(options, "max_rows"))
        self._parallelism = _positive(options, "parallelism") or _DEFAULT_PARALLELISM
        exchange = options.get("exchange_secret")
        self._remote = RemoteFolder.parse(exchange) if exchange else None
        self._schema = schema
        self._target: LogPosition | None = None
        self._log: ChannelLog | None = None

    @property
    def _channel(self) -> ChannelLog:
        # Made on first use: the reader is sent to the workers by value, the log's lock cannot be.
        if self._log is None:
            self._log = ChannelLog(self._directory)
        return self._log

    # --- planning -------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, int | str]:  # noqa: N802
        """Return where a query without a checkpoint begins: the first entry kept."""
        return self._offset(self._channel.start)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the options set; ``latestOffset`` applies both of them."""
        if self._limit.rows is not None:
            return ReadMaxRows(self._limit.rows)
        return ReadAllAvailable() if self._limit.entries is None else ReadMaxFiles(self._limit.entries)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next batch ends, or ``start`` itself when it stands on a held barrier or at the
        end.
        """
        released = Release.at(self._release_file).read() if self._release_file else HoldNothing()
        position = self._position(start)
        if self._target is not None and position >= self._target:
            return start
        end = next_end(
            position,
            self._channel.entries(position, self._target),
            released=released,
            limit=Limit() if isinstance(limit, ReadAllAvailable) else self._limit,
            onto_barrier=self._target is not None,
        )
        return start if end == position else self._offset(end)

    def reportLatestOffset(self) -> dict[str, int | str]:  # noqa: N802
        """Return the log's end, for Spark's metrics."""
        return self._offset(self._channel.end)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query at what is in the log now."""
        self._target = self._channel.end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Spread the files of a batch over at most ``parallelism`` tasks of about equal bytes."""
        data = self._channel.files_between(self._position(start), self._position(end))
        shares = balanced([file for entry in data for file in entry.files], self._parallelism)
        return [DataFiles(tuple(self._place(file) for file in share)) for share in shares]

    def _place(self, file: DataFile) -> str:
        return f"{self._directory}/{file.name}" if self._remote is None else file.name

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: what may be forgotten is decided by the log's owner, over all its consumers."""

    def stop(self) -> None:
        """Do nothing: there is nothing to close."""

    def _offset(self, position: LogPosition) -> dict[str, int | str]:
        return {"pos": position} if self._name is None else {"channel": self._name, "pos": position}

    def _position(self, offset: dict[str, Any]) -> LogPosition:
        """Return the position in an offset of Spark's log. Raises InvalidRequest for one in another channel.

        Spark hands out the offsets by the order of the sources; where that has changed, going on would lose rows of
        one channel and read those of another twice. Offsets without a name are of before there were names.
        """
        name = offset.get("channel", self._name)
        if "pos" in offset and (self._name is None or name in (self._name, *self._formerly)):
            return LogPosition(offset["pos"])
        held = f"channel {name!r}" if "pos" in offset else "a source that is no channel"
        raise InvalidRequest(
            f"the order of its inputs has changed: the position that Spark kept for its input {self._name!r} is one "
            f"in {held}, and Spark tells inputs apart by their order in the query only. Put the inputs of its union or "
            "join back into the order they had"
        )

    # --- reading --------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some files as Arrow batches of exactly the channel's schema."""
        if not isinstance(partition, DataFiles):
            raise InvalidRequest(f"not a partition of a channel: {partition!r}")
        target = arrow_schema(self._schema)
        opened = _local_files if self._remote is None else self._remote.parquet_files
        for file in opened(partition.paths):
            for batch in file.iter_batches(batch_size=_ROWS_PER_ARROW_BATCH):
                yield conformed(batch, target)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_log": None}


def _local_files(paths: Sequence[str]) -> Iterator[pq.ParquetFile]:
    import pyarrow.parquet as pq

    for path in paths:
        with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
            yield file


def _exchange_of(log_dir: Path) -> str | None:
    exchange = exchange_of(log_dir)
    return None if exchange is None else exchange.below(log_dir).text


def balanced(files: Sequence[DataFile], shares: int) -> list[list[DataFile]]:
    """Cut ``files`` into at most ``shares`` non-empty runs of about equal bytes, in their order.

    Their order is the order of the log: a sink with a key keeps the row that came last.
    """
    piles: list[list[DataFile]] = []
    left = sum(file.bytes for file in files)
    weight = 0
    for index, file in enumerate(files):
        open_shares = shares - len(piles) + 1
        is_full = not piles or weight + file.bytes / 2 > (weight + left) / open_shares
        must_open = len(files) - index <= shares - len(piles)  # one file each for what is left
        if (is_full or must_open) and len(piles) < shares:
            piles.append([])
            weight = 0
        piles[-1].append(file)
        weight += file.bytes
        left -= file.bytes
    return piles


def _session_parallelism(spark: SparkSession) -> int | None:
    setting = spark.conf.get("spark.sql.shuffle.partitions", None)
    return int(setting) if setting else None


def _required_path(options: Mapping[str, str]) -> str:
    path = options.get("path")
    if not path:
        raise InvalidRequest(
            f"format {FORMAT!r} needs the option 'path': the folder of a stage's channel log"
        )
    return path


def _positive(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InvalidRequest(f"option {name!r} of a channel must be a whole number from 1, got {text!r}")
    return int(text)
