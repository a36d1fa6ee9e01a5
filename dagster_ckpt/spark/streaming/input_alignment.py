"""The inputs of one stage: feeds what arrives in them to the barrier handler, and hands on what that decides."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

from dagster_ckpt.core.alignment import (
    AlignmentEffect,
    Announcement,
    ArmTimer,
    Barrier,
    BarrierEvent,
    BarrierHandler,
    Block,
    CancelMarker,
    CancelTimer,
    Close,
    Decline,
    ForwardCancel,
    InFlightComplete,
    PullForward,
    TimerFired,
    TriggerSnapshot,
    Unblock,
    handler_for,
)
from dagster_ckpt.core.config import CheckpointConfig, CheckpointingMode
from dagster_ckpt.core.ids import CheckpointId, LogPosition, StageUid
from dagster_ckpt.spark.channel.entries import BarrierEntry, CancelEntry, EndEntry
from dagster_ckpt.spark.channel.positions import CommittedBatches
from dagster_ckpt.spark.streaming.channels import InputChannel, Mark

log = logging.getLogger("dagster_ckpt.stage")


@dataclass(frozen=True, slots=True)
class Passed:
    """The readers need not stand on this checkpoint's barrier any longer."""

    checkpoint_id: CheckpointId


Aligned: TypeAlias = TriggerSnapshot | InFlightComplete | Decline | ForwardCancel | Passed
"""What the alignment asks of the rest of the stage."""


@dataclass(kw_only=True)
class InputAlignment:
    """Looks, blocks, arms timers; used by the barrier loop's thread only."""

    uid: StageUid
    config: CheckpointConfig
    batches: CommittedBatches
    inputs: Mapping[StageUid, InputChannel]
    """Empty for a source: nothing is ever aligned."""
    was_aborted: Callable[[CheckpointId], bool]
    decided: Callable[[Aligned, float], None]
    """Called with what was decided, and when."""
    blocked_since: dict[StageUid, float] = field(default_factory=dict)
    """Inputs that stand on a barrier, and since when."""
    _handler: BarrierHandler | None = None
    _timers: dict[CheckpointId, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.inputs:
            self._handler = handler_for(self.config, self.inputs)

    @property
    def holds(self) -> bool:
        """True where barriers hold the readers (exactly-once)."""
        return self.config.mode is CheckpointingMode.EXACTLY_ONCE

    def barriers_of(self, checkpoint_id: CheckpointId) -> dict[StageUid, LogPosition]:
        """Return where a checkpoint's barrier lies in each input it has arrived in."""
        return {
            uid: channel.barriers[checkpoint_id]
            for uid, channel in self.inputs.items()
            if checkpoint_id in channel.barriers
        }

    def sweep(self, now: float) -> bool:
        """Look at logs and commits, report what has come; True when something was decided."""
        decided = False
        committed = self.batches.look()
        for uid, channel in self.inputs.items():
            channel.reach(committed.positions[uid])
            for barrier in channel.look():
                decided |= self._announce(uid, barrier, now)
        for uid, channel in self.inputs.items():
            while (mark := channel.arrived() if self.holds else channel.arrived_or_passed()) is not None:
                decided = True
                self._arrived(uid, mark, now)
        for number in [n for n, at in self._timers.items() if at <= now]:
            del self._timers[number]
            self._hear(TimerFired(checkpoint_id=number), now)
            decided = True
        return decided

    def end(self, checkpoint_id: CheckpointId, now: float) -> None:
        """Stop waiting for barriers of a checkpoint that is over; its later barriers are passed."""
        handler = self._handler
        if handler is not None and self._current() == checkpoint_id and handler.is_checkpoint_pending:
            self._hear(CancelMarker(channel=next(iter(self.inputs)), checkpoint_id=checkpoint_id), now)

    def forget_below(self, checkpoint_id: CheckpointId) -> None:
        """Drop what is known of barriers of older checkpoints."""
        for channel in self.inputs.values():
            channel.forget_below(checkpoint_id)

    def close(self, now: float) -> None:
        """Stop deciding: the attempt ends."""
        self._hear(Close(), now)

    # --- what the handler hears -----------------------------------------------------------------------------------

    def _announce(self, uid: StageUid, barrier: BarrierEntry, now: float) -> bool:
        if not (self.holds and self.config.unaligned):
            return False
        log.debug(
            "%s: Received barrier announcement from channel %s @ %d.", self.uid, uid, barrier.checkpoint_id
        )
        self._hear(
            Announcement(
                channel=uid,
                checkpoint_id=barrier.checkpoint_id,
                timestamp=barrier.timestamp,
                options=barrier.options,
            ),
            now,
        )
        return True

    def _arrived(self, uid: StageUid, mark: Mark, now: float) -> None:
        match mark:
            case BarrierEntry():
                self._barrier(uid, mark, now)
            case CancelEntry():
                self._hear(CancelMarker(channel=uid, checkpoint_id=mark.checkpoint_id), now)
            case EndEntry():
                pass  # a bounded source passes barriers on after its end
            case _:
                assert_never(mark)

    def _barrier(self, uid: StageUid, barrier: BarrierEntry, now: float) -> None:
        if self.was_aborted(barrier.checkpoint_id):
            # Not every input need bring this barrier: nobody may wait for it.
            self._hear(CancelMarker(channel=uid, checkpoint_id=barrier.checkpoint_id), now)
            self._unblock(uid, now)
            return
        log.debug("%s: Received barrier from channel %s @ %d.", self.uid, uid, barrier.checkpoint_id)
        self._hear(
            Barrier(
                channel=uid,
                checkpoint_id=barrier.checkpoint_id,
                timestamp=barrier.timestamp,
                options=barrier.options,
            ),
            now,
        )

    def _hear(self, event: BarrierEvent, now: float) -> None:
        if self._handler is None:
            return
        turn = self._handler.on(event, now=now)
        self._handler = turn.handler
        for effect in turn.effects:
            self._act(effect, now)

    # --- what it decides ------------------------------------------------------------------------------------------

    def _act(self, effect: AlignmentEffect, now: float) -> None:
        match effect:
            case Block(channel):
                self.blocked_since[StageUid(str(channel))] = now
            case Unblock(channel):
                self._unblock(StageUid(str(channel)), now)
            case PullForward(channel):
                self._pull_forward(StageUid(str(channel)), now)
            case ArmTimer():
                self._timers[effect.checkpoint_id] = effect.at
            case CancelTimer(checkpoint_id):
                self._timers.pop(checkpoint_id, None)
            case TriggerSnapshot() | InFlightComplete() | Decline() | ForwardCancel():
                self.decided(effect, now)
            case _:
                assert_never(effect)

    def _unblock(self, uid: StageUid, now: float) -> None:
        channel = self.inputs[uid]
        barrier, channel.standing_on = channel.standing_on, None
        self.blocked_since.pop(uid, None)
        number = barrier.checkpoint_id if barrier is not None else self._current()
        if number is not None:
            self.decided(Passed(number), now)

    def _current(self) -> CheckpointId | None:
        return None if self._handler is None else self._handler.latest_checkpoint_id

    def _pull_forward(self, uid: StageUid, now: float) -> None:
        number = self._current()
        barrier = None if number is None else self.inputs[uid].pulled_forward(number)
        if barrier is not None:
            self._barrier(uid, barrier, now)
