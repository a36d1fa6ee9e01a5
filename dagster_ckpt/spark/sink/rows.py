"""Published rows as readers want them: one state of a table, in the form they work with.

A sink says how its rows become Arrow; every other form is made of that, unless the sink has a better way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.channel.schema import parsed_schema
from dagster_ckpt.spark.files import AS_WRITTEN, spark_path, spark_uri
from dagster_ckpt.spark.quoting import quoted, text_literal

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


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
        """Return a pandas DataFrame; whole numbers with a null among them are ``Int64`` and its like, not floats."""
        from pyarrow import types

        _needed("pandas", "pandas")
        rows = self.to_arrow()
        # By itself Arrow makes floats of them, which have other values than numbers from 2^53 on.
        whole = {one.name: str(one.type).title() for one in rows.schema if types.is_integer(one.type)}
        kinds = {name: kind for name, kind in whole.items() if rows[name].null_count}
        return rows.to_pandas(integer_object_nulls=True).astype(kinds)

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


_OPTIONS = {**AS_WRITTEN, "int96RebaseMode": "CORRECTED"}
"""Whoever wrote the files."""
_GLOBS = frozenset("*?[]{}\\,")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesOfPartition:
    """Files that have the same values in the columns which are folders."""

    paths: tuple[Path, ...]
    values: Mapping[str, str | None] = field(default_factory=dict)
    """As text that Spark casts to the column's type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainFiles:
    """All files of one state of a table."""

    folder: Path
    """All lie below it."""
    row_schema: str
    """Spark schema of the rows."""
    parts: tuple[FilesOfPartition, ...]

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the rows, read by Spark's executors."""
        schema = parsed_schema(self.row_schema)
        frames = [_frame_of(spark, part, schema) for part in self.parts]
        return reduce(lambda one, other: one.union(other), frames or [spark.createDataFrame([], schema)])

    def query(self, row_schema: str) -> str:
        """Return SQL that reads the columns of a schema. Raises InvalidRequest for files that SQL cannot tell of."""
        wanted = parsed_schema(row_schema)
        if not self.parts:  # of no file Spark learns no columns
            return empty_query(row_schema)
        if any(part.values for part in self.parts):
            raise InvalidRequest(
                f"{self.folder} is partitioned, and its files lack these columns: make a table on it with Delta's jars "
                "(CREATE TABLE ... USING delta LOCATION ...), or leave partition_by out"
            )
        there = parsed_schema(self.row_schema).names
        [part] = self.parts
        options = {"mergeSchema": "true", **_OPTIONS}
        return (
            f"{_select(wanted, there, {})} FROM parquet.{quoted(self._pattern(part))} "
            f"WITH ({', '.join(f'{text_literal(k)} = {text_literal(v)}' for k, v in options.items())})"
        )

    def _pattern(self, part: FilesOfPartition) -> str:
        """Return the one path that stands for exactly these files."""
        names = [path.relative_to(self.folder).as_posix() for path in part.paths]
        strange = next((text for text in (str(self.folder), *names) if _GLOBS & set(text)), None)
        if strange is not None:
            raise InvalidRequest(
                f"{strange} has a character that Spark takes for a pattern of paths: choose another table_dir, or read "
                "the table otherwise"
            )
        return f"{spark_uri(self.folder)}/{names[0] if len(names) == 1 else '{' + ','.join(names) + '}'}"


def empty_query(row_schema: str) -> str:
    """Return SQL that finds no row, with the columns of a schema."""
    return f"{_select(parsed_schema(row_schema), (), {})} WHERE false"


def _frame_of(spark: SparkSession, part: FilesOfPartition, schema: StructType) -> DataFrame:
    from pyspark.sql.types import StructType

    stored = StructType([column for column in schema.fields if column.name not in part.values])
    found = spark.read.options(**_OPTIONS).schema(stored).parquet(*map(spark_path, part.paths))
    if not part.values:
        return found
    return found.selectExpr(
        *(_column(c.name, c.dataType.simpleString(), schema.names, part.values) for c in schema)
    )


def _select(wanted: StructType, there: Sequence[str], values: Mapping[str, str | None]) -> str:
    columns = (_column(c.name, c.dataType.simpleString(), there, values) for c in wanted.fields)
    return f"SELECT {', '.join(columns)}"


def _column(name: str, kind: str, there: Sequence[str], values: Mapping[str, str | None]) -> str:
    if name not in values and name in there:
        return quoted(name)
    value = values.get(name)
    return f"CAST({'NULL' if value is None else text_literal(value)} AS {kind}) AS {quoted(name)}"
