"""A watermark that was meant for a stage it does not reach: it would keep state for ever and take every late row.

In one query of Spark's a watermark is that of all operators behind it. Between two stages lies a channel, which it does
not pass: a stage without state that declares one says so in its channel, and a reader is refused whose state would be
bounded by it (which groups, joins or tells apart by that column, or has timers of event time) and which declares none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.attempt.plan_shape import operators_in, watermarks_in, with_state
from dagster_ckpt.spark.attempt.plan_tree import (
    analyzed,
    column_id,
    definitions,
    is_bounded_by,
    is_source,
    walk,
)
from dagster_ckpt.spark.attempt.query_sources import sources_in
from dagster_ckpt.spark.channel.schema import FORMAT, MEANT_FOR_READERS, WATERMARK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["is_meant_for_readers", "refuse_lost_watermark"]


def is_meant_for_readers(frame: DataFrame) -> bool:
    """Tell whether a watermark on a stage's rows can only be meant for who reads them: it keeps no state itself.

    Columns are noted in files that Spark writes as well: what comes from a table is nobody's declaration.
    """
    plan = analyzed(frame) if _columns(frame, WATERMARK, MEANT_FOR_READERS) else None
    if plan is None or operators_in(plan):
        return False
    return bool(watermarks_in(plan)) or FORMAT in sources_in(plan, frame)


def refuse_lost_watermark(title: str, frame: DataFrame, channels: Iterable[DataFrame]) -> None:
    """Raise InvalidRequest for a query without a watermark whose state one that was declared before would bound.

    ``title``: how people are told of the query.
    """
    lost = {column: name for rows in channels for column, name in _lost_in(rows)}
    plan = analyzed(frame) if lost else None
    if plan is None or watermarks_in(plan):
        return
    named = definitions(plan)
    if any(is_bounded_by(operator, lost, named) for operator in with_state(plan)):
        name = next(iter(lost.values()))
        raise InvalidRequest(
            f"{title} keeps state without a watermark, and the one on {name!r} that a stage before it declares does "
            f"not pass the channel between them: declare it here (withWatermark({name!r}, ...)), or take it away there"
        )


def _columns(frame: DataFrame, *noted: str) -> list[str]:
    return [column.name for column in frame.schema.fields if not column.metadata.keys().isdisjoint(noted)]


def _lost_in(rows: DataFrame) -> Iterator[tuple[Any, str]]:
    """Yield id and name of a channel's columns that have lost their watermark."""
    lost = _columns(rows, MEANT_FOR_READERS)
    plan = analyzed(rows) if lost else None
    for source in () if plan is None else filter(is_source, walk(plan)):
        columns = (column[0] for column in source["output"])
        yield from ((column_id(one), str(one["name"])) for one in columns if one["name"] in lost)
