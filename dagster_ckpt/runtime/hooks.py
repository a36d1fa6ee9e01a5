"""What may take part in a checkpoint besides the stages: driver-side coordinators and master hooks.

Source: flink-runtime OperatorCoordinator and MasterTriggerRestoreHook (CheckpointCoordinatorMasterHooksTest).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class ResultPending:
    """A hook's result will be given later, with ``CheckpointCoordinator.acknowledge_hook``."""


class OperatorCoordinator(Protocol):
    """Keeps driver-side state of one stage (a source's split enumerator, for instance)."""

    uid: StageUid
    """The stage."""

    def checkpoint(self, checkpoint_id: CheckpointId) -> None:
        """Begin a snapshot; answer with ``CheckpointCoordinator.acknowledge_coordinator``, now or later.

        Raising fails the checkpoint.
        """
        ...

    def checkpoint_complete(self, checkpoint_id: CheckpointId) -> None:
        """Hear that a checkpoint is complete."""
        ...

    def checkpoint_aborted(self, checkpoint_id: CheckpointId) -> None:
        """Hear that a checkpoint is over without completing."""
        ...

    def restore(self, checkpoint_id: CheckpointId | None, state: str | None) -> None:
        """Start from the state of a checkpoint; both None: start empty."""
        ...


@runtime_checkable
class HearsAcknowledgements(OperatorCoordinator, Protocol):
    """A driver-side coordinator that wants to know which subtasks have acknowledged (see ``gated_coordinator``)."""

    def subtask_acknowledged(self, checkpoint_id: CheckpointId, subtask: int) -> None:
        """Hear that a subtask of the stage has acknowledged a checkpoint."""
        ...


@runtime_checkable
class HearsResets(OperatorCoordinator, Protocol):
    """A driver-side coordinator that makes up for what its subtasks forget when they start again."""

    def subtask_reset(self, checkpoint_id: CheckpointId | None, subtask: int) -> None:
        """Hear that a subtask starts again from a checkpoint (None: empty): what it was sent since is lost."""
        ...


class MasterHook(Protocol):
    """Something outside the stages that has state in every checkpoint."""

    identifier: str
    """Stable name; a hook added under a name that is taken is ignored."""

    def trigger(self, checkpoint_id: CheckpointId, timestamp: float) -> Any:
        """Return the state (anything ``serialize`` takes, or None), or ResultPending. Raising fails the checkpoint."""
        ...

    def serialize(self, state: Any) -> str:
        """Return the state as text. Raising fails the checkpoint."""
        ...

    def deserialize(self, text: str) -> Any:
        """Return what ``serialize`` was given. Raising fails the restore, before any hook is called."""
        ...

    def restore(self, checkpoint_id: CheckpointId, state: Any) -> None:
        """Start from the state of a checkpoint; None where it holds none for this hook."""
        ...

    def reset(self) -> None:
        """Start empty: there is no checkpoint to restore."""
        ...

    def close(self) -> None:
        """The coordinator is shut down."""
        ...


def tell_resets(
    coordinators: Iterable[OperatorCoordinator], graph: PipelineGraph, checkpoint_id: CheckpointId | None
) -> None:
    """Tell the driver-side coordinators that want to know that all their subtasks start again."""
    for one in coordinators:
        if isinstance(one, HearsResets):
            for subtask in range(graph.by_uid[one.uid].parallelism):
                one.subtask_reset(checkpoint_id, subtask)


def distinct_hooks(hooks: Sequence[MasterHook]) -> dict[str, MasterHook]:
    """Return hooks by identifier, the first of each wins. Raises InvalidRequest for a blank identifier."""
    found: dict[str, MasterHook] = {}
    for hook in hooks:
        name = getattr(hook, "identifier", None)
        if not isinstance(name, str) or not name.strip():
            raise InvalidRequest(f"a master hook needs a name that is not blank, got {name!r}")
        found.setdefault(name, hook)
    return found


def distinct_coordinators(
    coordinators: Sequence[OperatorCoordinator], graph: PipelineGraph
) -> dict[StageUid, OperatorCoordinator]:
    """Return driver-side coordinators by stage. Raises InvalidRequest for a second one, or for no such stage."""
    found: dict[StageUid, OperatorCoordinator] = {}
    for one in coordinators:
        if one.uid not in graph.by_uid:
            there = ", ".join(sorted(graph.by_uid))
            raise InvalidRequest(f"a coordinator is for stage {one.uid!r}: the stages are {there}")
        if one.uid in found:
            raise InvalidRequest(f"stage {one.uid!r} has two coordinators: it can have one")
        found[one.uid] = one
    return found


def read_states(
    hooks: Mapping[str, MasterHook],
    states: Mapping[str, str],
    *,
    skip_unmatched: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """Return what each hook's saved text says; nothing is changed and no hook is told yet.

    ``skip_unmatched``: ids of states no hook wants and that may be dropped. Raises InvalidRequest for another,
    and what ``deserialize`` raises.
    """
    lost = sorted(set(states) - set(hooks) - skip_unmatched)
    if lost:
        raise InvalidRequest(
            f"the checkpoint holds state of master hook {lost[0]!r}, which does not exist any more: "
            "add it again, or set allow_non_restored_state"
        )
    return {name: hook.deserialize(states[name]) for name, hook in hooks.items() if name in states}


def restore_hooks(
    hooks: Mapping[str, MasterHook],
    checkpoint_id: CheckpointId,
    states: Mapping[str, str],
    *,
    skip_unmatched: frozenset[str] = frozenset(),
) -> None:
    """Give every hook its state; all are read (see ``read_states``) before the first is called.

    A checkpoint without any master state calls no hook (Flink's quirk).
    """
    read = read_states(hooks, states, skip_unmatched=skip_unmatched)
    if not states:
        return
    for name, hook in hooks.items():
        hook.restore(checkpoint_id, read.get(name))


def serialized(hook: MasterHook, state: object) -> str | None:
    """Return a hook's state as text, None for none. Raises InvalidRequest when the hook makes something else."""
    if state is None:
        return None
    text = hook.serialize(state)
    if not isinstance(text, str):
        raise InvalidRequest(
            f"master hook {hook.identifier!r} must serialize its state to text, got {text!r}"
        )
    return text
