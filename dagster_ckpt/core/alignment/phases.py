"""The two ways one checkpoint can be pending at a stage's inputs, and the switch from one to the other.

Aligned: arrived channels are held until all have arrived, then the snapshot is taken. Unaligned: the
snapshot is taken at the first barrier and nothing is held. Sources: flink-runtime
AbstractAlternatingAlignedBarrierHandlerState and its siblings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from dagster_ckpt.core.alignment.events import (
    AlignmentEffect,
    Announcement,
    Barrier,
    Block,
    Channel,
    InFlightComplete,
    PullForward,
    TriggerSnapshot,
    Unblock,
    as_unaligned,
    is_timeoutable,
    is_unaligned,
)
from dagster_ckpt.core.ids import CheckpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignmentCount:
    """The count of one alignment. A channel that ended counts once, whether or not its barrier had come."""

    open_channels: frozenset[Channel]
    current: CheckpointId | None = None
    """Highest checkpoint seen, by barrier, announcement or cancel marker."""
    over: CheckpointId | None = None
    """Highest checkpoint completed or given up."""
    barrier: Barrier | Announcement | None = None
    """First sign of the pending checkpoint."""
    arrived: frozenset[Channel] = frozenset()
    awaited: frozenset[Channel] = frozenset()
    """Channels that were open when the pending checkpoint began."""
    first_arrival: float = 0.0
    timer: CheckpointId | None = None

    @property
    def is_pending(self) -> bool:
        """True while barriers of the current checkpoint are awaited."""
        return self.current is not None and self.current != self.over

    @property
    def is_complete(self) -> bool:
        """True when every awaited channel has delivered."""
        return self.is_pending and self.arrived >= self.awaited

    @property
    def missing(self) -> frozenset[Channel]:
        """Channels whose barrier is still to come."""
        return self.awaited - self.arrived

    def is_obsolete(self, checkpoint_id: CheckpointId) -> bool:
        """Return True for a barrier that comes too late to matter."""
        if self.current is None or checkpoint_id > self.current:
            return False
        return checkpoint_id < self.current or not self.is_pending

    def begin(self, barrier: Barrier | Announcement) -> AlignmentCount:
        """Return the count of a new checkpoint."""
        return replace(
            self,
            current=barrier.checkpoint_id,
            barrier=barrier,
            arrived=frozenset(),
            awaited=self.open_channels,
        )

    def arrive(self, channel: Channel, now: float) -> AlignmentCount:
        """Return the count with one channel more."""
        first = self.first_arrival if self.arrived else now
        return replace(self, arrived=self.arrived | {channel}, first_arrival=first)

    def finish(self) -> AlignmentCount:
        """Return the state after the pending checkpoint is done."""
        return replace(
            self, over=self.current, barrier=None, arrived=frozenset(), awaited=frozenset(), timer=None
        )

    def give_up(self, checkpoint_id: CheckpointId) -> AlignmentCount:
        """Return the state after ``checkpoint_id`` was given up: later barriers of it are obsolete."""
        highest = max(checkpoint_id, self.current or checkpoint_id)
        return replace(
            self,
            current=highest,
            over=max(checkpoint_id, self.over or checkpoint_id),
            barrier=None,
            arrived=frozenset(),
            awaited=frozenset(),
            timer=None,
        )

    def without(self, channel: Channel) -> AlignmentCount:
        """Return the state with ``channel`` closed."""
        return replace(self, open_channels=self.open_channels - {channel})


def deadline(barrier: Barrier | Announcement) -> float | None:
    """Return when the barrier turns unaligned; it counts from its making, so delays upstream count too."""
    if not is_timeoutable(barrier.options) or barrier.options.aligned_timeout_ms is None:
        return None
    return barrier.timestamp + barrier.options.aligned_timeout_ms / 1000


@dataclass(frozen=True, slots=True)
class Outcome:
    """Phase to go on with, what to do, and whether the checkpoint is done here."""

    phase: Phase
    effects: tuple[AlignmentEffect, ...] = ()
    finished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedPhase:
    """Nothing pending, or channels being held until the last barrier."""

    blocked: frozenset[Channel] = frozenset()
    announced: frozenset[Channel] = frozenset()
    """Channels whose barrier has been seen ahead and is not reached yet."""
    collecting: bool = False
    """A barrier has been reached, by a channel that may have ended since: a time-out triggers at once."""

    def barrier(self, barrier: Barrier, progress: AlignmentCount, now: float) -> Outcome:
        """``progress`` counts the barrier already."""
        mine = replace(self, announced=self.announced - {barrier.channel})
        if is_unaligned(barrier.options):
            return _then(mine.switch(progress, now), barrier, progress, now)
        standing = replace(mine, blocked=mine.blocked | {barrier.channel}, collecting=True)
        if progress.is_complete:
            return standing.complete(progress, now)
        if _is_late(barrier, now):
            return _then(standing.switch(progress, now), barrier, progress, now)
        return Outcome(standing, (Block(barrier.channel),))

    def announcement(self, announcement: Announcement, progress: AlignmentCount, now: float) -> Outcome:
        """Remember it, or switch when its time is over already."""
        mine = replace(self, announced=self.announced | {announcement.channel})
        if is_unaligned(announcement.options) or _is_late(announcement, now):
            return mine.switch(progress, now)
        return Outcome(mine)

    def end(self, channel: Channel, progress: AlignmentCount, now: float) -> Outcome:
        """``progress`` counts the ended channel already; its time may be over though no timer has fired yet
        (ALT#testTimeoutAlignmentAfterReceivedEndOfPartition)."""
        mine = replace(self, blocked=self.blocked - {channel}, announced=self.announced - {channel})
        if progress.is_complete:
            return mine.complete(progress, now)
        if mine.collecting and _is_late(_pending(progress), now):
            return mine.switch(progress, now)
        return Outcome(mine)

    def complete(self, progress: AlignmentCount, now: float) -> Outcome:
        """Snapshot first, release after: what follows the barriers must not be in the snapshot."""
        pending = _pending(progress)
        trigger = TriggerSnapshot(
            checkpoint_id=pending.checkpoint_id,
            timestamp=pending.timestamp,
            options=pending.options,
            recording=frozenset(),
            start_delay=max(0.0, progress.first_arrival - pending.timestamp),
            alignment=now - progress.first_arrival,
        )
        return Outcome(AlignedPhase(), (trigger, *_release(self.blocked)), finished=True)

    def switch(self, progress: AlignmentCount, now: float) -> Outcome:
        """Go unaligned: pull announced barriers forward, and snapshot at once if a barrier is here
        already."""
        pulled = tuple(PullForward(channel) for channel in _ordered(self.announced))
        if not self.collecting:
            return Outcome(UnalignedPhase(pulled=self.announced), pulled)
        trigger = _trigger_unaligned(progress, standing=self.blocked)
        phase = UnalignedPhase(triggered=True, pulled=self.announced)
        return Outcome(phase, (trigger, *_release(self.blocked), *pulled))

    def abort(self) -> tuple[AlignmentEffect, ...]:
        """Release what was held."""
        return _release(self.blocked)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnalignedPhase:
    """The snapshot is taken at the first barrier; the rest is waited for, and nothing is held."""

    triggered: bool = False
    pulled: frozenset[Channel] = frozenset()
    """Channels whose barrier was asked for ahead of the data before it."""

    def barrier(self, barrier: Barrier, progress: AlignmentCount, now: float) -> Outcome:
        """``progress`` counts the barrier already."""
        effects: list[AlignmentEffect] = []
        if not self.triggered:
            ahead = is_unaligned(barrier.options) or barrier.channel in self.pulled
            standing: frozenset[Channel] = frozenset() if ahead else frozenset({barrier.channel})
            effects.append(_trigger_unaligned(progress, standing=standing))
        effects.append(Unblock(barrier.channel))
        return self._completed(effects, progress, now)

    def announcement(self, announcement: Announcement, progress: AlignmentCount, now: float) -> Outcome:
        """Ignore an announcement: an unaligned checkpoint need not wait for its barrier."""
        mine = replace(self, pulled=self.pulled | {announcement.channel})
        return Outcome(mine, (PullForward(announcement.channel),))

    def end(self, channel: Channel, progress: AlignmentCount, now: float) -> Outcome:
        """``progress`` counts the ended channel already."""
        if not progress.is_complete:
            return Outcome(self)
        missed = () if self.triggered else (_trigger_unaligned(progress, standing=frozenset()),)
        return self._completed([*missed], progress, now)

    def switch(self, progress: AlignmentCount, now: float) -> Outcome:
        """Change nothing: the checkpoint is unaligned already."""
        return Outcome(self)

    def abort(self) -> tuple[AlignmentEffect, ...]:
        """Nothing was held."""
        return ()

    def _completed(self, effects: list[AlignmentEffect], progress: AlignmentCount, now: float) -> Outcome:
        if not progress.is_complete:
            return Outcome(replace(self, triggered=True), tuple(effects))
        done = InFlightComplete(
            checkpoint_id=_pending(progress).checkpoint_id, alignment=now - progress.first_arrival
        )
        return Outcome(AlignedPhase(), (*effects, done), finished=True)


Phase: TypeAlias = AlignedPhase | UnalignedPhase


def _then(switched: Outcome, barrier: Barrier, progress: AlignmentCount, now: float) -> Outcome:
    """Let the phase switched to see the barrier that caused the switch, unless it was released with the
    rest."""
    released = {effect.channel for effect in switched.effects if isinstance(effect, Unblock)}
    after = switched.phase.barrier(barrier, progress, now)
    effects = tuple(e for e in after.effects if not (isinstance(e, Unblock) and e.channel in released))
    return Outcome(after.phase, (*switched.effects, *effects), after.finished)


def _trigger_unaligned(progress: AlignmentCount, *, standing: frozenset[Channel]) -> TriggerSnapshot:
    """``standing``: channels read up to their barrier, which have nothing in flight."""
    pending = _pending(progress)
    return TriggerSnapshot(
        checkpoint_id=pending.checkpoint_id,
        timestamp=pending.timestamp,
        options=as_unaligned(pending.options),
        recording=(progress.awaited & progress.open_channels) - standing,
        start_delay=max(0.0, progress.first_arrival - pending.timestamp),
        alignment=None,
    )


def _pending(progress: AlignmentCount) -> Barrier | Announcement:
    if progress.barrier is None:
        raise AssertionError("no checkpoint is pending")
    return progress.barrier


def _is_late(barrier: Barrier | Announcement, now: float) -> bool:
    """At the very moment it is due the timer fires; a barrier is late only after it (Controller#isTimedOut)."""
    due = deadline(barrier)
    return due is not None and due < now


def _release(channels: frozenset[Channel]) -> tuple[AlignmentEffect, ...]:
    return tuple(Unblock(channel) for channel in _ordered(channels))


def _ordered(channels: frozenset[Channel]) -> list[Channel]:
    return sorted(channels, key=repr)
