"""Whether the run that owns a pipeline is alive, and asking it for a savepoint."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, replace

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.coordinator.mailbox import Done, Refused, Waiting, is_alive
from dagster_ckpt.core.properties import RunStatus
from dagster_ckpt.core.request import CheckpointRequest
from dagster_ckpt.core.supervision.owner import Owner, OwnerState, judge_owner
from dagster_ckpt.dagster.names import WILL_RETRY_TAG
from dagster_ckpt.errors import Declined
from dagster_ckpt.ports import CoordinatorStore
from dagster_ckpt.runtime.clock import SystemClock
from dagster_ckpt.runtime.mailbox import NoRunningStream, look_up, post

_LOOK_EVERY = 0.25
ANSWER_TIMEOUT = 900.0


@dataclass(frozen=True, slots=True)
class SnapshotOfStream:
    """Answer of the running stream."""

    checkpoint_id: int
    uri: str
    """Empty: a checkpoint that is gone again, because a newer one has taken its place."""
    run_id: str


def owner_of(record: CoordinatorRecord | None, instance: dg.DagsterInstance, *, now: float) -> Owner:
    """Return whether the run that owns a pipeline is alive: what Dagster saw of its end, and else its lease."""
    state = OwnerState.UNKNOWN if record is None else owner_state(instance, record.owner)
    return judge_owner(record, state, now=now)


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
        is_gone = record.owner != outcome.owner or not is_alive(record, time.time())
        if is_gone and not isinstance(answer, Done):
            raise Declined(
                f"run {outcome.owner} of {pipeline.name!r} ended before it took the {request.kind.noun}"
            )
        time.sleep(_LOOK_EVERY)
    raise Declined(f"run {outcome.owner} of {pipeline.name!r} did not answer within {timeout:.0f} s")
