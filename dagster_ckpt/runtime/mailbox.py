"""Asks a run that is alive, in whichever process, for a snapshot or for its end; and takes what others asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord, MailRecord
from dagster_ckpt.core.coordinator.admission import (
    Answer,
    answer_in,
    request_of,
    with_mail,
)
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.request import CheckpointRequest
from dagster_ckpt.core.supervision.ownership import may_be_asked
from dagster_ckpt.errors import InvalidRequest, NotFound
from dagster_ckpt.ports import Clock, CoordinatorStore
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.runtime.record_store import LoadedRecord, RecordChange, RecordStore


@dataclass(frozen=True, slots=True)
class NoRunningStream:
    """No run that reads its mailbox owns the pipeline; the caller may take it over."""

    owner: str
    """Run that had it last."""


@dataclass(frozen=True, slots=True)
class Posted:
    """The request is in the mailbox of this run."""

    owner: str


def post(
    store: CoordinatorStore, pipeline: PipelineId, request: CheckpointRequest, *, clock: Clock
) -> Posted | NoRunningStream:
    """Leave a request (with a ``request_id``) for the run that is alive.

    Raises InvalidRequest without an id, Unavailable and OutcomeUnknown as the store does: repeat it then.
    """
    if not request.request_id:
        raise InvalidRequest("a request to another process needs a request_id, by which its answer is found")

    def add(loaded: LoadedRecord | None) -> RecordChange[Posted | NoRunningStream]:
        if loaded is None:
            return RecordChange(answer=NoRunningStream(""), record=None)
        record, now = loaded.record, clock.now()
        if not may_be_asked(record, now):
            return RecordChange(answer=NoRunningStream(record.owner), record=None)
        wanted = with_mail(record, request, now)
        return RecordChange(answer=Posted(record.owner), record=None if wanted is record else wanted)

    return RecordStore(store).transact(pipeline, add)[0]


def look_up(
    store: CoordinatorStore, pipeline: PipelineId, request_id: str
) -> tuple[Answer, CoordinatorRecord]:
    """Return the answer to a request, and the record it was read from. Raises NotFound without a record."""
    record = RecordStore(store).record(pipeline)
    if record is None:
        raise NotFound(f"pipeline {pipeline!r} has never run")
    return answer_in(record, request_id), record


class Mailbox:
    """The run's side: hands requests to the coordinator; called with every poll."""

    def __init__(self, *, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def serve(self, coordinator: CheckpointCoordinator) -> None:
        """Take up what is there. Raises Fenced."""
        mails = coordinator.record.mailbox
        if not mails:
            return
        refused = {m.request_id: why for m in mails if (why := self._take(coordinator, m))}
        coordinator.mail_taken(frozenset(m.request_id for m in mails), refused)

    def _take(self, coordinator: CheckpointCoordinator, mail: MailRecord) -> str:
        """Return why it can never be done; empty when the coordinator has it."""
        self._tell(f"another process asks for {_text(mail)}")
        try:
            request = request_of(mail)
            if mail.kind.is_synchronous:
                coordinator.stop_with_savepoint(request)
            else:
                coordinator.trigger(request)
        except InvalidRequest as error:
            return str(error)
        return ""


def _text(mail: MailRecord) -> str:
    if mail.kind.is_synchronous:
        return "the end of the run with a savepoint"
    return f"a {mail.kind.value}" if mail.kind.is_savepoint else f"a checkpoint ({mail.scope.value})"
