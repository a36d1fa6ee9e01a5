"""Inputs and effects of a barrier handler."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.messages import BarrierOptions
from dagster_ckpt.core.reasons import CheckpointFailureReason

Channel: TypeAlias = Hashable
"""Name of an input channel, whatever the host uses."""

# --- in -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """The reader of ``channel`` stands on this barrier."""

    channel: Channel
    checkpoint_id: CheckpointId
    timestamp: float
    """When the barrier was made, at the coordinator."""
    options: BarrierOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """A barrier has been seen in ``channel``, ahead of data that is still to be read."""

    channel: Channel
    checkpoint_id: CheckpointId
    timestamp: float
    options: BarrierOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelMarker:
    """Upstream gave this checkpoint up: no barrier of it follows on ``channel``."""

    channel: Channel
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOfPartition:
    """``channel`` has ended for good."""

    channel: Channel


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired:
    """The time asked for with ``ArmTimer`` has come."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class Close:
    """The stage stops reading: nothing may happen any more."""


BarrierEvent = Barrier | Announcement | CancelMarker | EndOfPartition | TimerFired | Close

# --- out ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Block:
    """Leave the reader of ``channel`` standing on its barrier."""

    channel: Channel


@dataclass(frozen=True, slots=True)
class Unblock:
    """Let the reader of ``channel`` pass the barrier it stands on."""

    channel: Channel


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerSnapshot:
    """Take the stage's part of the checkpoint now (barrier into the own output first)."""

    checkpoint_id: CheckpointId
    timestamp: float
    options: BarrierOptions
    """``alignment`` says how it really is: UNALIGNED where a time-out turned it."""
    recording: frozenset[Channel]
    """Channels whose data up to their barrier belongs to the snapshot; empty when aligned."""
    start_delay: float
    """Seconds from the making of the barrier to its first arrival here."""
    alignment: float | None
    """Seconds from the first to the last barrier; None: still going on (see InFlightComplete)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightComplete:
    """All barriers of an unaligned checkpoint have arrived: its in-flight data is complete."""

    checkpoint_id: CheckpointId
    alignment: float


@dataclass(frozen=True, slots=True)
class Decline:
    """Tell the coordinator that the stage cannot take its part, and drop what was recorded."""

    checkpoint_id: CheckpointId
    reason: CheckpointFailureReason


@dataclass(frozen=True, slots=True)
class ForwardCancel:
    """Put a cancel marker into the stage's own output, so that downstream does not wait."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class PullForward:
    """Report the announced barrier of ``channel`` at once, ahead of the data before it."""

    channel: Channel


@dataclass(frozen=True, slots=True)
class ArmTimer:
    """Report ``TimerFired`` for this checkpoint when the clock reaches ``at``."""

    checkpoint_id: CheckpointId
    at: float


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """The timer that was armed is not wanted any more."""

    checkpoint_id: CheckpointId


AlignmentEffect = (
    Block
    | Unblock
    | TriggerSnapshot
    | InFlightComplete
    | Decline
    | ForwardCancel
    | PullForward
    | ArmTimer
    | CancelTimer
)


class BarrierHandler(Protocol):
    """Decides about barriers; a value that is replaced with every event."""

    @property
    def latest_checkpoint_id(self) -> CheckpointId | None:
        """Highest checkpoint seen."""
        ...

    @property
    def is_checkpoint_pending(self) -> bool:
        """True while barriers of a checkpoint are awaited."""
        ...

    def on(self, event: BarrierEvent, *, now: float) -> BarrierAnswer:
        """Return the handler after an event, and its effects. Raises InvalidRequest for an illegal event."""
        ...


@dataclass(frozen=True, slots=True)
class BarrierAnswer:
    """Answer to one event."""

    handler: BarrierHandler
    effects: tuple[AlignmentEffect, ...] = ()
