"""The tables of pipeline ``split``: what they show, and what they are to show."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq

from tests.spark.epoch.small_pipeline import Feed

Rows = tuple[Counter[tuple[int, str]], Counter[tuple[str, int, int]]]


def truth(feed: Feed) -> Rows:
    """Return what both tables hold once everything is published."""
    names = {order["customer"] for order in feed.orders}
    amounts = {who: [o["amount"] for o in feed.orders if o["customer"] == who] for who in names}
    return (
        Counter((order["number"], order["customer"]) for order in feed.orders),
        Counter((who, len(given), sum(given)) for who, given in amounts.items()),
    )


def shown(lab: Path) -> Rows:
    """Return what both tables show; a publish may be just changing them."""
    tables = lab / "tables" / "split"
    with suppress(OSError):
        lines = pq.read_table(tables / "lines").to_pylist()
        totals = pq.read_table(tables / "totals").to_pylist()
        return (
            Counter((row["number"], row["customer"]) for row in lines),
            Counter((row["customer"], row["orders"], row["amount"]) for row in totals),
        )
    return Counter(), Counter()
