"""The pointer of readers: it moves to a checkpoint once every table shows it, and what it leaves may go.

No checkpoint of Flink's waits for its publish: there the newest one is all that is looked at.
"""

from __future__ import annotations

from dagster_ckpt.core.checkpoint.shown import ShownTables
from dagster_ckpt.core.coordinator.completion import retained_in, subsume
from dagster_ckpt.core.coordinator.effects import ReleaseHooks
from dagster_ckpt.core.coordinator.state import CoordinatorState, Decision, Now
from dagster_ckpt.core.files.retention import completed_store

RIDES = 1.5
"""A pointer waits for the record's next write when a trigger is at most so many seconds away."""


def tables_shown(state: CoordinatorState, shown: ShownTables) -> Decision:
    """Move the pointer; one that would go back stays: only the start of an attempt takes rows back (``Started``)."""
    was = state.record.shown_id
    if shown == state.record.shown or (was is not None and (shown.checkpoint_id or 0) < was):
        return Decision(state=state)
    return pointed_to(state, shown)


def pointed_to(state: CoordinatorState, shown: ShownTables) -> Decision:
    """Move the pointer, and let go of the checkpoint that it leaves."""
    was = state.record.shown_id
    moved = state.with_record(shown=shown)
    return Decision(state=moved) if was is None else _let_go(moved, was)


def _let_go(state: CoordinatorState, number: int) -> Decision:
    """Subsume the checkpoint that was retained because tables showed it, where nothing else retains it."""
    record = state.record
    released = completed_store(state.config, record.completed, shown=record.shown_id).let_go(number)
    if not released.subsumed:
        return Decision(state=state)
    decision = Decision(state=state.with_record(completed=retained_in(released.store)))
    for old in released.subsumed:
        decision = decision.then(subsume, old)
    gone = released.notified_subsumed
    return decision if gone is None or not state.setup.hooks else decision.doing(ReleaseHooks(gone))


def rides(state: CoordinatorState, now: Now) -> bool:
    """Tell whether the record is written soon anyway: a pointer that came with that write would cost nothing."""
    timer = state.scheduler
    return timer.is_on and timer.next_at is not None and timer.next_at - now.monotonic <= RIDES
