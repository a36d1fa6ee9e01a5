"""Rows that Spark or a table's format would refuse once a flow runs: refused when the graph is made, by name."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.spark_pipelines.elements import STORED, FlowElement, OutputElement
from dagster_ckpt.ext.spark_pipelines.schemas import contains
from dagster_ckpt.spark.java.plans import check_append
from dagster_ckpt.spark.plan.errors import is_no_aggregation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def refuse_no_watermark(flow: FlowElement, rows: DataFrame, spark: SparkSession) -> None:
    """Raise InvalidRequest for a flow that aggregates without a watermark, as Spark does when its query starts.

    What else Spark refuses in a stream it says itself, then: a plan of stand-ins is not quite the one that runs.
    """
    from pyspark.errors import AnalysisException

    try:
        check_append(spark, rows)
    except AnalysisException as error:
        if is_no_aggregation(str(error)):
            raise InvalidRequest(no_aggregation(flow.title)) from error


def no_aggregation(flow: str) -> str:
    """Return the sentence for a flow that aggregates without a watermark: Spark itself appends rows to its table."""
    return (
        f"{flow} aggregates without a watermark, and its rows change with every batch, which a streaming table cannot "
        "show: make it a materialized view; or add a watermark (withWatermark) to its input, and rows come once their "
        "window is closed"
    )


def refuse_columns(output: OutputElement, schema: StructType, table_format: str) -> None:
    """Raise InvalidRequest for a column that no file of the dataset's format can hold."""
    from pyspark.sql.types import CalendarIntervalType

    found = next((one for one in schema.fields if contains(one.dataType, CalendarIntervalType)), None)
    if found is not None:
        raise InvalidRequest(
            f"{output.title}: column {found.name!r} is {found.dataType.simpleString()}, which no file can hold: "
            "cast it to a text, or make it an interval of days and seconds (make_dt_interval)"
        )
    try:
        _refuse_in_lake(output, schema, table_format.lower())
    except InvalidRequest as error:
        raise InvalidRequest(f"{output.title}: {error}") from error


def _refuse_in_lake(output: OutputElement, schema: StructType, table_format: str) -> None:
    if output.kind not in STORED:
        return  # one Parquet file, whatever its format
    if table_format == "delta":
        from dagster_ckpt.ext.delta.columns import delta_columns

        delta_columns(schema.json())
    if table_format == "iceberg" and find_spec("pyiceberg") is not None:  # a graph is made without it as well
        from dagster_ckpt.ext.iceberg.columns import iceberg_columns

        iceberg_columns(schema.json())
