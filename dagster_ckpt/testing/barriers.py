"""BarrierHarness: the input side of one stage, for scenarios about aligned and unaligned barriers.

The barrier handler is the real one (``core/alignment``); the test plays its channels, numbered from 0::

    b = BarrierHarness(3)                     # exactly once, always aligned
    b.barriers((1, 0), (1, 2))
    assert b.blocked == {0, 2}
    b.barrier(1, 1)
    assert (b.triggered, b.blocked) == ([1], set())

What it triggers is a stage's part of a checkpoint; ``SubtaskHarness`` is that side of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

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
    Channel,
    Close,
    Decline,
    EndOfPartition,
    ForwardCancel,
    InFlightComplete,
    PullForward,
    TimerFired,
    TriggerSnapshot,
    Unblock,
    handler_for,
    options_for,
)
from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.ids import checkpoint_id
from dagster_ckpt.core.messages import Alignment, BarrierOptions, CheckpointFailureReason
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.errors import InvalidRequest

ALIGNED = BarrierOptions()
"""A barrier that is always aligned."""
UNALIGNED = BarrierOptions(alignment=Alignment.UNALIGNED)
AT_LEAST_ONCE = BarrierOptions(alignment=Alignment.AT_LEAST_ONCE)
SAVEPOINT = BarrierOptions(kind=CheckpointKind.SAVEPOINT)
"""A savepoint's barrier: aligned, never timed out."""


def timeoutable(seconds: float) -> BarrierOptions:
    """Return the options of a barrier that turns unaligned when its alignment takes longer than this."""
    return BarrierOptions(aligned_timeout_ms=seconds * 1000)


class BarrierHarness:
    """Channels of one stage under a barrier handler. ``settings`` are those of CheckpointConfig.

    Barriers carry what the settings say (``unaligned``, ``aligned_checkpoint_timeout``, ``mode``), unless
    ``options`` says otherwise here or per barrier. Times are in seconds. Calls raise InvalidRequest for a channel that
    has ended or never was, for data of a channel that is held, for an id below 1, and for barriers the settings rule
    out.
    """

    def __init__(self, channels: int = 2, options: BarrierOptions | None = None, **settings: Any) -> None:
        config = CheckpointConfig.of(**settings)
        self.handler: BarrierHandler = handler_for(config, range(channels))
        self.options = options or options_for(CheckpointKind.CHECKPOINT, config)
        """What barriers carry."""
        self.now = 0.0
        """The time, in seconds."""
        self.made: dict[int, float] = {}
        """When each checkpoint's barrier was made; the first time it is named, unless the test says earlier."""
        self.blocked: set[Channel] = set()
        """Channels that are held."""
        self.notified: list[int] = []
        """What became of checkpoints, in order: their id for a snapshot, minus their id for a decline."""
        self.reasons: list[CheckpointFailureReason] = []
        """Why, for each decline."""
        self.forwarded: list[int] = []
        """Cancel markers put into the stage's own output."""
        self.snapshots: list[TriggerSnapshot] = []
        """Every snapshot with its numbers: start delay, alignment, which channels are recorded."""
        self.in_flight: list[InFlightComplete] = []
        """Unaligned checkpoints whose last barrier has arrived."""
        self.pulled: list[Channel] = []
        """Channels whose announced barrier was asked for ahead of the data before it."""
        self.timer: ArmTimer | None = None
        """The alignment timer, while it is armed."""
        self.delivered: list[Any] = []
        """What the stage has read, in order."""
        self.open_channels: set[Channel] = set(range(channels))
        """Channels that have not ended."""
        self._recording: dict[int, set[Channel]] = {}
        self._recorded: dict[int, dict[Channel, list[Any]]] = {}

    # --- what channels deliver ------------------------------------------------------------------------------

    def data(self, channel: int, *items: Any) -> None:
        """Let a channel's reader deliver items to the stage."""
        if channel in self.blocked:
            raise InvalidRequest(f"channel {channel} is held on its barrier: nothing is read from it")
        if channel not in self.open_channels:
            raise InvalidRequest(f"channel {channel!r} is not an open input of this stage")
        self._deliver(channel, items)

    def barrier(
        self,
        number: int,
        channel: int,
        options: BarrierOptions | None = None,
        *,
        overtaking: Sequence[Any] = (),
    ) -> tuple[AlignmentEffect, ...]:
        """Let a channel's reader reach a barrier; return the effects, in order.

        ``overtaking``: items it was seen ahead of (a barrier that was pulled forward); they are delivered behind it.
        """
        effects = self.send(Barrier(**self._sign(number, channel, options)))
        if overtaking:
            self._deliver(channel, overtaking)
        self._recording.get(number, set()).discard(channel)
        return effects

    def announce(
        self, number: int, channel: int, options: BarrierOptions | None = None
    ) -> tuple[AlignmentEffect, ...]:
        """Let a barrier be seen in a channel, ahead of data that is still to be read."""
        return self.send(Announcement(**self._sign(number, channel, options)))

    def barriers(self, *pairs: tuple[int, int]) -> None:
        """Let barriers arrive one after the other: (checkpoint, channel)."""
        for number, channel in pairs:
            self.barrier(number, channel)

    def cancel(self, number: int, channel: int) -> tuple[AlignmentEffect, ...]:
        """Let a cancel marker arrive."""
        return self.send(CancelMarker(channel=channel, checkpoint_id=checkpoint_id(number)))

    def end(self, channel: int) -> tuple[AlignmentEffect, ...]:
        """Let a channel end for good (end of partition)."""
        effects = self.send(EndOfPartition(channel=channel))
        self.open_channels.discard(channel)
        self.blocked.discard(channel)
        return effects

    def close(self) -> tuple[AlignmentEffect, ...]:
        """Let the stage stop reading."""
        return self.send(Close())

    def advance(self, seconds: float, *, fire: bool = True) -> tuple[AlignmentEffect, ...]:
        """Let time pass; a timer that is due fires, unless ``fire`` is False (then ``fire_timer`` does it)."""
        if seconds < 0:
            raise InvalidRequest(f"time does not run backwards: advance({seconds})")
        self.now += seconds
        return self.fire_timer() if fire else ()

    def fire_timer(self) -> tuple[AlignmentEffect, ...]:
        """Let the alignment timer fire if it is due."""
        if self.timer is None or self.timer.at > self.now:
            return ()
        due, self.timer = self.timer, None
        return self.send(TimerFired(checkpoint_id=due.checkpoint_id))

    def send(self, event: BarrierEvent) -> tuple[AlignmentEffect, ...]:
        """Give the handler any event, perform what it asks for, return that in order."""
        turn = self.handler.on(event, now=self.now)
        self.handler = turn.handler
        for effect in turn.effects:
            self._perform(effect)
        return turn.effects

    # --- what is read off it --------------------------------------------------------------------------------

    @property
    def triggered(self) -> list[int]:
        """Checkpoints whose snapshot was triggered, in order."""
        return [number for number in self.notified if number > 0]

    @property
    def aborted(self) -> list[int]:
        """Checkpoints that were declined, in order."""
        return [-number for number in self.notified if number < 0]

    @property
    def alignments(self) -> list[Alignment]:
        """Alignment with which each triggered snapshot was taken."""
        return [s.options.alignment for s in self.snapshots]

    def recorded(self, number: int) -> dict[Channel, list[Any]]:
        """Return the in-flight data stored with a checkpoint, by channel: read after its snapshot, before its barrier.

        Empty for an aligned checkpoint, and for one that was declined.
        """
        return {channel: items for channel, items in self._recorded.get(number, {}).items() if items}

    @property
    def is_pending(self) -> bool:
        """True while barriers of a checkpoint are awaited."""
        return self.handler.is_checkpoint_pending

    @property
    def latest(self) -> int | None:
        """The highest checkpoint seen."""
        return self.handler.latest_checkpoint_id

    # --- inside ---------------------------------------------------------------------------------------------

    def _sign(self, number: int, channel: int, options: BarrierOptions | None) -> dict[str, Any]:
        return {
            "channel": channel,
            "checkpoint_id": checkpoint_id(number),
            "timestamp": self.made.setdefault(number, self.now),
            "options": options or self.options,
        }

    def _deliver(self, channel: Channel, items: Sequence[Any]) -> None:
        self.delivered += items
        for number, channels in self._recording.items():
            if channel in channels:
                self._recorded[number][channel] += items

    def _perform(self, effect: AlignmentEffect) -> None:
        match effect:
            case Block(channel):
                self.blocked.add(channel)
            case Unblock(channel):
                self.blocked.discard(channel)
            case TriggerSnapshot():
                self.notified.append(effect.checkpoint_id)
                self.snapshots.append(effect)
                self._recording[effect.checkpoint_id] = set(effect.recording)
                self._recorded[effect.checkpoint_id] = defaultdict(list)
            case InFlightComplete():
                self.in_flight.append(effect)
            case Decline(number, reason):
                self.notified.append(-number)
                self.reasons.append(reason)
                self._recording.pop(number, None)
                self._recorded.pop(number, None)
            case ForwardCancel(number):
                self.forwarded.append(number)
            case PullForward(channel):
                self.pulled.append(channel)
            case ArmTimer():
                assert self.timer is None, "a timer was armed twice"
                self.timer = effect
            case CancelTimer():
                assert self.timer is not None, "a timer was canceled that was not armed"
                self.timer = None
