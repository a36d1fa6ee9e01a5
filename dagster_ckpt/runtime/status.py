"""Status of the coordinator; nothing here changes anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from dagster_ckpt.core.checkpoint.line import that_tell_ends
from dagster_ckpt.core.checkpoint.record import CompletedRecord, CoordinatorRecord
from dagster_ckpt.core.checkpoint.requests import StopOutcome
from dagster_ckpt.core.checkpoint.statistics import HISTORY_SIZE, SUMMARY_WINDOW, StatisticsSnapshot
from dagster_ckpt.core.checkpoint.tasks import CheckpointPlan, StageStatus, bits
from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.coordinator.state import AckDurability, CoordinatorState
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, ExecutionAttempt, PipelineId, StageUid
from dagster_ckpt.core.messages import CheckpointFailureReason, CommitPermit
from dagster_ckpt.core.model import CheckpointMetadata
from dagster_ckpt.core.request import (
    CheckpointOutcome,
    Completed,
    Failed,
    Pending,
    Queued,
    Rejected,
    Triggered,
    TriggerOutcome,
)
from dagster_ckpt.core.restore.choice import Adopt, Restore, RestoreDecision
from dagster_ckpt.core.restore.matching import staying_finished
from dagster_ckpt.errors import CheckpointError, NotFound
from dagster_ckpt.runtime.effects import make_permit
from dagster_ckpt.runtime.loop import EventLoop
from dagster_ckpt.runtime.stored import CheckpointLocation


def finished_stages(
    decision: RestoreDecision,
    record: CoordinatorRecord,
    metadata_of: Callable[[CompletedRecord], CheckpointMetadata],
) -> frozenset[StageUid]:
    """Return the stages that had finished in what a decision goes on from, and that a stream does not run again."""
    parts: dict[StageUid, bool] = {}
    match decision:
        case Restore(stages=stages):
            parts = {match.uid: match.finished_on_restore for match in stages.matches}
        case Adopt():
            for entry in that_tell_ends(record):
                with suppress(
                    CheckpointError
                ):  # what cannot be read keeps nothing that is here from going on
                    for part in metadata_of(entry).stages:
                        uid = StageUid(part.uid)
                        parts[uid] = part.finished or parts.get(uid, False)
    return staying_finished(parts)


class CoordinatorView:
    """The questions of ``CheckpointCoordinator``."""

    restored: RestoreDecision
    """What the stages start from."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._engine = loop.engine

    # --- the attempt ----------------------------------------------------------------------------------------

    @property
    def pipeline(self) -> PipelineId:
        """The pipeline."""
        return self._engine.pipeline

    @property
    def epoch(self) -> CoordinatorEpoch:
        """Epoch of this attempt."""
        return self._engine.state.epoch

    @property
    def finished_before(self) -> frozenset[StageUid]:
        """The stages that had finished in what the attempt goes on from, and do not run again."""
        return finished_stages(self.restored, self._engine.state.record, self._loop.metadata_of)

    @property
    def lineage(self) -> str:
        """Identity of the pipeline's history."""
        return self._engine.state.record.lineage

    @property
    def config(self) -> CheckpointConfig:
        """Settings."""
        return self._engine.state.config

    @property
    def acks(self) -> AckDurability:
        """Whether other processes take part: then each acknowledgement is stored by itself."""
        return self._engine.state.setup.acks

    @property
    def record(self) -> CoordinatorRecord:
        """The durable record as this process knows it."""
        return self._engine.state.record

    @property
    def stored_record(self) -> CoordinatorRecord:
        """The record as it was stored last: what other processes go by."""
        return self._engine.stored

    @property
    def working_directory(self) -> str:
        """The directory this attempt's stages were restored in; empty until ``started``."""
        record = self._engine.state.record
        return record.working_directory if record.started_epoch == record.epoch else ""

    @property
    def failure(self) -> str:
        """Why the run must fail; empty: it need not."""
        return self._engine.state.record.job_failure

    @property
    def stop_outcome(self) -> StopOutcome | None:
        """Outcome of the stop-with-savepoint; None while there is none or it is in progress."""
        stop = self._engine.state.stop
        return None if stop is None else stop.outcome

    @property
    def is_stopping(self) -> bool:
        """True while a stop-with-savepoint is in progress: its savepoint, or the end of its stages, is waited for."""
        stop = self._engine.state.stop
        return stop is not None and stop.outcome is None

    def refuse_fenced(self) -> None:
        """Raise Fenced where a newer attempt owns the pipeline by now; Unavailable where the store cannot be asked."""
        self._engine.refresh()

    # --- checkpoints ----------------------------------------------------------------------------------------

    def outcome_of_request(self, request_id: str) -> TriggerOutcome:
        """Return the outcome of a client's request id. Raises NotFound for one never heard of."""
        self._engine.refresh()
        state = self._engine.state
        for queued in state.queue.waiting:
            if queued.request.request_id == request_id:
                return Queued(queued.request, queued.number)
        for operation in state.record.operations:
            if operation.request_id == request_id:
                if operation.checkpoint_id is not None:
                    return Triggered(CheckpointId(operation.checkpoint_id))
                return Rejected(CheckpointFailureReason[operation.rejected], operation.message)
        raise NotFound(f"no request with id {request_id!r} is known for pipeline {self.pipeline!r}")

    def attempt_of(self, uid: StageUid, subtask: int = 0) -> ExecutionAttempt:
        """Return the identity with which a stage acknowledges."""
        return self._engine.state.tasks.attempt(uid, subtask)

    def is_pending(self, checkpoint_id: CheckpointId) -> bool:
        """True while the checkpoint is pending; asks the store where this process does not know it."""
        return self._known_pending(checkpoint_id).record.pending_of(checkpoint_id) is not None

    def awaits_hooks(self, checkpoint_id: CheckpointId) -> bool:
        """True while a pending checkpoint waits for the state of a hook."""
        pending = self._known_pending(checkpoint_id).record.pending_of(checkpoint_id)
        return pending is not None and bool(pending.hooks_owed)

    def location_of(self, checkpoint_id: CheckpointId) -> CheckpointLocation:
        """Return where a pending or completed checkpoint's files go, and whose files it may name again.

        Raises NotFound for one that is over without completing, or not known.
        """
        return self._loop.location_of(self._known_pending(checkpoint_id), checkpoint_id)

    def status_of(self, checkpoint_id: CheckpointId) -> CheckpointOutcome:
        """Return the outcome of a checkpoint. Raises NotFound for one not known."""
        self._loop.refresh()
        state = self._engine.state
        pending = state.record.pending_of(checkpoint_id)
        progress = state.progress.get(checkpoint_id)
        if pending is not None and progress is not None:
            return Pending(progress.outstanding(pending))
        entry = state.record.completed_of(checkpoint_id)
        if entry is not None:
            return Completed(self._loop.metadata_of(entry), entry.location)
        failed = self._failed(checkpoint_id)
        if failed is None:
            raise NotFound(f"pipeline {self.pipeline!r} knows no checkpoint {checkpoint_id}, or no longer")
        return failed

    def retained_under_former_names(self) -> list[CheckpointMetadata]:
        """Return the snapshots that are kept of names which the pipeline had before: what they need is needed.

        Raises NotFound, Corrupt, Unavailable where one cannot be read.
        """
        setup = self._loop.setup
        records = (setup.records.record(name) for name in setup.graph.previous_names)
        kept = (
            e for record in records if record is not None for e in (*record.completed, *record.savepoints)
        )
        return [self._loop.metadata_of(entry) for entry in kept]

    @property
    def notifying(self) -> Mapping[CheckpointId, float]:
        """Completed checkpoints that this process is publishing and telling of, and since when (monotonic)."""
        return self._engine.state.notifying

    @property
    def queued_requests(self) -> int:
        """Requests that wait for their turn."""
        return len(self._engine.state.queue.waiting)

    @property
    def triggering(self) -> CheckpointId | None:
        """The checkpoint whose trigger is in flight; None: the next request may be triggered."""
        return self._engine.state.triggering

    @property
    def is_scheduling(self) -> bool:
        """True while the periodic scheduler is on."""
        return self._engine.state.scheduler.is_on

    @property
    def next_periodic(self) -> float | None:
        """Monotonic time of the next periodic checkpoint; None while the scheduler is off or parked."""
        return self._engine.state.scheduler.next_at

    def outstanding(self, checkpoint_id: CheckpointId) -> dict[str, list[int]]:
        """Return the subtasks of a pending checkpoint that have not acknowledged, by stage; none: empty."""
        progress = self._engine.state.progress.get(checkpoint_id)
        stages = () if progress is None else progress.stages.values()
        return {s.uid: list(bits(s.waiting & ~s.acked)) for s in stages if s.waiting & ~s.acked}

    def plan_of(self, checkpoint_id: CheckpointId) -> CheckpointPlan:
        """Return whom a pending checkpoint triggers and waits for. Raises NotFound."""
        progress = self._engine.state.progress.get(checkpoint_id)
        if progress is None:
            raise NotFound(f"checkpoint {checkpoint_id} is not pending")
        return progress.plan

    def deadline_of(self, checkpoint_id: CheckpointId) -> float:
        """Return the monotonic time at which a pending checkpoint expires. Raises NotFound."""
        progress = self._engine.state.progress.get(checkpoint_id)
        if progress is None:
            raise NotFound(f"checkpoint {checkpoint_id} is not pending")
        return progress.deadline

    def status_of_task(self, uid: StageUid, subtask: int = 0) -> StageStatus:
        """Return the status of a task as last reported; RUNNING where it never was."""
        return self._engine.state.tasks.stage(uid).status_of(subtask)

    def permit_for(self, checkpoint_id: CheckpointId) -> CommitPermit:
        """Return the permit to publish what a completed checkpoint holds. Raises Fenced, InvalidRequest."""
        return make_permit(self._engine, checkpoint_id)

    def statistics(
        self, *, window: int = SUMMARY_WINDOW, history_size: int = HISTORY_SIZE
    ) -> StatisticsSnapshot:
        """Return the numbers, the last ``window`` checkpoints of the stored history included."""
        return self._loop.statistics(window, history_size)

    def _failed(self, checkpoint_id: CheckpointId) -> Failed | None:
        failed = self._engine.state.record.failed
        found = next((f for f in failed if f.checkpoint_id == checkpoint_id), None)
        return None if found is None else Failed(CheckpointFailureReason[found.reason], found.message)

    def _known_pending(self, checkpoint_id: CheckpointId) -> CoordinatorState:
        """Return the state, having asked the store where this process does not know the checkpoint."""
        if checkpoint_id not in self._engine.state.progress:
            self._loop.refresh()
        return self._engine.state
