"""A session's context, catalog, settings, queries and file systems, beyond what PySpark tells of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.spark.java.plans import nodes_of

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, Observation, SparkSession
    from pyspark.sql.streaming import StreamingQuery


def active_context() -> SparkContext | None:
    """Return the context of this process, whichever thread has made it; none is made."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context


def is_local(spark: SparkSession) -> bool:
    """Tell whether tasks run in the driver's own process (``local[N]``, not ``local-cluster``)."""
    return bool(spark.sparkContext._jsc.sc().isLocal())


_REPEATING = (
    "org.apache.spark.util.Utils",
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.FileFormatWriter",
    "org.apache.spark.sql.execution.streaming.MicroBatchExecution",
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
)
"""Loggers that print a page each for every try of a failed task; the error that the query ends with has it too."""


def log_each_error_once(spark: SparkSession) -> None:
    """Turn off the loggers that repeat what a failed query ends with (Log4j 2, since 3.3; nothing without it)."""
    log4j = spark.sparkContext._jvm.org.apache.logging.log4j
    for name in _REPEATING:
        with suppress(TypeError):  # another logging library: a package that is not there
            log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)


_STATE_STORE = "org.apache.spark.sql.execution.streaming.state.StateStore"
_WARNED_AT = "dagster_ckpt.stateStoreLevel"
"""Property of a Java that a context has ended in: the level of that logger before."""


def end_quietly(spark: SparkSession) -> None:
    """Turn off the warnings of a state store, whose upkeep comes by while Java ends and finds no context any more."""
    with suppress(Exception):  # Java has ended
        log4j, system = spark._jvm.org.apache.logging.log4j, spark._jvm.java.lang.System
        before = log4j.LogManager.getLogger(_STATE_STORE).getLevel()
        log4j.core.config.Configurator.setLevel(_STATE_STORE, log4j.Level.ERROR)
        if system.getProperty(_WARNED_AT) is None:
            system.setProperty(_WARNED_AT, str(before))


def begin_again(spark: SparkSession) -> None:
    """Turn these warnings on again, where an earlier context of this Java has ended quietly."""
    before = spark._jvm.java.lang.System.clearProperty(_WARNED_AT)
    if before is not None:
        log4j = spark._jvm.org.apache.logging.log4j
        log4j.core.config.Configurator.setLevel(_STATE_STORE, log4j.Level.valueOf(before))


def keep_errors_off_the_console() -> None:
    """Let PySpark print no page of JSON for an error that it raises, too (since 4.0)."""
    with suppress(ImportError):
        from pyspark.logger import PySparkLogger

        for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
            PySparkLogger.getLogger(name).disabled = True


def has_stopped(spark: SparkSession) -> bool:
    """Tell whether the session's application has ended, here or on the cluster's order (``SparkContext.isStopped``)."""
    context = spark.sparkContext
    return context._jsc is None or bool(context._jsc.sc().isStopped())


def catalog_of(spark: SparkSession) -> Any:
    """Return the catalog: current catalog and database are told and set at once, without a statement (since 3.4)."""
    return _session(spark).catalog()


def show_as_view(frame: DataFrame, name: str) -> None:
    """Make a temporary view of a DataFrame, under a name with any characters, also where functions may make none."""
    frame._jdf.createOrReplaceTempView(f"`{name}`")


def drop_view(spark: SparkSession, name: str) -> None:
    """Drop a temporary view (``Catalog.dropTempView``, since 2.0)."""
    catalog_of(spark).dropTempView(name)


def is_set(spark: SparkSession, key: str) -> bool:
    """Tell whether somebody has set a setting; ``spark.conf.get`` answers with its default else (since 2.0)."""
    return bool(_session(spark).sessionState().conf().contains(key))


def has_read_everything(query: StreamingQuery) -> bool:
    """Return whether the last look of a query that has ended found nothing more to read.

    ``exception()`` and ``status`` are the same for a query that came to its end and for one that
    ``StreamingQuery.stop`` ended before. Spark knows it by what ``processAllAvailable`` waits for
    (``StreamExecution.noNewData``).
    """
    return bool(query._jsq.streamingQuery().noNewData())


def progress_since(query: StreamingQuery, batch: BatchId) -> list[dict[str, Any]]:
    """Return Spark's reports of a query's batches behind one, oldest first.

    ``recentProgress`` asks Java four times for each of the latest hundred (``StreamingQueryProgress``, since 2.1).
    """
    kept, found = query._jsq.recentProgress(), list[dict[str, Any]]()
    for place in range(len(kept) - 1, -1, -1):
        told = kept[place]
        if told.batchId() <= batch:
            break
        found.append(parse_json(told.json()))
    return found[::-1]


def rows_dropped(spark: SparkSession, query_id: str) -> int:
    """Return how many rows the operators of a query's last batch have dropped for a watermark.

    As its progress tells a moment later (``StreamExecution.lastExecution``, ``StateStoreWriter``, since 3.1).
    """
    query: Any = next(one for one in spark.streams.active if str(one.id) == query_id)
    total = 0
    for node in nodes_of(query._jsq.streamingQuery().lastExecution().executedPlan()):
        metric = node.metrics().get("numRowsDroppedByWatermark")
        total += int(metric.get().value()) if metric.isDefined() else 0
    return total


def is_observed(observation: Observation) -> bool:
    """Tell whether an observation has its numbers; ``Observation.get`` would wait for them (since 4.0)."""
    return bool(observation._jo.future().isCompleted())


def finds_file(spark: SparkSession, place: str) -> bool:
    """Tell whether the driver's Java finds a file, by its own connector and the context's settings (Hadoop)."""
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(place)
    return bool(path.getFileSystem(context._jsc.hadoopConfiguration()).exists(path))


def finds_file_of_query(spark: SparkSession, place: str) -> bool:
    """Tell whether a query finds a file: ``finds_file`` with the session's settings above the context's."""
    session: Any = spark
    path = session._jvm.org.apache.hadoop.fs.Path(place)
    return bool(path.getFileSystem(_session(spark).sessionState().newHadoopConf()).exists(path))


def write_local_checksums(spark: SparkSession, *, on: bool) -> None:
    """Let this Java write checksum files beside local ones, or not (Hadoop's ``FileSystem.setWriteChecksum``)."""
    session: Any = spark
    here = session._jvm.java.net.URI("file:///")
    files = session._jvm.org.apache.hadoop.fs.FileSystem.get(here, session._jsc.hadoopConfiguration())
    files.setWriteChecksum(on)


@contextmanager
def as_active(spark: SparkSession) -> Iterator[None]:
    """Let ``SparkSession.active()`` give this session: whoever makes a frame makes its own session that one.

    PySpark keeps it for all threads (``SparkSession._activeSession``), and Java for each.
    """
    session: Any = spark
    python, java = type(session), session._get_j_spark_session_class(session._jvm)
    before, java_before = python._activeSession, java.getActiveSession()
    python._activeSession = session
    java.setActiveSession(_session(spark))
    try:
        yield
    finally:
        python._activeSession = before
        java.setActiveSession(java_before.get()) if java_before.isDefined() else java.clearActiveSession()


def _session(spark: SparkSession) -> Any:
    session: Any = spark
    return session._jsparkSession


@dataclass(frozen=True, slots=True)
class Executor:
    """An executor that has registered with the driver."""

    id: str
    host: str


def executor_ids(spark: SparkSession) -> frozenset[str]:
    """Return the ids of the executors that have registered by now; one call, however many there are.

    ``SparkContext.getExecutorIds``.
    """
    ids = str(spark.sparkContext._jsc.sc().getExecutorIds().mkString(","))
    return frozenset(ids.split(",")) if ids else frozenset()


def executors_of(spark: SparkSession) -> tuple[Executor, ...]:
    """Return the executors that have registered by now, as far as Spark's listeners have heard of them (since 2.3)."""
    summaries = spark.sparkContext._jsc.sc().statusStore().executorList(True)
    found = (summaries.apply(index) for index in range(summaries.size()))
    named = (Executor(one.id(), one.hostPort().rpartition(":")[0]) for one in found)
    return tuple(one for one in named if one.id != "driver")


def run_on(
    spark: SparkSession,
    executors: Sequence[Executor],
    task: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    given: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Return the answers of ``task`` on each executor; without any, of the first there will be.

    ``SparkContext.makeRDD`` with a place for each partition, which PySpark's ``parallelize`` does not take.
    An executor that stays busy for longer than ``spark.locality.wait`` is answered for by another one.
    """
    from pyspark.core.rdd import RDD
    from pyspark.serializers import CPickleSerializer

    context = spark.sparkContext
    gateway, jvm, serializer = context._gateway, context._jvm, CPickleSerializer()
    assert gateway is not None
    assert jvm is not None
    located = gateway.jvm.java.util.ArrayList()
    for number, executor in enumerate(executors or [None]):
        places = gateway.jvm.java.util.ArrayList()
        if executor is not None:
            places.add(f"executor_{executor.host}_{executor.id}")
        content = serializer.dumps({**given, "number": number})
        located.add(jvm.scala.Tuple2(content, jvm.PythonUtils.toSeq(places)))
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
    scala_rdd = context._jsc.sc().makeRDD(jvm.PythonUtils.toSeq(located), tag)
    rdd: RDD[Any] = RDD(jvm.org.apache.spark.api.java.JavaRDD(scala_rdd, tag), context, serializer)
    return [dict(answer) for answer in rdd.map(task).collect()]
