"""Key groups: the atoms keyed state is cut into, so that the parallelism can change between runs.

Sources: flink-runtime KeyGroupRangeAssignment; CheckpointCoordinatorTest#testCreateKeyGroupPartitions;
StateAssignmentOperation, SubtaskStateMapper; StateAssignmentOperationTest (SAO). Keyed state: ``key_groups``. List
state: ``authoring.own_objects``. Which state goes to which stage: ``matching``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar, assert_never

from dagster_ckpt.errors import InvalidRequest

T = TypeVar("T")

LOWER_BOUND = 1 << 7
UPPER_BOUND = 1 << 15
_MASK = 0xFFFFFFFF


@dataclass(frozen=True, slots=True, order=True)
class KeyGroupRange:
    """Key groups ``start`` to ``end``, both included. Raises InvalidRequest for an empty or negative range."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise InvalidRequest(
                f"key groups are numbered from 0 and a range holds at least one, got {self.start} to {self.end}"
            )

    def __len__(self) -> int:
        return self.end - self.start + 1

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end + 1))

    def __contains__(self, key_group: object) -> bool:
        return isinstance(key_group, int) and self.start <= key_group <= self.end

    def clip(self, other: KeyGroupRange) -> KeyGroupRange | None:
        """Return the range that both have, or None."""
        start, end = max(self.start, other.start), min(self.end, other.end)
        return KeyGroupRange(start, end) if start <= end else None


@dataclass(frozen=True, slots=True)
class KeyedHandle(Generic[T]):
    """A piece of keyed state and the key groups it holds."""

    range: KeyGroupRange
    state: T


def default_max_parallelism(parallelism: int) -> int:
    """Return the maximum derived for a stage that sets none: one and a half times, up to a power of two.

    Raises InvalidRequest for a parallelism no maximum has room for.
    """
    if not 1 <= parallelism <= UPPER_BOUND:
        raise InvalidRequest(f"parallelism must be from 1 to {UPPER_BOUND}, got {parallelism}")
    wished = parallelism + parallelism // 2
    return min(max(1 << max(wished - 1, 0).bit_length(), LOWER_BOUND), UPPER_BOUND)


def key_group_of(key_hash: int, max_parallelism: int) -> int:
    """Return the key group of a key with this 32-bit hash."""
    return _murmur(key_hash) % max_parallelism


def subtask_of(key_group: int, *, parallelism: int, max_parallelism: int) -> int:
    """Return the subtask that owns a key group."""
    return key_group * parallelism // max_parallelism


def range_of(subtask: int, *, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """Return the key groups a subtask owns."""
    start = (subtask * max_parallelism + parallelism - 1) // parallelism
    end = ((subtask + 1) * max_parallelism - 1) // parallelism
    return KeyGroupRange(start, end)


def partition(*, parallelism: int, max_parallelism: int) -> tuple[KeyGroupRange, ...]:
    """Return the ranges of all subtasks. Raises InvalidRequest where there are fewer key groups than
    subtasks."""
    if not 1 <= parallelism <= max_parallelism:
        raise InvalidRequest(
            f"parallelism {parallelism} must be at least 1 and at most the max_parallelism {max_parallelism}"
        )
    return tuple(
        range_of(subtask, parallelism=parallelism, max_parallelism=max_parallelism)
        for subtask in range(parallelism)
    )


def assign_keyed(
    old: Sequence[Iterable[KeyedHandle[T]]], *, parallelism: int, max_parallelism: int
) -> tuple[tuple[KeyedHandle[T], ...], ...]:
    """Return for each new subtask the handles it reads, clipped to the key groups it owns.

    ``old`` has the handles of each saved subtask. With the same parallelism each keeps its own, untouched
    (CheckpointCoordinatorRestoringTest#testRestoreLatestCheckpointedStateScaleIn, …ScaleOut).
    """
    if len(old) == parallelism:
        return tuple(tuple(handles) for handles in old)
    ranges = partition(parallelism=parallelism, max_parallelism=max_parallelism)
    new: list[list[KeyedHandle[T]]] = [[] for _ in ranges]
    for handle in (handle for handles in old for handle in handles):
        first, last = (
            subtask_of(group, parallelism=parallelism, max_parallelism=max_parallelism)
            for group in (handle.range.start, handle.range.end)
        )
        for subtask in range(first, last + 1):
            clipped = handle.range.clip(ranges[subtask])
            if clipped is not None:
                new[subtask].append(KeyedHandle(clipped, handle.state))
    return tuple(map(tuple, new))


def _murmur(code: int) -> int:
    """Spread a 32-bit hash (murmur3 of one word), never negative."""
    code = code & _MASK
    code = code * 0xCC9E2D51 & _MASK
    code = (code << 15 | code >> 17) & _MASK
    code = code * 0x1B873593 & _MASK
    code = (code << 13 | code >> 19) & _MASK
    code = (code * 5 + 0xE6546B64) & _MASK
    code = _mix(code ^ 4)
    signed = code - (1 << 32) if code >> 31 else code
    return 0 if signed == -(1 << 31) else abs(signed)


def _mix(code: int) -> int:
    code ^= code >> 16
    code = code * 0x85EBCA6B & _MASK
    code ^= code >> 13
    code = code * 0xC2B2AE35 & _MASK
    return code ^ code >> 16


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
