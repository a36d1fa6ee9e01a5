"""Plans as Spark's own objects, and checks that Spark makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical"


def analyzed_plan(frame: DataFrame) -> Any:
    """Return the analyzed plan of a DataFrame (``QueryExecution.analyzed``, since 1.3)."""
    return frame._jdf.queryExecution().analyzed()


def optimized_plan(frame: DataFrame) -> Any:
    """Return the plan as Spark optimizes it for every batch (``SessionState.optimizer``, since 2.0).

    ``QueryExecution.optimizedPlan`` refuses a plan that reads streams.
    """
    return _state(frame.sparkSession).optimizer().execute(analyzed_plan(frame))


def refuse_unsupported(frame: DataFrame, output_mode: str) -> None:
    """Raise AnalysisException where Spark runs no query of these rows in an output mode.

    As when the query starts: ``UnsupportedOperationChecker.checkForStreaming``, since 2.0.
    """
    sql = _jvm(frame.sparkSession).org.apache.spark.sql
    mode = getattr(sql.streaming.OutputMode, output_mode.capitalize())()
    sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(analyzed_plan(frame), mode)


def streams_read(frame: DataFrame) -> list[tuple[str, dict[str, str]]]:
    """Return kind and options of each stream that a DataFrame reads (``StreamingRelation``, since 2.0).

    A relation of Spark's first interface has them in its ``dataSource``, one of the second in ``extraOptions`` (2.3).
    """
    found = []
    for leaf in leaves_of(analyzed_plan(frame)):
        match leaf.getClass().getSimpleName():
            case "StreamingRelation":
                found.append((leaf.dataSource().className(), _texts(leaf.dataSource().options())))
            case "StreamingRelationV2":
                options = leaf.extraOptions().asCaseSensitiveMap()
                found.append((leaf.sourceName(), {str(key): str(options[key]) for key in options}))
            case _:
                pass
    return found


def _texts(pairs: Any) -> dict[str, str]:
    return {str(pair._1()): str(pair._2()) for pair in scala_items(pairs)}


def working_folder(spark: SparkSession) -> str:
    """Return the folder in which relative paths of Spark's begin: Java's, which ``os.chdir`` does not move."""
    return str(_jvm(spark).System.getProperty("user.dir"))


def parsed_plan(spark: SparkSession, text: str) -> Any:
    """Return the plan of a statement, of which nothing is looked up (``ParserInterface.parsePlan``, since 2.0)."""
    return _state(spark).sqlParser().parsePlan(text)


def nodes_of(plan: Any) -> Iterator[Any]:
    """Yield a plan and all below it, in Spark's order."""
    yield plan
    children = plan.children()
    for place in range(children.size()):
        yield from nodes_of(children.apply(place))


def has_watermark(frame: DataFrame) -> bool:
    """Tell whether a query's rows may come too late (``EventTimeWatermark``, since 2.1)."""
    kinds = (str(node.getClass().getSimpleName()) for node in nodes_of(analyzed_plan(frame)))
    return any("Watermark" in kind for kind in kinds)


def leaves_of(plan: Any) -> Iterator[Any]:
    """Yield the leaves of a plan: what it reads (``TreeNode.collectLeaves``)."""
    return scala_items(plan.collectLeaves())


def scala_items(found: Any) -> Iterator[Any]:
    """Yield the elements of a Scala collection."""
    items = found.iterator()
    while items.hasNext():
        yield items.next()


def rows_of(spark: SparkSession, plan: Any) -> DataFrame:
    """Return the rows of an analyzed plan that does not stream (``classic.Dataset.ofRows``, since 4.0)."""
    from pyspark.sql import DataFrame as SparkFrame

    session: Any = spark
    made = _jvm(spark).org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)
    return SparkFrame(made, spark)


_DELAY = "spark.watermarkDelayMs"


def marked_columns(columns: Iterable[Any]) -> list[tuple[str, str]]:
    """Return names and types of those columns that a watermark is on (``EventTimeWatermark.delayKey``, since 2.1)."""
    return [
        (str(one.name()), str(one.dataType().catalogString()))
        for one in columns
        if one.getClass().getSimpleName() in ("AttributeReference", "Alias")
        and one.metadata().contains(_DELAY)
    ]


_OF_BYTES: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "is UTF-8": ("base.Utf8", "isWellFormed", ()),
    "has NUL": ("primitives.Bytes", "contains", (0,)),
}
"""Class, method, and bytes that it is told beside the text's."""


def asked_of_bytes(spark: SparkSession, question: str, text: Column) -> Column:
    """Return a column with the answer of Spark's own copy of Guava (``objects.StaticInvoke``, since 2.0).

    Spark's own functions give the same one and take three times as long.
    """
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import functions

    jvm = _jvm(spark)
    sql, to_seq = jvm.org.apache.spark.sql, jvm.org.apache.spark.api.python.PythonUtils.toSeq
    owner, method, beside = _OF_BYTES[question]
    given = [text.cast("binary"), *(functions.lit(byte).cast("tinyint") for byte in beside)]
    answer = sql.catalyst.expressions.objects.StaticInvoke(
        jvm.java.lang.Class.forName(f"org.sparkproject.guava.{owner}"),
        sql.types.DataType.fromDDL("boolean"),
        method,
        to_seq([sql.classic.ExpressionUtils.expression(one._jc) for one in given]),
        to_seq([]),
        True,  # null of null
        False,
        True,
        jvm.scala.Option.empty(),
    )
    return SparkColumn(sql.classic.ExpressionUtils.column(answer))


def is_command(spark: SparkSession, plan: Any) -> bool:
    """Tell whether a parsed plan would do something and not only return rows (``ParsedStatement``, since 3.0)."""
    kinds = (
        _jvm(spark).java.lang.Class.forName(f"{_LOGICAL}.{name}") for name in ("Command", "ParsedStatement")
    )
    return any(kind.isInstance(plan) for kind in kinds)


def sql_file_statements(spark: SparkSession, text: str, shown: str) -> Iterator[Any]:
    """Yield the statements of a SQL file of a pipeline; ``shown``: its name (``SqlGraphRegistrationContext``, 4.1)."""
    context: Any = _jvm(spark).org.apache.spark.sql.pipelines.graph.SqlGraphRegistrationContext
    return scala_items(context.splitSqlFileIntoQueries(spark._jsparkSession, text, shown))


def _state(spark: SparkSession) -> Any:
    session: Any = spark
    return session._jsparkSession.sessionState()


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm
