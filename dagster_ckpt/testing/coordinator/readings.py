"""Readings of a scenario."""

from __future__ import annotations

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.checkpoint.requests import StopOutcome
from dagster_ckpt.core.checkpoint.statistics import StatisticsSnapshot, gauges
from dagster_ckpt.core.checkpoint.tasks import StageStatus, bits
from dagster_ckpt.core.coordinator.effects import (
    CheckpointDiscarded,
    CheckpointFailed,
    CheckpointRejected,
    CheckpointSubsumed,
    JobFailed,
)
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.messages import BarrierOptions, CheckpointFailureReason, StateHandle
from dagster_ckpt.core.metadata_text import decode_metadata
from dagster_ckpt.core.model import CheckpointKind, CheckpointMetadata
from dagster_ckpt.core.paths import metadata as metadata_key
from dagster_ckpt.core.request import CheckpointOutcome, CheckpointProperties
from dagster_ckpt.core.restore.choice import Restore
from dagster_ckpt.core.restore.matching import StageMatch
from dagster_ckpt.errors import NotFound
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.testing.coordinator.world import PlayedAttempt, number_of
from dagster_ckpt.testing.faulty import AbortNotice, CompleteNotice, Notice


class Readings:
    """Everything observable, without changing anything."""

    def __init__(self, played: PlayedAttempt, history_size: int) -> None:
        self._played = played
        self.history_size = history_size

    @property
    def _coordinator(self) -> CheckpointCoordinator:
        return self._played.coordinator

    # --- checkpoints ----------------------------------------------------------------------------------------

    @property
    def record(self) -> CoordinatorRecord:
        """The durable record."""
        return self._coordinator.record

    @property
    def pending(self) -> list[CheckpointId]:
        """Pending checkpoints."""
        return [CheckpointId(p.checkpoint_id) for p in self.record.pending]

    @property
    def completed(self) -> list[CheckpointId]:
        """Retained checkpoints, oldest first."""
        return [CheckpointId(c.checkpoint_id) for c in self.record.completed]

    @property
    def savepoints(self) -> list[CheckpointId]:
        """Completed savepoints, oldest first."""
        return [CheckpointId(s.checkpoint_id) for s in self.record.savepoints]

    @property
    def queued(self) -> int:
        """Requests waiting for their turn."""
        return self._coordinator.queued_requests

    @property
    def subsumed(self) -> list[CheckpointId]:
        """Checkpoints that a newer one replaced, in order."""
        return [e.checkpoint_id for e in self._played.events if isinstance(e, CheckpointSubsumed)]

    @property
    def discarded(self) -> list[CheckpointId]:
        """Completed checkpoints whose files are gone, in order."""
        return [e.checkpoint_id for e in self._played.events if isinstance(e, CheckpointDiscarded)]

    @property
    def failures(self) -> dict[CheckpointId, CheckpointFailureReason]:
        """Why each failed checkpoint failed."""
        return {e.checkpoint_id: e.reason for e in self._played.events if isinstance(e, CheckpointFailed)}

    @property
    def rejected(self) -> list[CheckpointFailureReason]:
        """Why requests never became a checkpoint, in order."""
        return [e.reason for e in self._played.events if isinstance(e, CheckpointRejected)]

    @property
    def job_failures(self) -> list[str]:
        """Job failures: each with its reason."""
        return [e.cause for e in self._played.events if isinstance(e, JobFailed)]

    @property
    def failure_counter(self) -> int:
        """Consecutive counted failures."""
        return self.record.failures.count

    @property
    def triggering(self) -> CheckpointId | None:
        """The checkpoint whose trigger is in flight: its stages were not told yet."""
        return self._coordinator.triggering

    @property
    def is_scheduling(self) -> bool:
        """True while the periodic scheduler is on."""
        return self._coordinator.is_scheduling

    @property
    def next_periodic(self) -> float | None:
        """Seconds until the timer fires next; None while it is off or parked by a backlog."""
        at = self._coordinator.next_periodic
        return None if at is None else at - self._played.world.clock.monotonic()

    @property
    def restored(self) -> CheckpointId | None:
        """Checkpoint this attempt was restored from; None: it started without, or continued in the directory found."""
        decision = self._coordinator.restored
        return CheckpointId(decision.metadata.checkpoint_id) if isinstance(decision, Restore) else None

    def match(self, stage: str) -> StageMatch | None:
        """Return the state that one stage was restored with, and how it fits; None: it begins empty.

        Raises NotFound: no such stage.
        """
        self._played.check_task(stage)
        decision = self._coordinator.restored
        matches = decision.stages.matches if isinstance(decision, Restore) else ()
        return next((m for m in matches if m.uid == stage), None)

    @property
    def stop_outcome(self) -> StopOutcome | None:
        """Outcome of the stop-with-savepoint (Stopped, NotStopped, StoppedBadly); None while it is open."""
        return self._coordinator.stop_outcome

    def outcome(self, checkpoint_id: int) -> CheckpointOutcome:
        """Return the outcome of a checkpoint."""
        return self._coordinator.status_of(number_of(checkpoint_id))

    def kind(self, checkpoint_id: int) -> CheckpointKind:
        """Return the kind of a pending or completed checkpoint (a full one says so)."""
        return self._coordinator.location_of(number_of(checkpoint_id)).kind

    def outstanding(self, checkpoint_id: int) -> dict[str, list[int]]:
        """Return the subtasks that have not acknowledged, by stage. Raises NotFound for one that never was."""
        return self._coordinator.outstanding(self._played.check_triggered(checkpoint_id))

    def properties(self, checkpoint_id: int) -> CheckpointProperties:
        """Return the properties of a pending, completed or restored checkpoint. Raises NotFound."""
        number = number_of(checkpoint_id)
        found = self.record.pending_of(number) or self.record.completed_of(number)
        if found is None:
            raise NotFound(f"checkpoint {number} is neither pending nor retained")
        return found.properties

    def plan(self, checkpoint_id: int) -> dict[str, dict[str, list[int]]]:
        """Return the subtasks of a pending checkpoint that it does ``trigger``, does ``wait`` for, and that had
        ``finished``, each by stage. Raises NotFound.
        """
        plan = self._coordinator.plan_of(number_of(checkpoint_id))
        masks = {"trigger": plan.trigger, "wait": plan.wait, "finished": plan.finished}
        return {what: {uid: [*bits(mask)] for uid, mask in of.items()} for what, of in masks.items()}

    def status(self, stage: str, subtask: int = 0) -> StageStatus:
        """Return the status of a task; RUNNING where none was ever reported. Raises NotFound: no such task."""
        self._played.check_task(stage, subtask)
        return self._coordinator.status_of_task(StageUid(stage), subtask)

    # --- files ----------------------------------------------------------------------------------------------

    def files(self, uri: str | None = None) -> list[str]:
        """Return the keys in the checkpoint storage, or in the one at ``uri``, sorted."""
        return sorted(self._played.world.memory_at(uri).contents)

    def is_stored(self, handle: StateHandle) -> bool:
        """True while the file of a handle is in one of the storages."""
        return any(handle.key in self.files(uri) for uri in self._played.world.memory_storages)

    def removed(self, uri: str | None = None) -> list[str]:
        """Return the keys that were deleted, in order."""
        return list(self._played.world.memory_at(uri).deleted)

    def metadata(self, checkpoint_id: int) -> CheckpointMetadata:
        """Return the ``_metadata`` of a completed checkpoint, read from its storage."""
        location = self._coordinator.location_of(number_of(checkpoint_id))
        key = metadata_key(location.folder)
        return decode_metadata(location.storage.read(key), name=key)

    # --- tasks ----------------------------------------------------------------------------------------------

    def triggered(self, stage: str, subtask: int = 0) -> list[CheckpointId]:
        """Return the checkpoints one subtask was asked to start, in order. Raises NotFound: no such task."""
        self._played.check_task(stage, subtask)
        return self._played.gateway.triggered(stage, subtask)

    def options(self, checkpoint_id: int) -> BarrierOptions:
        """Return the options that travelled with a checkpoint's barrier: kind, alignment, time-out. Raises NotFound."""
        sent = (m.options for m in self._played.gateway.triggers if m.checkpoint_id == checkpoint_id)
        found = next(sent, None)
        if found is None:
            raise NotFound(f"no stage was told of checkpoint {checkpoint_id}")
        return found

    def notices(self, stage: str, subtask: int = 0) -> list[Notice]:
        """Return the notices to one subtask, in order. Raises NotFound: no such task."""
        self._played.check_task(stage, subtask)
        return self._played.gateway.notices(stage, subtask)

    def completes(self, stage: str, subtask: int = 0) -> list[CheckpointId]:
        """Return the completions one subtask was told of, in order."""
        return [n.checkpoint_id for n in self.notices(stage, subtask) if isinstance(n, CompleteNotice)]

    def aborts(self, stage: str, subtask: int = 0) -> list[CheckpointId]:
        """Return the aborts one subtask was told of, in order."""
        return [n.checkpoint_id for n in self.notices(stage, subtask) if isinstance(n, AbortNotice)]

    # --- numbers --------------------------------------------------------------------------------------------

    @property
    def statistics(self) -> StatisticsSnapshot:
        """The statistics."""
        return self._coordinator.statistics(history_size=self.history_size)

    @property
    def gauges(self) -> dict[str, int | float | str]:
        """The 14 gauges by name."""
        return gauges(self.statistics)
