"""Parquet tables and sinks that ``spark-pipelines run`` has filled: a folder, and the files that its log names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.ext.spark_pipelines.graph import DatasetNode
from dagster_ckpt.ext.spark_pipelines.left.flow_checkpoints import (
    AGAIN,
    FlowCheckpoint,
    files_read,
    read_file_log,
)
from dagster_ckpt.ext.spark_pipelines.left.source_order import PlannedSource
from dagster_ckpt.ext.spark_pipelines.schemas import columns_of_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


_NOTED = b"org.apache.spark.sql.parquet.row.metadata"
"""Spark's own note of the types in a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetLeft:
    """A table of Spark's: its folder, and the files that its log names."""

    table: DatasetNode
    folder: Path
    files: frozenset[str]

    @property
    def is_empty(self) -> bool:
        """True where it has no rows."""
        return not self.files

    def refuse_unread(self, reader: FlowCheckpoint, source: PlannedSource, text: str) -> None:
        """Raise InvalidRequest where a flow that stands at ``text`` has not read exactly these files."""
        name, read = self.table.name, files_read(reader, source, text)
        if read - self.files:
            raise InvalidRequest(
                f"{reader.title} has read {min(read - self.files)}, which table {name!r} does not have: the "
                "table was made again since, or the function was changed. Let spark-pipelines run --full-refresh-all, "
                "and adopt then"
            )
        if self.files - read:
            raise InvalidRequest(
                f"{reader.title} has not read {min(self.files - read)} of table {name!r} yet. {AGAIN}"
            )

    def rows(self, spark: SparkSession, schema: StructType) -> tuple[DataFrame, int]:
        """Return the rows in the columns of ``schema``, and how many there are.

        Raises InvalidRequest for columns the project no longer has, Corrupt for a file that is gone.
        """
        wanted = self._rows_in_files(schema)
        return spark.read.schema(schema).parquet(str(self.folder)), wanted

    def _rows_in_files(self, schema: StructType) -> int:
        wanted = {column.name: column.dataType for column in schema.fields}
        rows = 0
        for file, footer in footers(sorted(self.files), self.table.name):
            noted = (footer.schema_arrow.metadata or {}).get(_NOTED)
            if noted is None:
                raise InvalidRequest(
                    f"{file} of table {self.table.name!r} was not written by Spark: it has no note of its types"
                )
            for name, kind in columns_of_text(noted.decode()).items():
                if name not in wanted or kind != wanted[name]:
                    now = f"brings as {wanted[name].simpleString()}" if name in wanted else "no longer brings"
                    raise InvalidRequest(
                        f"table {self.table.name!r} has a column {name!r} of {kind.simpleString()} in its files, which "
                        f"the project {now}: name it in the table's schema as it was, so that its values stay"
                    )
            rows += footer.metadata.num_rows
        return rows


def find_parquet(table: DatasetNode, folder: Path, flows: Sequence[FlowCheckpoint]) -> ParquetLeft:
    """Return a table as its log names it. Raises InvalidRequest unless that is at its flow's batch, Declined."""
    log = read_file_log(folder / "_spark_metadata")
    newest = max((flow.batch for flow in flows if flow.batch is not None), default=None)
    if newest is not None and log.newest != newest:
        raise InvalidRequest(
            f"table {table.name!r} in {folder} has the rows of batches up to {log.newest}, and the checkpoint of "
            f"its flow is at {newest}: it is another table, or not as Spark left it. Name Spark's warehouse folder "
            f"(warehouse), or: {AGAIN[0].lower()}{AGAIN[1:]}"
        )
    return ParquetLeft(table=table, folder=folder, files=frozenset() if newest is None else log.files)


def footers(files: Iterable[str], name: str) -> Iterator[tuple[str, pq.ParquetFile]]:
    """Yield the files of a table, opened. Raises Corrupt for one that is gone or damaged."""
    for file in files:
        try:
            footer = pq.ParquetFile(file)
        except (OSError, ValueError) as error:
            raise Corrupt(f"{file} of table {name!r} cannot be read: {error}") from error
        yield file, footer
