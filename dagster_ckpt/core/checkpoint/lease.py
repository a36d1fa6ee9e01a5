"""Lease of an attempt: while its process lives it renews it in the record; one that nobody renews is over.

Clocks of two machines differ, and a store may be away for a while: whoever wants to take a pipeline over therefore
watches, by its own clock, whether the lease is renewed (``LeaseWatch``), and does not only read when it ends.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord

LEASE = 10.0
"""Seconds a run that says nothing is still taken to be alive."""
RENEW_EVERY = 3.0
NEXT_PROCESS = 600.0
"""Seconds in which the process of an epoch run's next op has to come, as a container may have to be scheduled: the
attempt is left to it with a lease that lasts as long. Nobody waits for a run whose end Dagster has seen.
"""
LONGEST = NEXT_PROCESS + 60.0
"""Seconds that the clocks of two machines may differ on top: a lease that ends later says nothing about now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Lease that an attempt takes when it claims its epoch."""

    reads_mailbox: bool
    """It answers requests of other processes: a stream does."""
    seconds: float = LEASE
    renew_every: float = RENEW_EVERY


def holds_lease(record: CoordinatorRecord, now: float) -> bool:
    """Return True while the lease of the newest attempt is not over, by a clock that may be believed."""
    return record.lease_until is not None and now < record.lease_until <= now + LONGEST


@dataclass(frozen=True, slots=True)
class LeaseWatch:
    """A lease as somebody who waits has seen it last."""

    epoch: int
    until: float | None
    since: float
    """Monotonic time at which it was first seen so."""
    was_renewed: bool = False
    """Its process lives, whatever the clocks say."""

    @classmethod
    def of(cls, record: CoordinatorRecord, monotonic: float) -> LeaseWatch:
        """Return the watch that begins now."""
        return cls(record.epoch, record.lease_until, monotonic)

    def seen(self, record: CoordinatorRecord, monotonic: float) -> LeaseWatch:
        """Return the watch after another look: it begins again where the lease was renewed."""
        if (record.epoch, record.lease_until) == (self.epoch, self.until):
            return self
        is_renewal = record.epoch == self.epoch and record.lease_until is not None
        return LeaseWatch(record.epoch, record.lease_until, monotonic, was_renewed=is_renewal)

    def is_silent(self, monotonic: float) -> bool:
        """Return True when it was watched for as long as a lease lasts and nobody has renewed it."""
        return monotonic - self.since >= LEASE
