"""The turn of a run: it claims its pipeline when no other run of it is alive, or as ``concurrent_runs`` says.

Dagster's own limits hold runs back in its queue, before they have a process (``tag_concurrency_limits`` on the tag
``dagster_ckpt/concurrency_key``). Many runs know no queue (``dagster job execute``, ``execute_in_process``): here the
lease in the coordinator's record decides, and a compare-and-set which of those that wait is next.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar, assert_never

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.checkpoint.lease import LeaseWatch
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.supervision.concurrent_runs import (
    ConcurrentRuns,
    EndSkipped,
    Proceed,
    WaitFor,
    decide_turn,
)
from dagster_ckpt.core.supervision.owner import Alive, Silent
from dagster_ckpt.dagster.events import without_locks
from dagster_ckpt.dagster.lease import owner_of
from dagster_ckpt.dagster.names import ROOT_RUN_TAG, SKIPPED_TAG, stop_job_name
from dagster_ckpt.dagster.pipeline_resources import coordinator_of
from dagster_ckpt.errors import Unavailable
from dagster_ckpt.ports import Clock
from dagster_ckpt.runtime.attempt_setup import Admit, Occupied
from dagster_ckpt.runtime.clock import SystemClock
from dagster_ckpt.runtime.record_store import RecordStore

LOOK_EVERY = 0.5
LOOK_AT_OWN_RUN_EVERY = 4
"""Of so many looks at the pipeline, one is at the run that waits: it may have been marked as canceled."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Skipped:
    """The run did nothing, because another one is alive; ``why`` is for people."""

    why: str


@dataclass(kw_only=True)
class Turn:
    """Turn of one run; waits in the calling thread, which Dagster interrupts when the run is terminated."""

    records: RecordStore
    pipeline: CheckpointedPipeline
    instance: dg.DagsterInstance
    run_id: str
    root: str
    say: Callable[[str], None]
    choice: ConcurrentRuns
    patience: float | None = None
    """Seconds to wait for a run that is alive; None: as long as it takes."""
    clock: Clock
    sleep: Callable[[float], None] = time.sleep

    @classmethod
    def of(
        cls,
        context: dg.OpExecutionContext,
        pipeline: CheckpointedPipeline,
        choice: ConcurrentRuns,
        *,
        patience: float | None = None,
    ) -> Turn:
        """Return the turn of the run an op belongs to."""
        without_locks(context.log)
        return cls(
            records=RecordStore(coordinator_of(context, pipeline.name).store()),
            pipeline=pipeline,
            instance=context.instance,
            run_id=context.run_id,
            root=context.run.tags.get(ROOT_RUN_TAG, context.run_id),
            say=context.log.info,
            choice=choice,
            patience=patience,
            clock=SystemClock(),
        )

    @classmethod
    def chosen(cls, context: dg.OpExecutionContext, pipeline: CheckpointedPipeline, *more: str) -> Turn:
        """Return the turn as the resource's ``concurrent_runs`` says, or the last of ``more`` that says anything."""
        layers = (coordinator_of(context, pipeline.name).concurrent_runs, *more)
        return cls.of(context, pipeline, ConcurrentRuns.of(*layers))

    def take(self, begin: Callable[[Admit], T]) -> T | Skipped:
        """Wait for the turn, then ``begin``, which claims the pipeline; again where another run was faster.

        Raises Failure when patience is over, or when Dagster says that this run has ended.
        """
        while True:
            found = self._wait()
            if isinstance(found, Skipped):
                self.say(found.why)
                self.instance.add_run_tags(self.run_id, {SKIPPED_TAG: "true"})
                return found
            try:
                return begin(self._admission(found))
            except Occupied as error:
                self.say(str(error))

    def _admission(self, epoch: int) -> Admit:
        def admit(record: CoordinatorRecord) -> None:
            if record.epoch != epoch and record.owner not in ("", self.run_id):
                raise Occupied(
                    f"run {record.owner} of pipeline {self.pipeline.name!r} was faster: looking again"
                )

        return admit

    def _wait(self) -> int | Skipped:
        """Return the epoch after which this run may claim the next one."""
        until = None if self.patience is None else self.clock.monotonic() + self.patience
        watch: LeaseWatch | None = None
        said, looks = "", 0
        while True:
            try:
                record = self.records.record(self.pipeline.name)
            except Unavailable:
                if not said:
                    raise
                self.sleep(LOOK_EVERY)  # it was there when the wait began
                continue
            if record is None or record.owner == self.run_id:
                return 0 if record is None else record.epoch
            now = self.clock.monotonic()
            watch = LeaseWatch.of(record, now) if watch is None else watch.seen(record, now)
            owner = owner_of(record, self.instance, now=self.clock.now())
            is_retry = record.root == self.root
            decision = decide_turn(self.choice, owner, is_silent=watch.is_silent(now), is_retry=is_retry)
            match decision:
                case Proceed():
                    return record.epoch
                case EndSkipped(alive):
                    return Skipped(
                        f"skipped (concurrent_runs: {ConcurrentRuns.SKIP}): run {alive.run_id} of pipeline "
                        f"{self.pipeline.name!r} is alive"
                    )
                case WaitFor(other):
                    pass
                case _:
                    assert_never(decision)
            if isinstance(other, Alive) and until is not None and now >= until:
                raise dg.Failure(description=self._why_not(other), allow_retries=False)
            if other.run_id != said:
                said = other.run_id
                self.say(f"waiting: {self._whom(other)}")
            looks += 1
            if looks % LOOK_AT_OWN_RUN_EVERY == 0:
                self._refuse_if_over()
            self.sleep(LOOK_EVERY)

    def _refuse_if_over(self) -> None:
        run = self.instance.get_run_by_id(self.run_id)
        if run is not None and run.is_finished:
            raise dg.Failure(
                description=f"this run was marked {run.status.value} while it waited: it ends, nothing was done",
                allow_retries=False,
            )

    def _whom(self, owner: Alive | Silent) -> str:
        name = self.pipeline.name
        match owner:
            case Silent(run):
                return f"run {run} of pipeline {name!r} has not renewed its lease; it is taken over unless it does"
            case Alive(run, True):
                return (
                    f"run {run} runs pipeline {name!r} as a stream, which does not end by itself: stop it with job "
                    f"{stop_job_name(name)}, or terminate it"
                )
            case Alive(run, _, until):
                lease = "" if until is None else f" (its lease now: until {_clock_time(until)})"
                return f"run {run} of pipeline {name!r} is alive; until it ends, or does not renew its lease{lease}"
            case _:
                assert_never(owner)

    def _why_not(self, owner: Alive) -> str:
        return (
            f"run {owner.run_id} of pipeline {self.pipeline.name!r} is alive: wait for its end, or terminate it, and "
            "launch this job again"
        )


def _clock_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S UTC")
