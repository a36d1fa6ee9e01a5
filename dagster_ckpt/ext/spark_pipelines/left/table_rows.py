"""Tables that ``spark-pipelines run`` has filled: which can be taken over, where they are, their rows staged."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.core.ids import BatchId, CoordinatorEpoch
from dagster_ckpt.core.paths import local_path
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.ext.delta.sink import DeltaSink
from dagster_ckpt.ext.delta.target import DeltaTable
from dagster_ckpt.ext.spark_pipelines.elements import Kind
from dagster_ckpt.ext.spark_pipelines.graph import DatasetNode, FlowNode, ProjectSpec
from dagster_ckpt.ext.spark_pipelines.left.delta_left import DeltaLeft, ParquetLeft, find_delta, find_parquet
from dagster_ckpt.ext.spark_pipelines.left.flow_checkpoints import FlowCheckpoint
from dagster_ckpt.ext.spark_pipelines.schemas import schema_of_text
from dagster_ckpt.spark.sink.committables import PreparedBatch
from dagster_ckpt.spark.sink.phases import Judge
from dagster_ckpt.spark.sink.port import AttemptId
from dagster_ckpt.spark.sink.staged_rows import stage_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


ADOPTED_BATCH = -1
"""Of the rows a table begins with: before any batch of the sink's own query."""
_ADOPTED = "adopted"
"""Folder of such rows beside those of attempts, which garbage collection does not look into."""
_FORMATS = ("parquet", "delta")
_WAREHOUSE = "spark.sql.warehouse.dir"

TableLeft = ParquetLeft | DeltaLeft


def refuse_unadoptable(
    table: DatasetNode, flows: Sequence[FlowNode], target: object, written_by: Sequence[str]
) -> None:
    """Raise InvalidRequest for a table or sink whose rows cannot become those of our sink, where it may have some.

    ``flows``: what writes it now.
    """
    if not written_by:
        return
    title = f"{table.kind} {table.name!r} ({table.where})"
    if any(flow.cdc is not None for flow in flows):
        raise InvalidRequest(
            f"{title} is filled by Auto CDC: Spark merges changes in a way that leaves no number of a batch in the "
            "table, so that table and checkpoint cannot be compared: it cannot be adopted. Leave it out of the "
            "project, adopt, and add it again, so that it is filled from its source; or begin without the checkpoints"
        )
    kept = table.format.lower()
    if table.kind is Kind.SINK:
        if kept == "kafka":
            return
        if kept not in _FORMATS or not isinstance(target, DeltaTable):
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
    elif kept not in _FORMATS or not isinstance(target, DeltaTable):
        where = type(target).__name__ if kept in _FORMATS else table.format
        raise InvalidRequest(
            f"{title} is a table of {where}: tables of Parquet and Delta are adopted, into Delta tables. Begin "
            "without the checkpoints, so that it is filled from the sources"
        )
    if len(written_by) > 1 and kept == "parquet":
        raise InvalidRequest(
            f"{title} was written by flows {', '.join(written_by)}: into a Parquet table Spark writes the rows "
            "of only one flow for each batch number, and takes the others' for done. They are lost, so that only a "
            "beginning without the checkpoints is exact"
        )


def refuse_same_place(table: DatasetNode, folder: Path, place: str) -> None:
    """Raise InvalidRequest where our table, in ``place``, would lie among Spark's own files, in ``folder``."""
    one, other = (f"{os.path.realpath(path)}/" for path in (folder, place))
    if not (one.startswith(other) or other.startswith(one)):
        return
    title = (
        f"{table.kind} {table.name!r} ({table.where}) is adopted with its rows, and Spark's own files are in"
    )
    if table.kind is not Kind.SINK:
        raise InvalidRequest(
            f"{title} {folder}, where the new table would be: give the pipeline another table_dir"
        )
    raise InvalidRequest(
        f"{title} {folder}: give its rows another place, sinks={{{table.uid!r}: "
        f"DeltaTable(...)}} here and where the pipeline is made, and tell its readers"
    )


def sink_folder(sink: DatasetNode) -> Path:
    """Return the folder of a sink of files. Raises InvalidRequest."""
    path = sink.properties.get("path", "")
    folder = local_path(path)
    title = f"{sink.kind} {sink.name!r} ({sink.where})"
    if folder is None or not path:
        raise InvalidRequest(f"{title} writes to {path or 'no path'}, which is no local folder")
    if not Path(folder).is_absolute():
        raise InvalidRequest(
            f"{title} writes to {folder}, a relative path: nobody knows where Spark was when it ran. Write the whole "
            "path in its options, and let spark-pipelines run once more"
        )
    return Path(folder)


def find_table(
    spec: ProjectSpec,
    spark: SparkSession,
    table: DatasetNode,
    flows: Sequence[FlowCheckpoint],
    warehouse: str,
) -> TableLeft | None:
    """Return the table that Spark's catalog has, or else the one in the warehouse; None: Spark has made none.

    ``flows``: those that write it. Raises InvalidRequest where it does not have exactly what they have committed.
    """
    kept = table.format.lower()
    is_written = any(flow.batch is not None for flow in flows)
    if kept not in _FORMATS or not (is_written or kept == "delta"):
        return None
    if table.kind is Kind.SINK:
        folder = sink_folder(table)
    elif not table.name.startswith("spark_catalog."):
        return None
    else:
        folder = _in_catalog(spark, table.name) or _in_warehouse(spec, table.name, warehouse)
    return find_delta(table, folder, flows) if kept == "delta" else find_parquet(table, folder, flows)


def _in_catalog(spark: SparkSession, name: str) -> Path | None:
    catalog, database, table = name.split(".")
    try:
        if catalog != "spark_catalog" or not spark.catalog.tableExists(name):
            return None
    except Exception as error:
        if "DATA_SOURCE_NOT_FOUND" not in str(error):
            raise
        return None  # a Delta table, and no jar for it: what lies in the warehouse is proven all the same
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStaging:
    """Where the rows that a table of ours begins with are staged."""

    sink: DeltaSink
    written: Callable[[Path], None]
    """Told what to remove if the adoption fails."""

    def rows_of(self, left: TableLeft, spark: SparkSession) -> PreparedBatch:
        """Write the rows of Spark's table below ours, where nobody sees them yet.

        Raises InvalidRequest for columns the project no longer has, Corrupt where rows are missing.
        """
        staged = self.sink.staged
        session = spark.newSession()  # staging sets how Parquet is written
        frame, wanted = left.rows(session, schema_of_text(left.table.row_schema))
        judge = Judge.of(self.sink, frame)
        self.sink.check(frame)
        folder = staged.root / staged.area / _ADOPTED / uuid.uuid4().hex[:12]
        self.written(folder)
        prepared = judge.carry_out(
            lambda rows, batch: stage_rows(
                rows,
                batch,
                AttemptId("", CoordinatorEpoch(0)),
                root=staged.root,
                staged=folder,
                row_schema=left.table.row_schema,
                partition_by=self.sink.partition_by,
            ),
            frame,
            BatchId(0),
        )
        rows = sum(file.rows for file in prepared.files)
        if rows != wanted:
            raise Corrupt(
                f"table {left.table.name!r} in {left.folder} has {wanted:,} rows in the files of its log, and Spark "
                f"reads {rows:,}"
            )
        prepared = prepared.model_copy(update={"batch_id": ADOPTED_BATCH})
        self.sink.flush([prepared])
        return prepared
