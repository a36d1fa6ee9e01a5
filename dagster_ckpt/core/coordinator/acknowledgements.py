"""Handlers of what a checkpoint waits for: answers of stages, in time or late; driver-side states, master hooks.

Source: flink-runtime CheckpointCoordinator#receiveAcknowledgeMessage, #receiveDeclineMessage,
PendingCheckpoint#acknowledgeCoordinatorState, #acknowledgeMasterState.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dagster_ckpt.core import paths
from dagster_ckpt.core.checkpoint.failures import FailureDecision, FailureScope
from dagster_ckpt.core.checkpoint.pending import PendingState, Phase, StageProgress
from dagster_ckpt.core.checkpoint.record import CleanupRecord, PendingRecord
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatus, SubtaskStatistics, with_late_subtask
from dagster_ckpt.core.coordinator.completion import abort
from dagster_ckpt.core.coordinator.effects import DiscardFiles, StageAcknowledged, WriteMetadata
from dagster_ckpt.core.coordinator.inputs import (
    AbortConfirmed,
    CoordinatorAcked,
    HookAcked,
    HookId,
    ParticipantFailed,
    StageAcked,
    StageDeclined,
    SubtaskAcked,
    TasksTriggered,
)
from dagster_ckpt.core.coordinator.metadata import build_metadata, partly_finished_union
from dagster_ckpt.core.coordinator.state import CoordinatorState, Decision, Now
from dagster_ckpt.core.coordinator.triggering import to_hooks, to_stages
from dagster_ckpt.core.ids import CheckpointId, ExecutionAttempt, StageUid
from dagster_ckpt.core.messages import (
    AcknowledgeResult,
    CheckpointFailureReason,
    StageAcknowledgement,
    StateHandle,
    StateScope,
)
from dagster_ckpt.core.model import CheckpointMetadata, SnapshotMetrics
from dagster_ckpt.core.paths import SnapshotLocation
from dagster_ckpt.errors import InvalidRequest

# --- acknowledgements ---------------------------------------------------------------------------------------


def subtask_acked(state: CoordinatorState, input: SubtaskAcked, now: Now) -> Decision:
    """Take one subtask's acknowledgement; its cost does not depend on how many subtasks there are."""
    ack = input.ack
    progress = state.progress.get(ack.checkpoint_id)
    if progress is None:
        metrics = {ack.attempt.subtask: ack.metrics}
        return _late(state, ack.checkpoint_id, ack.attempt, ack.handles, metrics=metrics, now=now)
    stage = progress.stages.get(ack.attempt.stage)
    result = AcknowledgeResult.UNKNOWN if stage is None else stage.judge(ack.attempt)
    if stage is None or result is not AcknowledgeResult.SUCCESS:
        return _not_accepted(state, progress, ack.attempt, ack.handles, result)
    acked = stage.acknowledged(ack, now.wall)
    after = state.with_progress(progress.with_stage(acked))
    decision = Decision(state=after, answer=result)
    if not acked.is_acknowledged:
        return decision
    return _stage_complete(decision, ack.checkpoint_id, acked.uid, now)


def stage_acked(state: CoordinatorState, input: StageAcked, now: Now) -> Decision:
    """Take a stage's acknowledgement for all its subtasks: durable, so another process can finish the rest.

    Raises InvalidRequest when the snapshot is another stage's.
    """
    ack = input.ack
    if ack.snapshot.uid != ack.attempt.stage:
        raise InvalidRequest(
            f"stage {ack.attempt.stage!r} acknowledged with a snapshot of {ack.snapshot.uid!r}"
        )
    progress = state.progress.get(ack.checkpoint_id)
    pending = state.record.pending_of(ack.checkpoint_id)
    if progress is None or pending is None:
        metrics: dict[int, SnapshotMetrics | None] = {0: ack.snapshot.metrics, **ack.subtask_metrics}
        return _late(state, ack.checkpoint_id, ack.attempt, ack.handles, metrics=metrics, now=now)
    stage = progress.stages.get(ack.attempt.stage)
    result = AcknowledgeResult.UNKNOWN if stage is None else _judge_stage(stage, ack.attempt)
    if stage is None or result is not AcknowledgeResult.SUCCESS:
        return _not_accepted(state, progress, ack.attempt, ack.handles, result)
    after = _with_stage_snapshot(state, pending, progress, ack, now)
    return _stage_complete(Decision(state=after, answer=result), ack.checkpoint_id, stage.uid, now)


def _judge_stage(stage: StageProgress, attempt: ExecutionAttempt) -> AcknowledgeResult:
    """Judge by any subtask that is waited for; some acknowledged alone does not make the whole a duplicate."""
    first = (stage.waiting & -stage.waiting).bit_length() - 1
    result = stage.judge(replace(attempt, subtask=first))
    is_new = result is AcknowledgeResult.DUPLICATE and not stage.is_acknowledged
    return AcknowledgeResult.SUCCESS if is_new else result


def _with_stage_snapshot(
    state: CoordinatorState,
    pending: PendingRecord,
    progress: PendingState,
    ack: StageAcknowledgement,
    now: Now,
) -> CoordinatorState:
    stage = progress.stages[ack.attempt.stage]
    parts = tuple(
        p.model_copy(update={"snapshot": ack.snapshot, "acknowledged_at": now.wall})
        if p.uid == stage.uid
        else p
        for p in pending.stages
    )
    acked = replace(
        stage, acked=stage.waiting, finished=stage.everyone if ack.snapshot.finished else stage.finished
    )
    changed = replace(
        progress.with_stage(acked),
        handles={**progress.handles, stage.uid: ack.handles},
        subtask_metrics={**progress.subtask_metrics, stage.uid: ack.subtask_metrics},
    )
    return state.with_pending(pending.model_copy(update={"stages": parts})).with_progress(changed)


def _stage_complete(decision: Decision, checkpoint_id: CheckpointId, uid: StageUid, now: Now) -> Decision:
    state = decision.state
    progress = state.progress[checkpoint_id]
    acknowledged = sum(stage.is_acknowledged for stage in progress.stages.values())
    pending = state.record.pending_of(checkpoint_id)
    part = next((p.snapshot for p in pending.stages if p.uid == uid), None) if pending is not None else None
    told = StageAcknowledged(
        checkpoint_id=checkpoint_id,
        uid=uid,
        acknowledged=acknowledged,
        expected=len(progress.stages),
        metrics=SnapshotMetrics() if part is None else part.metrics,
        after=0.0 if pending is None else max(0.0, now.wall - pending.triggered_at),
    )
    return decision.telling(told).then(finalize_if_complete, checkpoint_id, now)


def _not_accepted(
    state: CoordinatorState,
    progress: PendingState,
    attempt: ExecutionAttempt,
    handles: tuple[StateHandle, ...],
    result: AcknowledgeResult,
) -> Decision:
    """A duplicate names the accepted files; an unknown attempt's private files are discarded.

    Where the part was given to a later try of the same stage nothing is deleted: both may use the same names.
    """
    decision = Decision(state=state, answer=result)
    stage = progress.stages.get(attempt.stage)
    if result is AcknowledgeResult.DUPLICATE or (stage is not None and stage.retries):
        return decision
    pending = state.record.pending_of(progress.checkpoint_id)
    accepted = {h.key for hs in progress.handles.values() for h in hs}
    accepted |= {h.key for s in progress.stages.values() for link in s.acks() for h in link.handles}
    if pending is None or pending.location is None:
        return decision
    # The other stages' files are in the folder too, not all of them acknowledged yet.
    own = f"{pending.location.folder}/{attempt.stage}/"
    refused = tuple(h for h in handles if h.key.startswith(own) and h.key not in accepted)
    return decision.doing(*_discard(pending.location, refused))


def _discard(location: SnapshotLocation, handles: tuple[StateHandle, ...]) -> tuple[DiscardFiles, ...]:
    """Delete the private files among these that are in the checkpoint's own folder.

    Whatever else an acknowledgement names belongs to someone else: another checkpoint may be restored from it.
    """
    keys = tuple(
        h.key for h in handles if h.scope is StateScope.EXCLUSIVE and paths.is_below(location.folder, h.key)
    )
    return (DiscardFiles(location.base_uri, keys),) if keys else ()


def _late(
    state: CoordinatorState,
    checkpoint_id: CheckpointId,
    attempt: ExecutionAttempt,
    handles: tuple[StateHandle, ...],
    *,
    metrics: Mapping[int, SnapshotMetrics | None],
    now: Now,
) -> Decision:
    """A message about a checkpoint that is over: its numbers are kept, its private files are not."""
    if attempt.epoch != state.epoch or checkpoint_id >= state.record.next_id:
        return Decision(state=state, answer=AcknowledgeResult.UNKNOWN)
    decision = writer_ended(state, checkpoint_id, attempt.stage)
    decision = _with_late_metrics(decision, checkpoint_id, attempt, metrics, now)
    is_completed = state.record.completed_of(checkpoint_id) is not None
    cleanup = _cleanup_of(decision.state, checkpoint_id)
    was_aborted = any(f.checkpoint_id == checkpoint_id for f in state.record.failed)
    is_removed = cleanup is None or cleanup.folder_gone or checkpoint_id in state.cleaning
    if not is_completed and was_aborted and is_removed:
        decision = decision.doing(*_discard(_location_of(state, checkpoint_id, cleanup), handles))
    return decision.with_answer(AcknowledgeResult.DISCARDED)


def _location_of(
    state: CoordinatorState, checkpoint_id: CheckpointId, cleanup: CleanupRecord | None
) -> SnapshotLocation:
    """Return where the files of an aborted checkpoint were written."""
    if cleanup is not None and cleanup.location is not None:
        return cleanup.location
    folder = paths.CheckpointPaths(state.setup.graph.pipeline).checkpoint(checkpoint_id)
    return SnapshotLocation(base_uri=state.setup.storage_uri, folder=folder)


def _with_late_metrics(
    decision: Decision,
    checkpoint_id: CheckpointId,
    attempt: ExecutionAttempt,
    metrics: Mapping[int, SnapshotMetrics | None],
    now: Now,
) -> Decision:
    known = decision.state.statistics.get(checkpoint_id)
    if known is None or known.status is not CheckpointStatus.FAILED:
        return decision
    for index, numbers in metrics.items():
        late = SubtaskStatistics(
            index=index, acknowledged_at=now.wall, metrics=numbers or SnapshotMetrics(), late=True
        )
        known = with_late_subtask(known, attempt.stage, late)
    statistics = {**decision.state.statistics, checkpoint_id: known}
    return replace(
        decision, state=replace(decision.state, statistics=statistics), history=(*decision.history, known)
    )


# --- completion ---------------------------------------------------------------------------------------------


def tasks_triggered(state: CoordinatorState, input: TasksTriggered, now: Now) -> Decision:
    """The trigger is over: acknowledgements are awaited, where not all came already; the next request may go."""
    progress = state.progress.get(input.checkpoint_id)
    if progress is None or progress.phase is not Phase.TRIGGERING:
        return Decision(state=state)
    triggering = None if state.triggering == input.checkpoint_id else state.triggering
    after = state.with_progress(replace(progress, phase=Phase.COLLECTING))
    return finalize_if_complete(replace(after, triggering=triggering), input.checkpoint_id, now)


def finalize_if_complete(state: CoordinatorState, checkpoint_id: CheckpointId, now: Now) -> Decision:
    """Write the metadata once everything is acknowledged and the trigger is over."""
    pending = state.record.pending_of(checkpoint_id)
    progress = state.progress.get(checkpoint_id)
    if pending is None or progress is None or progress.phase is not Phase.COLLECTING:
        return Decision(state=state)
    if not progress.is_fully_acknowledged(pending, state.setup.coordinators) or pending.location is None:
        return Decision(state=state)
    reason = CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_CLOSING
    torn = partly_finished_union(state, pending, progress)
    if torn is not None:
        return abort(state, checkpoint_id, reason, torn, now).with_answer(None)
    metadata, handles = build_metadata(state, pending, progress, now)
    too_large = _too_large(state, metadata)
    if too_large:
        reason = CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE
        return abort(state, checkpoint_id, reason, too_large, now).with_answer(None)
    after = state.with_progress(replace(progress, phase=Phase.FINALIZING))
    return Decision(state=after).doing(WriteMetadata(metadata, pending.location, handles))


def _too_large(state: CoordinatorState, metadata: CheckpointMetadata) -> str:
    """Return why the store cannot hold it: each stage fitted by itself, as far as it knew of the others."""
    limits = state.config.store_limits
    if limits is None or metadata.kind.is_savepoint:
        return ""
    return limits.refusal((), others=sum(stage.metrics.bytes_full for stage in metadata.stages))


# --- declines -----------------------------------------------------------------------------------------------


def declined(state: CoordinatorState, input: StageDeclined, now: Now) -> Decision:
    """Decide what a stage's failed snapshot means: RETRY_OP, GO_ON or FAIL_RUN.

    A decline of a checkpoint that is over, or by an earlier try, is ignored: GO_ON.
    """
    pending = state.record.pending_of(input.checkpoint_id)
    progress = state.progress.get(input.checkpoint_id)
    uid = input.attempt.stage
    if pending is None or progress is None:
        return writer_ended(state, input.checkpoint_id, uid).with_answer(FailureDecision.GO_ON)
    stage = progress.stages.get(uid)
    if _is_outdated(state, stage, input.attempt):
        return Decision(state=state, answer=FailureDecision.GO_ON)
    may_retry = input.transient and input.retries_left > 0 and now.monotonic < progress.deadline
    if may_retry and stage is not None and not stage.is_acknowledged:
        return _retried(state, pending, progress, stage)
    return abort(
        state,
        input.checkpoint_id,
        input.reason,
        input.message,
        now,
        scope=_scope_of(state, input.attempt),
        ended=frozenset({uid}),
    )


def _scope_of(state: CoordinatorState, attempt: ExecutionAttempt) -> FailureScope:
    tasks = state.tasks.stage(attempt.stage)
    is_over = tasks.status_of(attempt.subtask).is_over and not tasks.keeps_position
    return FailureScope.ENDED_TASK if is_over else FailureScope.TASK


def _is_outdated(state: CoordinatorState, stage: StageProgress | None, attempt: ExecutionAttempt) -> bool:
    """Judge by the tries at the trigger; of a stage that had finished then nothing was expected, and it may decline."""
    known = stage or state.tasks.stages.get(attempt.stage)
    return (
        known is None
        or attempt.epoch != state.epoch
        or attempt.number < known.numbers.get(attempt.subtask, 0)
    )


def _retried(
    state: CoordinatorState, pending: PendingRecord, progress: PendingState, stage: StageProgress
) -> Decision:
    parts = tuple(
        p.model_copy(update={"retries": p.retries + 1}) if p.uid == stage.uid else p for p in pending.stages
    )
    changed = progress.with_stage(replace(stage, retries=stage.retries + 1))
    after = state.with_pending(pending.model_copy(update={"stages": parts})).with_progress(changed)
    return Decision(state=after, answer=FailureDecision.RETRY_OP)


# --- writers of aborted checkpoints -------------------------------------------------------------------------


def abort_confirmed(state: CoordinatorState, input: AbortConfirmed) -> Decision:
    """Note that a stage writes nothing more for a checkpoint that was aborted."""
    return writer_ended(state, input.checkpoint_id, input.uid)


def writer_ended(state: CoordinatorState, checkpoint_id: CheckpointId, uid: str) -> Decision:
    """Cross a stage off the writers whose end the deletion of a checkpoint's files waits for."""
    cleanup = _cleanup_of(state, checkpoint_id)
    if cleanup is None or uid not in cleanup.writers:
        return Decision(state=state)
    left = cleanup.model_copy(update={"writers": tuple(w for w in cleanup.writers if w != uid)})
    changed = tuple(left if c is cleanup else c for c in state.record.cleanup)
    return Decision(state=state.with_record(cleanup=changed))


def _cleanup_of(state: CoordinatorState, checkpoint_id: CheckpointId) -> CleanupRecord | None:
    return next((c for c in state.record.cleanup if c.checkpoint_id == checkpoint_id), None)


def coordinator_acked(state: CoordinatorState, input: CoordinatorAcked, now: Now) -> Decision:
    """Take a driver-side state; a second one is a DUPLICATE only if the first was not empty (Flink's quirk)."""
    pending = state.record.pending_of(input.checkpoint_id)
    progress = state.progress.get(input.checkpoint_id)
    if pending is None or progress is None:
        return Decision(state=state, answer=AcknowledgeResult.DISCARDED)
    if input.uid not in state.setup.coordinators or input.uid in pending.coordinators:
        is_repeated = pending.coordinators.get(input.uid) is not None
        result = AcknowledgeResult.DUPLICATE if is_repeated else AcknowledgeResult.UNKNOWN
        return Decision(state=state, answer=result)
    acked = {**pending.coordinators, input.uid: input.state}
    after = state.with_pending(pending.model_copy(update={"coordinators": acked}))
    decision = Decision(state=after, answer=AcknowledgeResult.SUCCESS)
    if progress.phase is Phase.COORDINATORS and state.setup.coordinators <= acked.keys():
        decision = decision.then(to_hooks, progress, now)
    return decision.then(finalize_if_complete, input.checkpoint_id, now)


def hook_acked(state: CoordinatorState, input: HookAcked, now: Now) -> Decision:
    """Take a master hook's result; with the last one the stages are told."""
    pending = state.record.pending_of(input.checkpoint_id)
    progress = state.progress.get(input.checkpoint_id)
    if pending is None or progress is None or input.hook_id not in pending.hooks_owed:
        return Decision(state=state)
    owed = tuple(hook for hook in pending.hooks_owed if hook != input.hook_id)
    given = {} if input.state is None else {input.hook_id: input.state}
    changes = {"hooks_owed": owed, "master_states": {**pending.master_states, **given}}
    decision = Decision(state=state.with_pending(pending.model_copy(update=changes)))
    if progress.phase is Phase.HOOKS and not owed:
        decision = decision.then(to_stages, progress)
    return decision.then(finalize_if_complete, input.checkpoint_id, now)


def participant_failed(state: CoordinatorState, input: ParticipantFailed, now: Now) -> Decision:
    """End the checkpoint that waits for a state that will not come; whoever has answered can fail it no more."""
    pending = state.record.pending_of(input.checkpoint_id)
    progress = state.progress.get(input.checkpoint_id)
    if pending is None or progress is None:
        return Decision(state=state)
    match input.participant:
        case HookId(name):
            owes = name in pending.hooks_owed
        case uid:
            owes = uid in state.setup.coordinators and uid not in pending.coordinators
    if not owes:
        return Decision(state=state)
    return abort(state, input.checkpoint_id, input.reason, input.message, now).with_answer(None)
