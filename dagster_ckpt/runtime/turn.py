"""The turn of a run: it claims its pipeline when no other run of it is alive, or as ``concurrent_runs`` says.

The lease in the coordinator's record decides, and a compare-and-set which waiting run is next. An attempt keeps its
lease from a thread of its own, whatever the attempt's other threads are at.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar, assert_never

from dagster_ckpt.core.checkpoint.lease import LeaseWatch
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.supervision.ownership import (
    Alive,
    ConcurrentRuns,
    EndSkipped,
    Owner,
    OwnerState,
    Proceed,
    Silent,
    WaitFor,
    decide_turn,
    judge_owner,
)
from dagster_ckpt.errors import Declined, Fenced, Unavailable
from dagster_ckpt.ports import Clock, SystemClock
from dagster_ckpt.runtime.attempt_setup import Admit, Occupied
from dagster_ckpt.runtime.record_store import RecordStore

LOOK_EVERY = 0.5
LOOK_AT_OWN_RUN_EVERY = 4
"""Of so many looks at the pipeline, one is at the run that waits: it may have been ended from outside."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Skipped:
    """The run did nothing, because another one is alive; ``why`` is for people."""

    why: str


class StillAlive(Declined):
    """Another run of the pipeline is alive, and patience is over."""


def unknown_state(_run_id: str) -> OwnerState:
    """Return the state of an owner about whom nobody but its lease tells."""
    return OwnerState.UNKNOWN


@dataclass(kw_only=True)
class RunTurn:
    """Turn of one run; waits in the calling thread."""

    records: RecordStore
    pipeline: PipelineId
    run_id: str
    root: str
    say: Callable[[str], None]
    choice: ConcurrentRuns
    how_to_stop: str
    """How a stream is stopped, for people."""
    state_of: Callable[[str], OwnerState] = unknown_state
    """What the host has seen of a run, by its id."""
    refuse_if_over: Callable[[], None] = lambda: None
    """Raises where the host has ended the run that waits."""
    patience: float | None = None
    """Seconds to wait for a run that is alive; None: as long as it takes. One that only holds a lease may have been
    killed: it is waited for until it renews the lease, or the lease is over."""
    clock: Clock = field(default_factory=SystemClock)
    sleep: Callable[[float], None] = time.sleep

    def take(self, begin: Callable[[Admit], T]) -> T | Skipped:
        """Wait for the turn, then ``begin``, which claims the pipeline; again where another run was faster.

        Raises StillAlive when patience is over, and what ``refuse_if_over`` raises.
        """
        while True:
            found = self._wait()
            if isinstance(found, Skipped):
                self.say(found.why)
                return found
            try:
                return begin(self._admission(found))
            except Occupied as error:
                self.say(str(error))

    def _admission(self, epoch: int) -> Admit:
        def admit(record: CoordinatorRecord) -> None:
            if record.epoch != epoch and record.owner not in ("", self.run_id):
                raise Occupied(f"run {record.owner} of pipeline {self.pipeline!r} was faster: looking again")

        return admit

    def _wait(self) -> int | Skipped:
        """Return the epoch after which this run may claim the next one."""
        until = None if self.patience is None else self.clock.monotonic() + self.patience
        watch: LeaseWatch | None = None
        said, looks = "", 0
        while True:
            try:
                record = self.records.record(self.pipeline)
            except Unavailable:
                if not said:
                    raise
                self.sleep(LOOK_EVERY)  # it was there when the wait began
                continue
            if record is None or record.owner == self.run_id:
                return 0 if record is None else record.epoch
            now = self.clock.monotonic()
            watch = LeaseWatch.of(record, now) if watch is None else watch.seen(record, now)
            is_retry = record.root == self.root
            decision = decide_turn(
                self.choice, self._owner(record, watch), is_silent=watch.is_silent(now), is_retry=is_retry
            )
            match decision:
                case Proceed():
                    return record.epoch
                case EndSkipped(alive):
                    return Skipped(
                        f"skipped (concurrent_runs: {ConcurrentRuns.SKIP}): run {alive.run_id} of pipeline "
                        f"{self.pipeline!r} is alive"
                    )
                case WaitFor(other):
                    pass
                case _:
                    assert_never(decision)
            is_certain = watch.was_renewed or watch.is_silent(now) or record.lease_until is None
            if isinstance(other, Alive) and until is not None and now >= until and is_certain:
                raise StillAlive(self._why_not(other))
            if other.run_id != said:
                said = other.run_id
                self.say(f"waiting: {self._whom(other)}")
            looks += 1
            if looks % LOOK_AT_OWN_RUN_EVERY == 0:
                self.refuse_if_over()
            self.sleep(LOOK_EVERY)

    def _owner(self, record: CoordinatorRecord, watch: LeaseWatch) -> Owner:
        was_renewed = watch.was_renewed and not watch.is_silent(self.clock.monotonic())
        return judge_owner(record, self.state_of(record.owner), now=self.clock.now(), was_renewed=was_renewed)

    def _whom(self, owner: Alive | Silent) -> str:
        name = self.pipeline
        match owner:
            case Silent(run):
                return f"run {run} of pipeline {name!r} has not renewed its lease; it is taken over unless it does"
            case Alive(run, True):
                return f"run {run} runs pipeline {name!r} as a stream, which does not end by itself: {self.how_to_stop}"
            case Alive(run, _, until):
                lease = "" if until is None else f" (its lease now: until {_clock_time(until)})"
                return f"run {run} of pipeline {name!r} is alive; until it ends, or does not renew its lease{lease}"
            case _:
                assert_never(owner)

    def _why_not(self, owner: Alive) -> str:
        return (
            f"run {owner.run_id} of pipeline {self.pipeline!r} is alive: wait for its end, or terminate it, and "
            "launch this job again"
        )


def _clock_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S UTC")


log = logging.getLogger("dagster_ckpt.coordinator")


class LeaseKeeper:
    """Calls ``renew`` until it is stopped or the attempt is fenced; a store that is away is asked again."""

    def __init__(self, renew: Callable[[], None], *, every: float) -> None:
        self._renew = renew
        self._every = every
        self._stopping = threading.Event()
        self._renewing = threading.Lock()

    def start(self) -> None:
        """Renew at once, and from now on."""
        threading.Thread(target=self._run, name="lease", daemon=True).start()

    def stop(self) -> None:
        """Renew no more; one renewal that is on its way is waited for, so that none comes after the end."""
        with self._renewing:
            self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            with self._renewing:
                if not self._stopping.is_set() and not self._renewed():
                    return
            self._stopping.wait(self._every)

    def _renewed(self) -> bool:
        try:
            self._renew()
        except Fenced:
            return False
        except Exception as error:  # the next renewal may come in time
            log.warning("the lease could not be renewed: %s", error)
        return True
