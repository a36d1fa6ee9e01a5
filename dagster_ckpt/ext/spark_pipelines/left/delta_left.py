"""Delta and Parquet tables that ``spark-pipelines run`` has filled, compared with their flows and readers.

Spark commits the rows of a batch together with the id of its query and the batch's number. So a version tells which
batches of which flows are in it, also where several flows write one table. delta-rs reads the log, without a JVM jar.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow.parquet as pq

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import Corrupt, Declined, InvalidRequest
from dagster_ckpt.ext.delta.columns import COLUMNS, table_columns
from dagster_ckpt.ext.delta.lake import client, reading
from dagster_ckpt.ext.spark_pipelines.graph import DatasetNode
from dagster_ckpt.ext.spark_pipelines.left.flow_checkpoints import (
    AGAIN,
    NOWHERE,
    FlowCheckpoint,
    files_read,
    read_file_log,
)
from dagster_ckpt.ext.spark_pipelines.left.source_order import PlannedSource
from dagster_ckpt.ext.spark_pipelines.schemas import columns_of_text
from dagster_ckpt.spark.channel.positions import parsed_position
from dagster_ckpt.spark.files import AS_WRITTEN
from dagster_ckpt.spark.quoting import quoted

if TYPE_CHECKING:
    from deltalake import DeltaTable
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
        return spark.read.options(**AS_WRITTEN).schema(schema).parquet(str(self.folder)), wanted

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


_READABLE = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "deletionVectors", "columnMapping"}
"""Features of readers that are known here; where the last two are in use is looked at."""
_PARTITIONS = ("string", "long", "integer", "short", "byte", "boolean", "date")
_FILE = "__file_of_row"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaLeft:
    """One version of a Delta table of Spark's."""

    table: DatasetNode
    folder: Path
    version: DeltaTable

    @property
    def is_empty(self) -> bool:
        """True where it has no rows."""
        return not self.version.file_uris()

    # --- whether a reader has read it -------------------------------------------------------------------------

    def refuse_unread(self, reader: FlowCheckpoint, source: PlannedSource, text: str) -> None:
        """Raise InvalidRequest where a flow that stands at ``text`` has not read exactly this table."""
        name = self.table.name
        if text in NOWHERE:
            if not self.is_empty:
                raise InvalidRequest(f"{reader.title} has not read table {name!r} yet. {AGAIN}")
            return
        at = parsed_position(text)
        if "reservoirVersion" not in at:
            raise InvalidRequest(
                f"{reader.title}: source {source.number} is {name}, a Delta table, and its position is {text[:80]}, "
                f"none in a Delta table: the function or the table's format was changed since Spark ran it. {AGAIN}"
            )
        if at.get("reservoirId") != self.version.metadata().id:
            raise InvalidRequest(
                f"{reader.title} has read another table than {name!r} in {self.folder}: the table was made again "
                "since, or the function was changed. Let spark-pipelines run --full-refresh-all, and adopt then"
            )
        begins, newest = int(at["reservoirVersion"]), self.version.version()
        if begins > newest + 1:
            raise InvalidRequest(
                f"{reader.title} has read table {name!r} up to version {begins - 1}, and {self.folder} ends at "
                f"{newest}: it is an older copy of the table. Bring the newer one back"
            )
        is_within = int(at.get("index", 0)) >= 0 or bool(at.get("isStartingVersion", False))
        unread = next((n for n in range(begins, newest + 1) if is_within or self._changes_rows(n)), None)
        if unread is not None:
            raise InvalidRequest(
                f"{reader.title} has not read version {unread} of table {name!r} yet. {AGAIN}"
            )

    def _changes_rows(self, number: int) -> bool:
        path = self.folder / "_delta_log" / f"{number:020d}.json"
        try:
            entries = [parse_json(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
        except (OSError, ValueError) as error:
            raise Declined(
                f"{path} cannot be read ({type(error).__name__}), and whether readers of table {self.table.name!r} "
                "have read all of it cannot be told without"
            ) from error
        changes = (entry.get(kind) for entry in entries for kind in ("add", "remove", "cdc"))
        return any(change is not None and change.get("dataChange", True) for change in changes)

    # --- rows -------------------------------------------------------------------------------------------------

    def rows(self, spark: SparkSession, schema: StructType) -> tuple[DataFrame, int]:
        """Return the rows in the columns of ``schema``, and how many there are.

        Raises InvalidRequest for columns the project no longer has, and for what only Delta itself could read.
        """
        self._refuse_columns(schema)
        with reading(str(self.folder)):
            actions = self.version.get_add_actions(flatten=True)
            partitions = list(self.version.metadata().partition_columns)
            paths = [self._path(str(path)) for path in actions.column("path").to_pylist()]
            values = {name: [*actions.column(f"partition.{name}").to_pylist()] for name in partitions}
        wanted = sum(footer.metadata.num_rows for _, footer in footers(paths, self.table.name))
        frame = _read(spark, paths, schema, without=partitions)
        if partitions:
            frame = _with_values(frame, paths, values, schema)
        return frame.select(*map(quoted, schema.fieldNames())), wanted

    def _path(self, noted: str) -> str:
        path = unquote(noted)
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:|/", path):
            raise InvalidRequest(
                f"table {self.table.name!r} in {self.folder} is a shallow clone, with rows in {path}: it cannot be "
                "adopted"
            )
        return str(self.folder / path)

    def _refuse_columns(self, schema: StructType) -> None:
        wanted = {column["name"]: column["type"] for column in COLUMNS.of(schema.json())}
        partitions = self.version.metadata().partition_columns
        for column in COLUMNS.of(json.dumps({"fields": table_columns(self.version)})):
            name, kind = column["name"], column["type"]
            if name not in wanted or wanted[name] != kind:
                now = f"brings as {wanted[name]}" if name in wanted else "no longer brings"
                raise InvalidRequest(
                    f"table {self.table.name!r} has a column {name!r} of {kind}, which the project {now}: name it in "
                    "the table's schema as it was, so that its values stay"
                )
            if name in partitions and kind not in _PARTITIONS:
                raise InvalidRequest(
                    f"table {self.table.name!r} is partitioned by {name!r}, which is {kind}: how its values are "
                    "written depends on who wrote them, so that it cannot be adopted"
                )


def find_delta(table: DatasetNode, folder: Path, flows: Sequence[FlowCheckpoint]) -> DeltaLeft | None:
    """Return the newest version of a table; None: there is none, and no flow has written it.

    Raises InvalidRequest unless it has exactly the batches that its flows have committed.
    """
    errors = client().exceptions
    written = [flow for flow in flows if flow.batch is not None]
    try:
        with reading(str(folder)):
            version = client().DeltaTable(str(folder)) if (folder / "_delta_log").is_dir() else None
    except errors.TableNotFoundError:
        version = None
    if version is None:
        if not written:
            return None
        raise InvalidRequest(
            f"table {table.name!r} has been written by {written[0].title}, and there is no Delta table in {folder}: "
            "name Spark's warehouse folder (warehouse)"
        )
    _refuse_unreadable(table, version)
    for flow in written:
        seen = version.transaction_version(flow.query_id())
        if seen != flow.batch:
            raise InvalidRequest(
                f"table {table.name!r} in {folder} has {flow.title} up to batch {seen}, and its checkpoint is at "
                f"{flow.batch}: it is another table, or not as Spark left it. Name Spark's warehouse folder "
                f"(warehouse), or: {AGAIN[0].lower()}{AGAIN[1:]}"
            )
    return DeltaLeft(table=table, folder=folder, version=version)


def _refuse_unreadable(table: DatasetNode, version: DeltaTable) -> None:
    unknown = sorted(set(version.protocol().reader_features or ()) - _READABLE)
    why = ""
    if unknown:
        why = f"it uses {', '.join(unknown)}"
    elif version.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        why = "its columns are mapped to other names (delta.columnMapping.mode)"
    elif version.deletion_vectors().read_all().num_rows:
        why = "it has deletion vectors: REORG TABLE ... APPLY (PURGE) writes its files without"
    if why:
        raise InvalidRequest(f"table {table.name!r} cannot be adopted, {why}")


def _read(
    spark: SparkSession, paths: Sequence[str], schema: StructType, *, without: Sequence[str]
) -> DataFrame:
    from pyspark.sql.types import StructType

    plain = StructType([column for column in schema.fields if column.name not in without])
    # No columns are made of folders' names.
    reader = spark.read.options(**AS_WRITTEN, recursiveFileLookup="true").schema(plain)
    return reader.parquet(*(re.sub(r"([\\{}\[\]*?])", r"\\\1", path) for path in paths))


def _with_values(
    frame: DataFrame, paths: Sequence[str], values: Mapping[str, Sequence[Any]], schema: StructType
) -> DataFrame:
    """Return the rows with the values of partition columns, which the log knows by file: files do not have those."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    names = [Path(path).name for path in paths]
    if len(set(names)) != len(names):
        raise Corrupt(
            f"{paths[0]} and other files of one table have one name: whose rows are whose cannot be told"
        )
    columns = StructType([StructField(_FILE, StringType()), *(schema[name] for name in values)])
    told = frame.sparkSession.createDataFrame(list(zip(names, *values.values(), strict=True)), columns)
    named = frame.withColumn(_FILE, f.col("_metadata.file_name"))
    return named.join(f.broadcast(told), _FILE)
