"""Where the next micro-batch of a channel's reader ends: a pure decision over the entries ahead.

The rules, in order: never past a barrier that the reading stage has not released; onto such a barrier even
when no rows lie before it, because standing on it is how a stage shows that it is aligned; at least one entry
with rows, so that a limit can never stop the stream; and nothing at all when neither a row nor a barrier lies
ahead, so that Spark runs no empty batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import assert_never

from dagster_ckpt.core.ids import CheckpointId, LogPosition
from dagster_ckpt.spark.channel_entries import Barrier, Cancel, Data, End, Entry


@dataclass(frozen=True, slots=True)
class ReleasedThrough:
    """Barriers up to and including ``checkpoint_id`` are passed, the next one holds (0: all hold)."""

    checkpoint_id: int = 0


@dataclass(frozen=True, slots=True)
class HoldNothing:
    """No barrier ever holds: at-least-once, or nobody takes checkpoints."""


Released = ReleasedThrough | HoldNothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How much one micro-batch may take; None: no limit. One entry is always taken whole."""

    entries: int | None = None
    rows: int | None = None


def holds(released: Released, checkpoint_id: CheckpointId) -> bool:
    """Tell whether a reader stops at the barrier of ``checkpoint_id``."""
    match released:
        case ReleasedThrough(through):
            return checkpoint_id > through
        case HoldNothing():
            return False
        case _:
            assert_never(released)


def next_end(
    start: LogPosition,
    ahead: Iterable[tuple[LogPosition, Entry]],
    *,
    released: Released,
    limit: Limit,
) -> LogPosition:
    """Return where a batch that begins at ``start`` ends; ``start`` itself when there is nothing to do.

    ``ahead`` are the entries from ``start`` on, in order; only as many are read as the decision needs.
    """
    end = start
    entries = rows = 0
    for position, entry in ahead:
        match entry:
            case Barrier():
                if holds(released, entry.checkpoint_id):
                    return position
            case Data():
                if not entry.files:
                    continue
                if entries and _over(limit, entries + 1, rows + entry.rows):
                    return end
                entries, rows, end = entries + 1, rows + entry.rows, LogPosition(position + 1)
            case Cancel() | End():
                pass
            case _:
                assert_never(entry)
    return end


def _over(limit: Limit, entries: int, rows: int) -> bool:
    return (limit.entries is not None and entries > limit.entries) or (
        limit.rows is not None and rows > limit.rows
    )
