"""Published rows as readers want them: one state of a table, in the form they work with.

A sink says how its rows become Arrow; every other form is made of that, unless the sink has a better way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.sink.plain_files import PlainFiles

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


class PublishedRows(ABC):
    """The rows of one state of a sink's table; nothing is read before a form of them is asked for."""

    def __init__(self, place: str, version: str = "") -> None:
        self.place = place
        self.version = version
        """The table's own name of the state that is read: a checkpoint, a table version; empty: the newest."""

    @abstractmethod
    def to_arrow(self) -> pa.Table:
        """Return all rows. Raises Corrupt where rows of this state are gone, Unavailable."""

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame."""
        _needed("pandas", "pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Return a Polars DataFrame."""
        return _needed("polars", "polars").from_arrow(self.to_arrow())

    def to_duckdb(self, connection: Any = None) -> Any:
        """Return a relation of DuckDB, of a connection or of the default one."""
        duckdb = _needed("duckdb", "duckdb")
        return duckdb.from_arrow(self.to_arrow(), connection=connection or duckdb.default_connection())

    def files(self) -> PlainFiles | None:
        """Return the Parquet files that are exactly these rows; None: only a reader of the table's own can tell."""
        return None

    def to_spark(self, spark: SparkSession) -> DataFrame:
        """Return a Spark DataFrame, read by executors; where no files can be named, the driver hands the rows out."""
        from pyspark.sql.pandas.types import from_arrow_schema

        files = self.files()
        if files is not None:
            return files.frame(spark)
        rows = self.to_arrow()
        # By itself Spark takes times without a zone for those of the session's, and moves or refuses some.
        return spark.createDataFrame(rows, from_arrow_schema(rows.schema, prefer_timestamp_ntz=True))

    def __repr__(self) -> str:
        at = f" at {self.version}" if self.version else ""
        return f"<rows of {self.place}{at}>"


class RowsWithCheckpoint(PublishedRows):
    """Rows of a quarantine, with the column ``checkpoint``: NULL where the table does not tell any more."""

    def __init__(
        self, rows: PublishedRows, checkpoints_of: Callable[[Iterable[int]], Mapping[int, int]]
    ) -> None:
        super().__init__(rows.place, rows.version)
        self._rows, self._checkpoints_of = rows, checkpoints_of

    def to_arrow(self) -> pa.Table:
        """Return all rows, as the table has them, and the checkpoint that published each one's batch."""
        import pyarrow as pa

        rows = self._rows.to_arrow()
        batches = rows["batch"].to_pylist()
        found = self._checkpoints_of(set(batches))
        return rows.append_column("checkpoint", pa.array(map(found.get, batches), pa.int64()))


def _needed(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise InvalidRequest(
            f"rows as {module} need the package {module}: pip install '{package}'"
        ) from error
