"""Parquet files that are the rows of one state of a table: Spark reads them where it lacks the table's own reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.channel.schema import parsed_schema
from dagster_ckpt.spark.files import AS_WRITTEN, spark_path, spark_uri
from dagster_ckpt.spark.quoting import quoted, text_literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

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
