"""Requests for checkpoints: the only queue, the timer of periodic ones, and the stop with a savepoint; all values.

Sources: flink-runtime CheckpointRequestDecider (CheckpointRequestDeciderTest); the timer of CheckpointCoordinator
(CheckpointCoordinatorTriggeringTest, CheckpointIntervalDuringBacklogITCase);
StopWithSavepointTerminationHandlerImpl and …Manager (their tests are named in ours).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dagster_ckpt.core.checkpoint.tasks import StageStatus
from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.messages import CheckpointFailureReason
from dagster_ckpt.core.request import CheckpointProperties, CheckpointRequest
from dagster_ckpt.errors import InvalidRequest

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


@dataclass(frozen=True, slots=True)
class SavepointCreated:
    """The savepoint is complete; ``uri`` is its folder."""

    checkpoint_id: CheckpointId
    uri: str


@dataclass(frozen=True, slots=True)
class SavepointFailed:
    """There is no savepoint."""

    reason: CheckpointFailureReason
    message: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """Ending 1: the savepoint is complete and every stage finished."""

    uri: str


@dataclass(frozen=True, slots=True)
class NotStopped:
    """Ending 2: no savepoint; the pipeline runs on, periodic checkpoints are taken again."""

    reason: CheckpointFailureReason
    message: str


@dataclass(frozen=True, slots=True)
class StoppedBadly:
    """Ending 3: the savepoint is complete and kept, but stages ended otherwise: the run fails over, or has ended."""

    uri: str
    message: str


StopOutcome = Stopped | NotStopped | StoppedBadly


@dataclass(frozen=True, slots=True, kw_only=True)
class StopWithSavepoint:
    """State of a stop-with-savepoint; ``outcome`` follows from it and is None while it is open.

    The savepoint is judged before the end of the stages, whichever came first. After a failed savepoint it does
    not matter how the stages end.
    """

    checkpoint_id: CheckpointId | None = None
    savepoint: SavepointCreated | SavepointFailed | None = None
    terminal: Mapping[StageUid, StageStatus] | None = None
    """How each stage ended (the worst of its subtasks), once all have ended."""
    ended_badly: Mapping[StageUid, StageStatus] = field(default_factory=dict)
    """Stages that failed or were canceled since it began: how they end when they run again says nothing."""

    def with_savepoint(self, result: SavepointCreated | SavepointFailed) -> StopWithSavepoint:
        """Return the stop with its savepoint's result. Raises InvalidRequest when there already is a result."""
        if self.savepoint is not None:
            raise InvalidRequest(f"the result of this savepoint was given before ({self.savepoint})")
        return replace(self, savepoint=result)

    def with_bad_end(self, uid: StageUid, status: StageStatus) -> StopWithSavepoint:
        """Return the stop after a stage ended otherwise than by finishing; the first such end counts."""
        return replace(self, ended_badly={uid: status, **self.ended_badly})

    def with_terminal(self, statuses: Mapping[StageUid, StageStatus]) -> StopWithSavepoint:
        """Return the stop with how the stages ended. Raises InvalidRequest for a stage that has not."""
        alive = sorted(uid for uid, status in statuses.items() if not status.is_over)
        if alive:
            raise InvalidRequest(f"stage {alive[0]!r} has not ended: it is {statuses[alive[0]]}")
        return replace(self, terminal=dict(statuses))

    @property
    def outcome(self) -> StopOutcome | None:
        """The ending, or None while something is missing."""
        match self.savepoint:
            case None:
                return None
            case SavepointFailed(reason, message):
                return NotStopped(reason, message)
            case SavepointCreated(_, uri):
                return self._ending(uri)

    def _ending(self, uri: str) -> StopOutcome | None:
        if self.terminal is None:
            return None
        odd = {uid: s for uid, s in sorted(self.terminal.items()) if s is not StageStatus.FINISHED}
        if not odd:
            return Stopped(uri)
        listed = ", ".join(f"{uid} {status}" for uid, status in odd.items())
        return StoppedBadly(
            uri,
            f"The savepoint {uri} is complete and is kept, but not every stage finished ({listed}). "
            f"Restore from the savepoint to continue exactly where it stopped.",
        )
