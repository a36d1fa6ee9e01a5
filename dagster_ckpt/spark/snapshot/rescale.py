"""Changes the number of state partitions of a restored stage, with Spark's own offline repartitioning.

Spark's entry point is not public yet and exists for classic sessions and RocksDB only. It runs one more
batch, without input, so the stage is at batch N + 1 afterwards with the offsets of N. A failed call leaves
the directory unusable; work on a restored copy, as ``attempt_restore`` does, and restore again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.snapshot.capture import CapturePlan, latest_committed_batch, plan_capture

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Rescaled", "rescale_stage", "saved_partitions", "has_other_partition_count"]


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
    operators = sorted({f.operator for f in plan.files if f.operator is not None})
    before = {operator: _fingerprint(spark, query_dir, operator) for operator in operators}
    _repartition(manager, query_dir, partitions)
    now = latest_committed_batch(query_dir)
    after = {operator: _fingerprint(spark, query_dir, operator) for operator in operators}
    if now is None or now <= batch or after != before:
        raise Corrupt(
            f"the state of {query_dir} changed while it was spread over {partitions} partitions: remove the "
            "directory and restore it again"
        )
    return Rescaled(
        before=plan.subtasks,
        after=plan_capture(query_dir).subtasks,
        batch_id=now,
        rows=sum(rows for stores in before.values() for rows, _ in stores),
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


def _repartition(manager: Any, query_dir: Path, partitions: int) -> None:
    from pyspark.errors import PySparkException

    try:
        manager.repartition(str(query_dir), partitions)
    except PySparkException as error:
        raise InvalidRequest(
            f"Spark could not spread the state of {query_dir} over {partitions} partitions: "
            f"{str(error).splitlines()[0]}. Remove the directory and restore it again before using it"
        ) from error


# --- the same state? ----------------------------------------------------------------------------------------


def _fingerprint(spark: SparkSession, query_dir: Path, operator: str) -> list[tuple[int, int]]:
    """Return (rows, order-free hash) of every store of an operator, partition numbers left out."""
    return [_summed(frame) for frame in _stores(spark, query_dir, operator)]


def _stores(spark: SparkSession, query_dir: Path, operator: str) -> list[DataFrame]:
    def reader(**options: str) -> DataFrame:
        base = spark.read.format("statestore").option("operatorId", operator)
        return base.options(**options).load(str(query_dir))

    metadata = spark.read.format("state-metadata").load(str(query_dir)).where(f"operatorId = {operator}")
    rows = metadata.select("operatorName", "stateStoreName").distinct().collect()
    if any(row["operatorName"] == "symmetricHashJoin" for row in rows):
        return [reader(joinSide="left"), reader(joinSide="right")]
    variables = _state_variables(spark, query_dir, operator)
    if variables:
        return [reader(stateVarName=name) for name in variables]
    return [reader(storeName=row["stateStoreName"]) for row in sorted(rows)]


def _state_variables(spark: SparkSession, query_dir: Path, operator: str) -> list[str]:
    """Return the state variables of transformWithState; none for other operators."""
    metadata = spark.read.format("state-metadata").load(str(query_dir)).where(f"operatorId = {operator}")
    texts = [row["operatorProperties"] for row in metadata.select("operatorProperties").distinct().collect()]
    found: set[str] = set()
    for text in texts:
        properties = parse_json(text) if text else {}
        found |= {variable["stateName"] for variable in properties.get("stateVariables", ())}
    return sorted(name for name in found if not name.startswith("$"))


def _summed(frame: DataFrame) -> tuple[int, int]:
    import pyspark.sql.functions as sf

    content = sf.to_json(sf.struct(*[column for column in frame.columns if column != "partition_id"]))
    row = (
        frame.select(sf.xxhash64(content).cast("decimal(38,0)").alias("h"))
        .agg(sf.count("*").alias("n"), sf.sum("h").alias("s"))
        .first()
    )
    return (0, 0) if row is None else (int(row["n"]), int(row["s"] or 0))
