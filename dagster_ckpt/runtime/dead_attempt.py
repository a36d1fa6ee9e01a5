"""Does for a dead attempt what its process would have done: ends it, or expires what is over its timeout.

From another process and without claiming the pipeline: one compare-and-set on the very record the verdict was made
on. Losing it means that someone alive acts, and nothing is done. Files are deleted by the next attempt.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ckpt.core.checkpoint.tasks import TaskTable
from dagster_ckpt.core.coordinator.effects import Tell
from dagster_ckpt.core.coordinator.events import CoordinatorEvent
from dagster_ckpt.core.coordinator.inputs import Closing, TimersFired
from dagster_ckpt.core.coordinator.state import CoordinatorState, Now, Setup, reconciled
from dagster_ckpt.core.coordinator.transitions import decide
from dagster_ckpt.core.ids import CoordinatorEpoch
from dagster_ckpt.core.properties import RunStatus
from dagster_ckpt.runtime.record_store import LoadedRecord, Overtaken, RecordStore, history_row

SEEDED_ROWS = 20
"""Newest rows of the history: pending and retained checkpoints are among them, or their numbers stay as they are."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The attempt was settled; ``events`` are those that listeners would have been told."""

    events: tuple[CoordinatorEvent, ...]


def end_attempt(
    setup: Setup, store: RecordStore, seen: LoadedRecord, status: RunStatus, *, now: Now
) -> Settled | Overtaken:
    """End the attempt whose record is ``seen``: abort what it left pending, keep or drop what it retained.

    Raises Unavailable (nothing happened), OutcomeUnknown, Corrupt.
    """
    return _settle(setup, store, seen, Closing(status, clean=False), now)


def expire_overdue(setup: Setup, store: RecordStore, seen: LoadedRecord, *, now: Now) -> Settled | Overtaken:
    """Expire the pending checkpoints of ``seen`` that are over their deadline. Raises as ``end_attempt`` does."""
    return _settle(setup, store, seen, TimersFired(), now)


def _settle(
    setup: Setup, store: RecordStore, seen: LoadedRecord, event: Closing | TimersFired, now: Now
) -> Settled | Overtaken:
    record = seen.record
    epoch = CoordinatorEpoch(record.epoch)
    state = CoordinatorState(
        setup=setup,
        record=record,
        tasks=TaskTable.of(setup.graph, epoch),
        statistics=store.statistics(setup.pipeline, limit=SEEDED_ROWS),
    )
    decision = decide(reconciled(state, record, now), event, now)
    history = [history_row(setup.pipeline, epoch, row) for row in decision.history]
    # The lease stays as the process left it: only who ends in order gives it back.
    settled = decision.state.record.model_copy(update={"lease_until": record.lease_until})
    outcome = store.write(setup.pipeline, seen.version, settled, history)
    if isinstance(outcome, Overtaken):
        return outcome
    return Settled(tuple(effect.event for effect in decision.effects if isinstance(effect, Tell)))
