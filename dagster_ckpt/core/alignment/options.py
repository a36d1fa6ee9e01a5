"""Options of a barrier: its alignment, decided once at the trigger, and the legal combinations.

Source: flink-runtime CheckpointOptions (CheckpointOptionsTest).
"""

from __future__ import annotations

from dataclasses import replace

from dagster_ckpt.core.config import CheckpointConfig, CheckpointingMode
from dagster_ckpt.core.messages import Alignment, BarrierOptions
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
