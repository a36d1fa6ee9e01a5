"""Executors of a session: which there are, and a task on each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
