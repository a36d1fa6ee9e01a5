"""Schemas of tables: what their flows bring together, rows brought into that form, rows refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.spark_pipelines.elements import STORED, FlowElement, OutputElement
from dagster_ckpt.spark.channel.schema import parsed_schema
from dagster_ckpt.spark.java.plans import refuse_unsupported
from dagster_ckpt.spark.plan.errors import is_no_aggregation
from dagster_ckpt.spark.quoting import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def table_schema(output: OutputElement, flows: Sequence[tuple[str, StructType]]) -> StructType:
    """Return the columns of a table: those it declares, then those of its flows, all nullable.

    Raises InvalidRequest where two say differently of one column; Spark refuses most of that too.
    """
    from pyspark.sql.types import StructField, StructType

    found: dict[str, tuple[Any, str]] = {}
    for whose, schema in (*_declared(output), *flows):
        _refuse_doubled(output, whose, schema)
        for column in schema.fields:
            kind, other = found.setdefault(column.name, (column.dataType, whose))
            twin = next(
                (name for name in found if name.lower() == column.name.lower() and name != column.name), None
            )
            if twin is not None:
                raise InvalidRequest(
                    f"{output.title}: column {column.name!r} of {whose} and {twin!r} of {found[twin][1]} differ in "
                    "case only"
                )
            if _nullable(kind) != _nullable(column.dataType):
                raise InvalidRequest(
                    f"{output.title}: column {column.name!r} is {kind.simpleString()} in {other} and "
                    f"{column.dataType.simpleString()} in {whose}"
                )
    return StructType([StructField(name, _nullable(kind)) for name, (kind, _) in found.items()])


def _refuse_doubled(output: OutputElement, whose: str, schema: StructType) -> None:
    names = schema.fieldNames()
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise InvalidRequest(f"{output.title}: {whose} has two columns {doubled!r}: give one another name")


def _declared(output: OutputElement) -> list[tuple[str, StructType]]:
    from pyspark.sql.types import StructType, _parse_datatype_string

    schema = output.schema
    if schema is None:
        return []
    if isinstance(schema, str):
        try:
            schema = _parse_datatype_string(schema)
        except Exception as error:
            raise InvalidRequest(f"{output.title}: its schema {output.schema!r} is none: {error}") from error
    if not isinstance(schema, StructType):
        raise InvalidRequest(f"{output.title}: its schema {schema!r} is none")
    strict = next((column.name for column in schema.fields if not column.nullable), None)
    if strict is not None:
        raise InvalidRequest(
            f"{output.title}: column {strict!r} is NOT NULL in its schema, which nothing would see to here"
        )
    return [("its schema", schema)]


def _nullable(kind: Any) -> Any:
    """Return a type with everything in it nullable, and without metadata: as a table's rows have it."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    match kind:
        case StructType():
            return StructType([StructField(f.name, _nullable(f.dataType)) for f in kind.fields])
        case ArrayType():
            return ArrayType(_nullable(kind.elementType))
        case MapType():
            return MapType(_nullable(kind.keyType), _nullable(kind.valueType))
        case _:
            return kind


def contains(kind: Any, wanted: type) -> bool:
    """Tell whether a type is a wanted one, or has one within."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    match kind:
        case StructType():
            inside = [column.dataType for column in kind.fields]
        case ArrayType():
            inside = [kind.elementType]
        case MapType():
            inside = [kind.keyType, kind.valueType]
        case _:
            inside = []
    return isinstance(kind, wanted) or any(contains(one, wanted) for one in inside)


def schema_of_text(text: str) -> StructType:
    """Return a schema that a graph keeps."""
    return parsed_schema(text)


def columns_of_text(text: str) -> dict[str, Any]:
    """Return the columns of a schema as a file of a table notes it: types with everything in them nullable."""
    return {column.name: _nullable(column.dataType) for column in schema_of_text(text).fields}


def stand_in(
    spark: SparkSession, schema: StructType, *, streaming: bool, options: Mapping[str, str] | None = None
) -> DataFrame:
    """Return no rows with these columns, for a function that is called to see what it makes of them.

    ``options``: of the stream that is read, to find it in a plan.
    """
    from pyspark.sql import functions as f

    rows = spark.readStream.format("rate").options(**(options or {})).load() if streaming else spark.range(0)
    return rows.select(*(f.lit(None).cast(column.dataType).alias(column.name) for column in schema.fields))


def aligned(frame: DataFrame, schema: StructType, *, whose: str) -> DataFrame:
    """Return rows with exactly a table's columns. Raises InvalidRequest where it would lose or change one."""
    from pyspark.sql import functions as f

    has = {column.name: column.dataType for column in frame.schema.fields}
    wanted = {column.name: column.dataType for column in schema.fields}
    for name, kind in has.items():
        if name not in wanted or _nullable(kind) != _nullable(wanted[name]):
            raise InvalidRequest(
                f"{whose} brings column {name!r} as {kind.simpleString()}, which its table did not have when the "
                "project's graph was made: run dagster-ckpt adopt-project again"
            )
    return frame.select(
        *(
            f.col(quoted(name)) if name in has else f.lit(None).cast(kind).alias(name)
            for name, kind in wanted.items()
        )
    )


def united(inputs: Mapping[str, DataFrame], schema: StructType) -> DataFrame:
    """Return the rows that all flows bring to a table, in its columns; ``inputs`` by the flow that says it."""
    frames = [aligned(frame, schema, whose=f"flow {name!r}") for name, frame in inputs.items()]
    rows = frames[0]
    for frame in frames[1:]:
        rows = rows.union(frame)
    return rows


def refuse_no_watermark(flow: FlowElement, rows: DataFrame) -> None:
    """Raise InvalidRequest for a flow that aggregates without a watermark, as Spark does when its query starts.

    What else Spark refuses in a stream it says itself, then: a plan of stand-ins is not quite the one that runs.
    """
    from pyspark.errors import AnalysisException

    try:
        refuse_unsupported(rows, "append")
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
        from dagster_ckpt.ext.delta.columns import COLUMNS as OF_DELTA

        OF_DELTA.of(schema.json())
    if table_format == "iceberg" and find_spec("pyiceberg") is not None:  # a graph is made without it as well
        from dagster_ckpt.ext.iceberg.columns import COLUMNS as OF_ICEBERG

        OF_ICEBERG.of(schema.json())
