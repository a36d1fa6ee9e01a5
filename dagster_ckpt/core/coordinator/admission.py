"""Admission of requests, which have no id yet: refused, queued, the same as an earlier one, or failed.

Other processes leave requests to a running stream in its record, and it answers by the request's id; a lease in the
record, renewed by the run, tells a run that is alive from one that was killed.
Source: flink-runtime CheckpointCoordinator#triggerCheckpoint, #preCheckGlobalState.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dagster_ckpt.core.checkpoint.failures import FailureDecision, FailureScope
from dagster_ckpt.core.checkpoint.record import (
    OPERATIONS_REMEMBERED,
    CoordinatorRecord,
    MailRecord,
    OperationRecord,
)
from dagster_ckpt.core.checkpoint.requests import QueuedRequest, SavepointFailed
from dagster_ckpt.core.checkpoint.tasks import blocking_edge
from dagster_ckpt.core.coordinator.effects import CheckpointRejected
from dagster_ckpt.core.coordinator.inputs import HistoryOutdated, LeaseRenewed, MailTaken, RequestBroken
from dagster_ckpt.core.coordinator.state import CoordinatorState, Decision, Now
from dagster_ckpt.core.coordinator.stopping import fail_job, with_savepoint_result
from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.messages import CheckpointFailureReason
from dagster_ckpt.core.paths import NO_SAVEPOINTS_IN_STORE, is_in_store
from dagster_ckpt.core.request import (
    CheckpointRequest,
    Queued,
    Rejected,
    Triggered,
    TriggerOutcome,
    properties_for,
)
from dagster_ckpt.errors import InvalidRequest

# --- request ------------------------------------------------------------------------------------------------


def request(state: CoordinatorState, wanted: CheckpointRequest, now: Now) -> Decision:
    """Queue a request, and answer TriggerOutcome; a client's request id that is known already is the same operation.

    Raises InvalidRequest for a savepoint without a place to go.
    """
    known = known_operation(state, wanted.request_id)
    if known is not None:
        return Decision(state=state, answer=known)
    if wanted.kind.is_savepoint:
        check_target(state, wanted, "a savepoint")
    queued = QueuedRequest(
        request=wanted,
        properties=properties_for(wanted.kind, state.config),
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
    decision = Decision(state=replace(numbered, queue=queue), answer=Queued(wanted, queued.number))
    if fallen is None:
        return decision
    reason = CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS
    rejected = decision.then(reject, fallen, reason, reason.text, now)
    return rejected if fallen is queued else rejected.with_answer(decision.answer)


def check_target(state: CoordinatorState, wanted: CheckpointRequest, what: str) -> None:
    """Raise InvalidRequest where a savepoint has no place to go outside the coordinator store."""
    if is_in_store(wanted.target):
        raise InvalidRequest(f"{what} cannot be written to {wanted.target}: {NO_SAVEPOINTS_IN_STORE}")
    if not (wanted.target or state.config.savepoint_dir):
        advice = "give one with the request, or set savepoint_dir for the pipeline"
        in_store = f" ({NO_SAVEPOINTS_IN_STORE})" if state.config.store_limits else ""
        raise InvalidRequest(f"{what} needs a target: {advice}{in_store}")


def request_broken(state: CoordinatorState, input: RequestBroken, now: Now) -> Decision:
    """Reject a request whose checkpoint id could not be stored: an I/O error of the trigger, counted."""
    waiting = next((q for q in state.queue.waiting if q.number == input.number), None)
    if waiting is None:
        number = state.requests + 1
        properties = properties_for(input.request.kind, state.config)
        waiting = QueuedRequest(
            request=input.request, properties=properties, timestamp=now.wall, number=number
        )
        state = replace(state, requests=number)
    else:
        state = replace(state, queue=state.queue.without(waiting))
    return failed_before_id(state, waiting, CheckpointFailureReason.IO_EXCEPTION, input.message, now)


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
    edge = blocking_edge(state.graph, state.tasks)
    if edge is not None:
        why = f"The output of stage {edge.upstream!r} to {edge.downstream!r} is blocking."
        return reasons.BLOCKING_OUTPUT_EXIST, why
    return None


def reject(
    state: CoordinatorState, queued: QueuedRequest, reason: CheckpointFailureReason, message: str, now: Now
) -> Decision:
    """End a request that never became a checkpoint; answer Rejected."""
    wanted = queued.request
    outcome = Rejected(reason, message or reason.text)
    after = state
    if wanted.request_id:
        operation = OperationRecord(
            request_id=wanted.request_id, rejected=reason.name, message=outcome.message
        )
        after = with_operation(state, operation)
    told = CheckpointRejected(request=wanted, reason=reason, message=outcome.message)
    decision = Decision(state=after, answer=outcome).telling(told)
    if wanted.kind.is_synchronous:
        return decision.then(with_savepoint_result, None, SavepointFailed(reason, message), now)
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
        decision = decision.then(fail_job, cause)
    return decision


MAX_MAIL = 100


@dataclass(frozen=True, slots=True)
class Waiting:
    """The run has not answered yet, or the snapshot is pending."""


@dataclass(frozen=True, slots=True)
class Done:
    """The snapshot is complete at ``uri``."""

    checkpoint_id: CheckpointId
    uri: str
    """Empty: a checkpoint that was subsumed since."""


@dataclass(frozen=True, slots=True)
class Refused:
    """There is no snapshot; ``why`` is one sentence."""

    why: str


Answer = Waiting | Done | Refused


def with_mail(record: CoordinatorRecord, request: CheckpointRequest, now: float) -> CoordinatorRecord:
    """Return the record with one more request; one that is there, or was answered, is not added twice."""
    number = request.request_id
    known = {m.request_id for m in record.mailbox} | {o.request_id for o in record.operations}
    if number in known:
        return record
    mail = MailRecord(
        request_id=number,
        kind=request.kind,
        scope=request.scope,
        target=request.target,
        sent_at=now,
        **request.label.fields(),
    )
    return record.model_copy(update={"mailbox": (*record.mailbox, mail)[-MAX_MAIL:]})


def request_of(mail: MailRecord) -> CheckpointRequest:
    """Return the request of a letter. Raises InvalidRequest for a combination that means nothing."""
    return CheckpointRequest(
        kind=mail.kind,
        scope=mail.scope,
        target=mail.target,
        request_id=mail.request_id,
        **mail.label.fields(),
    )


def answer_in(record: CoordinatorRecord, request_id: str) -> Answer:
    """Return the record's answer to a request."""
    operation = next((o for o in record.operations if o.request_id == request_id), None)
    if operation is None:
        return Waiting()
    if operation.checkpoint_id is None:
        return Refused(operation.message or operation.rejected)
    number = CheckpointId(operation.checkpoint_id)
    if record.pending_of(number) is not None:
        return Waiting()
    failed = next((f for f in record.failed if f.checkpoint_id == number), None)
    if failed is not None:
        return Refused(f"{failed.message or failed.reason} ({failed.reason})")
    done = record.completed_of(number)
    return Done(number, "" if done is None else done.location.uri)


# --- the run's side -------------------------------------------------------------------------------------------


def lease_renewed(state: CoordinatorState, input: LeaseRenewed) -> Decision:
    """Note until when the run is alive."""
    return Decision(state=state.with_record(lease_until=input.until))


def history_outdated(state: CoordinatorState, input: HistoryOutdated) -> Decision:
    """Let rows leave the history with their sum in the record; decided on an older sum, nothing happens."""
    if state.record.forgotten.rows + len(input.checkpoint_ids) != input.forgotten.rows:
        return Decision(state=state)
    return Decision(state=state.with_record(forgotten=input.forgotten), forgotten=input.checkpoint_ids)


def mail_taken(state: CoordinatorState, input: MailTaken) -> Decision:
    """Empty the mailbox of these requests, and answer those that can never be done."""
    record = state.record
    left = tuple(m for m in record.mailbox if m.request_id not in input.request_ids)
    refused = tuple(
        OperationRecord(
            request_id=number,
            rejected=CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE.name,
            message=why,
        )
        for number, why in input.refused.items()
    )
    operations = (*record.operations, *refused)[-OPERATIONS_REMEMBERED:]
    return Decision(state=state.with_record(mailbox=left, operations=operations))
