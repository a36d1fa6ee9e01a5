"""What a scenario reads off the harness."""

from __future__ import annotations

from dagster_ckpt.core.events import (
    CheckpointDiscarded,
    CheckpointFailed,
    CheckpointRejected,
    CheckpointSubsumed,
    CoordinatorEvent,
    JobFailed,
)
from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.matching import StageMatch
from dagster_ckpt.core.messages import BarrierOptions, StateHandle
from dagster_ckpt.core.metadata_text import decode_metadata
from dagster_ckpt.core.model import CheckpointKind, CheckpointMetadata
from dagster_ckpt.core.outcomes import CheckpointOutcome
from dagster_ckpt.core.paths import metadata as metadata_key
from dagster_ckpt.core.properties import CheckpointProperties
from dagster_ckpt.core.reasons import CheckpointFailureReason
from dagster_ckpt.core.record import CoordinatorRecord
from dagster_ckpt.core.recovery import Materialise
from dagster_ckpt.core.statistics import StatisticsSnapshot, gauges
from dagster_ckpt.core.stop_with_savepoint import StopOutcome
from dagster_ckpt.core.tasks import StageStatus, bits
from dagster_ckpt.errors import NotFound
from dagster_ckpt.ports import CheckpointStorage
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.testing.clock import ManualClock
from dagster_ckpt.testing.gateway import AbortNotice, CompleteNotice, Notice, RecordingGateway
from dagster_ckpt.testing.harness_faults import memory_at
from dagster_ckpt.testing.harness_graph import number_of, unknown_stage
from dagster_ckpt.testing.memory import MemoryCheckpointStorage


class HarnessReadings:
    """Everything observable, without changing anything."""

    graph: PipelineGraph
    clock: ManualClock
    coordinator: CheckpointCoordinator
    gateway: RecordingGateway
    events: list[CoordinatorEvent]
    memory_storages: dict[str, CheckpointStorage]

    # --- checkpoints ----------------------------------------------------------------------------------------

    @property
    def record(self) -> CoordinatorRecord:
        """The durable record."""
        return self.coordinator.record

    @property
    def pending(self) -> list[CheckpointId]:
        """Checkpoints underway."""
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
        return self.coordinator.queued_requests

    @property
    def subsumed(self) -> list[CheckpointId]:
        """Checkpoints that a newer one replaced, in order."""
        return [e.checkpoint_id for e in self.events if isinstance(e, CheckpointSubsumed)]

    @property
    def discarded(self) -> list[CheckpointId]:
        """Completed checkpoints whose files are gone, in order."""
        return [e.checkpoint_id for e in self.events if isinstance(e, CheckpointDiscarded)]

    @property
    def failures(self) -> dict[CheckpointId, CheckpointFailureReason]:
        """Why each failed checkpoint failed."""
        return {e.checkpoint_id: e.reason for e in self.events if isinstance(e, CheckpointFailed)}

    @property
    def rejected(self) -> list[CheckpointFailureReason]:
        """Why requests never became a checkpoint, in order."""
        return [e.reason for e in self.events if isinstance(e, CheckpointRejected)]

    @property
    def job_failures(self) -> list[str]:
        """How often and why the run was failed."""
        return [e.cause for e in self.events if isinstance(e, JobFailed)]

    @property
    def failure_counter(self) -> int:
        """Consecutive counted failures."""
        return self.record.failures.count

    @property
    def triggering(self) -> CheckpointId | None:
        """The checkpoint whose trigger is in flight: its stages were not told yet."""
        return self.coordinator.triggering

    @property
    def is_scheduling(self) -> bool:
        """True while the periodic scheduler is on."""
        return self.coordinator.is_scheduling

    @property
    def next_periodic(self) -> float | None:
        """Seconds until the timer fires next; None while it is off or parked by a backlog."""
        at = self.coordinator.next_periodic
        return None if at is None else at - self.clock.monotonic()

    @property
    def restored(self) -> CheckpointId | None:
        """What this attempt was restored from; None: it began without, or went on in the directory it found."""
        decision = self.coordinator.restored
        return CheckpointId(decision.metadata.checkpoint_id) if isinstance(decision, Materialise) else None

    def match(self, stage: str) -> StageMatch | None:
        """Return the state that one stage was restored with, and how it fits; None: it begins empty.

        Raises NotFound: no such stage.
        """
        self.check_task(stage)
        decision = self.coordinator.restored
        matches = decision.stages.matches if isinstance(decision, Materialise) else ()
        return next((m for m in matches if m.uid == stage), None)

    @property
    def stop_outcome(self) -> StopOutcome | None:
        """How the stop-with-savepoint ended (Stopped, NotStopped, StoppedBadly); None while it is open."""
        return self.coordinator.stop_outcome

    def outcome(self, checkpoint_id: int) -> CheckpointOutcome:
        """Return what became of a checkpoint."""
        return self.coordinator.status_of(number_of(checkpoint_id))

    def kind(self, checkpoint_id: int) -> CheckpointKind:
        """Return the kind of a pending or completed checkpoint (a full one says so)."""
        return self.coordinator.location_of(number_of(checkpoint_id)).kind

    def outstanding(self, checkpoint_id: int) -> dict[str, list[int]]:
        """Return the subtasks that have not acknowledged, by stage. Raises NotFound for one that never was."""
        return self.coordinator.outstanding(self.check_triggered(checkpoint_id))

    def properties(self, checkpoint_id: int) -> CheckpointProperties:
        """Return what a pending, completed or restored one is kept for and how it is treated. Raises NotFound."""
        number = number_of(checkpoint_id)
        found = self.record.pending_of(number) or self.record.completed_of(number)
        if found is None:
            raise NotFound(f"checkpoint {number} is neither pending nor retained")
        return found.properties

    def check_triggered(self, checkpoint_id: int) -> CheckpointId:
        """Return the id. Raises NotFound for a checkpoint that was never triggered."""
        number = number_of(checkpoint_id)
        if not 1 <= number < self.record.next_id:
            raise NotFound(
                f"checkpoint {number} was never triggered: the next one will be {self.record.next_id}"
            )
        return number

    def plan(self, checkpoint_id: int) -> dict[str, dict[str, list[int]]]:
        """Return the subtasks of a pending checkpoint that it does ``trigger``, does ``wait`` for, and that had
        ``finished``, each by stage. Raises NotFound.
        """
        plan = self.coordinator.plan_of(number_of(checkpoint_id))
        masks = {"trigger": plan.trigger, "wait": plan.wait, "finished": plan.finished}
        return {what: {uid: [*bits(mask)] for uid, mask in of.items()} for what, of in masks.items()}

    def status(self, stage: str, subtask: int = 0) -> StageStatus:
        """Return the status of a task; RUNNING where none was ever reported. Raises NotFound: no such task."""
        self.check_task(stage, subtask)
        return self.coordinator.status_of_task(StageUid(stage), subtask)

    # --- files ----------------------------------------------------------------------------------------------

    def files(self, uri: str | None = None) -> list[str]:
        """Return the keys in the checkpoint storage, or in the one at ``uri``, sorted."""
        return sorted(self._memory(uri).contents)

    def is_stored(self, handle: StateHandle) -> bool:
        """True while the file of a handle is in one of the storages."""
        return any(handle.key in self.files(uri) for uri in self.memory_storages)

    def removed(self, uri: str | None = None) -> list[str]:
        """Return the keys that were deleted, in order."""
        return list(self._memory(uri).deleted)

    def metadata(self, checkpoint_id: int) -> CheckpointMetadata:
        """Return the ``_metadata`` of a completed checkpoint, read from its storage."""
        location = self.coordinator.location_of(number_of(checkpoint_id))
        key = metadata_key(location.folder)
        return decode_metadata(location.storage.read(key), name=key)

    def _memory(self, uri: str | None) -> MemoryCheckpointStorage:
        return memory_at(self.memory_storages, uri)

    # --- tasks ----------------------------------------------------------------------------------------------

    def triggered(self, stage: str, subtask: int = 0) -> list[CheckpointId]:
        """Return the checkpoints one subtask was asked to start, in order. Raises NotFound: no such task."""
        self.check_task(stage, subtask)
        return self.gateway.triggered(stage, subtask)

    def options(self, checkpoint_id: int) -> BarrierOptions:
        """Return what travelled with a checkpoint's barrier: kind, alignment, time-out. Raises NotFound."""
        sent = (m.options for m in self.gateway.triggers if m.checkpoint_id == checkpoint_id)
        found = next(sent, None)
        if found is None:
            raise NotFound(f"no stage was told of checkpoint {checkpoint_id}")
        return found

    def check_task(self, stage: str, subtask: int = 0) -> None:
        """Raise NotFound, naming what there is, for a stage or a subtask that the graph does not have."""
        spec = self.graph.by_uid.get(StageUid(stage))
        if spec is None:
            raise unknown_stage(stage, self.graph.by_uid)
        if not 0 <= subtask < spec.parallelism:
            raise NotFound(f"stage {stage!r} has {spec.parallelism} subtasks, so no subtask {subtask}")

    def notices(self, stage: str, subtask: int = 0) -> list[Notice]:
        """Return what one subtask was told, in order. Raises NotFound: no such task."""
        self.check_task(stage, subtask)
        return self.gateway.notices(stage, subtask)

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
        return self.coordinator.statistics()

    @property
    def gauges(self) -> dict[str, int | float | str]:
        """The 14 gauges by name."""
        return gauges(self.statistics)
