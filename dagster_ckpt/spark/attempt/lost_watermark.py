"""A watermark that was meant for a stage it does not reach: it would keep state for ever and take every late row.

In one query of Spark's a watermark is that of all operators behind it. Between two stages lies a channel, which it does
not pass: a stage without state that declares one says so in its channel, and a reader with state and without a
watermark of its own is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.attempt.plan_shape import analyzed, operators_in, watermarks_in
from dagster_ckpt.spark.channel.schema import MEANT_FOR_READERS, WATERMARK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["is_meant_for_readers", "refuse_lost_watermark"]


def is_meant_for_readers(frame: DataFrame) -> bool:
    """Tell whether a watermark on a stage's rows can only be meant for who reads them: it keeps no state itself."""
    return bool(_columns(frame, WATERMARK, MEANT_FOR_READERS)) and not _keeps_state(frame)


def refuse_lost_watermark(title: str, frame: DataFrame, channels: Iterable[DataFrame]) -> None:
    """Raise InvalidRequest for a query with state and no watermark, where one was declared before its channels.

    ``title``: how people are told of the query.
    """
    lost = [column for rows in channels for column in _columns(rows, MEANT_FOR_READERS)]
    if lost and _keeps_state(frame, without_watermark=True):
        raise InvalidRequest(
            f"{title} keeps state without a watermark, and the one on {lost[0]!r} that a stage before it declares "
            f"does not pass the channel between them: declare it here (withWatermark({lost[0]!r}, ...)), or take it "
            "away there"
        )


def _columns(frame: DataFrame, *noted: str) -> list[str]:
    return [column.name for column in frame.schema.fields if not column.metadata.keys().isdisjoint(noted)]


def _keeps_state(frame: DataFrame, *, without_watermark: bool = False) -> bool:
    plan = analyzed(frame)
    if plan is None or not operators_in(plan):
        return False
    return not (without_watermark and watermarks_in(plan))
