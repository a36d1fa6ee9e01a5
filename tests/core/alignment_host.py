"""A small host for barrier handlers: feeds events, performs effects, remembers what happened."""

from __future__ import annotations

from dataclasses import dataclass, field

from dagster_ckpt.core.alignment import (
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
    Effect,
    EndOfPartition,
    ForwardCancel,
    InFlightComplete,
    PullForward,
    TimerFired,
    TriggerSnapshot,
    Unblock,
    handler_for,
)
from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.messages import Alignment, BarrierOptions
from dagster_ckpt.core.reasons import CheckpointFailureReason

ALIGNED = BarrierOptions()
UNALIGNED = BarrierOptions(alignment=Alignment.UNALIGNED)
AT_LEAST_ONCE = BarrierOptions(alignment=Alignment.AT_LEAST_ONCE)


def timeoutable(seconds: float) -> BarrierOptions:
    return BarrierOptions(aligned_timeout_ms=seconds * 1000)


@dataclass
class Host:
    """Channels are numbered from 0. ``notified`` holds +id for a snapshot, -id for a decline, in order."""

    handler: BarrierHandler
    options: BarrierOptions = ALIGNED
    now: float = 0.0
    made: dict[int, float] = field(default_factory=dict)
    blocked: set[object] = field(default_factory=set)
    notified: list[int] = field(default_factory=list)
    reasons: list[CheckpointFailureReason] = field(default_factory=list)
    forwarded: list[int] = field(default_factory=list)
    snapshots: list[TriggerSnapshot] = field(default_factory=list)
    complete: list[InFlightComplete] = field(default_factory=list)
    pulled: list[object] = field(default_factory=list)
    timer: ArmTimer | None = None

    @classmethod
    def of(cls, channels: int, options: BarrierOptions = ALIGNED, **config: object) -> Host:
        settings = CheckpointConfig.of(**config)
        return cls(handler_for(settings, range(channels)), options=options)

    def send(self, event: BarrierEvent) -> tuple[Effect, ...]:
        turn = self.handler.on(event, now=self.now)
        self.handler = turn.handler
        for effect in turn.effects:
            self._perform(effect)
        return turn.effects

    def barrier(self, number: int, channel: int, options: BarrierOptions | None = None) -> tuple[Effect, ...]:
        return self.send(
            Barrier(
                channel=channel,
                checkpoint_id=CheckpointId(number),
                timestamp=self.made.setdefault(number, self.now),
                options=options or self.options,
            )
        )

    def announce(
        self, number: int, channel: int, options: BarrierOptions | None = None
    ) -> tuple[Effect, ...]:
        return self.send(
            Announcement(
                channel=channel,
                checkpoint_id=CheckpointId(number),
                timestamp=self.made.setdefault(number, self.now),
                options=options or self.options,
            )
        )

    def barriers(self, *pairs: tuple[int, int]) -> None:
        for number, channel in pairs:
            self.barrier(number, channel)

    def cancel(self, number: int, channel: int) -> tuple[Effect, ...]:
        return self.send(CancelMarker(channel=channel, checkpoint_id=CheckpointId(number)))

    def end(self, channel: int) -> tuple[Effect, ...]:
        return self.send(EndOfPartition(channel=channel))

    def close(self) -> tuple[Effect, ...]:
        return self.send(Close())

    def advance(self, seconds: float) -> tuple[Effect, ...]:
        """Let time pass; a timer that is due fires."""
        self.now += seconds
        if self.timer is None or self.timer.at > self.now:
            return ()
        due, self.timer = self.timer, None
        return self.send(TimerFired(checkpoint_id=due.checkpoint_id))

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Block(channel):
                self.blocked.add(channel)
            case Unblock(channel):
                self.blocked.discard(channel)
            case TriggerSnapshot():
                self.notified.append(effect.checkpoint_id)
                self.snapshots.append(effect)
            case InFlightComplete():
                self.complete.append(effect)
            case Decline(checkpoint_id, reason):
                self.notified.append(-checkpoint_id)
                self.reasons.append(reason)
            case ForwardCancel(checkpoint_id):
                self.forwarded.append(checkpoint_id)
            case PullForward(channel):
                self.pulled.append(channel)
            case ArmTimer():
                assert self.timer is None, "a timer was armed twice"
                self.timer = effect
            case CancelTimer():
                assert self.timer is not None, "a timer was cancelled that was not armed"
                self.timer = None
