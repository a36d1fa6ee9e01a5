"""State that hooks and driver-side coordinators begin with when an attempt is restored."""

from __future__ import annotations

from collections.abc import Mapping

from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.restore.decision import Restore, RestoreDecision
from dagster_ckpt.core.restore.matching import non_restored_state
from dagster_ckpt.runtime.driver.hooks import MasterHook, OperatorCoordinator, read_states, restore_hooks


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
