"""Whether the run that owns a pipeline is alive; waiting for its end, and asking it for a savepoint."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.coordinator.mailbox import Done, Refused, Waiting, is_alive
from dagster_ckpt.core.properties import RunStatus
from dagster_ckpt.core.request import CheckpointRequest
from dagster_ckpt.core.supervision.liveness import OwnerState
from dagster_ckpt.dagster.names import WILL_RETRY_TAG, stop_job_name
from dagster_ckpt.dagster.resources import coordinator_of
from dagster_ckpt.errors import Declined, InvalidRequest
from dagster_ckpt.ports import CoordinatorStore
from dagster_ckpt.runtime.clock import SystemClock
from dagster_ckpt.runtime.mailbox import NoRunningStream, look_up, post
from dagster_ckpt.runtime.record_store import RecordStore

_LOOK_EVERY = 0.25
ANSWER_TIMEOUT = 900.0


@dataclass(frozen=True, slots=True)
class SnapshotOfStream:
    """Answer of the running stream."""

    checkpoint_id: int
    uri: str
    """Empty: a checkpoint that is gone again, because a newer one has taken its place."""
    run_id: str


@dataclass(frozen=True, slots=True)
class Alive:
    """The owner runs: Dagster says so."""

    run_id: str
    has_lease: bool
    """It streams: it reads its mailbox."""


@dataclass(frozen=True, slots=True)
class Dead:
    """The owner has ended, or there never was one: the pipeline may be taken over."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Dagster does not know the owner (another instance), and its lease is not over: wait whether it renews it."""

    run_id: str


def owner_of(
    record: CoordinatorRecord | None, instance: dg.DagsterInstance, *, now: float
) -> Alive | Dead | Unknown:
    """Return whether the run that owns a pipeline is alive, by Dagster and by its lease."""
    if record is None or record.status is not RunStatus.RUNNING:
        return Dead()
    has_lease = is_alive(record, now)
    match owner_state(instance, record.owner):
        case OwnerState.ALIVE:
            return Alive(record.owner, has_lease)
        case OwnerState.UNKNOWN if has_lease:
            return Unknown(record.owner)
        case _:
            return Dead()


def owner_state(instance: dg.DagsterInstance, run_id: str) -> OwnerState:
    """Return what Dagster knows of a run."""
    run = instance.get_run_by_id(run_id) if run_id else None
    return OwnerState.UNKNOWN if run is None else state_of_run(run)


def state_of_run(run: dg.DagsterRun) -> OwnerState:
    """Return how a run stands."""
    match run.status:
        case dg.DagsterRunStatus.SUCCESS:
            return OwnerState.SUCCEEDED
        case dg.DagsterRunStatus.CANCELED:
            return OwnerState.CANCELED
        case dg.DagsterRunStatus.FAILURE:
            retried = run.tags.get(WILL_RETRY_TAG) == "true"
            return OwnerState.FAILED_AND_RETRIED if retried else OwnerState.FAILED
        case _:
            return OwnerState.ALIVE


def wait_for_stream(context: dg.OpExecutionContext, pipeline: CheckpointedPipeline) -> None:
    """Return when no other run streams the pipeline. Raises InvalidRequest while one is alive."""
    resource = coordinator_of(context)
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
        record = RecordStore(store).record(pipeline.name)
        owner = owner_of(record, instance, now=time.time())
        is_streaming = isinstance(owner, Unknown) or (isinstance(owner, Alive) and owner.has_lease)
        if record is None or record.owner == run_id or not is_streaming:
            return
        if first is None:
            first = record.lease_until
            say(f"run {record.owner} holds a lease on the pipeline: waiting whether it renews it or is dead")
        elif record.lease_until != first:
            raise InvalidRequest(
                f"run {record.owner} runs pipeline {pipeline.name!r} as a stream: stop it first "
                f"(job {stop_job_name(pipeline.name)}, or terminate it), then launch this run again"
            )
        time.sleep(_LOOK_EVERY)


def request_from_running_stream(
    store: CoordinatorStore,
    pipeline: CheckpointedPipeline,
    request: CheckpointRequest,
    *,
    timeout: float = ANSWER_TIMEOUT,
) -> SnapshotOfStream | None:
    """Let the streaming run that is alive take a checkpoint or savepoint, and wait for it; None: there is no such run.

    With a synchronous kind the run ends with it; this returns when it has ended. Raises Declined when it failed, the
    run died, or there is no answer within ``timeout`` seconds.
    """
    asked = request if request.request_id else replace(request, request_id=uuid.uuid4().hex)
    outcome = post(store, pipeline.name, asked, clock=SystemClock())
    if isinstance(outcome, NoRunningStream):
        return None
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        answer, record = look_up(store, pipeline.name, asked.request_id)
        match answer:
            case Done(number, uri):
                if not asked.kind.is_synchronous or record.status is not RunStatus.RUNNING:
                    return SnapshotOfStream(int(number), uri, outcome.owner)
            case Refused(why):
                raise Declined(f"run {outcome.owner} of {pipeline.name!r} took no {request.kind.noun}: {why}")
            case Waiting():
                pass
        if not is_alive(record, time.time()) and not isinstance(answer, Done):
            raise Declined(
                f"run {outcome.owner} of {pipeline.name!r} ended before it took the {request.kind.noun}"
            )
        time.sleep(_LOOK_EVERY)
    raise Declined(f"run {outcome.owner} of {pipeline.name!r} did not answer within {timeout:.0f} s")
