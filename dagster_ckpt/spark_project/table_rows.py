"""Tables that ``spark-pipelines run`` has filled: found, compared with their flows, their rows staged for ours."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from dagster_ckpt.authoring.targets import ParquetTable
from dagster_ckpt.core.ids import BatchId, CoordinatorEpoch
from dagster_ckpt.core.location import local_path
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.spark.sink.committables import PreparedBatch
from dagster_ckpt.spark.sink.port import AttemptId
from dagster_ckpt.spark.sink.staging import flush_staged, stage_rows
from dagster_ckpt.spark.table.log import Table
from dagster_ckpt.spark_project.elements import Kind
from dagster_ckpt.spark_project.flow_checkpoints import AGAIN, FlowCheckpoint
from dagster_ckpt.spark_project.graph import DatasetNode, FlowNode
from dagster_ckpt.spark_project.schemas import columns_of_text, schema_of_text
from dagster_ckpt.spark_project.spark_logs import read_file_log
from dagster_ckpt.spark_project.spec import ProjectSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["ADOPTED_BATCH", "TableLeft", "find_table", "refuse_unadoptable", "staged_for"]

ADOPTED_BATCH = -1
"""Of the rows a table begins with: before any batch of the sink's own query."""
_ADOPTED = "adopted"
_NOTED = b"org.apache.spark.sql.parquet.row.metadata"
"""Spark's own note of the types in a file."""
_WAREHOUSE = "spark.sql.warehouse.dir"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLeft:
    """A table of Spark's: its folder, and the files that its log names."""

    table: DatasetNode
    folder: Path
    files: frozenset[str]


def refuse_unadoptable(
    table: DatasetNode, flows: Sequence[FlowNode], target: object, written_by: Sequence[str], *, place: str
) -> None:
    """Raise InvalidRequest for a table or sink whose rows cannot become those of our sink, where it may have some.

    ``flows``: what writes it now. ``place``: the folder of a target that is a Parquet table.
    """
    if not written_by:
        return
    title = f"{table.kind} {table.name!r} ({table.where})"
    if any(flow.cdc is not None for flow in flows):
        raise InvalidRequest(
            f"{title} is filled by Auto CDC: Spark has merged its changes, and which of them it still knows (deleted "
            "keys, versions that are not shown) is Spark's own: it cannot be adopted. Leave it out of the project, "
            "adopt, and add it again, so that it is filled from its source; or begin without the checkpoints"
        )
    if table.kind is Kind.SINK:
        if table.format.lower() == "kafka":
            return
        if table.format.lower() == "parquet" and isinstance(target, ParquetTable):
            _refuse_same_place(title, table, place)
        else:
            raise InvalidRequest(
                f"{title} writes {table.format}, and which of its rows were written by which batch is Spark's own: "
                "it cannot be adopted. Leave it out of the project, adopt, and add it again; or begin without the "
                "checkpoints"
            )
    elif not table.name.startswith("spark_catalog."):
        raise InvalidRequest(
            f"{title} is in catalog {table.name.partition('.')[0]}, which keeps its rows in a way of its own: it "
            "cannot be adopted. Begin without the checkpoints, so that it is filled from the sources"
        )
    elif table.format.lower() != "parquet" or not isinstance(target, ParquetTable):
        where = type(target).__name__ if table.format.lower() == "parquet" else table.format
        raise InvalidRequest(
            f"{title} is a table of {where}, whose log names Spark's commits and none of ours: it cannot be "
            "adopted. Begin "
            "without the checkpoints, so that it is filled from the sources"
        )
    if len(written_by) > 1:
        raise InvalidRequest(
            f"{title} was written by flows {', '.join(written_by)}: into a Parquet table Spark writes the rows "
            "of only one "
            "flow for each batch number, and takes the others' for done. They are lost, so that only a beginning "
            "without "
            "the checkpoints is exact"
        )


def _refuse_same_place(title: str, sink: DatasetNode, place: str) -> None:
    folder = _sink_folder(sink)
    if not folder.is_absolute():
        raise InvalidRequest(
            f"{title} writes to {folder}, a relative path: nobody knows where Spark was when it ran. Write the whole "
            "path in its options, and let spark-pipelines run once more"
        )
    one, other = (f"{os.path.realpath(path)}/" for path in (folder, place))
    if one.startswith(other) or other.startswith(one):
        raise InvalidRequest(
            f"{title} is adopted with its rows, and Spark's own files are in {folder}: give its rows another place, "
            f"sinks={{{sink.uid!r}: ParquetTable(...)}} here and where the pipeline is made, and tell its readers"
        )


def _sink_folder(sink: DatasetNode) -> Path:
    path = sink.properties.get("path", "")
    folder = local_path(path)
    if folder is None or not path:
        raise InvalidRequest(f"sink {sink.name!r} writes to {path or 'no path'}, which is no local folder")
    return Path(folder)


def find_table(
    spec: ProjectSpec,
    spark: SparkSession,
    table: DatasetNode,
    flows: Sequence[FlowCheckpoint],
    warehouse: str,
) -> TableLeft:
    """Return the table that Spark's catalog has, or else the one in the warehouse. Raises InvalidRequest, Declined."""
    if table.kind is Kind.SINK:
        folder = _sink_folder(table)
    else:
        folder = _in_catalog(spark, table.name) or _in_warehouse(spec, table.name, warehouse)
    log = read_file_log(folder / "_spark_metadata")
    batches = [flow.batch for flow in flows if flow.batch is not None]
    if log.newest != max(batches, default=None):
        raise InvalidRequest(
            f"table {table.name!r} in {folder} has the rows of batches up to {log.newest}, and the checkpoint of "
            "its flow is "
            f"at {max(batches, default=None)}: it is another table, or not as Spark left it. Name Spark's "
            "warehouse folder "
            f"(warehouse), or: {AGAIN[0].lower()}{AGAIN[1:]}"
        )
    return TableLeft(table=table, folder=folder, files=log.files)


def _in_catalog(spark: SparkSession, name: str) -> Path | None:
    catalog, database, table = name.split(".")
    if catalog != "spark_catalog" or not spark.catalog.tableExists(name):
        return None
    described = spark.sql(f"DESCRIBE TABLE EXTENDED `{database}`.`{table}`").collect()
    places = [str(row["data_type"]) for row in described if row["col_name"] == "Location"]
    folder = local_path(places[-1]) if places else None  # a column may have that name, and comes before
    return None if folder is None else Path(folder)


def _in_warehouse(spec: ProjectSpec, name: str, warehouse: str) -> Path:
    place = local_path(warehouse or spec.configuration.get(_WAREHOUSE, "spark-warehouse"))
    if place is None:
        raise InvalidRequest(
            f"Spark's warehouse {warehouse or spec.configuration[_WAREHOUSE]} is no local folder"
        )
    _, database, table = name.split(".")
    folder = (Path.cwd() if warehouse else spec.root) / place
    return folder / table if database == "default" else folder / f"{database}.db" / table


# --- rows -------------------------------------------------------------------------------------------------------


def staged_for(
    left: TableLeft, table: Table, spark: SparkSession, written: Callable[[Path], None]
) -> PreparedBatch:
    """Write the rows of Spark's table into ours, where nobody sees them yet; ``written`` is told what to remove.

    Raises InvalidRequest for columns the project no longer has, Corrupt where rows are missing.
    """
    schema = schema_of_text(left.table.row_schema)
    wanted = _rows_in(left, schema)
    session = spark.newSession()  # staging sets how Parquet is written
    frame = session.read.schema(schema).parquet(str(left.folder))
    folder = table.paths.all_staged / _ADOPTED / uuid.uuid4().hex[:12]
    written(folder)
    prepared = stage_rows(
        frame,
        BatchId(0),
        AttemptId("", CoordinatorEpoch(0)),
        root=table.paths.root,
        staged=folder,
        row_schema=schema.json(),
    )
    rows = sum(file.rows for file in prepared.files)
    if rows != wanted:
        raise Corrupt(
            f"table {left.table.name!r} in {left.folder} has {wanted:,} rows in the files of its log, and Spark "
            f"reads {rows:,}"
        )
    flush_staged([table.paths.root / file.staged for file in prepared.files])
    return prepared.model_copy(update={"batch_id": ADOPTED_BATCH})


def _rows_in(left: TableLeft, schema: StructType) -> int:
    """Return how many rows the files of the table's log have. Raises InvalidRequest for columns it would lose."""
    wanted = {column.name: column.dataType for column in schema.fields}
    rows = 0
    for file in sorted(left.files):
        try:
            footer = pq.ParquetFile(file)
        except (OSError, ValueError) as error:
            raise Corrupt(f"{file} of table {left.table.name!r} cannot be read: {error}") from error
        noted = (footer.schema_arrow.metadata or {}).get(_NOTED)
        if noted is None:
            raise InvalidRequest(
                f"{file} of table {left.table.name!r} was not written by Spark: it has no note of its types"
            )
        for name, kind in columns_of_text(noted.decode()).items():
            if name not in wanted or kind != wanted[name]:
                now = f"brings as {wanted[name].simpleString()}" if name in wanted else "no longer brings"
                raise InvalidRequest(
                    f"table {left.table.name!r} has a column {name!r} of {kind.simpleString()} in its files, which the "
                    f"project {now}: name it in the table's schema as it was, so that its values stay"
                )
        rows += footer.metadata.num_rows
    return rows
