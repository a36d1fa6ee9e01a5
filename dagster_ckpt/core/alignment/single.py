"""Exactly-once: one checkpoint at a time, always aligned or aligned with a way out.

Source: flink-runtime SingleCheckpointBarrierHandler.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

from dagster_ckpt.core.alignment.events import (
    AlignmentEffect,
    Announcement,
    ArmTimer,
    Barrier,
    BarrierAnswer,
    BarrierEvent,
    CancelMarker,
    CancelTimer,
    Channel,
    Close,
    Decline,
    EndOfPartition,
    ForwardCancel,
    TimerFired,
    Unblock,
    check_options,
    is_unaligned,
)
from dagster_ckpt.core.alignment.phases import AlignedPhase, AlignmentCount, Outcome, Phase, deadline
from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.messages import Alignment
from dagster_ckpt.core.messages import CheckpointFailureReason as Reason
from dagster_ckpt.errors import InvalidRequest


class Switching(StrEnum):
    """Switching of a checkpoint from aligned to unaligned."""

    ALIGNED_ONLY = "aligned_only"
    ALTERNATING = "alternating"


class AfterEnd(StrEnum):
    """Meaning of an ended input for a pending checkpoint."""

    COUNTS_AS_BARRIER = "counts_as_barrier"
    ABORTS = "aborts"
    """Checkpoints after tasks finish are off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleCheckpointHandler:
    """Tracks exactly one checkpoint: a newer one supersedes it."""

    progress: AlignmentCount
    switching: Switching = Switching.ALIGNED_ONLY
    after_end: AfterEnd = AfterEnd.COUNTS_AS_BARRIER
    phase: Phase = AlignedPhase()  # noqa: RUF009 - frozen, without fields that change
    closed: bool = False

    @property
    def latest_checkpoint_id(self) -> CheckpointId | None:
        """Highest checkpoint seen."""
        return self.progress.current

    @property
    def is_checkpoint_pending(self) -> bool:
        """True while barriers of a checkpoint are awaited."""
        return self.progress.is_pending

    def on(self, event: BarrierEvent, *, now: float) -> BarrierAnswer:
        """Return the handler after an event, and its effects.

        Raises InvalidRequest for an unknown or ended channel and for a barrier this handler cannot take.
        """
        if self.closed:
            return BarrierAnswer(self)
        match event:
            case Barrier():
                turn = self._barrier(event, now)
            case Announcement():
                turn = self._announcement(event, now)
            case CancelMarker():
                turn = self._cancel_marker(event)
            case EndOfPartition():
                turn = self._end(event.channel, now)
            case TimerFired():
                turn = self._timer(event.checkpoint_id, now)
            case Close():
                idle = replace(self.progress, timer=None)
                turn = BarrierAnswer(replace(self, closed=True, progress=idle), self._cancel_timer())
            case _:
                assert_never(event)
        return turn

    # --- one event each ------------------------------------------------------------------------

    def _barrier(self, barrier: Barrier, now: float) -> BarrierAnswer:
        self._check(barrier)
        if self.progress.is_obsolete(barrier.checkpoint_id):
            return BarrierAnswer(self, (Unblock(barrier.channel),))
        begun, effects = self._begun(barrier)
        if barrier.channel in begun.progress.arrived:
            return BarrierAnswer(begun, effects)
        progress = begun.progress.arrive(barrier.channel, now)
        return begun._after(begun.phase.barrier(barrier, progress, now), progress, effects, now)

    def _announcement(self, announcement: Announcement, now: float) -> BarrierAnswer:
        self._check(announcement)
        aligned_only = self.switching is Switching.ALIGNED_ONLY
        if aligned_only or self.progress.is_obsolete(announcement.checkpoint_id):
            return BarrierAnswer(self)
        begun, effects = self._begun(announcement)
        if announcement.channel in begun.progress.arrived:
            return BarrierAnswer(begun, effects)
        outcome = begun.phase.announcement(announcement, begun.progress, now)
        return begun._after(outcome, begun.progress, effects, now)

    def _cancel_marker(self, marker: CancelMarker) -> BarrierAnswer:
        self._check_channel(marker.channel)
        current = self.progress.current
        newer = current is None or marker.checkpoint_id > current
        if newer:
            left, effects = self._superseded()
            turn = left._aborted(marker.checkpoint_id, Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER)
            return BarrierAnswer(turn.handler, (*effects, *turn.effects))
        if marker.checkpoint_id == current and self.progress.is_pending:
            return self._aborted(marker.checkpoint_id, Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER)
        return BarrierAnswer(self)

    def _end(self, channel: Channel, now: float) -> BarrierAnswer:
        self._check_channel(channel)
        left = replace(self, progress=self.progress.without(channel))
        current = left.progress.current
        if current is None or not left.progress.is_pending:
            return BarrierAnswer(left)
        match self.after_end:
            case AfterEnd.ABORTS:
                return left._aborted(current, Reason.CHECKPOINT_DECLINED_INPUT_END_OF_STREAM)
            case AfterEnd.COUNTS_AS_BARRIER:
                progress = left.progress.arrive(channel, now)
                return left._after(left.phase.end(channel, progress, now), progress, (), now)
        assert_never(self.after_end)

    def _timer(self, checkpoint_id: CheckpointId, now: float) -> BarrierAnswer:
        if self.progress.timer != checkpoint_id or not self.progress.is_pending:
            return BarrierAnswer(self)
        progress = replace(self.progress, timer=None)
        return self._after(self.phase.switch(progress, now), progress, (), now)

    # --- shared steps --------------------------------------------------------------------------

    def _begun(
        self, sign: Barrier | Announcement
    ) -> tuple[SingleCheckpointHandler, tuple[AlignmentEffect, ...]]:
        """Begin the checkpoint that ``sign`` belongs to, unless it is pending; give up an older one
        first."""
        if self.progress.current == sign.checkpoint_id:
            return self, ()
        left, effects = self._superseded()
        return replace(left, progress=left.progress.begin(sign)), effects

    def _superseded(self) -> tuple[SingleCheckpointHandler, tuple[AlignmentEffect, ...]]:
        pending = self.progress.current
        if pending is None or not self.progress.is_pending:
            return self, ()
        left = self._left(pending)
        return left, self._abort_effects(pending, Reason.CHECKPOINT_DECLINED_SUBSUMED)

    def _aborted(self, checkpoint_id: CheckpointId, reason: Reason) -> BarrierAnswer:
        return BarrierAnswer(self._left(checkpoint_id), self._abort_effects(checkpoint_id, reason))

    def _left(self, checkpoint_id: CheckpointId) -> SingleCheckpointHandler:
        return replace(self, progress=self.progress.give_up(checkpoint_id), phase=AlignedPhase())

    def _abort_effects(self, checkpoint_id: CheckpointId, reason: Reason) -> tuple[AlignmentEffect, ...]:
        told: tuple[AlignmentEffect, ...] = (Decline(checkpoint_id, reason), ForwardCancel(checkpoint_id))
        return (*told, *self.phase.abort(), *self._cancel_timer())

    def _after(
        self, outcome: Outcome, progress: AlignmentCount, before: tuple[AlignmentEffect, ...], now: float
    ) -> BarrierAnswer:
        """Take over the outcome of a phase; keep a timer exactly while the checkpoint may still switch."""
        pending = not outcome.finished
        due = deadline(progress.barrier) if pending and progress.barrier is not None else None
        wanted = due is not None and isinstance(outcome.phase, AlignedPhase)
        timer: tuple[AlignmentEffect, ...] = ()
        if wanted and due is not None and progress.timer is None and progress.current is not None:
            timer = (ArmTimer(progress.current, max(due, now)),)
            progress = replace(progress, timer=progress.current)
        elif not wanted and progress.timer is not None:
            timer = (CancelTimer(progress.timer),)
            progress = replace(progress, timer=None)
        handler = replace(
            self, phase=outcome.phase, progress=progress.finish() if outcome.finished else progress
        )
        return BarrierAnswer(handler, (*before, *outcome.effects, *timer))

    def _cancel_timer(self) -> tuple[AlignmentEffect, ...]:
        return () if self.progress.timer is None else (CancelTimer(self.progress.timer),)

    def _check(self, barrier: Barrier | Announcement) -> None:
        self._check_channel(barrier.channel)
        check_options(barrier.options)
        if barrier.options.alignment is Alignment.AT_LEAST_ONCE:
            raise InvalidRequest("an at-least-once barrier reached a stage that reads exactly once")
        if self.switching is Switching.ALIGNED_ONLY and is_unaligned(barrier.options):
            raise InvalidRequest(
                "an unaligned barrier reached a stage for which unaligned checkpoints are off"
            )

    def _check_channel(self, channel: Channel) -> None:
        if channel not in self.progress.open_channels:
            raise InvalidRequest(f"channel {channel!r} is not an open input of this stage")
