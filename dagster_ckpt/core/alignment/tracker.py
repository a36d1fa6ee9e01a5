"""At-least-once: several checkpoints are counted at a time and no channel is ever held.

Source: flink-runtime CheckpointBarrierTracker, CheckpointBarrierTrackerTest.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import assert_never

from dagster_ckpt.core.alignment.events import (
    AlignmentEffect,
    Announcement,
    Barrier,
    BarrierAnswer,
    BarrierEvent,
    BarrierHandler,
    CancelMarker,
    Channel,
    Close,
    Decline,
    EndOfPartition,
    ForwardCancel,
    TimerFired,
    TriggerSnapshot,
    Unblock,
    check_options,
    is_unaligned,
)
from dagster_ckpt.core.alignment.phases import AlignmentCount
from dagster_ckpt.core.alignment.single import AfterEnd, SingleCheckpointHandler, Switching
from dagster_ckpt.core.config import CheckpointConfig, CheckpointingMode
from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.messages import CheckpointFailureReason as Reason
from dagster_ckpt.errors import InvalidRequest

MAX_TRACKED = 50
"""Checkpoints counted at once; the oldest is dropped silently when there are more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Count:
    checkpoint_id: CheckpointId
    barrier: Barrier | None
    """None: known by a cancel marker only."""
    arrived: frozenset[Channel]
    awaited: frozenset[Channel]
    started: float
    aborted: bool = False

    @property
    def is_complete(self) -> bool:
        return self.arrived >= self.awaited

    def with_channel(self, channel: Channel) -> _Count:
        return replace(self, arrived=self.arrived | {channel})


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTracker:
    """Counts barriers; triggers a checkpoint when its last one arrives, which drops all older counts."""

    open_channels: frozenset[Channel]
    after_end: AfterEnd = AfterEnd.COUNTS_AS_BARRIER
    counts: tuple[_Count, ...] = ()
    """Oldest first; aborted ones stay until all their barriers have been seen."""
    latest: CheckpointId | None = None
    """Highest checkpoint ever counted."""
    closed: bool = False

    @property
    def latest_checkpoint_id(self) -> CheckpointId | None:
        """Newest checkpoint being counted."""
        return self.counts[-1].checkpoint_id if self.counts else None

    @property
    def is_checkpoint_pending(self) -> bool:
        """True while any checkpoint is counted."""
        return bool(self.counts)

    def on(self, event: BarrierEvent, *, now: float) -> BarrierAnswer:
        """Return the tracker after an event, and its effects.

        Raises InvalidRequest for an unknown or ended channel and for an unaligned barrier.
        """
        if self.closed:
            return BarrierAnswer(self)
        match event:
            case Barrier():
                self._check(event)
                turn = self._barrier(event, now)
                return BarrierAnswer(turn.handler, (*turn.effects, Unblock(event.channel)))
            case CancelMarker():
                self._check_channel(event.channel)
                return self._cancel_marker(event, now)
            case EndOfPartition():
                self._check_channel(event.channel)
                return self._end(event.channel, now)
            case Announcement() | TimerFired():
                return BarrierAnswer(self)
            case Close():
                return BarrierAnswer(replace(self, closed=True))
        assert_never(event)

    def _barrier(self, barrier: Barrier, now: float) -> BarrierAnswer:
        if self._takes_shortcut(barrier.checkpoint_id):
            return BarrierAnswer(replace(self, latest=barrier.checkpoint_id), (_trigger(barrier, now, now),))
        known = next((c for c in self.counts if c.checkpoint_id == barrier.checkpoint_id), None)
        if known is not None:
            return self._arrived(known, barrier.channel, now)
        if self.latest is not None and barrier.checkpoint_id <= self.latest:
            return BarrierAnswer(self)
        count = _Count(
            checkpoint_id=barrier.checkpoint_id,
            barrier=barrier,
            arrived=frozenset({barrier.channel}),
            awaited=self.open_channels,
            started=now,
        )
        counts = (*self.counts, count)[-MAX_TRACKED:]
        return BarrierAnswer(replace(self, counts=counts, latest=barrier.checkpoint_id))

    def _arrived(self, known: _Count, channel: Channel, now: float) -> BarrierAnswer:
        count = known.with_channel(channel)
        if count.is_complete:
            return self._completed(count, now)
        return BarrierAnswer(replace(self, counts=tuple(count if c is known else c for c in self.counts)))

    def _completed(self, count: _Count, now: float) -> BarrierAnswer:
        """Drop this count and all older ones, which are subsumed; trigger unless it was aborted."""
        left = tuple(c for c in self.counts if c.checkpoint_id > count.checkpoint_id)
        effects: tuple[AlignmentEffect, ...] = ()
        if count.barrier is not None and not count.aborted:
            effects = (_trigger(count.barrier, count.started, now),)
        return BarrierAnswer(replace(self, counts=left), effects)

    def _cancel_marker(self, marker: CancelMarker, now: float) -> BarrierAnswer:
        canceled = marker.checkpoint_id
        if self._takes_shortcut(canceled):
            return BarrierAnswer(replace(self, latest=canceled), _given_up(canceled))
        effects: list[AlignmentEffect] = []
        for older in self.counts:
            if older.checkpoint_id <= canceled and not older.aborted:
                effects += _given_up(older.checkpoint_id)
        left = tuple(c for c in self.counts if c.checkpoint_id > canceled)
        known = next((c for c in self.counts if c.checkpoint_id == canceled), None)
        if known is not None:
            count = replace(known.with_channel(marker.channel), aborted=True)
            kept = left if count.is_complete else (count, *left)
            return BarrierAnswer(replace(self, counts=kept), tuple(effects))
        if self.latest is not None and canceled <= self.latest:
            return BarrierAnswer(replace(self, counts=left), tuple(effects))
        count = _Count(
            checkpoint_id=canceled,
            barrier=None,
            arrived=frozenset({marker.channel}),
            awaited=self.open_channels,
            started=now,
            aborted=True,
        )
        return BarrierAnswer(
            replace(self, counts=(count, *left), latest=canceled), (*effects, *_given_up(canceled))
        )

    def _end(self, channel: Channel, now: float) -> BarrierAnswer:
        left = replace(self, open_channels=self.open_channels - {channel})
        match self.after_end:
            case AfterEnd.ABORTS:
                effects: list[AlignmentEffect] = []
                for count in self.counts:
                    if not count.aborted:
                        effects += _given_up(
                            count.checkpoint_id, Reason.CHECKPOINT_DECLINED_INPUT_END_OF_STREAM
                        )
                return BarrierAnswer(replace(left, counts=()), tuple(effects))
            case AfterEnd.COUNTS_AS_BARRIER:
                counts = tuple(count.with_channel(channel) for count in self.counts)
                counted = replace(left, counts=counts)
                newest = next((count for count in reversed(counts) if count.is_complete), None)
                return BarrierAnswer(counted) if newest is None else counted._completed(newest, now)
        assert_never(self.after_end)

    def _takes_shortcut(self, checkpoint_id: CheckpointId) -> bool:
        """One open channel needs no count, except for a checkpoint begun while there were more."""
        return len(self.open_channels) == 1 and (self.latest is None or checkpoint_id > self.latest)

    def _check(self, barrier: Barrier) -> None:
        self._check_channel(barrier.channel)
        check_options(barrier.options)
        if is_unaligned(barrier.options):
            raise InvalidRequest("an unaligned barrier reached a stage that reads at least once")

    def _check_channel(self, channel: Channel) -> None:
        if channel not in self.open_channels:
            raise InvalidRequest(f"channel {channel!r} is not an open input of this stage")


def _trigger(barrier: Barrier, started: float, now: float) -> TriggerSnapshot:
    return TriggerSnapshot(
        checkpoint_id=barrier.checkpoint_id,
        timestamp=barrier.timestamp,
        options=barrier.options,
        recording=frozenset(),
        start_delay=max(0.0, started - barrier.timestamp),
        alignment=now - started,
    )


def _given_up(
    checkpoint_id: CheckpointId, reason: Reason = Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER
) -> tuple[AlignmentEffect, ...]:
    return (Decline(checkpoint_id, reason), ForwardCancel(checkpoint_id))


def handler_for(config: CheckpointConfig, channels: Collection[Channel]) -> BarrierHandler:
    """Return the handler of a stage with these input channels (Flink: ``createCheckpointBarrierHandler``).

    Raises InvalidRequest without a channel, and for unaligned checkpoints with at-least-once, which hold no
    channel and so have no alignment to shorten.
    """
    if not channels:
        raise InvalidRequest("a stage without input channels is triggered directly, it aligns nothing")
    names = frozenset(channels)
    after_end = AfterEnd.COUNTS_AS_BARRIER if config.checkpoints_after_tasks_finish else AfterEnd.ABORTS
    match config.mode:
        case CheckpointingMode.AT_LEAST_ONCE:
            if config.unaligned:
                raise InvalidRequest("unaligned checkpoints need mode = exactly_once")
            return CheckpointTracker(open_channels=names, after_end=after_end)
        case CheckpointingMode.EXACTLY_ONCE:
            switching = Switching.ALTERNATING if config.unaligned else Switching.ALIGNED_ONLY
            return SingleCheckpointHandler(
                progress=AlignmentCount(open_channels=names), switching=switching, after_end=after_end
            )
    assert_never(config.mode)
