"""Requests of users and the timer in a scenario."""

from __future__ import annotations

from typing import Unpack

from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.request import (
    CheckpointRequest,
    Queued,
    Rejected,
    RequestOrigin,
    SnapshotScope,
    Triggered,
    TriggerOutcome,
)
from dagster_ckpt.testing.coordinator.settings import RequestFields, TriggerFields
from dagster_ckpt.testing.coordinator.tasks import Tasks
from dagster_ckpt.testing.coordinator.world import PlayedAttempt
from dagster_ckpt.testing.graph import one_of


class Requests:
    """Checkpoints, savepoints, the stop with one."""

    def __init__(self, played: PlayedAttempt, config: CheckpointConfig, tasks: Tasks) -> None:
        self._played = played
        self._config = config
        self._tasks = tasks

    def trigger(
        self,
        kind: CheckpointKind | str = CheckpointKind.CHECKPOINT,
        *,
        periodic: bool = False,
        scope: SnapshotScope | str = SnapshotScope.CONFIGURED,
        target: str = "",
        **fields: Unpack[RequestFields],
    ) -> TriggerOutcome:
        """Request a checkpoint or savepoint; a savepoint without a target goes to ``memory://savepoints``."""
        kind = one_of(CheckpointKind, kind, "kind")
        if kind.is_savepoint and not target and not self._config.savepoint_dir:
            target = "memory://savepoints"
        origin = RequestOrigin.PERIODIC if periodic else RequestOrigin.MANUAL
        wanted = one_of(SnapshotScope, scope, "scope")
        request = CheckpointRequest(kind=kind, origin=origin, scope=wanted, target=target, **fields)
        return self._played.coordinator.trigger(request)

    def checkpoint(self, **fields: Unpack[TriggerFields]) -> CheckpointId:
        """Trigger a checkpoint and return its id. Raises AssertionError when it is queued or rejected."""
        return self._id_of(self.trigger(**fields))

    def savepoint(self, **fields: Unpack[TriggerFields]) -> CheckpointId:
        """Trigger a savepoint and return its id. Raises AssertionError when it is queued or rejected."""
        return self._id_of(self.trigger(CheckpointKind.SAVEPOINT, **fields))

    def stop_with_savepoint(
        self, *, drain: bool = False, target: str = "", **fields: Unpack[RequestFields]
    ) -> TriggerOutcome:
        """Begin a stop-with-savepoint, to suspend or (``drain``) to terminate; it goes where a savepoint goes."""
        suspend, terminate = CheckpointKind.SYNC_SAVEPOINT_SUSPEND, CheckpointKind.SYNC_SAVEPOINT_TERMINATE
        target = target or ("" if self._config.savepoint_dir else "memory://savepoints")
        request = CheckpointRequest(kind=terminate if drain else suspend, target=target, **fields)
        return self._played.coordinator.stop_with_savepoint(request)

    def completed_checkpoint(self, **fields: Unpack[TriggerFields]) -> CheckpointId:
        """Trigger a checkpoint, acknowledge all of it, return its id."""
        number = self.checkpoint(**fields)
        self._tasks.acknowledge_all(number)
        return number

    def completed_savepoint(self, **fields: Unpack[TriggerFields]) -> CheckpointId:
        """Trigger a savepoint, acknowledge all of it, return its id."""
        number = self.savepoint(**fields)
        self._tasks.acknowledge_all(number)
        return number

    @staticmethod
    def _id_of(outcome: TriggerOutcome) -> CheckpointId:
        match outcome:
            case Triggered(number):
                return number
            case Queued(_, number):
                why = f"it is queued as request {number}, see max_concurrent_checkpoints"
            case Rejected(reason, message):
                why = f"{reason.name}: {message}"
        raise AssertionError(f"not triggered: {why}")
