"""Redistribution of in-flight data when the parallelism changes.

Sources: flink-runtime StateAssignmentOperation, SubtaskStateMapper; StateAssignmentOperationTest (SAO).
Keyed state: ``key_groups``. List state: ``core.restore.list_state``. Which state goes to which stage: ``matching``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar, assert_never

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.testing.flink.key_groups import UPPER_BOUND, range_of, subtask_of

T = TypeVar("T")

# --- state that cannot be cut ---------------------------------------------------------------------


def refuse_to_cut(stage: str, *, saved_parallelism: int, parallelism: int) -> None:
    """Raise InvalidRequest when state that is neither keyed nor a list would have to be cut.

    Source: RescalingITCase#testSavepointRescalingNonPartitionedStateCausesException.
    """
    if saved_parallelism != parallelism:
        raise InvalidRequest(
            f"stage {stage!r} holds state that is not partitioned and was saved with parallelism "
            f"{saved_parallelism}: it cannot run with {parallelism}. Set its parallelism back"
        )


# --- in-flight data -------------------------------------------------------------------------------


class SubtaskMapper(StrEnum):
    """Mapping of new subtasks to the old ones whose in-flight data they read; a property of the edge."""

    ROUND_ROBIN = "round_robin"
    """Any subtask can process any record: old ones are distributed in turn."""
    FIRST = "first"
    """All records go to the first subtask (a global edge)."""
    FULL = "full"
    """Each new subtask reads all and drops what is not its own (broadcast, custom partitioner)."""
    RANGE = "range"
    """Old and new subtasks that share key groups (a keyed edge); records are filtered where several read
    one."""
    UNSUPPORTED = "unsupported"
    """Records must stay at their subtask (pointwise): no change of the parallelism."""


def old_subtasks(
    mapper: SubtaskMapper, new: int, *, old_parallelism: int, new_parallelism: int
) -> tuple[int, ...]:
    """Return the old subtasks whose in-flight data new subtask ``new`` reads.

    Raises InvalidRequest for an edge that cannot be rescaled. Source: SubtaskStateMapper
    (MappingBasedRepartitionerTest); SAO#testChannelStateAssignmentUpscaling, …Downscaling.
    """
    match mapper:
        case SubtaskMapper.ROUND_ROBIN:
            return tuple(range(new, old_parallelism, new_parallelism))
        case SubtaskMapper.FIRST:
            return tuple(range(old_parallelism)) if new == 0 else ()
        case SubtaskMapper.FULL:
            return tuple(range(old_parallelism))
        case SubtaskMapper.RANGE:
            mine = range_of(new, parallelism=new_parallelism, max_parallelism=UPPER_BOUND)
            ends = (
                subtask_of(group, parallelism=old_parallelism, max_parallelism=UPPER_BOUND)
                for group in (mine.start, mine.end)
            )
            first, last = ends
            return tuple(range(first, last + 1))
        case SubtaskMapper.UNSUPPORTED if old_parallelism == new_parallelism:
            return (new,)
        case SubtaskMapper.UNSUPPORTED:
            raise InvalidRequest(
                f"in-flight data of a pointwise edge cannot go from {old_parallelism} to {new_parallelism} "
                "subtasks: restore an aligned checkpoint or a savepoint, or keep the parallelism"
            )
    assert_never(mapper)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelShare(Generic[T]):
    """In-flight data that one new subtask reads."""

    state: T
    old_subtask: int
    readers: int
    """New subtasks that read it: with more than one, each must drop the records that are not its own."""


def assign_channel_state(
    old: Sequence[Sequence[T]], mapper: SubtaskMapper, *, parallelism: int
) -> tuple[tuple[ChannelShare[T], ...], ...]:
    """Return for each new subtask the in-flight data it reads; ``old`` has the pieces of each saved
    subtask.

    An edge without in-flight data may change in any way
    (SAO#testMixedExchangesForwardAndHashNoStateOnForward); with the same parallelism each subtask reads its own,
    whatever the edge (SAO#testChannelStateAssignmentNoRescale).
    """
    if not any(old):
        return ((),) * parallelism
    mapped = [
        (new,)
        if len(old) == parallelism
        else old_subtasks(mapper, new, old_parallelism=len(old), new_parallelism=parallelism)
        for new in range(parallelism)
    ]
    readers = [sum(index in sources for sources in mapped) for index in range(len(old))]
    return tuple(
        tuple(
            ChannelShare(state=state, old_subtask=index, readers=readers[index])
            for index in sources
            for state in old[index]
        )
        for sources in mapped
    )
