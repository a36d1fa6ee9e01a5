"""From acknowledgements to the content of ``_metadata``."""

from __future__ import annotations

from collections.abc import Mapping

from dagster_ckpt.core.checkpoint.pending import PendingState, StageProgress
from dagster_ckpt.core.checkpoint.record import PendingRecord, PendingStageRecord
from dagster_ckpt.core.checkpoint.statistics import combined
from dagster_ckpt.core.checkpoint.tasks import bits
from dagster_ckpt.core.coordinator.state import CoordinatorState, Now
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.messages import StateHandle
from dagster_ckpt.core.model import CheckpointMetadata, StageSnapshot
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
