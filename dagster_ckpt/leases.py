"""What to do about another run that owns a pipeline: wait until a dead one's lease is over, ask one that is alive."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

import dagster as dg

from dagster_ckpt.attempt import COORDINATOR_KEY
from dagster_ckpt.core.mailbox import Done, Refused, Waiting, is_alive
from dagster_ckpt.core.properties import RunStatus
from dagster_ckpt.core.record import parse_record
from dagster_ckpt.core.requests import CheckpointRequest
from dagster_ckpt.errors import Declined, InvalidRequest
from dagster_ckpt.pipeline import CheckpointedPipeline
from dagster_ckpt.ports import CoordinatorStore
from dagster_ckpt.resources import CheckpointCoordinatorResource
from dagster_ckpt.runtime.clock import SystemClock
from dagster_ckpt.runtime.mailbox import NobodyThere, look_up, post

_LOOK_EVERY = 0.25
ANSWER_TIMEOUT = 900.0


@dataclass(frozen=True, slots=True)
class SavepointOfAnother:
    """What the run that is alive answered."""

    checkpoint_id: int
    uri: str
    run_id: str


def wait_for_stream(context: dg.OpExecutionContext, pipeline: CheckpointedPipeline) -> None:
    """Return when no other run streams the pipeline. Raises InvalidRequest while one is alive."""
    resource: CheckpointCoordinatorResource = getattr(context.resources, COORDINATOR_KEY)
    wait_for_lease(
        resource.store(),
        pipeline,
        run_id=context.run_id,
        instance=context.instance,
        say=context.log.info,
    )


def wait_for_lease(
    store: CoordinatorStore,
    pipeline: CheckpointedPipeline,
    *,
    run_id: str,
    instance: dg.DagsterInstance,
    say: Callable[[str], None],
) -> None:
    """Return when no other streaming run is alive: Dagster has seen its end, or its lease is over.

    Raises InvalidRequest for one that renews its lease: starting another would end it.
    """
    first: float | None = None
    while True:
        stored = store.load(pipeline.name)
        record = None if stored is None else parse_record(stored.body)
        if record is None or record.owner == run_id or not is_alive(record, time.time()):
            return
        run = instance.get_run_by_id(record.owner)
        if run is not None and run.is_finished:
            return
        if first is None:
            first = record.lease_until
            say(f"run {record.owner} holds a lease on the pipeline: waiting whether it renews it or is dead")
        elif record.lease_until != first:
            raise InvalidRequest(
                f"run {record.owner} runs pipeline {pipeline.name!r} as a stream: stop it first "
                f"(job {pipeline.name}_stop, or terminate it), then launch this run again"
            )
        time.sleep(_LOOK_EVERY)


def ask_the_living(
    store: CoordinatorStore,
    pipeline: CheckpointedPipeline,
    request: CheckpointRequest,
    *,
    timeout: float = ANSWER_TIMEOUT,
) -> SavepointOfAnother | None:
    """Let the streaming run that is alive take a savepoint, and wait for it; None when there is no such run.

    With a synchronous kind the run ends with it; this returns when it has ended. Raises Declined when the savepoint
    failed, the run died, or there is no answer within ``timeout`` seconds.
    """
    asked = request if request.request_id else replace(request, request_id=uuid.uuid4().hex)
    outcome = post(store, pipeline.name, asked, clock=SystemClock())
    if isinstance(outcome, NobodyThere):
        return None
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        answer, record = look_up(store, pipeline.name, asked.request_id)
        match answer:
            case Done(number, uri):
                if not asked.kind.is_synchronous or record.status is not RunStatus.RUNNING:
                    return SavepointOfAnother(int(number), uri, outcome.owner)
            case Refused(why):
                raise Declined(f"run {outcome.owner} of {pipeline.name!r} took no savepoint: {why}")
            case Waiting():
                pass
        if not is_alive(record, time.time()) and not isinstance(answer, Done):
            raise Declined(f"run {outcome.owner} of {pipeline.name!r} ended before it took the savepoint")
        time.sleep(_LOOK_EVERY)
    raise Declined(f"run {outcome.owner} of {pipeline.name!r} did not answer within {timeout:.0f} s")
