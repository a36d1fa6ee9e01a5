"""Requests for checkpoints: the only queue, and the timer that makes periodic ones; both are values.

Source: the timer of flink-runtime CheckpointCoordinator
(CheckpointCoordinatorTriggeringTest, CheckpointIntervalDuringBacklogITCase).
Source: flink-runtime CheckpointRequestDecider (CheckpointRequestDeciderTest).
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field, replace

from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.properties import CheckpointProperties
from dagster_ckpt.core.request import CheckpointRequest

ONE_YEAR = 365 * 24 * 3600.0


def effective_min_pause(config: CheckpointConfig) -> float:
    """Seconds of minimum pause, at most one year."""
    return min(config.min_pause, ONE_YEAR)


def effective_interval(config: CheckpointConfig) -> float | None:
    """Seconds between periodic checkpoints, raised to the minimum pause; None: periodic checkpoints are off."""
    if config.interval is None:
        return None
    return max(config.interval, effective_min_pause(config))


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicScheduler:
    """The timer's state. ``next_at`` None while it is off or parked by a backlog."""

    is_on: bool = False
    next_at: float | None = None
    """Planned time of the next fire, in monotonic seconds."""
    was_on: bool = False
    """It ran before in this coordinator: a restart waits for exactly the minimum pause."""
    backlog: frozenset[StageUid] = field(default_factory=frozenset)
    """Stages that have a backlog."""

    def interval(self, config: CheckpointConfig) -> float | None:
        """Seconds between checkpoints now; None: none by timer (off, or a backlog with interval 0)."""
        regular = effective_interval(config)
        if regular is None or not self.backlog or config.interval_during_backlog is None:
            return regular
        during = config.interval_during_backlog
        return max(during, regular) if during else None

    def started(self, config: CheckpointConfig, *, now: float, draw: float) -> PeriodicScheduler:
        """Return the scheduler running; ``draw`` in [0, 1) spreads the first fire of many pipelines."""
        return replace(self, is_on=True, was_on=True, next_at=now + self._initial_delay(config, draw))

    def _initial_delay(self, config: CheckpointConfig, draw: float) -> float:
        pause = effective_min_pause(config)
        if self.was_on:
            return pause
        if config.initial_delay is not None:
            return config.initial_delay
        if config.pause_sources_until_first_checkpoint:
            return pause + draw * pause
        return pause + draw * ((effective_interval(config) or pause) - pause)

    def stopped(self) -> PeriodicScheduler:
        """Return the scheduler stopped; its knowledge of backlogs stays."""
        return replace(self, is_on=False, next_at=None)

    def is_due(self, now: float) -> bool:
        """True when it is time for a periodic checkpoint."""
        return self.is_on and self.next_at is not None and self.next_at <= now

    def fired(self, config: CheckpointConfig) -> PeriodicScheduler:
        """Return the scheduler after a fire: the next is planned from the planned time, so there is no drift.

        During a backlog without checkpoints it parks.
        """
        interval = self.interval(config)
        if interval is None or self.next_at is None:
            return replace(self, next_at=None)
        return replace(self, next_at=self.next_at + interval)

    def retried(self, *, now: float, retry_in: float) -> PeriodicScheduler:
        """Return the scheduler re-armed after a request came within the minimum pause."""
        return replace(self, next_at=now + retry_in) if self.is_on else self

    def with_backlog(
        self, stages: frozenset[StageUid], config: CheckpointConfig, *, now: float
    ) -> PeriodicScheduler:
        """Return the scheduler after stages began or ended a backlog; the planned time only ever moves closer."""
        changed = replace(self, backlog=stages)
        interval = changed.interval(config)
        if not self.is_on or interval is None:
            return changed
        if self.next_at is None or now + interval < self.next_at:
            return replace(changed, next_at=now + interval)
        return changed


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
