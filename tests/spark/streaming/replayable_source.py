"""A Python data source as Kafka behaves: rows stay where they are, a reader names them by offset and may read again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition


class ReplayableLog(DataSource):
    """Numbers 0 … n-1, where n stands in a file that someone else makes grow."""

    @classmethod
    def name(cls) -> str:
        return "replayable_log"

    def schema(self) -> str:
        return "n INT, key STRING"

    def streamReader(self, schema: object) -> DataSourceStreamReader:  # noqa: N802
        return ReplayableReader(self.options)


class Span(InputPartition):
    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop


class ReplayableReader(DataSourceStreamReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._path = options["path"]

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"offset": 0}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802
        return {"offset": int(Path(self._path).read_text())}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [Span(start["offset"], end["offset"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, str]]:
        assert isinstance(partition, Span)
        for n in range(partition.start, partition.stop):
            yield n, f"k{n % 7}"

    def commit(self, end: dict[str, int]) -> None: ...

    def stop(self) -> None: ...
