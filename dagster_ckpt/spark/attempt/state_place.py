"""Where the state of a query is, if executors and the driver share no disk."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.exchange.mounts import exchange_of
from dagster_ckpt.spark.exchange.state import is_there, location, move_there, prove_connector
from dagster_ckpt.spark.files import replace_whole, spark_uri
from dagster_ckpt.spark.java.sessions import is_local
from dagster_ckpt.spark.plan.operators import operators_in
from dagster_ckpt.spark.plan.tree import Tree, analyzed, is_streaming, kind_of, walk

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LIMITS = frozenset({"GlobalLimit", "LocalLimit", "Limit"})
"""Operators that count the rows they have let through: state that nobody groups by."""
_NAMES_ITS_FOLDER = "TransformWithState"


def checkpoint_location(
    spark: SparkSession, uid: StageUid, query: Path, frame: DataFrame
) -> tuple[str, dict[str, str]]:
    """Return the checkpointLocation of a query that is about to start, and the settings it takes.

    Tasks write state below it. Where ``work_dir`` is in an object store, and tasks are not of the driver's own process,
    the state goes there. Raises InvalidRequest where it cannot: executors would keep it on their own disks.
    """
    exchange = exchange_of(query)
    if exchange is None:
        return spark_uri(query), {}
    if not is_there(query.parent):
        plan = analyzed(frame)
        if is_local(spark) or (plan is not None and not has_state(plan)):
            return spark_uri(query), {}
        if plan is None or any(kind_of(node).startswith(_NAMES_ITS_FOLDER) for node in walk(plan)):
            raise InvalidRequest(
                f"the state of stage {uid!r} (transformWithState) names the folder it lies in, and work_dir "
                f"{exchange.remote.uri} cannot hold such state yet: give work_dir a folder that all machines mount, or "
                "let one machine run the pipeline (spark.master local[*])"
            )
        prove_connector(spark, uid, query, exchange)
        move_there(query, exchange)
        _write_query_id(query)
    return location(query, exchange)


def _write_query_id(query: Path) -> None:
    """Name a new query before Spark does: it would look into a folder that is no folder of one file system."""
    query.mkdir(parents=True, exist_ok=True)
    if not (query / "metadata").exists():
        replace_whole(
            query / "metadata", json.dumps({"id": str(uuid.uuid4())}, separators=(",", ":")).encode()
        )


def has_state(plan: Tree) -> bool:
    """Tell whether a query keeps state between micro-batches."""
    return bool(operators_in(plan)) or any(map(_is_limit, walk(plan)))


def _is_limit(node: Tree) -> bool:
    return kind_of(node) in _LIMITS and is_streaming(node)
