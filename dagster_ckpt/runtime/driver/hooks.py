"""Participants in a checkpoint besides the stages: driver-side coordinators and master hooks.

Source: flink-runtime OperatorCoordinator and MasterTriggerRestoreHook (CheckpointCoordinatorMasterHooksTest).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.restore.choice import Restore, RestoreDecision
from dagster_ckpt.core.restore.matching import NonRestoredState, match_hooks, non_restored_state
from dagster_ckpt.errors import InvalidRequest

log = logging.getLogger("dagster_ckpt.hooks")


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
        """Hear that a subtask of the stage has acknowledged a checkpoint, or owes nothing as it had finished."""
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
    """Stable id; a hook added under an id that is taken is ignored."""

    def trigger(self, checkpoint_id: CheckpointId, timestamp: float) -> Any:
        """Return the state (anything ``serialize`` takes, or None), or ResultPending. Raising fails the checkpoint."""
        ...

    def serialize(self, state: Any) -> str:
        """Return the state as text. Raising fails the checkpoint."""
        ...

    def deserialize(self, text: str) -> Any:
        """Return the state that ``serialize`` was given. Raising fails the restore, before any hook is called."""
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


@runtime_checkable
class HearsEnds(Protocol):
    """A master hook that wants to know how checkpoints end (Flink: CheckpointListener); none of it may block."""

    def complete(self, checkpoint_id: CheckpointId) -> None:
        """Hear that a checkpoint is complete; of several only the newest may be heard, and that more than once."""
        ...

    def subsumed(self, checkpoint_id: CheckpointId) -> None:
        """Hear that this checkpoint and older ones were subsumed: nothing is restored from them any more."""
        ...

    def aborted(self, checkpoint_id: CheckpointId) -> None:
        """Hear that a checkpoint is over without completing."""
        ...


@runtime_checkable
class HearsResumes(Protocol):
    """A master hook that takes part in an attempt whose stages another process of the run has restored."""

    def resume(self, checkpoint_id: CheckpointId | None, state: Any) -> None:
        """Take up the state of the attempt's newest checkpoint; both None: there is none."""
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
    non_restored: NonRestoredState,
) -> dict[str, Any]:
    """Return each hook's state from its saved text; nothing is changed and no hook is told yet.

    Raises InvalidRequest for a state no hook wants that may not be dropped, and what ``deserialize`` raises.
    """
    matched = match_hooks(hooks, states, non_restored=non_restored)
    return {name: hooks[name].deserialize(states[name]) for name in matched.restored}


def restore_hooks(
    hooks: Mapping[str, MasterHook],
    checkpoint_id: CheckpointId,
    states: Mapping[str, str],
    *,
    non_restored: NonRestoredState,
) -> None:
    """Give every hook its state; all are read (see ``read_states``) before the first is called.

    A checkpoint without any master state calls no hook (Flink's quirk).
    """
    read = read_states(hooks, states, non_restored=non_restored)
    if not states:
        return
    for name, hook in hooks.items():
        hook.restore(checkpoint_id, read.get(name))


def resume_hooks(
    hooks: Mapping[str, MasterHook], checkpoint_id: CheckpointId | None, states: Mapping[str, str]
) -> None:
    """Give hooks that take part in an attempt that runs already the state of its newest checkpoint."""
    read = read_states(hooks, states, non_restored=NonRestoredState.SKIP)
    for name, hook in hooks.items():
        if isinstance(hook, HearsResumes):
            hook.resume(checkpoint_id, read.get(name))


def close_hooks(hooks: Iterable[MasterHook]) -> None:
    """Close the hooks; their failures are logged."""
    for hook in hooks:
        try:
            hook.close()
        except Exception as error:  # a hook must not keep the attempt from ending
            log.warning("master hook %s could not be closed: %s", hook.identifier, error)


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


def check_hook_states(
    hooks: Mapping[str, MasterHook], restored: RestoreDecision, options: RestoreOptions
) -> None:
    """Raise where a hook's state would be lost or cannot be read."""
    if isinstance(restored, Restore):
        read_states(hooks, restored.metadata.master_states, non_restored=non_restored_state(options))


def restore_driver(
    hooks: Mapping[str, MasterHook],
    coordinators: Mapping[StageUid, OperatorCoordinator],
    restored: RestoreDecision,
    options: RestoreOptions,
) -> None:
    """Give hooks and driver-side coordinators their state; without a checkpoint they are reset."""
    if not isinstance(restored, Restore):
        for hook in hooks.values():
            hook.reset()
        for coordinator in coordinators.values():
            coordinator.restore(None, None)
        return
    number = CheckpointId(restored.metadata.checkpoint_id)
    restore_hooks(hooks, number, restored.metadata.master_states, non_restored=non_restored_state(options))
    saved = {match.uid: match.snapshot.coordinator_state for match in restored.stages.matches}
    for uid, coordinator in coordinators.items():
        coordinator.restore(number, saved.get(uid))
