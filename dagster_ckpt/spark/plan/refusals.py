"""Queries that are refused whatever their state is, because no run of them can be right.

Rows that changed are counted a second time where a stage in output mode update passes them on: they are no new rows. In
one query Spark refuses an aggregation behind another one in that mode. Between two stages lies a channel, so it sees
two queries, and neither knows of the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.channel.schema import FORMAT, MEANT_FOR_READERS, WATERMARK
from dagster_ckpt.spark.directories import AttemptDirectory
from dagster_ckpt.spark.java.plans import refuse_unsupported
from dagster_ckpt.spark.plan.errors import is_no_aggregation
from dagster_ckpt.spark.plan.operators import operators_in, watermarks_in, with_state
from dagster_ckpt.spark.plan.sources import sources_in
from dagster_ckpt.spark.plan.tree import (
    Tree,
    aggregates_in,
    analyzed,
    column_id,
    columns_of,
    definitions,
    expression,
    is_bounded_by,
    is_source,
    kind_of,
    walk,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline


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


def refuse_mode(title: str, frame: DataFrame, output_mode: str) -> None:
    """Raise InvalidRequest for a query that Spark does not start in an output mode, before it is started."""
    from pyspark.errors import AnalysisException

    try:
        refuse_unsupported(frame, output_mode)
    except AnalysisException as error:
        if is_no_aggregation(str(error)):  # its sentence has the ways out
            raise
        raise InvalidRequest(f"{title}: {str(error).strip().partition(chr(10))[0]}") from error
    except Exception:  # Spark does not show its plan (Connect): the start tells
        return


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
    if pipeline.stages[uid].reads_all:  # its front end has its own rules: tables are appended to
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
    """Return a query's operation that counts a row once more when it comes again; empty: it has none."""
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


# --- a watermark that does not travel -------------------------------------------------------------------------

# A watermark that was meant for a stage it does not reach: it would keep state for ever and take every late row.
#
# In one query of Spark's a watermark is that of all operators behind it. Between two stages lies a channel, which it
# does not pass: a stage without state that declares one says so in its channel, and a reader is refused whose state
# would be bounded by it (which groups, joins or tells apart by that column, or has timers of event time) and which
# declares none.


def is_meant_for_readers(frame: DataFrame) -> bool:
    """Tell whether a watermark on a stage's rows can only be meant for who reads them: it keeps no state itself.

    Columns are noted in files that Spark writes as well: what comes from a table is nobody's declaration.
    """
    plan = analyzed(frame) if _noted_columns(frame, WATERMARK, MEANT_FOR_READERS) else None
    if plan is None or operators_in(plan):
        return False
    return bool(watermarks_in(plan)) or FORMAT in sources_in(plan, frame)


def refuse_lost_watermark(
    title: str, frame: DataFrame, channels: Iterable[tuple[StageUid, DataFrame]]
) -> None:
    """Raise InvalidRequest for a query without a watermark whose state one that was declared before would bound.

    ``title``: how people are told of the query; ``channels``: its inputs, by the stage that writes each.
    """
    lost = {column: (uid, name) for uid, rows in channels for column, name in _lost_in(rows)}
    plan = analyzed(frame) if lost else None
    if plan is None or watermarks_in(plan):
        return
    named = definitions(plan)
    if any(is_bounded_by(operator, lost, named) for operator in with_state(plan)):
        uid, name = next(iter(lost.values()))
        raise InvalidRequest(
            f"{title} keeps state without a watermark, and the one on {name!r} that stage {uid!r} declares does not "
            f"pass the channel between them: declare it here ({uid}.withWatermark({name!r}, ...)), or take it away "
            "there"
        )


def _noted_columns(frame: DataFrame, *noted: str) -> list[str]:
    return [column.name for column in frame.schema.fields if not column.metadata.keys().isdisjoint(noted)]


def _lost_in(rows: DataFrame) -> Iterator[tuple[Any, str]]:
    """Yield id and name of a channel's columns that have lost their watermark."""
    lost = _noted_columns(rows, MEANT_FOR_READERS)
    plan = analyzed(rows) if lost else None
    for source in () if plan is None else filter(is_source, walk(plan)):
        columns = (column[0] for column in source["output"])
        yield from ((column_id(one), str(one["name"])) for one in columns if one["name"] in lost)


# --- keys that are drawn ---------------------------------------------------------------------------------------

_DRAWN = ("Rand", "Randn", "RandStr", "Uniform", "Uuid")


def random_keys(frame: DataFrame, key: Sequence[str]) -> tuple[str, ...]:
    """Return the key columns that a query draws by chance: repeated, its rows have other keys."""
    plan = analyzed(frame) if key else None
    if plan is None:
        return ()
    columns = (expression(one) for node in walk(plan) for one in node.get("projectList", ()))
    drawn = {
        str(column["name"])
        for column in columns
        if kind_of(column) == "Alias" and any(kind_of(below) in _DRAWN for below in walk(column))
    }
    return tuple(name for name in key if name in drawn)
