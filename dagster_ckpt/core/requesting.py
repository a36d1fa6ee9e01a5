"""What becomes of a request before it has an id: refused, queued, the same as an earlier one, or failed.

Source: flink-runtime CheckpointCoordinator#triggerCheckpoint, #preCheckGlobalState.
"""

from __future__ import annotations

from dataclasses import replace

from dagster_ckpt.core.events import CheckpointRejected
from dagster_ckpt.core.failures import FailureDecision, FailureScope
from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.inputs import (
    RequestBroken,
    RequestCheckpoint,
)
from dagster_ckpt.core.outcomes import Queued, Rejected, Triggered, TriggerOutcome
from dagster_ckpt.core.plan import blocking_edge
from dagster_ckpt.core.properties import CheckpointProperties, properties_for
from dagster_ckpt.core.reasons import CheckpointFailureReason
from dagster_ckpt.core.record import (
    OPERATIONS_REMEMBERED,
    OperationRecord,
)
from dagster_ckpt.core.requests import (
    CheckpointRequest,
    QueuedRequest,
)
from dagster_ckpt.core.state import CoordinatorState, Decision, Now
from dagster_ckpt.core.stop_with_savepoint import SavepointFailed, StopWithSavepoint
from dagster_ckpt.core.stopping import fail_job, with_savepoint_result
from dagster_ckpt.errors import InvalidRequest

# --- request ------------------------------------------------------------------------------------------------


def request(state: CoordinatorState, event: RequestCheckpoint, now: Now) -> Decision:
    """Queue a request; a client's request id that is known already is the same operation.

    Raises InvalidRequest for a savepoint without a place to go.
    """
    wanted = event.request
    known = known_operation(state, wanted.request_id)
    if known is not None:
        return Decision(state=state, answer=known)
    if wanted.kind.is_savepoint and not (wanted.target or state.config.savepoint_dir):
        raise InvalidRequest(
            "a savepoint needs a target: give one with the request, or set savepoint_dir for the pipeline"
        )
    queued = QueuedRequest(
        request=wanted,
        properties=_properties(state, wanted),
        timestamp=now.wall,
        number=state.requests + 1,
    )
    numbered = replace(state, requests=state.requests + 1)
    refusal = pre_check(state, wanted)
    if refusal is not None:
        # The record of an attempt that ended is not written any more.
        refuse = reject if state.is_shut_down else failed_before_id
        return refuse(numbered, queued, *refusal, now)
    queue, fallen = state.queue.add(queued)
    decision = Decision(state=replace(numbered, queue=queue))
    if fallen is not None:
        reason = CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS
        decision = decision.then(lambda s: reject(s, fallen, reason, reason.text, now))
    return decision


def begin_stop(state: CoordinatorState, wanted: CheckpointRequest, now: Now) -> Decision:
    """Request the savepoint of a stop-with-savepoint; the periodic scheduler is off already."""
    stopping = replace(state, stop=StopWithSavepoint())
    return request(stopping, RequestCheckpoint(wanted), now)


def request_broken(state: CoordinatorState, event: RequestBroken, now: Now) -> Decision:
    """Reject a request whose checkpoint id could not be stored: an I/O error of the trigger, counted."""
    waiting = next((q for q in state.queue.waiting if q.number == event.number), None)
    if waiting is None:
        number = state.requests + 1
        properties = _properties(state, event.request)
        waiting = QueuedRequest(
            request=event.request, properties=properties, timestamp=now.wall, number=number
        )
        state = replace(state, requests=number)
    else:
        state = replace(state, queue=state.queue.without(waiting))
    return failed_before_id(state, waiting, CheckpointFailureReason.IO_EXCEPTION, event.message, now)


def outcome_of(decision: Decision, number: int) -> TriggerOutcome:
    """Return what became of the request with this number by the end of the decision."""
    state = decision.state
    for progress in state.progress.values():
        if progress.request_number == number:
            return Triggered(progress.checkpoint_id)
    for queued in state.queue.waiting:
        if queued.number == number:
            return Queued(queued.request, number)
    for effect in decision.effects:
        told = getattr(effect, "event", None)
        if isinstance(told, CheckpointRejected) and told.request_number == number:
            return Rejected(told.reason, told.message)
    raise AssertionError(f"request {number} is neither triggered, queued nor rejected")


def _properties(state: CoordinatorState, wanted: CheckpointRequest) -> CheckpointProperties:
    return properties_for(wanted.kind, state.config)


def known_operation(state: CoordinatorState, request_id: str) -> TriggerOutcome | None:
    """Return the outcome of an operation a client has asked for before, or None."""
    if not request_id:
        return None
    for queued in state.queue.waiting:
        if queued.request.request_id == request_id:
            return Queued(queued.request, queued.number)
    found = next((o for o in state.record.operations if o.request_id == request_id), None)
    if found is None:
        return None
    if found.checkpoint_id is not None:
        return Triggered(CheckpointId(found.checkpoint_id))
    return Rejected(CheckpointFailureReason[found.rejected], found.message)


def pre_check(
    state: CoordinatorState, wanted: CheckpointRequest
) -> tuple[CheckpointFailureReason, str] | None:
    """Return why no checkpoint can be triggered in this state of the coordinator, or None."""
    reasons = CheckpointFailureReason
    if state.is_shut_down:
        return reasons.CHECKPOINT_COORDINATOR_SHUTDOWN, reasons.CHECKPOINT_COORDINATOR_SHUTDOWN.text
    if wanted.is_periodic and not state.scheduler.is_on:
        return reasons.PERIODIC_SCHEDULER_SHUTDOWN, reasons.PERIODIC_SCHEDULER_SHUTDOWN.text
    edge = blocking_edge(state.graph)
    if edge is not None:
        why = f"The output of stage {edge.upstream!r} to {edge.downstream!r} is blocking."
        return reasons.BLOCKING_OUTPUT_EXIST, why
    return None


def reject(
    state: CoordinatorState, queued: QueuedRequest, reason: CheckpointFailureReason, message: str, now: Now
) -> Decision:
    """End a request that never became a checkpoint."""
    wanted = queued.request
    after = state
    if wanted.request_id:
        operation = OperationRecord(
            request_id=wanted.request_id, rejected=reason.name, message=message or reason.text
        )
        after = with_operation(state, operation)
    decision = Decision(state=after).telling(
        CheckpointRejected(
            request=wanted, request_number=queued.number, reason=reason, message=message or reason.text
        )
    )
    if wanted.kind.is_synchronous:
        return decision.then(lambda s: with_savepoint_result(s, None, SavepointFailed(reason, message), now))
    return decision


def with_operation(state: CoordinatorState, operation: OperationRecord) -> CoordinatorState:
    """Return the state that remembers what became of a client's request id."""
    others = tuple(o for o in state.record.operations if o.request_id != operation.request_id)
    return state.with_record(operations=(*others, operation)[-OPERATIONS_REMEMBERED:])


def failed_before_id(
    state: CoordinatorState, queued: QueuedRequest, reason: CheckpointFailureReason, message: str, now: Now
) -> Decision:
    """Count a checkpoint that failed before it had an id: in the statistics always, for the run if it counts."""
    counts = state.record.counts
    counter, verdict = state.record.failures.failed(
        reason,
        checkpoint_id=None,
        kind=queued.request.kind,
        scope=FailureScope.JOB,
        tolerable=state.config.tolerable_failed_checkpoints,
    )
    counted = counts.model_copy(update={"total": counts.total + 1, "failed": counts.failed + 1})
    decision = reject(state.with_record(counts=counted, failures=counter), queued, reason, message, now)
    if verdict is FailureDecision.FAIL_RUN:
        cause = f"A checkpoint could not be triggered ({reason.name}: {message or reason.text})"
        decision = decision.then(lambda s: fail_job(s, cause))
    return decision
