"""Does for a dead attempt what its process would have done: ends it, or expires what is over its timeout.

From another process and without claiming the pipeline: one compare-and-set on the very record the verdict was made
on. Losing it means that someone alive acts, and nothing is done. Files are deleted by the next attempt.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ckpt.core.effects import Tell
from dagster_ckpt.core.events import CoordinatorEvent
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch
from dagster_ckpt.core.inputs import Closing, TimersFired
from dagster_ckpt.core.properties import RunStatus
from dagster_ckpt.core.record import parse_record
from dagster_ckpt.core.state import CoordinatorState, Now, Setup, reconciled
from dagster_ckpt.core.statistics import CheckpointStatistics
from dagster_ckpt.core.tasks import TaskTable
from dagster_ckpt.core.transitions import decide
from dagster_ckpt.ports import Committed, CoordinatorStore, StoredRecord
from dagster_ckpt.runtime.opening import history_row, parse_row

SEEDED_ROWS = 20
"""Newest rows of the history: pending and retained checkpoints are among them, or their numbers stay as they are."""


@dataclass(frozen=True, slots=True)
class Settled:
    """It was done; ``events`` is what listeners would have been told."""

    events: tuple[CoordinatorEvent, ...]


@dataclass(frozen=True, slots=True)
class Overtaken:
    """Someone else changed the record first: nothing was done."""


def end_attempt(
    setup: Setup, store: CoordinatorStore, seen: StoredRecord, status: RunStatus, *, now: Now
) -> Settled | Overtaken:
    """End the attempt whose record is ``seen``: abort what it left pending, keep or drop what it retained.

    Raises Unavailable (nothing happened), OutcomeUnknown, Corrupt.
    """
    return _settle(setup, store, seen, Closing(status, clean=False), now)


def expire_overdue(
    setup: Setup, store: CoordinatorStore, seen: StoredRecord, *, now: Now
) -> Settled | Overtaken:
    """Expire the pending checkpoints of ``seen`` that are over their deadline. Raises as ``end_attempt`` does."""
    return _settle(setup, store, seen, TimersFired(), now)


def _settle(
    setup: Setup, store: CoordinatorStore, seen: StoredRecord, event: Closing | TimersFired, now: Now
) -> Settled | Overtaken:
    record = parse_record(seen.body)
    epoch = CoordinatorEpoch(record.epoch)
    rows = (parse_row(row) for row in store.history(setup.pipeline, limit=SEEDED_ROWS))
    known: dict[CheckpointId, CheckpointStatistics] = {
        CheckpointId(row.checkpoint_id): row for row in rows if row is not None
    }
    state = CoordinatorState(
        setup=setup, record=record, tasks=TaskTable.of(setup.graph, epoch), statistics=known
    )
    decision = decide(reconciled(state, record, now), event, now)
    history = [history_row(setup.pipeline, epoch, row) for row in decision.history]
    body = decision.state.record.model_dump_json()
    if not isinstance(store.compare_and_set(setup.pipeline, seen.version, body, history), Committed):
        return Overtaken()
    return Settled(tuple(effect.event for effect in decision.effects if isinstance(effect, Tell)))
