"""Positions of sources in their topics, as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

from dagster_ckpt.cli.output import Output
from dagster_ckpt.spark.source.lag import SourceLag


def show_positions(output: Output, positions: Sequence[SourceLag]) -> None:
    """Show each partition's offset, and how far behind its end it is."""
    rows = [
        (source.stage, one.topic, str(one.partition), str(one.offset), _number(one.latest), _number(one.lag))
        for source in positions
        for one in source.partitions
    ]
    if rows:
        columns = ("source", "topic", "partition>", "offset>", "latest>", "lag>")
        output.list("positions in topics", columns, rows)
    for source in positions:
        if source.problem:
            output.say(f"how far behind {source.stage} is, is not known: {source.problem}")


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
