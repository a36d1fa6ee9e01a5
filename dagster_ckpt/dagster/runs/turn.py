"""The turn of a Dagster run: what Dagster saw of other runs counts beside their leases.

Dagster's own limits hold runs back in its queue, before they have a process (``tag_concurrency_limits`` on the tag
``dagster_ckpt/concurrency_key``). Many runs know no queue (``dagster job execute``, ``execute_in_process``): here the
lease in the coordinator's record decides.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.coordinator.admission import Done, Refused, Waiting
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.request import CheckpointRequest
from dagster_ckpt.core.supervision.ownership import (
    ConcurrentRuns,
    Owner,
    OwnerState,
    judge_owner,
    may_be_asked,
)
from dagster_ckpt.core.units import duration
from dagster_ckpt.dagster.console import failure
from dagster_ckpt.dagster.names import ROOT_RUN_TAG, SKIPPED_TAG, WILL_RETRY_TAG, how_to_stop
from dagster_ckpt.dagster.reports.op_log import without_locks
from dagster_ckpt.dagster.resources.pipeline import coordinator_of, gone_with_container
from dagster_ckpt.dagster.resources.spark import SparkSessionResource
from dagster_ckpt.dagster.start import refuse_impossible
from dagster_ckpt.errors import Declined
from dagster_ckpt.ports import CheckpointStorage, CoordinatorStore, SystemClock
from dagster_ckpt.runtime import turn
from dagster_ckpt.runtime.attempt_setup import Admit
from dagster_ckpt.runtime.mailbox import NoRunningStream, look_up, post
from dagster_ckpt.runtime.record_store import RecordStore
from dagster_ckpt.runtime.restore_facts import absolute_uri
from dagster_ckpt.runtime.turn import Skipped, StillAlive

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
    """Return Dagster's knowledge of a run."""
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
    pipeline: PipelineId,
    request: CheckpointRequest,
    *,
    open_storage: Callable[[str], CheckpointStorage],
    timeout: float = ANSWER_TIMEOUT,
) -> SnapshotOfStream | None:
    """Let the streaming run that is alive take a checkpoint or savepoint, and wait for it; None: there is no such run.

    With a synchronous kind the run ends with it; this returns when it has ended. A run that was killed, and whose lease
    ends meanwhile, is no such run. A relative target is one of this process, which may work elsewhere than the run.
    Raises Declined when it failed, the run to be stopped died, or there is no answer within ``timeout`` seconds.
    """
    target = absolute_uri(request.target, open_storage) if request.target else ""
    asked = replace(request, target=target, request_id=request.request_id or uuid.uuid4().hex)
    outcome = post(store, pipeline, asked, clock=SystemClock())
    if isinstance(outcome, NoRunningStream):
        return None
    run = f"run {outcome.owner} of {pipeline!r}"
    until = time.monotonic() + timeout
    taken_in: int | None = None
    """Attempt that took it; a synchronous one is its last."""
    while time.monotonic() < until:
        answer, record = look_up(store, pipeline, asked.request_id)
        is_gone = record.owner != outcome.owner or not may_be_asked(record, time.time())
        match answer:
            case Done(number, uri):
                if is_gone or not asked.kind.is_synchronous:
                    return SnapshotOfStream(int(number), uri, outcome.owner)
                taken_in = taken_in or record.epoch
                if record.epoch != taken_in:
                    raise Declined(
                        f"{run} took savepoint {uri}, and then failed over instead of ending: it goes on"
                    )
            case Refused(why):
                raise Declined(f"{run} took no {request.kind.noun}: {why}")
            case Waiting():
                if is_gone and asked.kind.is_synchronous:
                    raise Declined(f"{run} ended before it took the {request.kind.noun}")
                if is_gone:  # its mail is nobody's: the next owner is asked, or nobody is there to ask
                    left = max(0.0, until - time.monotonic())
                    return request_from_running_stream(
                        store, pipeline, asked, open_storage=open_storage, timeout=left
                    )
        time.sleep(_LOOK_EVERY)
    raise Declined(f"{run} did not answer within {duration(timeout)}")


T = TypeVar("T")

__all__ = ["OpTurn", "Skipped"]


@dataclass(frozen=True, slots=True)
class OpTurn:
    """Turn of the run an op belongs to; Dagster interrupts the wait when the run is terminated."""

    turn: turn.RunTurn
    instance: dg.DagsterInstance

    @classmethod
    def of(
        cls,
        context: dg.OpExecutionContext,
        pipeline: CheckpointedPipeline,
        choice: ConcurrentRuns,
        *,
        patience: float | None = None,
        spark: SparkSessionResource | None = None,
        streams: bool = False,
    ) -> OpTurn:
        """Return the turn of the run an op belongs to, unless it cannot start; ``patience`` in seconds, None: for ever.

        ``spark``: how the op starts a session; None: it starts none. ``streams``: the run is a stream.
        """
        without_locks(context.log)
        resource = coordinator_of(context, pipeline.name)
        refuse_impossible(resource, pipeline, spark, streams=streams)
        return cls.of_run(
            context.instance,
            pipeline,
            run_id=context.run_id,
            records=RecordStore(resource.store()),
            root=context.run.tags.get(ROOT_RUN_TAG, context.run_id),
            say=context.log.info,
            choice=choice,
            patience=patience,
        )

    @classmethod
    def of_run(
        cls, instance: dg.DagsterInstance, pipeline: CheckpointedPipeline, *, run_id: str, **more: Any
    ) -> OpTurn:
        """Return the turn of a run; ``more`` as ``runtime.turn.RunTurn`` has it."""
        found = turn.RunTurn(
            pipeline=pipeline.name,
            run_id=run_id,
            how_to_stop="terminate it" if pipeline.program else how_to_stop(pipeline.name),
            state_of=partial(owner_state, instance),
            refuse_if_over=partial(_refuse_if_over, instance, run_id),
            **more,
        )
        return cls(found, instance)

    @classmethod
    def chosen(
        cls,
        context: dg.OpExecutionContext,
        pipeline: CheckpointedPipeline,
        *more: str,
        spark: SparkSessionResource | None = None,
        streams: bool = False,
    ) -> OpTurn:
        """Return the turn as the resource's ``concurrent_runs`` says, or the last of ``more`` that says anything."""
        resource = coordinator_of(context, pipeline.name)
        if lost := gone_with_container(resource, pipeline):
            context.log.warning(lost)
        layers = (resource.concurrent_runs, *more)
        return cls.of(context, pipeline, ConcurrentRuns.of(*layers), spark=spark, streams=streams)

    def take(self, begin: Callable[[Admit], T]) -> T | Skipped:
        """Wait for the turn, then ``begin``, which claims the pipeline; again where another run was faster.

        Raises Failure when patience is over, or when Dagster says that this run has ended.
        """
        try:
            found = self.turn.take(begin)
        except StillAlive as error:
            raise failure(str(error), error, allow_retries=False) from error
        if isinstance(found, Skipped):
            self.instance.add_run_tags(self.turn.run_id, {SKIPPED_TAG: "true"})
        return found


def _refuse_if_over(instance: dg.DagsterInstance, run_id: str) -> None:
    run = instance.get_run_by_id(run_id)
    if run is not None and run.is_finished:
        raise failure(
            f"this run was marked {run.status.value} while it waited: it ends, nothing was done",
            allow_retries=False,
        )
