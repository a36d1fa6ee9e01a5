"""Barriers: inputs and effects of their handlers, and their options, which are decided once at the trigger.

Source: flink-runtime CheckpointOptions (CheckpointOptionsTest).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from dagster_ckpt.core.config import CheckpointConfig, CheckpointingMode
from dagster_ckpt.core.ids import CheckpointId, OfCheckpoint
from dagster_ckpt.core.messages import Alignment, BarrierOptions, CheckpointFailureReason
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.errors import InvalidRequest


def options_for(kind: CheckpointKind, config: CheckpointConfig, *, target: str = "") -> BarrierOptions:
    """Return the options that the barriers of a new checkpoint carry.

    A savepoint is aligned and never times out; ``aligned_checkpoint_timeout`` 0 means unaligned at once.
    """
    if config.mode is CheckpointingMode.AT_LEAST_ONCE:
        return BarrierOptions(kind=kind, alignment=Alignment.AT_LEAST_ONCE, target=target)
    if kind.is_savepoint or not config.unaligned:
        return BarrierOptions(kind=kind, alignment=Alignment.ALIGNED, target=target)
    if config.aligned_checkpoint_timeout == 0:
        return BarrierOptions(kind=kind, alignment=Alignment.UNALIGNED, target=target)
    return BarrierOptions(
        kind=kind,
        alignment=Alignment.ALIGNED,
        aligned_timeout_ms=config.aligned_checkpoint_timeout * 1000,
        target=target,
    )


def check_options(options: BarrierOptions) -> None:
    """Raise InvalidRequest for a combination that no trigger makes."""
    if options.alignment is Alignment.UNALIGNED and options.kind.is_savepoint:
        raise InvalidRequest("a savepoint is never unaligned: it holds no in-flight data")
    timeout = options.aligned_timeout_ms
    if timeout is None:
        return
    if options.alignment not in (Alignment.ALIGNED, Alignment.FORCED_ALIGNED):
        raise InvalidRequest(f"a barrier that is {options.alignment} has no aligned timeout")
    if options.kind.is_savepoint:
        raise InvalidRequest("a savepoint is aligned however long it takes: it has no aligned timeout")
    if timeout < 0:
        raise InvalidRequest(f"the aligned timeout must not be negative, got {timeout} ms")


def is_unaligned(options: BarrierOptions) -> bool:
    """Return True where the snapshot is taken at the first barrier."""
    return options.alignment is Alignment.UNALIGNED


def is_timeoutable(options: BarrierOptions) -> bool:
    """Return True for aligned barriers that turn unaligned after a while."""
    return options.alignment is Alignment.ALIGNED and options.aligned_timeout_ms is not None


def as_unaligned(options: BarrierOptions) -> BarrierOptions:
    """Return the options after a time-out."""
    return replace(options, alignment=Alignment.UNALIGNED, aligned_timeout_ms=None)


def force_aligned(options: BarrierOptions) -> BarrierOptions:
    """Return the options for an edge that cannot carry in-flight data."""
    if options.alignment is Alignment.UNALIGNED or is_timeoutable(options):
        return replace(options, alignment=Alignment.FORCED_ALIGNED)
    return options


def with_unaligned_supported(options: BarrierOptions) -> BarrierOptions:
    """Undo ``force_aligned`` behind the edge: the next one may carry in-flight data again.

    Source: SubtaskCheckpointCoordinatorTest#testForceAlignedCheckpointResultingInPriorityEvents.
    """
    if options.alignment is not Alignment.FORCED_ALIGNED:
        return options
    timeoutable = options.aligned_timeout_ms is not None
    return replace(options, alignment=Alignment.ALIGNED if timeoutable else Alignment.UNALIGNED)


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


class TimerFired(OfCheckpoint):
    """The time asked for with ``ArmTimer`` has come."""


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


class ForwardCancel(OfCheckpoint):
    """Put a cancel marker into the stage's own output, so that downstream does not wait."""


@dataclass(frozen=True, slots=True)
class PullForward:
    """Report the announced barrier of ``channel`` at once, ahead of the data before it."""

    channel: Channel


@dataclass(frozen=True, slots=True)
class ArmTimer:
    """Report ``TimerFired`` for this checkpoint when the clock reaches ``at``."""

    checkpoint_id: CheckpointId
    at: float


class CancelTimer(OfCheckpoint):
    """The timer that was armed is not wanted any more."""


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
