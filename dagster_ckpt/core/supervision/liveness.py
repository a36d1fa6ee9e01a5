"""Liveness of an attempt: what to do when its run ended without saying so, or its timer stands still."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from dagster_ckpt.core.checkpoint.lease import LONGEST
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.properties import RunStatus
from dagster_ckpt.core.supervision.owner import OwnerState
from dagster_ckpt.core.units import duration

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
