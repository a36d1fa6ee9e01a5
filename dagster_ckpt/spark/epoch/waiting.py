"""Waits for the end of a stage's query and says how far it is: soon, then seldom, and at least once a minute."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from dagster_ckpt.core.units import counted, duration
from dagster_ckpt.errors import Unavailable
from dagster_ckpt.spark.batch_meter import BatchMeter
from dagster_ckpt.spark.java.sessions import has_read_everything
from dagster_ckpt.spark.plan.errors import was_stopped
from dagster_ckpt.spark.stage_report import Reporter

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

FIRST_WORD_AFTER = 5.0
LAST_WORD_AFTER = 60.0
"""Seconds between two lines: each is an event that Dagster stores."""


def wait_for(
    query: StreamingQuery, name: str, reporter: Reporter, *, first_after: float = FIRST_WORD_AFTER
) -> None:
    """Return when the query has read all there was. Raises what it failed with, Unavailable where it was stopped."""
    meter, began, pause = BatchMeter(), time.monotonic(), first_after
    while not query.awaitTermination(math.ceil(pause)):
        meter.take(query.recentProgress)
        rate, _ = meter.rates(pause)
        reporter.info(
            f"{name}: {counted(meter.rows, 'row')} so far, {rate:,.0f} rows/s, {duration(time.monotonic() - began)}"
            f"{_behind(query)}; batch {meter.last_batch + 1} is running"
        )
        pause = min(LAST_WORD_AFTER, pause * 2)
    if not has_read_everything(query):
        raise Unavailable(was_stopped(name))


def _behind(query: StreamingQuery) -> str:
    """Return how far its sources are behind, where these know (Kafka)."""
    sources = (query.lastProgress or {}).get("sources", ())
    told = ((source.get("metrics") or {}).get("maxOffsetsBehindLatest") for source in sources)
    found = [float(behind) for behind in told if behind is not None]
    return f", {max(found):,.0f} rows behind in the slowest partition" if found else ""
