"""Ownership of a pipeline: who is alive, and who may run.

At most one run owns a pipeline: the one that holds the newest epoch in the coordinator's record. What makes it so:

| question | answer |
|---|---|
| does the owner's process live? | it renews a lease in the record (``checkpoint/lease``, kept by ``runtime/turn``) |
| is the owner alive? | ``judge_owner``: an end that Dagster has seen counts, and else the lease |
| what does a second run do? | ``decide_turn``: it waits, ends, or takes over (``concurrent_runs``) |
| who waits and claims? | ``runtime/turn``, in an op ``dagster/runs/turn``; a compare-and-set has the last word |
| who ends what nobody ended? | ``judge_attempt`` for the safety net, by ``runtime/claim`` |
| may a stream be asked? | ``may_be_asked``: it holds its lease and reads its mailbox |

A run that lost the pipeline without knowing is fenced: its next compare-and-set fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from dagster_ckpt.core.checkpoint.lease import LONGEST, holds_lease
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.request import RunStatus
from dagster_ckpt.core.settings import word_of
from dagster_ckpt.core.units import duration
from dagster_ckpt.errors import InvalidRequest


class OwnerState(StrEnum):
    """State of the run that owns the pipeline, as Dagster knows it."""

    ALIVE = "alive"
    """It waits, starts, runs or is being terminated; or its process is gone, and Dagster has not noticed."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """It failed, and nothing retries it."""
    FAILED_AND_RETRIED = "failed_and_retried"
    """It failed, and Dagster starts it again."""
    CANCELED = "canceled"
    UNKNOWN = "unknown"
    """This Dagster instance has no such run."""

    @property
    def is_over(self) -> bool:
        """True where Dagster saw the run's end."""
        return self not in (OwnerState.ALIVE, OwnerState.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Alive:
    """The owner holds its lease."""

    run_id: str
    streams: bool
    """It reads its mailbox, and does not end by itself."""
    until: float | None
    """Its lease; None: it is of a version that had none for epoch runs, and Dagster says that it runs."""


@dataclass(frozen=True, slots=True)
class Silent:
    """Its lease is over, or of a clock far ahead, and nobody saw its end: dead, unless it is renewed while watched."""

    run_id: str


@dataclass(frozen=True, slots=True)
class Dead:
    """The owner has ended, or there never was an owner: the pipeline may be taken over."""


Owner = Alive | Silent | Dead


def judge_owner(
    record: CoordinatorRecord | None, state: OwnerState, *, now: float, was_renewed: bool = False
) -> Owner:
    """Return how the newest owner stands; ``now`` in seconds since the Unix epoch.

    ``was_renewed``: its lease was seen to be renewed, which tells more than two clocks do.
    """
    if record is None or state.is_over:
        return Dead()
    if record.lease_until is None:
        runs = record.status is RunStatus.RUNNING and record.status_epoch == record.epoch
        return Alive(record.owner, False, None) if runs and state is OwnerState.ALIVE else Dead()
    if was_renewed or holds_lease(record, now):
        return Alive(record.owner, record.has_mailbox, record.lease_until)
    was_ended = record.status is not RunStatus.RUNNING and record.status_epoch == record.epoch
    return Dead() if was_ended else Silent(record.owner)


def may_be_asked(record: CoordinatorRecord, now: float) -> bool:
    """Return True while a run owns the pipeline that reads its mailbox, or will once it has started."""
    return record.has_mailbox and holds_lease(record, now)


class ConcurrentRuns(StrEnum):
    """Treatment of a pipeline's second run."""

    QUEUE = "queue"
    """It waits for the end of the first."""
    SKIP = "skip"
    """It ends, successfully, without having done anything."""
    TAKE_OVER = "take_over"
    """It fences the first, which fails."""

    @classmethod
    def of(cls, *layers: str) -> ConcurrentRuns:
        """Return the last choice that is given: of the resource, the pipeline, the run. Raises InvalidRequest."""
        chosen = next((text for text in reversed(layers) if text), cls.QUEUE.value)
        try:
            return cls(word_of(chosen))
        except ValueError as error:
            known = ", ".join(cls)
            raise InvalidRequest(f"concurrent_runs must be one of {known}, got {chosen!r}") from error


@dataclass(frozen=True, slots=True)
class Proceed:
    """The pipeline is the run's to claim."""


@dataclass(frozen=True, slots=True)
class WaitFor:
    """Look again soon; ``owner`` is whose end is waited for."""

    owner: Alive | Silent


@dataclass(frozen=True, slots=True)
class EndSkipped:
    """End without having done anything, because ``owner`` is alive."""

    owner: Alive


def decide_turn(
    choice: ConcurrentRuns, owner: Owner, *, is_silent: bool, is_retry: bool
) -> Proceed | WaitFor | EndSkipped:
    """Return the decision of a run about the pipeline's ``owner``, another run.

    ``is_silent``: it was watched for as long as a lease lasts and did not renew it. ``is_retry``: it is an earlier
    try of this run, whose work must not be left undone: it is waited for where another would be given way to.
    """
    match owner:
        case Dead():
            return Proceed()
        case Silent():
            return Proceed() if is_silent or choice is ConcurrentRuns.TAKE_OVER else WaitFor(owner)
        case Alive():
            pass
        case _:
            assert_never(owner)
    match choice:
        case ConcurrentRuns.TAKE_OVER:
            return Proceed()
        case ConcurrentRuns.SKIP:
            return WaitFor(owner) if is_retry else EndSkipped(owner)
        case ConcurrentRuns.QUEUE:
            return WaitFor(owner)
        case _:
            assert_never(choice)


OVERDUE = 60.0
"""Seconds after a checkpoint's deadline in which its own run may still expire it."""


@dataclass(frozen=True, slots=True)
class NoAction:
    """Nothing is to be done; ``why`` is for people."""

    why: str


@dataclass(frozen=True, slots=True)
class EndAttempt:
    """The run is over and did not say so: end its attempt for it."""

    status: RunStatus
    why: str


@dataclass(frozen=True, slots=True)
class ExpirePending:
    """Checkpoints are long past their deadline and nobody has expired them."""

    checkpoint_ids: tuple[int, ...]
    why: str


Judgment = NoAction | EndAttempt | ExpirePending


def is_lost(record: CoordinatorRecord, *, now: float) -> bool:
    """Return True where the owner's lease is long over and it has not ended in order: its process is gone."""
    return record.lease_until is not None and record.lease_until + OVERDUE < now


def judge_attempt(
    record: CoordinatorRecord, owner: OwnerState, *, now: float, lease_before: float | None = None
) -> Judgment:
    """Return the safety net's judgment of the newest attempt; ``now`` in seconds since the Unix epoch.

    ``lease_before``: the lease as it was at an earlier look. A run that Dagster believes alive is ended only when it
    has not renewed its lease between two looks: machines sleep, and their clocks differ.
    """
    runs = record.status is RunStatus.RUNNING and record.status_epoch == record.epoch
    if not runs and not record.pending:
        return NoAction(f"no run is in progress (the last one ended as {record.status})")
    match owner:
        case OwnerState.ALIVE | OwnerState.UNKNOWN:
            return _of_living(record, owner, now, lease_before)
        case OwnerState.SUCCEEDED | OwnerState.FAILED_AND_RETRIED:
            status = RunStatus.SUSPENDED
        case OwnerState.FAILED:
            status = RunStatus.FAILED
        case OwnerState.CANCELED:
            status = RunStatus.CANCELED
        case _:
            assert_never(owner)
    return EndAttempt(status, f"run {record.owner} is over ({owner}) and left its attempt open")


def _of_living(
    record: CoordinatorRecord, owner: OwnerState, now: float, lease_before: float | None
) -> Judgment:
    lease = record.lease_until
    is_ahead = lease is not None and lease > now + LONGEST
    lease_is_over = is_ahead or is_lost(record, now=now)
    if lease_is_over and ((owner is OwnerState.UNKNOWN and not is_ahead) or lease_before == lease):
        known = "is unknown to this instance" if owner is OwnerState.UNKNOWN else "never said that it ended"
        return EndAttempt(RunStatus.SUSPENDED, f"run {record.owner} {known} and its lease is over")
    overdue = tuple(p.checkpoint_id for p in record.pending if p.deadline_at + OVERDUE < now)
    if overdue:
        return ExpirePending(
            overdue,
            f"run {record.owner} ({owner}) did not expire what is over its timeout: is its process there?",
        )
    if lease_is_over and not is_ahead:
        return NoAction(
            f"run {record.owner} is {owner}, but has not renewed its lease for {duration(now - (lease or now))}: "
            "it is taken for dead unless it does so before the next tick"
        )
    what = f"{len(record.pending)} checkpoint pending" if record.pending else "no checkpoint pending"
    return NoAction(f"run {record.owner} is {owner}, {what}")
