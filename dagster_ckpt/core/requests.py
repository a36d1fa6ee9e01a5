"""Requests for checkpoints, and the only queue: at most one trigger is in flight, this orders what is next.

Source: flink-runtime CheckpointRequestDecider (CheckpointRequestDeciderTest).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.properties import CheckpointProperties
from dagster_ckpt.errors import InvalidRequest

MAX_QUEUED_REQUESTS = 1000


class RequestOrigin(StrEnum):
    """Who wants the checkpoint."""

    MANUAL = "manual"
    """A person, a schedule or the run itself: never evicted from the queue, not bound to the minimum pause."""
    PERIODIC = "periodic"
    """The periodic scheduler."""


class SnapshotScope(StrEnum):
    """How much a checkpoint uploads (Flink: CheckpointType of a manual trigger)."""

    CONFIGURED = "configured"
    """As ``incremental`` says."""
    FULL = "full"
    """Everything: it builds on no other checkpoint."""
    INCREMENTAL = "incremental"
    """Only what is new, even where ``incremental`` is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest:
    """What to take. Raises InvalidRequest for combinations that mean nothing."""

    kind: CheckpointKind = CheckpointKind.CHECKPOINT
    """CHECKPOINT, or one of the savepoint kinds; ask for a full checkpoint with ``scope``."""
    origin: RequestOrigin = RequestOrigin.MANUAL
    scope: SnapshotScope = SnapshotScope.CONFIGURED
    target: str = ""
    """URI of the folder a savepoint is written below; empty: ``savepoint_dir``."""
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    request_id: str = ""
    """Chosen by the client: the same id again is the same operation, and it can be asked for by that id."""

    def __post_init__(self) -> None:
        for name, kind in (("kind", CheckpointKind), ("origin", RequestOrigin), ("scope", SnapshotScope)):
            if not isinstance(getattr(self, name), kind):
                raise InvalidRequest(f"{name} must be one of {', '.join(kind)}, got {getattr(self, name)!r}")
        if self.kind.is_savepoint and self.origin is RequestOrigin.PERIODIC:
            raise InvalidRequest(
                "a savepoint is never periodic: request it as manual, or use a savepoint schedule"
            )
        if self.target and not self.kind.is_savepoint:
            raise InvalidRequest(
                "only savepoints take a target: checkpoints are written to checkpoint storage"
            )

    @property
    def is_periodic(self) -> bool:
        """True for a request of the periodic scheduler."""
        return self.origin is RequestOrigin.PERIODIC


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
class Load:
    """What bounds the next trigger."""

    is_triggering: bool
    pending: int
    """Checkpoints not yet complete or aborted."""
    cleaning: int
    """Checkpoints whose files are being deleted at this moment."""
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

    def choose(self, load: Load) -> Choice:
        """Return what to do with the best request now."""
        if load.is_triggering or not self.waiting or load.cleaning > load.max_concurrent:
            return Wait()
        head = self.waiting[0]
        if load.pending >= load.max_concurrent:
            return Chosen(head) if head.properties.forced else Wait()
        if not head.properties.forced and head.request.is_periodic and load.pause_left > 0:
            return TooSoon(head, load.pause_left)
        return Chosen(head)

    def without(self, queued: QueuedRequest) -> RequestQueue:
        """Return the queue without one request."""
        return replace(self, waiting=tuple(q for q in self.waiting if q.number != queued.number))
