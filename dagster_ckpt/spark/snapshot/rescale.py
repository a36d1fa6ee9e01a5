"""Changes the number of state partitions of a restored stage, with Spark's own offline repartitioning.

Spark's entry point is not public yet and exists for classic sessions and RocksDB only. It runs one more
batch, without input, so the stage is at batch N + 1 afterwards with the offsets of N. A failed call leaves
the directory unusable; work on a restored copy, as ``attempt_restore`` does, and restore again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.core.units import counted
from dagster_ckpt.errors import CheckpointError, Corrupt, InvalidRequest
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.files import spark_uri
from dagster_ckpt.spark.snapshot.capture import CapturePlan, latest_committed_batch, plan_capture

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

JOIN = "symmetricHashJoin"


def fingerprint(spark: SparkSession, query_dir: Path) -> dict[str, tuple[int, int]]:
    """Return (rows, order-free hash) of every store of a query, partition numbers left out; one job for all."""
    frames = [_summed(frame, name) for name, frame in _stores(spark, query_dir)]
    rows = reduce(lambda one, other: one.union(other), frames).collect() if frames else []
    return {row["name"]: (int(row["n"]), int(row["s"] or 0)) for row in rows}


def as_json(frame: DataFrame, columns: Sequence[str]) -> Column:
    """Return columns of a table of state as one JSON text, nulls included.

    Field by field: rows of a join's state have one column more than their schema says, which to_json trips over.
    """
    import pyspark.sql.functions as sf

    whole = {"ignoreNullFields": "false"}
    only = columns[0]
    kind: Any = frame.schema[only].dataType
    if len(columns) > 1 or kind.typeName() != "struct":
        return sf.to_json(sf.struct(*(frame[c] for c in columns)), whole)
    fields = [frame[only].getField(name).alias(name) for name in kind.fieldNames()]
    return sf.when(frame[only].isNull(), sf.lit("null")).otherwise(sf.to_json(sf.struct(*fields), whole))


def _stores(spark: SparkSession, query_dir: Path) -> Iterator[tuple[str, DataFrame]]:
    """Yield the stores of all operators: each side of a join, each state variable, the timers."""
    metadata = spark.read.format("state-metadata").load(spark_uri(query_dir))
    columns = ["operatorId", "operatorName", "stateStoreName", "operatorProperties"]
    rows = metadata.select(*columns).distinct().collect()
    for operator in sorted({row["operatorId"] for row in rows}):
        mine = [row for row in rows if row["operatorId"] == operator]
        for options in _options(mine[0]["operatorName"], mine):
            reader = spark.read.format("statestore").option("operatorId", operator).options(**options)
            yield f"{operator}/{'/'.join(options.values())}", reader.load(spark_uri(query_dir))


def _options(name: str, rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    """Yield the options that select each store of an operator."""
    stores = sorted({row["stateStoreName"] for row in rows})
    properties = [parse_json(row["operatorProperties"] or "{}") for row in rows]
    variables = _variables(properties)
    if name == JOIN and stores == ["default"]:  # all its tables are in one store
        yield from ({"joinSide": "left"}, {"joinSide": "right"})
    elif variables:
        yield from ({"stateVarName": variable} for variable in variables)
        if any(map(_has_timers, properties)):
            yield {"readRegisteredTimers": "true"}
    else:
        yield from ({"storeName": store} for store in stores)


def _variables(properties: list[dict[str, Any]]) -> list[str]:
    """Return the state variables of transformWithState; none for other operators."""
    found = {one["stateName"] for document in properties for one in document.get("stateVariables", ())}
    return sorted(name for name in found if not name.startswith("$"))


def _has_timers(properties: dict[str, Any]) -> bool:
    return bool(properties.get("timeMode", "NoTime") != "NoTime")


def _summed(frame: DataFrame, name: str) -> DataFrame:
    import pyspark.sql.functions as sf

    content = [as_json(frame, [column]) for column in frame.columns if column != "partition_id"]
    hashes = frame.select(sf.xxhash64(*content).cast("decimal(38,0)").alias("h"))
    return hashes.agg(sf.count("*").alias("n"), sf.sum("h").alias("s")).withColumn("name", sf.lit(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescaled:
    """Result of a rescale."""

    before: int
    """State partitions before."""
    after: int
    batch_id: BatchId
    """Last committed batch now: one more than in the snapshot, with the same offsets."""
    rows: int
    """State rows compared before and after."""


def saved_partitions(state_formats: Mapping[str, str]) -> int | None:
    """Return over how many partitions the state of a captured stage is spread; None: it keeps none."""
    text = state_formats.get("shuffle_partitions")
    return None if text is None else int(text)


def has_other_partition_count(query_dir: Path, partitions: int) -> bool:
    """Tell whether a query's state is spread over another number of partitions. Raises Declined: cannot be read."""
    saved = saved_partitions(plan_capture(query_dir).state_formats)
    return saved is not None and saved != partitions


def rescale_stage(spark: SparkSession, *, stage_dir: Path, partitions: int) -> Rescaled:
    """Spread the state of a restored, stopped stage over ``partitions`` and check that it is the same state.

    Raises InvalidRequest where Spark cannot do it (another provider, Spark Connect, an old PySpark, nothing
    committed), and Corrupt when the state after differs: then restore the directory again.
    """
    if partitions < 1:
        raise InvalidRequest(f"a stage needs at least 1 state partition, {partitions} were asked for")
    query_dir = StageDirectory(stage_dir).query
    plan = plan_capture(query_dir)
    batch = _rescalable(plan, query_dir)
    manager = _manager(spark)
    with _explained(query_dir, plan.subtasks, partitions):
        before = fingerprint(spark, query_dir)
        manager.repartition(spark_uri(query_dir), partitions)
        now = latest_committed_batch(query_dir)
        after = fingerprint(spark, query_dir)
    if now is None or now <= batch or after != before:
        raise Corrupt(
            f"the state of {query_dir} changed while it was spread over {partitions} partitions: remove the "
            "directory and restore it again"
        )
    return Rescaled(
        before=plan.subtasks,
        after=plan_capture(query_dir).subtasks,
        batch_id=now,
        rows=sum(rows for rows, _ in before.values()),
    )


def _rescalable(plan: CapturePlan, query_dir: Path) -> BatchId:
    if plan.batch_id is None:
        raise InvalidRequest(f"{query_dir} has committed no batch: start it with the partitions you want")
    provider = plan.state_formats.get("provider")
    if provider is None:
        raise InvalidRequest(
            f"{query_dir} has no state to rescale: change the parallelism of its input instead"
        )
    if provider != "rocksdb":
        raise InvalidRequest(
            f"the state of {query_dir} is kept by the {provider} provider; Spark can change the number of "
            f"partitions of RocksDB state only: set the stage's partitions back to {plan.subtasks}"
        )
    return plan.batch_id


def _manager(spark: SparkSession) -> Any:
    try:
        manager = getattr(spark, "_streamingCheckpointManager", None)
    except Exception as error:  # a Connect session raises its own PySpark error
        raise InvalidRequest(f"this Spark session cannot change state partitions: {error}") from error
    if manager is None:
        raise InvalidRequest(
            "this Spark session cannot change state partitions: use PySpark 4.2+, not Connect"
        )
    return manager


@contextmanager
def _explained(query_dir: Path, saved: int, partitions: int) -> Iterator[None]:
    """Turn whatever Spark raises into a sentence with a way out."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # PySpark's own errors, and py4j's for those it has no class for
        why = " ".join(line.strip() for line in str(error).splitlines()[:3])
        raise InvalidRequest(
            f"Spark could not spread the state of {query_dir} over {counted(partitions, 'partition')} ({why}): "
            f"set the stage's partitions back to {saved}"
        ) from error
