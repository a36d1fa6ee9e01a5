"""Mailbox of a running stream: other processes leave a request in its record, it answers by the request's id.

A lease in the record, renewed by the run, tells a run that is alive from one that was killed.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ckpt.core.checkpoint.lease import holds_lease
from dagster_ckpt.core.checkpoint.record import (
    OPERATIONS_REMEMBERED,
    CoordinatorRecord,
    MailRecord,
    OperationRecord,
)
from dagster_ckpt.core.coordinator.inputs import HistoryOutdated, LeaseRenewed, MailTaken
from dagster_ckpt.core.coordinator.state import CoordinatorState, Decision
from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.reasons import CheckpointFailureReason
from dagster_ckpt.core.request import CheckpointRequest

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


def is_alive(record: CoordinatorRecord, now: float) -> bool:
    """Return True while a run owns the pipeline that reads its mailbox, or will once it has started."""
    return record.has_mailbox and holds_lease(record, now)


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
