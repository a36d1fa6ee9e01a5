"""Deletions that are due: the folders of checkpoints that are over, and shared files without a user.

Source: flink-runtime CheckpointsCleaner (CheckpointsCleanerTest), CompletedCheckpointStore#unregisterUnusedState.
"""

from __future__ import annotations

from dataclasses import replace

from dagster_ckpt.core.checkpoint.record import CleanupRecord, CoordinatorRecord
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatus
from dagster_ckpt.core.coordinator.effects import CheckpointDiscarded
from dagster_ckpt.core.coordinator.inputs import CleaningBegan, CleaningEnded
from dagster_ckpt.core.coordinator.metadata import status_changed
from dagster_ckpt.core.coordinator.state import CoordinatorState, Decision
from dagster_ckpt.core.files.retention import completed_store
from dagster_ckpt.core.ids import CheckpointId


def cleaning_began(state: CoordinatorState, input: CleaningBegan) -> Decision:
    """Note which checkpoints' files are being deleted."""
    return Decision(state=replace(state, cleaning=state.cleaning | input.checkpoint_ids))


def cleaning_ended(state: CoordinatorState, input: CleaningEnded) -> Decision:
    """Note that the deletion of a checkpoint's files ended; those that failed are tried by the next attempt."""
    number = input.checkpoint_id
    after = replace(state, cleaning=state.cleaning - {number})
    if not input.gone:
        return Decision(state=after)
    done = next((c for c in state.record.cleanup if c.checkpoint_id == number), None)
    if done is not None and not (done.complete or done.folder_gone or done.savepoint):
        rest = done.model_copy(update={"folder_gone": True})
        changed = tuple(rest if c is done else c for c in state.record.cleanup)
        return Decision(state=after.with_record(cleanup=changed))
    after = after.with_record(cleanup=tuple(c for c in state.record.cleanup if c is not done))
    if done is None or not done.complete:
        return Decision(state=after)
    decision = status_changed(after, number, CheckpointStatus.DISCARDED)
    return decision.telling(CheckpointDiscarded(checkpoint_id=number))


def due_for_cleaning(state: CoordinatorState) -> tuple[CleanupRecord, ...]:
    """Return the cleanups that are due: nobody writes there or builds on the files, and the outcome is known."""
    lowest = lowest_in_use(state)
    return tuple(
        c
        for c in state.record.cleanup
        if not c.writers
        and not c.keep_files
        and c.checkpoint_id not in state.cleaning
        and _is_past(c, lowest, state)
    )


def _is_past(cleanup: CleanupRecord, lowest: CheckpointId | None, state: CoordinatorState) -> bool:
    """True where nothing can need the shared files of this checkpoint any more.

    What an aborted one uploaded may still be taken up until a newer checkpoint is the oldest that is retained.
    """
    if cleanup.savepoint or not (cleanup.complete or cleanup.folder_gone):
        return True
    if lowest is None:
        return cleanup.complete or state.is_shut_down
    return cleanup.checkpoint_id < lowest


def with_stored(state: CoordinatorState, stored: CoordinatorRecord) -> CoordinatorState:
    """Return the state with all that the stored record retains: a pointer that waits has let go in memory only."""
    kept = {c.checkpoint_id: c for c in (*stored.completed, *state.record.completed)}
    if len(kept) == len(state.record.completed):
        return state
    return state.with_record(completed=tuple(kept[number] for number in sorted(kept)))


def lowest_in_use(state: CoordinatorState) -> CheckpointId | None:
    """Return the oldest checkpoint whose shared files may be needed: retained, or built on by a pending one.

    None: there is none, so no shared file is needed.
    """
    store = completed_store(state.config, state.record.completed, shown=state.record.shown_id)
    pending = [p.builds_on for p in state.record.pending if p.builds_on is not None]
    retained = store.lowest_retained
    both = [*pending, *([retained] if retained is not None else [])]
    return CheckpointId(min(both)) if both else None


def shared_files_free_below(state: CoordinatorState, cleanup: CleanupRecord) -> CheckpointId:
    """Return the id below which shared files go with this deletion: those last used by a checkpoint before it.

    Never those a pending checkpoint has named; and while nothing is retained only what the deleted one used,
    because the next to complete may take up what aborted ones uploaded.
    """
    limit = lowest_in_use(state)
    if limit is None and state.is_shut_down:
        limit = CheckpointId(state.record.next_id)
    elif limit is None:
        is_over = cleanup.complete and not cleanup.savepoint
        limit = CheckpointId(cleanup.checkpoint_id + 1 if is_over else 0)
    pending = (p.checkpoint_id for p in state.record.pending if not p.properties.kind.is_savepoint)
    return CheckpointId(min([limit, *pending]))
