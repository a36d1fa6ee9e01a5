"""Rows that changed, counted a second time: what a stage in output mode update passes on is no new row.

In one query Spark refuses an aggregation behind another one in that mode. Between two stages lies a channel, so it sees
two queries, and neither knows of the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.attempt.plan_shape import Tree, analyzed, is_streaming, kind_of, walk
from dagster_ckpt.spark.directories import AttemptDirectory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline

__all__ = ["refuse_counted_changes"]

_EACH_ROW = {"Count": "counts", "Sum": "sums", "Average": "averages", "CollectList": "collects"}
"""Aggregates to which a row adds, also one that stands for an earlier one; the greatest of a group may be asked for."""


def refuse_counted_changes(
    pipeline: CheckpointedPipeline, attempt: AttemptDirectory, uid: StageUid, frame: DataFrame
) -> None:
    """Raise InvalidRequest for a query that adds up rows of a stage which passes on a row again when it changes."""
    if pipeline.stages[uid].reads_all:  # a dataset of a Spark project: tables are appended to
        return
    changing = next((one for up in pipeline.upstream[uid] if (one := _changing(pipeline, attempt, up))), None)
    if changing is None:
        return
    plan = analyzed(frame)
    does = None if plan is None else next(_adds_up(plan), None)
    if does is not None:
        mode = pipeline.stages[changing].output_mode
        raise InvalidRequest(
            f"{pipeline.title(uid)} {does} rows of stage {str(changing)!r}, whose output_mode={mode!r} passes a row on "
            f"again whenever it changes: each time it would be added once more, and in one query Spark refuses that. "
            f"Aggregate in one stage; or give {str(changing)!r} a watermark and output_mode='append', so that a row "
            "comes once; or keep the newest row of each key with transformWithState"
        )


def _changing(pipeline: CheckpointedPipeline, attempt: AttemptDirectory, uid: StageUid) -> StageUid | None:
    """Return the stage whose changed rows come by this one's channel; None: rows of it are final."""
    if not _aggregates(attempt, uid):
        found = (_changing(pipeline, attempt, one) for one in pipeline.upstream[uid])
        return next((one for one in found if one is not None), None)
    return uid if pipeline.stages[uid].output_mode in ("update", "complete") else None


def _aggregates(attempt: AttemptDirectory, uid: StageUid) -> bool:
    """Tell whether a stage has rows that change: of other state, as of dropDuplicates, each row comes once."""
    try:
        said = parse_json(attempt.stage(uid).plan.read_text(encoding="utf-8"))
        return any(str(one).startswith("groupBy(") for one in said["operators"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _adds_up(plan: Tree) -> Iterator[str]:
    for node in walk(plan):
        if kind_of(node) == "Aggregate" and is_streaming(node):
            for written in node["aggregateExpressions"]:
                yield from (_EACH_ROW[kind] for one in written if (kind := kind_of(one)) in _EACH_ROW)
