"""Requests for checkpoints, and the only queue: at most one trigger is in flight, this orders what is next.

Source: flink-runtime CheckpointRequestDecider (CheckpointRequestDeciderTest).
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, replace

from dagster_ckpt.core.properties import CheckpointProperties
from dagster_ckpt.core.request import CheckpointRequest

MAX_QUEUED_REQUESTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedRequest:
    """A request with its place in the order."""

    request: CheckpointRequest
    properties: CheckpointProperties
    timestamp: float
    """When it was made; seconds since the Unix epoch."""
    number: int
    """Tie-break, and its identity: grows with every request of this process."""

    @property
    def order(self) -> tuple[bool, bool, bool, float, int]:
        """Savepoints first, then forced, then not periodic, then older."""
        return (
            not self.request.kind.is_savepoint,
            not self.properties.forced,
            self.request.is_periodic,
            self.timestamp,
            self.number,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLoad:
    """Load of the coordinator, which bounds the next trigger."""

    is_triggering: bool
    pending: int
    """Checkpoints not yet complete or aborted."""
    cleaning: int
    """Checkpoints whose files are being deleted at this moment."""
    notifying: int
    """Completed checkpoints of which the stages are being notified: their tables are not all published."""
    max_concurrent: int
    pause_left: float
    """Seconds until a periodic checkpoint may be triggered again; 0 or less: now."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Trigger this request now."""

    queued: QueuedRequest


@dataclass(frozen=True, slots=True)
class TooSoon:
    """A periodic request came within the minimum pause: it fails, the timer is re-armed in ``retry_in`` seconds."""

    queued: QueuedRequest
    retry_in: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be triggered now."""


Choice = Chosen | TooSoon | Wait


@dataclass(frozen=True, slots=True)
class RequestQueue:
    """Requests not yet triggered, best first."""

    waiting: tuple[QueuedRequest, ...] = ()

    def add(self, queued: QueuedRequest) -> tuple[RequestQueue, QueuedRequest | None]:
        """Return the queue with one more request, and the one that fell out because the queue was full.

        The last in order falls out, unless it was made by a user: then the new one does.
        """
        if len(self.waiting) >= MAX_QUEUED_REQUESTS and not self.waiting[-1].request.is_periodic:
            return self, queued
        ordered = [*self.waiting]
        insort(ordered, queued, key=lambda q: q.order)
        if len(ordered) > MAX_QUEUED_REQUESTS:
            return RequestQueue(tuple(ordered[:-1])), ordered[-1]
        return RequestQueue(tuple(ordered)), None

    def choose(self, load: QueueLoad) -> Choice:
        """Return the decision about the best request now."""
        if load.is_triggering or not self.waiting or load.cleaning > load.max_concurrent:
            return Wait()
        head = self.waiting[0]
        # A sink of Flink's that still commits a checkpoint takes its part of the next one only then.
        if load.pending >= load.max_concurrent or load.notifying > load.max_concurrent:
            return Chosen(head) if head.properties.forced else Wait()
        if not head.properties.forced and head.request.is_periodic and load.pause_left > 0:
            return TooSoon(head, load.pause_left)
        return Chosen(head)

    def without(self, queued: QueuedRequest) -> RequestQueue:
        """Return the queue without one request."""
        return replace(self, waiting=tuple(q for q in self.waiting if q.number != queued.number))
