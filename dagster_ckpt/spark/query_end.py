"""How a query that reads what is available has ended: by itself, or because somebody stopped it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["has_read_everything", "was_stopped"]


def has_read_everything(query: StreamingQuery) -> bool:
    """Return whether the last look of a query that has ended found nothing more to read.

    ``exception()`` and ``status`` are the same for a query that came to its end and for one that
    ``StreamingQuery.stop`` ended before. Spark knows it by what ``processAllAvailable`` waits for.
    """
    return bool(query._jsq.streamingQuery().noNewData())


def was_stopped(name: str) -> str:
    """Return the sentence about a query that somebody stopped."""
    return (
        f"the query of {name} was stopped before it had read all there was: something in this process calls "
        "StreamingQuery.stop, perhaps of all spark.streams.active. Rows it has not read are read by the next run"
    )
