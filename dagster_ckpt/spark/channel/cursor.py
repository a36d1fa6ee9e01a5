"""Cursor of a channel's reader: where its next micro-batch ends, a pure decision over the entries ahead.

The rules, in order: never past a barrier that the reading stage has not released; at least one entry with rows,
so that a limit can never stop the stream; and nothing at all when no row lies ahead, so that Spark runs no empty batch.
A reader with no row before a barrier has arrived at it without moving, wherever it stands (``InputChannel.arrived``).

Two readers move over what has no rows for its own sake: one whose query ends with what is there goes onto a held
barrier, because the next query begins where this one stood; and one with ``MIN_EMPTY_ENTRIES_PER_BATCH`` such entries
ahead passes them, because the log must keep what a reader has not passed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import assert_never

from dagster_ckpt.core.ids import CheckpointId, LogPosition
from dagster_ckpt.spark.channel.entries import BarrierEntry, CancelEntry, DataEntry, EndEntry, Entry

MIN_EMPTY_ENTRIES_PER_BATCH = 100
"""Entries without rows that a reader leaves unread before it spends an empty batch on them."""


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
    """Limit of one micro-batch; None: no limit. One entry is always taken whole."""

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
    onto_barrier: bool = False,
) -> LogPosition:
    """Return where a batch that begins at ``start`` ends; ``start`` itself when there is nothing to do.

    ``ahead`` are the entries from ``start`` on, in order; only as many are read as the decision needs.
    ``onto_barrier``: go onto a held barrier also when no row lies before it.
    """
    end = reached = start
    entries = rows = 0
    for position, entry in ahead:
        match entry:
            case BarrierEntry():
                if holds(released, entry.checkpoint_id):
                    reached = position
                    end = position if entries or onto_barrier else end
                    break
            case DataEntry():
                if entry.files:
                    if entries and _over(limit, entries + 1, rows + entry.rows):
                        return end
                    entries, rows, end = entries + 1, rows + entry.rows, LogPosition(position + 1)
            case CancelEntry() | EndEntry():
                pass
            case _:
                assert_never(entry)
        reached = LogPosition(position + 1)
    return reached if not entries and reached - start >= MIN_EMPTY_ENTRIES_PER_BATCH else end


def _over(limit: Limit, entries: int, rows: int) -> bool:
    return (limit.entries is not None and entries > limit.entries) or (
        limit.rows is not None and rows > limit.rows
    )
