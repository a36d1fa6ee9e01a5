"""Objects of users' classes with a state in each checkpoint, which is of its trigger: a pipeline's hooks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.ids import PipelineId, StageUid, hook_id
from dagster_ckpt.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
