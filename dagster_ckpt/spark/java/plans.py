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


def may_be_no_utf8(spark: SparkSession, text: Column) -> Column:
    """Return a column that is true of text which is no UTF-8, and of some that is (``objects.Invoke``, since 2.0).

    Java's decoder makes U+FFFD of what is wrong, in a third of the time that ``is_valid_utf8`` takes.
    """
    from pyspark.sql import Column as SparkColumn

    jvm = _jvm(spark)
    sql, invoke = jvm.org.apache.spark.sql, jvm.org.apache.spark.sql.catalyst.expressions.objects.Invoke
    number = sql.types.DataType.fromDDL("int")
    decoded = sql.types.ObjectType(jvm.java.lang.Class.forName("java.lang.String"))

    def called(target: Any, name: str, kind: Any, *arguments: Any) -> Any:
        given = jvm.org.apache.spark.api.python.PythonUtils.toSeq(list(arguments))
        types = jvm.org.apache.spark.api.python.PythonUtils.toSeq([])
        return invoke(target, name, kind, given, types, True, True, True)

    replacement = sql.catalyst.expressions.Literal.create(0xFFFD, number)
    read = called(sql.classic.ExpressionUtils.expression(text._jc), "toString", decoded)
    place = called(read, "indexOf", number, replacement)
    return SparkColumn(sql.classic.ExpressionUtils.column(place)) >= 0


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
