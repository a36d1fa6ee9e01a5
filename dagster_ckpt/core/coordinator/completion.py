"""Completion and abortion of a checkpoint. Each is one transition of the record.

Source: flink-runtime CheckpointCoordinator#completePendingCheckpoint, #abortPendingCheckpoint.
"""

from __future__ import annotations

from dataclasses import replace

from dagster_ckpt.core.checkpoint.failures import FailureDecision, FailureScope
from dagster_ckpt.core.checkpoint.pending import PendingState, Phase
from dagster_ckpt.core.checkpoint.record import (
    EXPIRED_REMEMBERED,
    CleanupRecord,
    CompletedRecord,
    CoordinatorRecord,
    FailedRecord,
    PendingRecord,
)
from dagster_ckpt.core.checkpoint.requests import SavepointCreated, SavepointFailed
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics, CheckpointStatus
from dagster_ckpt.core.checkpoint.tables import ShownTables, left_by
from dagster_ckpt.core.coordinator.effects import (
    AbortCoordinators,
    AbortHooks,
    CheckpointCompleted,
    CheckpointFailed,
    CheckpointSubsumed,
    CompleteCoordinators,
    CompleteHooks,
    ReleaseHooks,
    SendAborted,
    SendComplete,
)
from dagster_ckpt.core.coordinator.inputs import CheckpointBroken, MetadataWritten
from dagster_ckpt.core.coordinator.metadata import ended_statistics, remembered, status_changed
from dagster_ckpt.core.coordinator.state import CoordinatorState, Decision, Now
from dagster_ckpt.core.coordinator.stopping import fail_job, with_savepoint_result
from dagster_ckpt.core.files.retention import CompletedStore, completed_store
from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.messages import CheckpointFailureReason, NotifyAborted
from dagster_ckpt.errors import InvalidRequest

FAILED_REMEMBERED = 64
"""So many failed checkpoints can be asked for."""

# --- abort --------------------------------------------------------------------------------------------------


def abort(
    state: CoordinatorState,
    checkpoint_id: CheckpointId,
    reason: CheckpointFailureReason,
    message: str,
    now: Now,
    *,
    scope: FailureScope = FailureScope.JOB,
    keep_files: bool = False,
    ended: frozenset[str] = frozenset(),
) -> Decision:
    """End a pending checkpoint without completing it; answer what that means for the run (FailureDecision).

    ``ended``: stages known to write nothing more. One that is not pending any more is left alone: GO_ON.
    Raises InvalidRequest for a savepoint that is said to be subsumed.
    """
    pending = state.record.pending_of(checkpoint_id)
    progress = state.progress.get(checkpoint_id)
    if pending is None or progress is None:
        return Decision(state=state, answer=FailureDecision.GO_ON)
    if reason is CheckpointFailureReason.CHECKPOINT_SUBSUMED and not pending.properties.can_be_subsumed:
        raise InvalidRequest(f"savepoint {checkpoint_id} cannot be subsumed by a newer checkpoint")
    counter, verdict = state.record.failures.failed(
        reason,
        checkpoint_id=checkpoint_id,
        kind=pending.properties.kind,
        scope=scope,
        tolerable=state.config.tolerable_failed_checkpoints,
    )
    statistics = ended_statistics(
        state, pending, progress, now, status=CheckpointStatus.FAILED, reason=reason, message=message
    )
    if progress.phase is Phase.LOCATION:
        # What is in the folder, if anything, is not ours: it was not found to be new.
        pending = pending.model_copy(update={"location": None})
    writers = (
        ()
        if progress.is_triggering and progress.phase is not Phase.TRIGGERING
        else tuple(uid for uid in progress.outstanding(pending) if uid not in ended)
    )
    record = _aborted_record(state.record, pending, reason, message, writers, keep_files=keep_files)
    after = _without(replace(state, record=record.model_copy(update={"failures": counter})), checkpoint_id)
    decision = Decision(state=remembered(after, statistics), answer=verdict, history=(statistics,))
    aborted = SendAborted(_abort_message(state, progress, reason, message))
    decision = decision.doing(aborted, AbortCoordinators(checkpoint_id))
    if state.setup.hooks:
        decision = decision.doing(AbortHooks(checkpoint_id))
    decision = decision.telling(_failed_event(after, pending, reason, message, statistics))
    if verdict is FailureDecision.FAIL_RUN:
        cause = _why_failed(pending, reason, message)
        decision = decision.then(fail_job, cause)
    return decision.then(with_savepoint_result, checkpoint_id, SavepointFailed(reason, message), now)


def abort_all(state: CoordinatorState, reason: CheckpointFailureReason, message: str, now: Now) -> Decision:
    """End every pending checkpoint, savepoints included, for a reason that is nobody's failure."""
    decision = Decision(state=state)
    for pending in state.record.pending:
        number = CheckpointId(pending.checkpoint_id)
        decision = decision.then(abort, number, reason, message, now)
    return decision.with_answer(None)


def broken(state: CoordinatorState, input: CheckpointBroken, now: Now) -> Decision:
    """End a checkpoint for a failure on the coordinator's own side."""
    return abort(
        state,
        input.checkpoint_id,
        input.reason,
        input.message,
        now,
        keep_files=input.outcome_unknown,
    )


def _why_failed(pending: PendingRecord, reason: CheckpointFailureReason, message: str) -> str:
    number, why = pending.checkpoint_id, f"{reason.name}: {message or reason.text}"
    if pending.properties.kind.is_synchronous:
        return f"Savepoint {number}, with which the run was to stop, failed at a stage ({why})"
    return f"Checkpoint {number} failed and no more failures are tolerable ({why})"


def _aborted_record(
    record: CoordinatorRecord,
    pending: PendingRecord,
    reason: CheckpointFailureReason,
    message: str,
    writers: tuple[str, ...],
    *,
    keep_files: bool,
) -> CoordinatorRecord:
    number = pending.checkpoint_id
    cleanup = CleanupRecord(
        checkpoint_id=number,
        location=pending.location,
        complete=False,
        savepoint=pending.properties.kind.is_savepoint,
        writers=writers,
        keep_files=keep_files,
    )
    failed = FailedRecord(checkpoint_id=number, reason=reason.name, message=message)
    expired = record.expired
    if reason is CheckpointFailureReason.CHECKPOINT_EXPIRED:
        expired = (*expired, number)[-EXPIRED_REMEMBERED:]
    return record.without_pending(number).model_copy(
        update={
            "cleanup": (*record.cleanup, cleanup),
            "failed": (*record.failed, failed)[-FAILED_REMEMBERED:],
            "expired": expired,
            "counts": record.counts.model_copy(update={"failed": record.counts.failed + 1}),
        }
    )


def _abort_message(
    state: CoordinatorState, progress: PendingState, reason: CheckpointFailureReason, message: str
) -> NotifyAborted:
    latest = state.record.latest_completed
    return NotifyAborted(
        checkpoint_id=progress.checkpoint_id,
        reason=reason,
        message=message or reason.text,
        latest_completed=None if latest is None else CheckpointId(latest),
        attempts=state.tasks.attempts(progress.plan.wait),
    )


def _failed_event(
    state: CoordinatorState,
    pending: PendingRecord,
    reason: CheckpointFailureReason,
    message: str,
    statistics: CheckpointStatistics,
) -> CheckpointFailed:
    return CheckpointFailed(
        checkpoint_id=CheckpointId(pending.checkpoint_id),
        kind=pending.properties.kind,
        reason=reason,
        message=message or reason.text,
        statistics=statistics,
        consecutive_failures=state.record.failures.count,
        tolerable=state.config.tolerable_failed_checkpoints,
    )


def _without(state: CoordinatorState, checkpoint_id: CheckpointId) -> CoordinatorState:
    """Return the state without the volatile side of a checkpoint that ended."""
    progress = {k: v for k, v in state.progress.items() if k != checkpoint_id}
    triggering = None if state.triggering == checkpoint_id else state.triggering
    return replace(state, progress=progress, triggering=triggering)


# --- complete -----------------------------------------------------------------------------------------------


def complete(state: CoordinatorState, input: MetadataWritten, now: Now) -> Decision:
    """Move a checkpoint from pending to completed: the record with this change is the commit point."""
    number = CheckpointId(input.metadata.checkpoint_id)
    pending = state.record.pending_of(number)
    progress = state.progress.get(number)
    if pending is None or progress is None:
        return Decision(state=state)
    statistics = ended_statistics(
        state,
        pending,
        progress,
        now,
        status=CheckpointStatus.COMPLETED,
        completed_at=input.metadata.completed_at,
        metadata_size=input.size,
    )
    entry = _entry(state, pending, input, statistics)
    decision = _stored(_without(state, number), entry, progress, now)
    subsumed = decision.answer
    told = CheckpointCompleted(
        checkpoint_id=number,
        kind=entry.kind,
        metadata=input.metadata,
        uri=entry.location.uri,
        statistics=statistics,
        subsumed=subsumed,
    )
    after = remembered(decision.state, statistics)
    decision = replace(decision, state=after, history=(*decision.history, statistics), answer=None)
    if entry.kind.publishes:
        waiting = left_by(after.record.requeue, input.metadata, after.setup.graph)
        decision = decision.with_state(after.with_record(requeue=waiting))
        decision = decision.then(_notified, entry, progress, subsumed, now)
    # People are told last: they read tables that the notice lets be published.
    decision = decision.telling(told)
    return decision.then(with_savepoint_result, number, SavepointCreated(number, entry.location.uri), now)


def _entry(
    state: CoordinatorState, pending: PendingRecord, input: MetadataWritten, statistics: CheckpointStatistics
) -> CompletedRecord:
    assert pending.location is not None, "metadata was written, so there is a location"
    return CompletedRecord(
        checkpoint_id=pending.checkpoint_id,
        properties=pending.properties,
        location=pending.location,
        epoch=state.record.epoch,
        run_id=state.record.owner,
        triggered_at=pending.triggered_at,
        completed_at=input.metadata.completed_at,
        trigger=pending.trigger,
        bytes_full=statistics.bytes_full,
        bytes_new=statistics.bytes_new,
        metadata_checksum=input.checksum,
    )


def _stored(state: CoordinatorState, entry: CompletedRecord, progress: PendingState, now: Now) -> Decision:
    """Put the entry where it belongs; answer the id stages are told was subsumed (None: none)."""
    record = state.record
    changes: dict[str, object] = {
        "failures": record.failures.succeeded(entry.checkpoint_id),
        "counts": record.counts.model_copy(update={"completed": record.counts.completed + 1}),
        "last_completed_at": entry.completed_at,
    }
    after = replace(state, record=record.without_pending(entry.checkpoint_id), last_completion=now.monotonic)
    if entry.kind.is_savepoint:
        return Decision(state=after.with_record(**changes, savepoints=(*record.savepoints, entry)))
    added = completed_store(state.config, record.completed, shown=record.shown_id).add(entry)
    changes |= {"completed": retained_in(added.store), "force_full": False}
    decision = Decision(state=after.with_record(**changes), answer=added.notified_subsumed)
    for old in added.subsumed:
        decision = decision.then(subsume, old)
    return decision


def retained_in(store: CompletedStore[CompletedRecord]) -> tuple[CompletedRecord, ...]:
    """Return the entries by id, and of each for which hour or day it is kept beside the newest."""
    why = store.standing
    marked = (
        e
        if e.stands_for == why.get(e.checkpoint_id, "")
        else e.model_copy(update={"stands_for": why.get(e.checkpoint_id, "")})
        for e in store.entries
    )
    return tuple(sorted(marked, key=lambda e: e.checkpoint_id))


def subsume(state: CoordinatorState, old: CompletedRecord) -> Decision:
    """Note that an entry left the store: its files are to go, unless they are not ours to delete."""
    number = CheckpointId(old.checkpoint_id)
    decision = Decision(state=state)
    if not old.is_kept_for_its_owner:
        decision = status_changed(state, number, CheckpointStatus.SUBSUMED)
    if old.properties.discard_subsumed:
        after = decision.state
        cleanup = CleanupRecord(checkpoint_id=number, location=old.location, complete=True)
        decision = decision.with_state(after.with_record(cleanup=(*after.record.cleanup, cleanup)))
    return decision.telling(CheckpointSubsumed(checkpoint_id=number))


def _notified(
    state: CoordinatorState,
    entry: CompletedRecord,
    progress: PendingState,
    subsumed: CheckpointId | None,
    now: Now,
) -> Decision:
    """Abort older checkpoints that are still pending, and tell the stages."""
    number = CheckpointId(entry.checkpoint_id)
    latest = max(number, state.record.latest_completed or 0)
    decision = Decision(state=state.with_record(latest_completed=latest))
    for older in state.record.pending:
        if older.checkpoint_id < number and older.properties.can_be_subsumed:
            decision = decision.then(_abort_older, older, number, now)
    notifying = {**decision.state.notifying, number: now.monotonic}
    decision = decision.with_state(replace(decision.state, notifying=notifying))
    decision = decision.with_answer(None).doing(
        SendComplete(number, entry.completed_at, subsumed, state.tasks.attempts(progress.plan.wait)),
        CompleteCoordinators(number),
    )
    return decision.doing(CompleteHooks(number, subsumed)) if state.setup.hooks else decision


def stages_notified(state: CoordinatorState, number: CheckpointId) -> Decision:
    """Note that the stages have heard of a completion."""
    left = {one: since for one, since in state.notifying.items() if one != number}
    return Decision(state=replace(state, notifying=left))


def _abort_older(state: CoordinatorState, older: PendingRecord, newer: CheckpointId, now: Now) -> Decision:
    return abort(
        state,
        CheckpointId(older.checkpoint_id),
        CheckpointFailureReason.CHECKPOINT_SUBSUMED,
        f"Checkpoint {newer} completed first.",
        now,
    )


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
