"""Rows that changed, counted a second time: what a stage in output mode update passes on is no new row.

In one query Spark refuses an aggregation behind another one in that mode. Between two stages lies a channel, so it sees
two queries, and neither knows of the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.attempt.plan_texts import aggregates_in
from dagster_ckpt.spark.attempt.plan_tree import (
    Tree,
    analyzed,
    columns_of,
    expression,
    is_source,
    kind_of,
    walk,
)
from dagster_ckpt.spark.directories import AttemptDirectory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline

__all__ = ["refuse_counted_changes"]

_ADDS = {
    "Count": "counts",
    "CountIf": "counts",
    "Sum": "sums",
    "Average": "averages",
    "CollectList": "collects",
}
"""What is said of aggregates to which each row adds, also one that stands for an earlier one; of others their name."""
_TAKES_ONE = (
    "AnyValue",
    "BitAndAgg",
    "BitOrAgg",
    "BoolAnd",
    "BoolOr",
    "CollectSet",
    "First",
    "HyperLogLogPlusPlus",
    "Last",
    "Max",
    "MaxBy",
    "Min",
    "MinBy",
)
"""Aggregates to which a row that comes twice adds nothing: the greatest of a group may be asked for."""
_DECIDES = ("Deduplicate", "Distinct", "FlatMapGroups", "TransformWithState")
"""Operators behind which rows are new: of changed ones they let the first through, or the user's function decides."""
_DECIDES_IN_PLANS = ("dropDuplicates", "distinct", *_DECIDES)
"""The same as written plans have them."""


def refuse_counted_changes(
    pipeline: CheckpointedPipeline,
    attempt: AttemptDirectory,
    uid: StageUid,
    frame: DataFrame,
    read: Sequence[tuple[StageUid, DataFrame]],
) -> None:
    """Raise InvalidRequest for a query that adds up rows of a stage which passes on a row again when it changes.

    ``read``: what it reads by channels, each with the stage that writes it.
    """
    if pipeline.stages[uid].reads_all:  # a dataset of a Spark project: tables are appended to
        return
    for upstream, rows in read:
        changing = _changing(pipeline, attempt, upstream)
        if changing is not None and (does := _adds_up(frame, rows)):
            mode = pipeline.stages[changing].output_mode
            raise InvalidRequest(
                f"{pipeline.title(uid)} {does} rows of stage {str(changing)!r}, whose output_mode={mode!r} passes a "
                "row on again whenever it changes: each time it would be added once more, and in one query Spark "
                f"refuses that. Aggregate in one stage; or give {str(changing)!r} a watermark and "
                "output_mode='append', so that a row comes once; or keep the newest row of each key with "
                "transformWithState"
            )


def _changing(pipeline: CheckpointedPipeline, attempt: AttemptDirectory, uid: StageUid) -> StageUid | None:
    """Return the stage whose changed rows come by this one's channel; None: rows of it are final."""
    operators = _operators(attempt, uid)
    if any(one.startswith("groupBy(") for one in operators):
        return uid if pipeline.stages[uid].output_mode in ("update", "complete") else None
    if any(one.startswith(_DECIDES_IN_PLANS) for one in operators):
        return None
    found = (_changing(pipeline, attempt, one) for one in pipeline.upstream[uid])
    return next((one for one in found if one is not None), None)


def _operators(attempt: AttemptDirectory, uid: StageUid) -> list[str]:
    """Return the operators with state that a stage's plan has, as it was written down when its query was made."""
    try:
        said = parse_json(attempt.stage(uid).plan.read_text(encoding="utf-8"))
        return [str(one) for one in said["operators"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _adds_up(frame: DataFrame, rows: DataFrame) -> str:
    """Return what a query does with each row of one of its inputs that comes again; empty: nothing."""
    plan, given = analyzed(frame), analyzed(rows)
    if plan is None or given is None:
        return ""
    sources = {columns_of(node) for node in walk(given) if is_source(node)}
    for node in walk(plan):
        if kind_of(node) == "Aggregate" and any(
            is_source(below) and columns_of(below) in sources for below in _untouched(node)
        ):
            written = map(expression, node["aggregateExpressions"])
            asked = (kind_of(one["_children"][0]) for each in written for one in aggregates_in(each))
            if kind := next((kind for kind in asked if kind not in _TAKES_ONE), ""):
                return _ADDS.get(kind, f"aggregates ({kind})")
    return ""


def _untouched(node: Tree) -> Iterator[Tree]:
    """Yield a node and those below it whose rows come to it as they are, and not by one that decides."""
    yield node
    if not kind_of(node).startswith(_DECIDES):
        for below in node["_children"]:
            yield from _untouched(below)
