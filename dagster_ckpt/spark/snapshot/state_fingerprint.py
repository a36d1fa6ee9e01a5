"""The state of a stopped query as counts and hashes per store, to tell whether it is the same state as before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.spark.files import spark_uri

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
