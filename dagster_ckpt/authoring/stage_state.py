"""``state=Class`` of a stage: an object for each query or, where the class names lists, for each subtask.

Flink: CheckpointedFunction, with ListState and UnionListState. The objects are asked after every micro-batch, so that
their state is of the cut's last row.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dagster_ckpt.core.restore.list_state import redistribute
from dagster_ckpt.errors import InvalidRequest

_METHODS = {"snapshotState": "snapshot_state", "initializeState": "initialize_state"}
_LISTS = {"getListState": "list_state", "getUnionListState": "union_list_state"}


@dataclass(frozen=True, slots=True)
class OwnState:
    """A stage's class, and of how many subtasks the stage is."""

    made_by: type
    parallelism: int = 1

    @property
    def union(self) -> tuple[str, ...]:
        """Names of the lists of which every subtask gets all items at a restore."""
        return tuple(getattr(self.made_by, "union_list_state", ()))

    @property
    def lists(self) -> tuple[str, ...]:
        """Names of all lists; empty: the state is one object's, whatever it returns."""
        return (*getattr(self.made_by, "list_state", ()), *self.union)

    @property
    def subtasks(self) -> int:
        """Number of objects."""
        return self.parallelism if self.lists else 1

    def new(self) -> tuple[Any, ...]:
        """Return new objects, which begin with ``arguments``."""
        return tuple(self.made_by() for _ in range(self.subtasks))

    def begun(self) -> Any:
        """Return new objects that begin with nothing, as a stage's function sees them."""
        made = self.new()
        for one, arguments in zip(made, self.arguments(None), strict=True):
            one.initialize_state(*arguments)
        return self.of_function(made)

    def of_function(self, objects: Sequence[Any]) -> Any:
        """Return objects as a stage's function sees them: one, or all in the order of the subtasks."""
        return tuple(objects) if self.lists else objects[0]

    def arguments(self, saved: Any) -> list[tuple[Any, ...]]:
        """Return the arguments of each object's ``initialize_state`` for a saved state; None: there is none."""
        if not self.lists:
            return [(saved,)]
        dealt = redistribute(saved or (), parallelism=self.subtasks, union=self.union)
        return [
            ({name: lists.get(name, []) for name in self.lists}, subtask, self.subtasks)
            for subtask, lists in enumerate(dealt)
        ]

    def joined(self, whose: str, states: Sequence[Any]) -> Any:
        """Return the objects' states as they are saved; None: nothing is. Raises InvalidRequest for no lists."""
        if not self.lists:
            return states[0]
        for state in states:
            if not isinstance(state or {}, dict) or any(
                name not in self.lists or not isinstance(items, list) for name, items in (state or {}).items()
            ):
                raise InvalidRequest(
                    f"{whose}: {self.made_by.__name__}.snapshot_state returned {state!r:.200}: return a list for each "
                    f"of {', '.join(self.lists)}, by name"
                )
        return [state or {} for state in states] if any(any((s or {}).values()) for s in states) else None


def check_state(stage: str, given: Any) -> None:
    """Raise InvalidRequest for what is no class with the two methods, or names its lists in no way."""
    if not isinstance(given, type):
        raise InvalidRequest(
            f"{stage!r} has state={given!r}: give a class, of which each run makes an object"
        )
    name = given.__name__
    for theirs, ours in (_METHODS | _LISTS).items():
        if hasattr(given, theirs):
            raise InvalidRequest(f"{stage!r} has state={name}, which has {theirs}: call it {ours}")
    for ours in _METHODS.values():
        if not callable(getattr(given, ours, None)):
            raise InvalidRequest(
                f"{stage!r} has state={name}, which has no {ours}: give it snapshot_state(self), which returns JSON, "
                "and initialize_state(self, state), which gets that back (None: it begins)"
            )
    named = [getattr(given, ours, ()) for ours in _LISTS.values()]
    if any(isinstance(names, str) or not all(isinstance(one, str) for one in names) for names in named):
        raise InvalidRequest(
            f"{stage!r} has state={name}: list_state and union_list_state are lists of names, as in ['pending']"
        )
    lists = OwnState(given).lists
    if len(set(lists)) < len(lists):
        raise InvalidRequest(f"{stage!r} has state={name}, which names a list twice: {', '.join(lists)}")
    if lists and not _takes_subtasks(given):
        raise InvalidRequest(
            f"{stage!r} has state={name}, which names lists: give it initialize_state(self, lists, subtask, "
            "parallelism): the lists by name, the number of the object, and how many there are"
        )


def _takes_subtasks(given: Any) -> bool:
    try:
        inspect.signature(given.initialize_state).bind(None, {}, 0, 1)
    except TypeError:
        return False
    return True
