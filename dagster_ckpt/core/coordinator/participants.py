"""Handlers of what a checkpoint needs besides the stages: driver-side states and results of master hooks.

Source: flink-runtime PendingCheckpoint#acknowledgeCoordinatorState, #acknowledgeMasterState.
"""

from __future__ import annotations

from dagster_ckpt.core.checkpoint.pending import Phase
from dagster_ckpt.core.coordinator.acknowledgements import finalize_if_complete
from dagster_ckpt.core.coordinator.completion import abort
from dagster_ckpt.core.coordinator.inputs import CoordinatorAcked, HookAcked, HookId, ParticipantFailed
from dagster_ckpt.core.coordinator.state import CoordinatorState, Decision, Now
from dagster_ckpt.core.coordinator.triggering import to_hooks, to_stages
from dagster_ckpt.core.reasons import AcknowledgeResult


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
