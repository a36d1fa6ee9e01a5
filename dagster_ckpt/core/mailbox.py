"""How other processes reach a run that is alive: they leave a request in its record, it answers by the request's id.

A lease in the record, renewed by the run, tells a run that is alive from one that was killed.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.inputs import LeaseRenewed, MailTaken
from dagster_ckpt.core.properties import RunStatus
from dagster_ckpt.core.reasons import CheckpointFailureReason
from dagster_ckpt.core.record import OPERATIONS_REMEMBERED, CoordinatorRecord, MailRecord, OperationRecord
from dagster_ckpt.core.requests import CheckpointRequest
from dagster_ckpt.core.state import CoordinatorState, Decision

LEASE = 10.0
"""Seconds a run that says nothing is still taken to be alive."""
RENEW_EVERY = 3.0
MAX_MAIL = 100


@dataclass(frozen=True, slots=True)
class Waiting:
    """The run has not answered yet, or the savepoint is underway."""


@dataclass(frozen=True, slots=True)
class Done:
    """The savepoint is complete at ``uri``."""

    checkpoint_id: CheckpointId
    uri: str


@dataclass(frozen=True, slots=True)
class Refused:
    """There is no savepoint; ``why`` is one sentence."""

    why: str


Answer = Waiting | Done | Refused


def is_alive(record: CoordinatorRecord, now: float) -> bool:
    """Return True while a run owns the pipeline that reads its mailbox."""
    runs = record.status is RunStatus.RUNNING and record.status_epoch == record.epoch
    return runs and record.lease_until is not None and record.lease_until > now


def with_mail(record: CoordinatorRecord, request: CheckpointRequest, now: float) -> CoordinatorRecord:
    """Return the record with one more request; one that is there, or was answered, is not added twice."""
    number = request.request_id
    known = {m.request_id for m in record.mailbox} | {o.request_id for o in record.operations}
    if number in known:
        return record
    mail = MailRecord(
        request_id=number,
        kind=request.kind,
        target=request.target,
        name=request.name,
        labels=dict(request.labels),
        note=request.note,
        sent_at=now,
    )
    return record.model_copy(update={"mailbox": (*record.mailbox, mail)[-MAX_MAIL:]})


def request_of(mail: MailRecord) -> CheckpointRequest:
    """Return what is asked for. Raises InvalidRequest for a combination that means nothing."""
    return CheckpointRequest(
        kind=mail.kind,
        target=mail.target,
        name=mail.name,
        labels=mail.labels,
        note=mail.note,
        request_id=mail.request_id,
    )


def answer_in(record: CoordinatorRecord, request_id: str) -> Answer:
    """Return what became of a request."""
    operation = next((o for o in record.operations if o.request_id == request_id), None)
    if operation is None:
        return Waiting()
    if operation.checkpoint_id is None:
        return Refused(operation.message or operation.rejected)
    done = record.completed_of(operation.checkpoint_id)
    if done is not None:
        return Done(CheckpointId(operation.checkpoint_id), done.location.uri)
    failed = next((f for f in record.failed if f.checkpoint_id == operation.checkpoint_id), None)
    if failed is not None:
        return Refused(f"{failed.message or failed.reason} ({failed.reason})")
    return Waiting()


# --- the run's side -------------------------------------------------------------------------------------------


def lease_renewed(state: CoordinatorState, event: LeaseRenewed) -> Decision:
    """Note until when the run is alive."""
    return Decision(state=state.with_record(lease_until=event.until))


def mail_taken(state: CoordinatorState, event: MailTaken) -> Decision:
    """Empty the mailbox of these requests, and answer those that can never be done."""
    record = state.record
    left = tuple(m for m in record.mailbox if m.request_id not in event.request_ids)
    refused = tuple(
        OperationRecord(
            request_id=number,
            rejected=CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE.name,
            message=why,
        )
        for number, why in event.refused.items()
    )
    operations = (*record.operations, *refused)[-OPERATIONS_REMEMBERED:]
    return Decision(state=state.with_record(mailbox=left, operations=operations))
