"""Where the rows of a project's tables and sinks end: targets of ours."""

from __future__ import annotations

from collections.abc import Mapping

from dagster_ckpt.authoring.targets import SinkTarget
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.delta.target import DeltaTable
from dagster_ckpt.ext.iceberg.target import IcebergTable
from dagster_ckpt.ext.kafka.topics import KafkaTopic
from dagster_ckpt.ext.spark_pipelines.elements import Kind
from dagster_ckpt.ext.spark_pipelines.graph import DatasetNode, ProjectSpec

OWN_CHECKPOINT = "checkpointLocation"
"""Option of a sink that Spark's own runner replaces as well."""


def target_of(table: DatasetNode, spec: ProjectSpec) -> SinkTarget:
    """Return where the rows of a table or sink end. Raises InvalidRequest for a sink that there is none for.

    Tables of Parquet, the default of Spark, are Delta tables too: in a folder of plain files rows cannot go back.
    """
    if table.kind is Kind.SINK:
        return _sink(table)
    match table.format.lower():
        case "parquet":
            return DeltaTable()
        case "delta":
            return DeltaTable(partition_by=table.partition_cols)
        case "iceberg":
            return _iceberg(table, spec)
        case other:
            raise InvalidRequest(
                f"{table.kind} {table.name} ({table.where}) has format {other!r}: {_give(table)}"
            )


def refuse_view(table: DatasetNode, target: SinkTarget | None) -> None:
    """Raise InvalidRequest where no view in Spark's catalog can show a dataset; ``target``: where its rows end."""
    title = f"catalog_views names {table.uid!r}, {table.kind} {table.name} ({table.where})"
    if table.kind is Kind.SINK:
        raise InvalidRequest(f"{title}: a sink has no name in Spark's catalog")
    if isinstance(target, IcebergTable):
        raise InvalidRequest(
            f"{title}: it is in a catalog of Iceberg's, where readers find it by name already"
        )
    if target is not None and not target.local_folder(table.uid):
        raise InvalidRequest(
            f"{title}: it is a {type(target).__name__} that is no folder here, which Spark reads with jars of its own: "
            "make a table on it with them (CREATE TABLE ... USING ... LOCATION ...), and name the other datasets in "
            "catalog_views"
        )
    if not table.name.startswith("spark_catalog."):
        raise InvalidRequest(
            f"{title}: views are made in spark_catalog, Spark's own, and in no other catalog"
        )


def _sink(sink: DatasetNode) -> SinkTarget:
    options = {key: value for key, value in sink.properties.items() if key != OWN_CHECKPOINT}
    match sink.format.lower():
        case "kafka":
            return _kafka(sink, options)
        case "parquet":
            raise InvalidRequest(
                f"sink {sink.name!r} ({sink.where}) writes plain Parquet files, and no rows could be taken back "
                f"from a folder of files: {_give(sink)}, a DeltaTable"
            )
        case "delta" if set(options) == {"path"}:
            return DeltaTable(options["path"])
        case "delta":
            raise InvalidRequest(
                f"sink {sink.name!r} ({sink.where}), delta, is written with option 'path' only here"
            )
        case other:
            raise InvalidRequest(
                f"sink {sink.name!r} ({sink.where}) has format {other!r}, which has no rows that a checkpoint could "
                f"publish: {_give(sink)}"
            )


def _kafka(sink: DatasetNode, options: Mapping[str, str]) -> KafkaTopic:
    known = {"kafka.bootstrap.servers", "topic"}
    other = sorted(set(options) - known)
    if other or set(options) != known:
        raise InvalidRequest(
            f"sink {sink.name!r} ({sink.where}): of Kafka's options kafka.bootstrap.servers and topic are known here, "
            f"not {other[0] if other else 'fewer'!r}: {_give(sink)}"
        )
    columns = set(_columns(sink))
    if not {"value"} <= columns <= {"key", "value"}:
        raise InvalidRequest(
            f"sink {sink.name!r} ({sink.where}) writes messages of columns value and key, not {sorted(columns)}"
        )
    return KafkaTopic(options["kafka.bootstrap.servers"], options["topic"])


def _columns(table: DatasetNode) -> list[str]:
    from dagster_ckpt.core.json_text import parse_json

    return [str(column["name"]) for column in parse_json(table.row_schema)["fields"]]


def _iceberg(table: DatasetNode, spec: ProjectSpec) -> IcebergTable:
    catalog, database, name = table.name.split(".")
    prefix = f"spark.sql.catalog.{catalog}."
    given = {
        key.removeprefix(prefix): value for key, value in spec.configuration.items() if key.startswith(prefix)
    }
    if given.get("type") != "rest":
        raise InvalidRequest(
            f"{table.kind} {table.name} ({table.where}) is Iceberg's, and {prefix}type is {given.get('type')!r}: "
            f"a 'rest' catalog is taken over, for all others {_give(table)}"
        )
    return IcebergTable(
        f"{database}.{name}",
        catalog=given,
        partition_by=table.partition_cols,
        properties=dict(table.properties),
    )


def _give(table: DatasetNode) -> str:
    return f"say where its rows end, pipeline_from_spark_project(..., sinks={{{table.uid!r}: ...}})"
