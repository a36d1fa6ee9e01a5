"""Key groups: the atoms keyed state is cut into, so that the parallelism can change between runs.

Source: flink-runtime KeyGroupRangeAssignment; CheckpointCoordinatorTest#testCreateKeyGroupPartitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

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
