"""Redistribution of list state to the subtasks of now (Flink: OperatorStateStore's list and union list state).

Sources: flink-runtime RoundRobinOperatorStateRepartitioner, StateAssignmentOperationTest (SAO). Keyed state is Spark's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from typing import TypeVar

T = TypeVar("T")


def redistribute(
    old: Sequence[Mapping[str, Sequence[T]]], *, parallelism: int, union: Collection[str] = ()
) -> tuple[dict[str, list[T]], ...]:
    """Return the named lists of each new subtask; ``old`` has those of each saved one, which may lack names.

    Every subtask gets all items of a list in ``union``, also where the parallelism is the same; of another list each
    item goes to one subtask, and with the same parallelism to the one that had it.
    """
    new: tuple[dict[str, list[T]], ...] = tuple({} for _ in range(parallelism))
    first = 0
    for name in dict.fromkeys(name for lists in old for name in lists):
        parts = [list(lists.get(name, ())) for lists in old]
        items = [item for part in parts for item in part]
        if name in union:
            dealt = [deepcopy(items) for _ in range(parallelism)]
        elif len(old) == parallelism:
            dealt = parts
        else:
            dealt, first = _deal(items, parallelism, first)
        for lists, own in zip(new, dealt, strict=True):
            lists[name] = own
    return new


def _deal(items: Sequence[T], parallelism: int, first: int) -> tuple[list[list[T]], int]:
    """Deal items out contiguously; extras go to consecutive subtasks from ``first`` on.

    Returns the next ``first``, where the extras ended, so that several states even out.
    """
    base, extras = divmod(len(items), parallelism)
    dealt: list[list[T]] = [[] for _ in range(parallelism)]
    position = 0
    for turn in range(parallelism):
        size = base + (1 if turn < extras else 0)
        dealt[(first + turn) % parallelism] = list(items[position : position + size])
        position += size
    return dealt, (first + extras) % parallelism
