"""Metadata and numbers of a checkpoint, drawn from acknowledgements and from what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dagster_ckpt.core.checkpoint.pending import PendingState, StageProgress
from dagster_ckpt.core.checkpoint.record import PendingRecord, PendingStageRecord
from dagster_ckpt.core.checkpoint.statistics import (
    CheckpointStatistics,
    CheckpointStatus,
    StageStatistics,
    SubtaskStatistics,
    combined,
)
from dagster_ckpt.core.checkpoint.tasks import bits
from dagster_ckpt.core.coordinator.state import CoordinatorState, Decision, Now
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.messages import CheckpointFailureReason, StateHandle
from dagster_ckpt.core.model import CheckpointMetadata, SnapshotMetrics, StageSnapshot
from dagster_ckpt.core.units import counted

SubtaskHandles = Mapping[int, tuple[StateHandle, ...]]


def partly_finished_union(
    state: CoordinatorState, pending: PendingRecord, progress: PendingState
) -> str | None:
    """Return why the checkpoint must fail: union state of which only part would be saved; None: it need not.

    Where the operators of a part are finished, nothing would be lost yet, but those would be gone before the
    others come to their final checkpoint: all must come to the same one.
    Source: DefaultCheckpointPlan (DefaultCheckpointPlanTest#testAbortionIfPartiallyFinishedVertexUsedUnionListState).
    """
    whole = {p.uid for p in pending.stages if p.snapshot is not None}
    for stage in progress.stages.values():
        # Who acknowledged for the whole stage has told of all that run, not of those that had finished before.
        ended = (stage.finished,) if stage.uid in whole else (stage.finished, stage.operators_finished)
        partly = [m for m in ended if 0 < m < stage.everyone]
        if state.graph.by_uid[stage.uid].uses_union_state and partly:
            return (
                f"Stage {stage.uid!r} keeps union list state, and {partly[0].bit_count()} of its "
                f"{counted(stage.parallelism, 'subtask has', 'subtasks have')} finished: their share would be lost. "
                "The next checkpoint works once all of them have finished."
            )
    return None


def build_metadata(
    state: CoordinatorState, pending: PendingRecord, progress: PendingState, now: Now
) -> tuple[CheckpointMetadata, dict[str, SubtaskHandles]]:
    """Return the metadata of a fully acknowledged checkpoint, and the file lists of stages acked per subtask."""
    handles: dict[str, SubtaskHandles] = {}
    snapshots = []
    for part in pending.stages:
        snapshots.append(_snapshot(state, pending, progress, part))
        stage = progress.stages.get(StageUid(part.uid))
        if part.snapshot is None and stage is not None and not snapshots[-1].finished:
            found = {a.subtask: a.handles for a in stage.acks() if a.handles}
            if found:
                handles[part.uid] = found
    metadata = CheckpointMetadata(
        pipeline=state.setup.pipeline,
        lineage=state.record.lineage,
        lineages=state.record.lineages,
        checkpoint_id=pending.checkpoint_id,
        kind=pending.properties.kind,
        epoch=state.record.epoch,
        triggered_at=pending.triggered_at,
        completed_at=now.wall,
        stages=tuple(snapshots),
        left_tables=state.record.left_tables,
        edges=tuple((e.upstream, e.downstream) for e in state.graph.edges),
        chains=state.graph.chains,
        master_states=pending.master_states,
        run_id=state.record.owner,
        library_version=state.setup.library_version,
        **pending.trigger.label.fields(),
    )
    return metadata, handles


def _snapshot(
    state: CoordinatorState, pending: PendingRecord, progress: PendingState, part: PendingStageRecord
) -> StageSnapshot:
    spec = state.graph.by_uid[StageUid(part.uid)]
    stage = progress.stages.get(spec.uid)
    if part.snapshot is not None:
        return _with_coordinator(_with_finished_before(part.snapshot, stage), pending)
    plain = StageSnapshot(uid=part.uid, parallelism=spec.parallelism, max_parallelism=spec.max_parallelism)
    if stage is None or stage.finished == stage.everyone:
        return plain.model_copy(update={"finished": True})
    return _with_coordinator(_composed(plain, stage), pending)


def _with_finished_before(snapshot: StageSnapshot, stage: StageProgress | None) -> StageSnapshot:
    """Return a whole stage's part with those of its subtasks marked that had finished before the trigger."""
    if stage is None or snapshot.finished or not stage.finished:
        return snapshot
    before = {*snapshot.finished_subtasks, *bits(stage.finished)}
    return snapshot.model_copy(update={"finished_subtasks": tuple(sorted(before))})


def _composed(plain: StageSnapshot, stage: StageProgress) -> StageSnapshot:
    metrics = combined(a.metrics for a in stage.acks() if a.metrics is not None)
    return plain.model_copy(
        update={
            "finished_subtasks": tuple(bits(stage.finished)),
            "metrics": metrics,
            "stateless": not any(a.handles for a in stage.acks()),
        }
    )


def _with_coordinator(snapshot: StageSnapshot, pending: PendingRecord) -> StageSnapshot:
    """Add the driver-side state; a fully finished stage keeps none, but where a later run goes on from its position."""
    if snapshot.finished and snapshot.manifest is None:
        return snapshot.model_copy(update={"coordinator_state": None})
    acked = pending.coordinators.get(snapshot.uid)
    return snapshot if acked is None else snapshot.model_copy(update={"coordinator_state": acked})


REMEMBERED = 200
"""Numbers of so many checkpoints are at hand; older ones are in the store."""


def pending_statistics(
    state: CoordinatorState, pending: PendingRecord, progress: PendingState
) -> CheckpointStatistics:
    """Return the numbers of a pending checkpoint."""
    stages = tuple(_stage(part, progress, pending.triggered_at) for part in pending.stages)
    location = pending.location
    return CheckpointStatistics(
        checkpoint_id=pending.checkpoint_id,
        kind=pending.properties.kind,
        status=CheckpointStatus.IN_PROGRESS,
        trigger=pending.trigger,
        triggered_at=pending.triggered_at,
        latest_ack_at=max((s.latest_ack_at for s in stages if s.latest_ack_at is not None), default=None),
        stages=stages,
        path="" if location is None else location.uri,
        run_id=state.record.owner,
    )


def ended_statistics(
    state: CoordinatorState,
    pending: PendingRecord,
    progress: PendingState,
    now: Now,
    *,
    status: CheckpointStatus,
    reason: CheckpointFailureReason | None = None,
    message: str = "",
    completed_at: float | None = None,
    metadata_size: int = 0,
) -> CheckpointStatistics:
    """Return the numbers of a checkpoint that ends now."""
    return pending_statistics(state, pending, progress).model_copy(
        update={
            "status": status,
            "ended_at": now.wall if completed_at is None else completed_at,
            "failure_reason": "" if reason is None else reason.name,
            "failure_message": message or ("" if reason is None else reason.text),
            "metadata_size": metadata_size,
        }
    )


def status_changed(
    state: CoordinatorState, checkpoint_id: CheckpointId, status: CheckpointStatus
) -> Decision:
    """Note that a completed checkpoint was subsumed or discarded, where its numbers are known."""
    known = state.statistics.get(checkpoint_id)
    if known is None:
        return Decision(state=state)
    changed = known.model_copy(update={"status": status})
    return Decision(state=remembered(state, changed), history=(changed,))


def remembered(state: CoordinatorState, statistics: CheckpointStatistics) -> CoordinatorState:
    """Return the state that knows the numbers of one more checkpoint; the oldest are left to the store."""
    kept = {**state.statistics, CheckpointId(statistics.checkpoint_id): statistics}
    for number in sorted(kept)[:-REMEMBERED]:
        del kept[number]
    return replace(state, statistics=kept)


def _stage(part: PendingStageRecord, progress: PendingState, triggered_at: float) -> StageStatistics:
    stage = progress.stages.get(StageUid(part.uid))
    if stage is None or part.finished:
        before = _finished_before(StageUid(part.uid), progress, triggered_at)
        return StageStatistics(
            uid=part.uid,
            subtasks=len(before),
            acknowledged=len(before),
            latest_ack_at=triggered_at if before else None,
            metrics=SnapshotMetrics() if part.snapshot is None else part.snapshot.metrics,
            details=before,
            finished=True,
        )
    if part.snapshot is not None:
        return StageStatistics(
            uid=part.uid,
            subtasks=stage.parallelism,
            acknowledged=stage.parallelism,
            latest_ack_at=part.acknowledged_at,
            metrics=part.snapshot.metrics,
            details=_details_of(part, progress),
            finished=part.snapshot.finished,
        )
    return _per_subtask(stage, progress, triggered_at)


def _finished_before(
    uid: StageUid, progress: PendingState, triggered_at: float
) -> tuple[SubtaskStatistics, ...]:
    """Return the subtasks that had finished before the trigger: acknowledged then, without any numbers."""
    finished = bits(progress.plan.finished.get(uid, 0))
    return tuple(SubtaskStatistics(index=index, acknowledged_at=triggered_at) for index in finished)


def _details_of(part: PendingStageRecord, progress: PendingState) -> tuple[SubtaskStatistics, ...]:
    metrics = progress.subtask_metrics.get(StageUid(part.uid), {})
    at = part.acknowledged_at or 0.0
    return tuple(
        SubtaskStatistics(index=i, acknowledged_at=at, metrics=m) for i, m in sorted(metrics.items())
    )


def _per_subtask(stage: StageProgress, progress: PendingState, triggered_at: float) -> StageStatistics:
    """Return the numbers of a stage that acknowledges per subtask; finished ones count as acknowledged."""
    before = _finished_before(stage.uid, progress, triggered_at)
    acks = [*stage.acks()]
    acked = (
        SubtaskStatistics(
            index=a.subtask, acknowledged_at=a.acknowledged_at, metrics=a.metrics or SnapshotMetrics()
        )
        for a in reversed(acks)
    )
    details = (*before, *acked)
    return StageStatistics(
        uid=stage.uid,
        subtasks=len(before) + stage.waiting.bit_count(),
        acknowledged=len(before) + len(acks),
        latest_ack_at=max((d.acknowledged_at for d in details), default=None),
        metrics=combined(d.metrics for d in details),
        details=details,
    )
