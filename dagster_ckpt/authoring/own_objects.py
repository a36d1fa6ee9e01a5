"""Objects of users' classes with a state in each checkpoint: hooks of a pipeline, and ``state=Class`` of a stage.

Sources: Flink's CheckpointedFunction, with ListState and UnionListState; flink-runtime
RoundRobinOperatorStateRepartitioner, StateAssignmentOperationTest (SAO). Keyed state is Spark's. A stage's objects
are asked after every micro-batch, so that their state is of the cut's last row.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_ckpt.core.ids import PipelineId, StageUid, hook_id
from dagster_ckpt.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


@dataclass(frozen=True, slots=True)
class StageContext:
    """Context of a stage function, beside its inputs: name a parameter ``context``."""

    spark: SparkSession
    uid: StageUid
    config: Mapping[str, Any] = field(default_factory=dict)
    """The op's run config, when the stage declares a ``config_schema``."""
    resources: Any = None
    """Dagster resources named in ``required_resource_keys``."""
    hooks: Mapping[str, Any] = field(default_factory=dict)
    """The pipeline's hooks of this attempt, by uid."""
    state: Any = None
    """The stage's own object (``state=``); with lists a tuple, an object a subtask."""


DEFAULT_TIMEOUT = 60.0
_METHODS = ("trigger", "restore", "complete", "subsumed", "aborted", "resume", "reset", "close")
_OF_FLINK = {
    "snapshotState": "trigger",
    "snapshot_state": "trigger",
    "trigger_checkpoint": "trigger",
    "initializeState": "restore",
    "initialize_state": "restore",
    "restore_checkpoint": "restore",
    "notifyCheckpointComplete": "complete",
    "notify_checkpoint_complete": "complete",
    "notifyCheckpointAborted": "aborted",
    "notify_checkpoint_aborted": "aborted",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HookContext:
    """Context for a hook's constructor: name a parameter ``context``."""

    pipeline: PipelineId
    resources: Any = None
    """Dagster resources named in ``required_resource_keys``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookDefinition:
    """A hook as its author declared it; made by ``@pipeline_hook``."""

    uid: str
    """Names its state in every checkpoint."""
    make: Callable[..., Any]
    takes_context: bool = False
    timeout: float = DEFAULT_TIMEOUT
    """Seconds a call may take."""
    required_resource_keys: frozenset[str] = frozenset()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return a new object of the class, as undecorated: for a unit test."""
        return self.make(*args, **kwargs)

    def new(self, context: HookContext) -> Any:
        """Return the object that takes part in one attempt."""
        return self.make(context=context) if self.takes_context else self.make()


def pipeline_hook(
    cls: type | None = None,
    /,
    *,
    uid: str = "",
    timeout: float = DEFAULT_TIMEOUT,
    required_resource_keys: Iterable[str] = (),
) -> Any:
    """Make a class a hook: every attempt of a pipeline makes one object of it, which takes part in each checkpoint.

    The class has any of the methods of docs/how-to/hooks.md, called one at a time.

    Args:
        cls: the class; a constructor parameter ``context`` gets a ``HookContext``.
        uid: stable id of its state; default: the class's name.
        timeout: seconds a call may take.
        required_resource_keys: Dagster resources it needs, in ``context.resources``.

    Raises:
        InvalidRequest: for a class without such methods, with ``trigger`` but no ``restore``, or an impossible setting.
    """

    def wrap(wrapped: type) -> HookDefinition:
        if isinstance(required_resource_keys, str):
            raise InvalidRequest(
                f"hook {wrapped.__name__!r} has required_resource_keys={required_resource_keys!r}: give a list"
            )
        _check(wrapped, timeout)
        return HookDefinition(
            uid=hook_id(uid or wrapped.__name__),
            make=wrapped,
            takes_context="context" in inspect.signature(wrapped).parameters,
            timeout=timeout,
            required_resource_keys=frozenset(required_resource_keys),
        )

    return wrap if cls is None else wrap(cls)


def _check(wrapped: type, timeout: float) -> None:
    if not isinstance(wrapped, type):
        raise InvalidRequest(f"@pipeline_hook decorates a class, not {wrapped!r}")
    name = wrapped.__name__
    for theirs, ours in _OF_FLINK.items():
        if hasattr(wrapped, theirs):
            raise InvalidRequest(f"hook {name!r} has {theirs}: call it {ours}")
    has = {method for method in _METHODS if callable(getattr(wrapped, method, None))}
    if not has & {"trigger", "complete", "aborted", "subsumed"}:
        raise InvalidRequest(
            f"hook {name!r} hears of no checkpoint: give it trigger, complete, aborted or subsumed"
        )
    if "trigger" in has and "restore" not in has:
        raise InvalidRequest(
            f"hook {name!r} has trigger but no restore: its state would be stored and never given back. "
            "Add restore(checkpoint_id, state), which may do nothing where trigger returns None"
        )
    if "restore" in has and "trigger" not in has:
        raise InvalidRequest(
            f"hook {name!r} has restore but no trigger: there would never be a state to restore"
        )
    if timeout <= 0:
        raise InvalidRequest(f"hook {name!r} has timeout={timeout!r}: give the seconds a call may take")


_STATE_METHODS = {"snapshotState": "snapshot_state", "initializeState": "initialize_state"}
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
    for theirs, ours in (_STATE_METHODS | _LISTS).items():
        if hasattr(given, theirs):
            raise InvalidRequest(f"{stage!r} has state={name}, which has {theirs}: call it {ours}")
    for ours in _STATE_METHODS.values():
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
