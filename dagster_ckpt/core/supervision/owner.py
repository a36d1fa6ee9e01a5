"""Whether the run that owns a pipeline is alive: what Dagster saw of its end, and else its lease."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dagster_ckpt.core.checkpoint.lease import holds_lease
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.properties import RunStatus


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
