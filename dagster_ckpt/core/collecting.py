"""What becomes of the stages' messages: acknowledgements, declines, confirmations, in time or late.

Source: flink-runtime CheckpointCoordinator#receiveAcknowledgeMessage, #receiveDeclineMessage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dagster_ckpt.core.effects import DiscardFiles, WriteMetadata
from dagster_ckpt.core.events import StageAcknowledged
from dagster_ckpt.core.failures import FailureDecision, FailureScope
from dagster_ckpt.core.finishing import abort
from dagster_ckpt.core.ids import CheckpointId, ExecutionAttempt, StageUid
from dagster_ckpt.core.inputs import (
    AbortConfirmed,
    CoordinatorAcked,
    HookAcked,
    HookId,
    ParticipantFailed,
    StageAcked,
    StageDeclined,
    SubtaskAcked,
)
from dagster_ckpt.core.messages import StageAcknowledgement, StateHandle, StateScope
from dagster_ckpt.core.metadata import build_metadata, partly_finished_union
from dagster_ckpt.core.model import SnapshotMetrics
from dagster_ckpt.core.pending import Phase, Progress, StageProgress
from dagster_ckpt.core.reasons import AcknowledgeResult, CheckpointFailureReason
from dagster_ckpt.core.record import CleanupRecord, PendingRecord
from dagster_ckpt.core.state import CoordinatorState, Decision, Now
from dagster_ckpt.core.statistics import CheckpointStatus, SubtaskStatistics, with_late_subtask
from dagster_ckpt.core.triggering import to_hooks, to_stages
from dagster_ckpt.errors import InvalidRequest

# --- acknowledgements ---------------------------------------------------------------------------------------


def subtask_acked(state: CoordinatorState, event: SubtaskAcked, now: Now) -> Decision:
    """Take one subtask's acknowledgement; its cost does not depend on how many subtasks there are."""
    ack = event.ack
    progress = state.progress.get(ack.checkpoint_id)
    if progress is None:
        return _late(
            state,
            ack.checkpoint_id,
            ack.attempt,
            ack.handles,
            metrics={ack.attempt.subtask: ack.metrics},
            now=now,
        )
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


def stage_acked(state: CoordinatorState, event: StageAcked, now: Now) -> Decision:
    """Take a stage's acknowledgement for all its subtasks: durable, so another process can finish the rest.

    Raises InvalidRequest when the snapshot is another stage's.
    """
    ack = event.ack
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
    progress: Progress,
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
    told = StageAcknowledged(
        checkpoint_id=checkpoint_id, uid=uid, acknowledged=acknowledged, expected=len(progress.stages)
    )
    return decision.telling(told).then(lambda s: finalize_if_complete(s, checkpoint_id, now))


def _not_accepted(
    state: CoordinatorState,
    progress: Progress,
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
    return decision.doing(*_discard(pending.location.base_uri, handles, keep=accepted))


def _discard(base_uri: str, handles: tuple[StateHandle, ...], keep: set[str]) -> tuple[DiscardFiles, ...]:
    keys = tuple(h.key for h in handles if h.scope is StateScope.EXCLUSIVE and h.key not in keep)
    return (DiscardFiles(base_uri, keys),) if keys else ()


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
    if not is_completed and was_aborted and (cleanup is None or checkpoint_id in state.cleaning):
        decision = decision.doing(*_discard(state.setup.storage_uri, handles, keep=set()))
    return decision.with_answer(AcknowledgeResult.DISCARDED)


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


# --- driver-side states and hooks ---------------------------------------------------------------------------


def coordinator_acked(state: CoordinatorState, event: CoordinatorAcked, now: Now) -> Decision:
    """Take a driver-side state; a second one is a DUPLICATE only if the first was not empty (Flink's quirk)."""
    pending = state.record.pending_of(event.checkpoint_id)
    progress = state.progress.get(event.checkpoint_id)
    if pending is None or progress is None:
        return Decision(state=state, answer=AcknowledgeResult.DISCARDED)
    if event.uid not in state.setup.coordinators or event.uid in pending.coordinators:
        is_repeated = pending.coordinators.get(event.uid) is not None
        result = AcknowledgeResult.DUPLICATE if is_repeated else AcknowledgeResult.UNKNOWN
        return Decision(state=state, answer=result)
    acked = {**pending.coordinators, event.uid: event.state}
    after = state.with_pending(pending.model_copy(update={"coordinators": acked}))
    decision = Decision(state=after, answer=AcknowledgeResult.SUCCESS)
    if progress.phase is Phase.COORDINATORS and state.setup.coordinators <= acked.keys():
        decision = decision.then(lambda s: to_hooks(s, progress, now))
    return decision.then(lambda s: finalize_if_complete(s, event.checkpoint_id, now))


def hook_acked(state: CoordinatorState, event: HookAcked, now: Now) -> Decision:
    """Take a master hook's result; with the last one the stages are told."""
    pending = state.record.pending_of(event.checkpoint_id)
    progress = state.progress.get(event.checkpoint_id)
    if pending is None or progress is None or event.hook_id not in progress.hooks_waiting:
        return Decision(state=state)
    if event.state is not None:
        states = {**pending.master_states, event.hook_id: event.state}
        state = state.with_pending(pending.model_copy(update={"master_states": states}))
    changed = replace(progress, hooks_waiting=progress.hooks_waiting - {event.hook_id})
    decision = Decision(state=state.with_progress(changed))
    if changed.phase is Phase.HOOKS and not changed.hooks_waiting:
        decision = decision.then(lambda s: to_stages(s, changed))
    return decision.then(lambda s: finalize_if_complete(s, event.checkpoint_id, now))


def participant_failed(state: CoordinatorState, event: ParticipantFailed, now: Now) -> Decision:
    """End the checkpoint that waits for a state that will not come; whoever has answered can fail it no more."""
    pending = state.record.pending_of(event.checkpoint_id)
    progress = state.progress.get(event.checkpoint_id)
    if pending is None or progress is None:
        return Decision(state=state)
    match event.participant:
        case HookId(name):
            owes = name in progress.hooks_waiting
        case uid:
            owes = uid in state.setup.coordinators and uid not in pending.coordinators
    if not owes:
        return Decision(state=state)
    return abort(state, event.checkpoint_id, event.reason, event.message, now).with_answer(None)


# --- completion ---------------------------------------------------------------------------------------------


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
    after = state.with_progress(replace(progress, phase=Phase.FINALIZING))
    return Decision(state=after).doing(WriteMetadata(metadata, pending.location, handles))


# --- declines -----------------------------------------------------------------------------------------------


def declined(state: CoordinatorState, event: StageDeclined, now: Now) -> Decision:
    """Decide what a stage's failed snapshot means: RETRY_OP, GO_ON or FAIL_RUN.

    A decline of a checkpoint that is over, or by an earlier try, is ignored: GO_ON.
    """
    pending = state.record.pending_of(event.checkpoint_id)
    progress = state.progress.get(event.checkpoint_id)
    uid = event.attempt.stage
    if pending is None or progress is None:
        return writer_ended(state, event.checkpoint_id, uid).with_answer(FailureDecision.GO_ON)
    stage = progress.stages.get(uid)
    if stage is None or _is_outdated(stage, event.attempt):
        return Decision(state=state, answer=FailureDecision.GO_ON)
    may_retry = event.transient and event.retries_left > 0 and now.monotonic < progress.deadline
    if may_retry and not stage.is_acknowledged:
        return _retried(state, pending, progress, stage)
    return abort(
        state,
        event.checkpoint_id,
        event.reason,
        event.message,
        now,
        scope=_scope_of(state, event.attempt),
        ended=frozenset({uid}),
    )


def _scope_of(state: CoordinatorState, attempt: ExecutionAttempt) -> FailureScope:
    status = state.tasks.stage(attempt.stage).status_of(attempt.subtask)
    return FailureScope.ENDED_TASK if status.is_over else FailureScope.TASK


def _is_outdated(stage: StageProgress, attempt: ExecutionAttempt) -> bool:
    return attempt.epoch != stage.epoch or attempt.number < stage.numbers.get(attempt.subtask, 0)


def _retried(
    state: CoordinatorState, pending: PendingRecord, progress: Progress, stage: StageProgress
) -> Decision:
    parts = tuple(
        p.model_copy(update={"retries": p.retries + 1}) if p.uid == stage.uid else p for p in pending.stages
    )
    changed = progress.with_stage(replace(stage, retries=stage.retries + 1))
    after = state.with_pending(pending.model_copy(update={"stages": parts})).with_progress(changed)
    return Decision(state=after, answer=FailureDecision.RETRY_OP)


# --- writers of aborted checkpoints -------------------------------------------------------------------------


def abort_confirmed(state: CoordinatorState, event: AbortConfirmed) -> Decision:
    """Note that a stage writes nothing more for a checkpoint that was aborted."""
    return writer_ended(state, event.checkpoint_id, event.uid)


def writer_ended(state: CoordinatorState, checkpoint_id: CheckpointId, uid: str) -> Decision:
    """Cross a stage off the writers whose end the deletion of a checkpoint's files waits for."""
    cleanup = _cleanup_of(state, checkpoint_id)
    if cleanup is None or uid not in cleanup.writers:
        return Decision(state=state)
    left = tuple(w for w in cleanup.writers if w != uid)
    changed = tuple(
        c.model_copy(update={"writers": left}) if c.checkpoint_id == checkpoint_id else c
        for c in state.record.cleanup
    )
    return Decision(state=state.with_record(cleanup=changed))


def _cleanup_of(state: CoordinatorState, checkpoint_id: CheckpointId) -> CleanupRecord | None:
    return next((c for c in state.record.cleanup if c.checkpoint_id == checkpoint_id), None)
