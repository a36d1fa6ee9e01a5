"""From the queue to a triggered checkpoint: plan, id, location, driver-side states, hooks, stages.

Source: flink-runtime CheckpointCoordinator#startTriggeringCheckpoint (CheckpointCoordinatorTriggeringTest).
"""

from __future__ import annotations

from dataclasses import replace

from dagster_ckpt.core.alignment.events import options_for
from dagster_ckpt.core.checkpoint.line import on_line
from dagster_ckpt.core.checkpoint.pending import PendingState, Phase, begin_progress
from dagster_ckpt.core.checkpoint.record import (
    OperationRecord,
    PendingRecord,
    PendingStageRecord,
    TriggerRecord,
)
from dagster_ckpt.core.checkpoint.requests import Chosen, QueuedRequest, QueueLoad, TooSoon, Wait
from dagster_ckpt.core.checkpoint.tasks import CheckpointPlan, NotPossible, bits, calculate_plan
from dagster_ckpt.core.coordinator.admission import (
    failed_before_id,
    pre_check,
    reject,
    request,
    with_operation,
)
from dagster_ckpt.core.coordinator.effects import (
    AskCoordinators,
    CallHooks,
    CheckpointTriggered,
    MakeLocation,
    ReleaseFinished,
    SendTrigger,
)
from dagster_ckpt.core.coordinator.inputs import HooksCalled, LocationMade
from dagster_ckpt.core.coordinator.metadata import pending_statistics
from dagster_ckpt.core.coordinator.state import CoordinatorState, Decision, Now
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.messages import BarrierOptions, CheckpointFailureReason, TriggerStages
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.paths import CheckpointPaths, SnapshotLocation, same_place
from dagster_ckpt.core.request import (
    CheckpointProperties,
    CheckpointRequest,
    Queued,
    SharingStrategy,
    SnapshotScope,
    Triggered,
    TriggerOutcome,
)
from dagster_ckpt.core.units import duration

# --- the next request ---------------------------------------------------------------------------------------


def trigger(state: CoordinatorState, wanted: CheckpointRequest, now: Now) -> Decision:
    """Queue a request and give the queue its turn; answer what has become of the request: TriggerOutcome."""
    asked = request(state, wanted, now)
    decision, outcomes = _run_queue(asked, now)
    outcome = asked.answer
    if isinstance(outcome, Queued):
        outcome = outcomes.get(outcome.number, outcome)
    return decision.with_answer(outcome)


def run_queue(state: CoordinatorState, now: Now) -> Decision:
    """Trigger what may be triggered now; asked again after every input."""
    decision, _ = _run_queue(Decision(state=state), now)
    return decision


def _run_queue(decision: Decision, now: Now) -> tuple[Decision, dict[int, TriggerOutcome]]:
    """Let the queue have its turn after ``decision``; return the outcome of each request that left it, by number."""
    outcomes: dict[int, TriggerOutcome] = {}
    while True:
        choice = decision.state.queue.choose(_load(decision.state, now))
        match choice:
            case Wait():
                return decision.with_answer(None), outcomes
            case TooSoon(queued, retry_in):
                decision = decision.then(_too_soon, queued, retry_in, now)
            case Chosen(queued):
                decision = decision.then(_start, queued, now)
        outcomes[queued.number] = decision.answer


def is_due(state: CoordinatorState, now: Now) -> bool:
    """True when the queue would do something now."""
    return bool(state.queue.waiting) and not isinstance(state.queue.choose(_load(state, now)), Wait)


def _load(state: CoordinatorState, now: Now) -> QueueLoad:
    return QueueLoad(
        is_triggering=state.triggering is not None,
        pending=len(state.record.pending),
        cleaning=len(state.cleaning),
        notifying=_notifying(state, now),
        max_concurrent=state.config.max_concurrent_checkpoints,
        pause_left=state.pause_left(now),
    )


def _notifying(state: CoordinatorState, now: Now) -> int:
    """Return how many completions the stages are still being notified of; not of those that hang.

    Past the timeout of a checkpoint the next one is triggered all the same, fails and counts, as behind a commit of
    Flink's that hangs.
    """
    return sum(now.monotonic - since < state.config.timeout for since in state.notifying.values())


def _too_soon(state: CoordinatorState, queued: QueuedRequest, retry_in: float, now: Now) -> Decision:
    scheduler = state.scheduler.retried(now=now.monotonic, retry_in=retry_in)
    after = replace(state, queue=state.queue.without(queued), scheduler=scheduler)
    reason = CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS
    return reject(after, queued, reason, f"The minimum pause ends in {duration(retry_in)}.", now)


def _start(state: CoordinatorState, queued: QueuedRequest, now: Now) -> Decision:
    """Give the request an id and a pending checkpoint, unless no plan is possible; answer TriggerOutcome."""
    state = replace(state, queue=state.queue.without(queued))
    refusal = pre_check(state, queued.request)
    if refusal is not None:
        return failed_before_id(state, queued, *refusal, now)
    plan = calculate_plan(
        state.graph, state.tasks, after_tasks_finish=state.config.checkpoints_after_tasks_finish
    )
    if isinstance(plan, NotPossible):
        reason = CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING
        return failed_before_id(state, queued, reason, plan.why, now)
    return _begun(state, queued, plan, now)


def _begun(state: CoordinatorState, queued: QueuedRequest, plan: CheckpointPlan, now: Now) -> Decision:
    number = CheckpointId(state.record.next_id)
    wanted = queued.request
    pending = _pending_record(state, queued, plan, number, now)
    progress = begin_progress(
        checkpoint_id=number,
        plan=plan,
        tasks=state.tasks,
        deadline=now.monotonic + state.config.timeout,
        deadline_at=pending.deadline_at,
        is_savepoint=wanted.kind.is_savepoint,
    )
    counts = state.record.counts
    after = state.with_record(
        next_id=number + 1,
        pending=(*state.record.pending, pending),
        counts=counts.model_copy(update={"total": counts.total + 1}),
    )
    if wanted.request_id:
        operation = OperationRecord(request_id=wanted.request_id, checkpoint_id=number)
        after = with_operation(after, operation)
    after = replace(after.with_progress(progress), triggering=number)
    if wanted.kind.is_synchronous and after.stop is not None and after.stop.outcome is None:
        after = replace(after, stop=replace(after.stop, checkpoint_id=number))
    target = (wanted.target or state.config.savepoint_dir) if wanted.kind.is_savepoint else ""
    told = CheckpointTriggered(
        checkpoint_id=number,
        kind=pending.properties.kind,
        request=wanted,
        triggered_at=now.wall,
    )
    history = (pending_statistics(after, pending, progress),)
    decision = Decision(state=after, history=history, answer=Triggered(number))
    return decision.telling(told).doing(MakeLocation(number, target))


def _pending_record(
    state: CoordinatorState, queued: QueuedRequest, plan: CheckpointPlan, number: CheckpointId, now: Now
) -> PendingRecord:
    wanted = queued.request
    properties = queued.properties.model_copy(update={"kind": _effective_kind(state, wanted)})
    location = None
    if not wanted.kind.is_savepoint:
        folder = CheckpointPaths(state.setup.pipeline).checkpoint(number)
        location = SnapshotLocation(base_uri=state.setup.storage_uri, folder=folder)
    return PendingRecord(
        checkpoint_id=number,
        properties=properties,
        trigger=TriggerRecord(
            periodic=wanted.is_periodic, request_id=wanted.request_id, **wanted.label.fields()
        ),
        triggered_at=now.wall,
        deadline_at=now.wall + state.config.timeout,
        location=location,
        stages=tuple(
            PendingStageRecord(
                uid=stage.uid,
                number=state.tasks.stage(stage.uid).number_of(0),
                finished=stage.uid in plan.fully_finished,
                keeps_position=state.tasks.stage(stage.uid).keeps_position,
                finished_subtasks=_partly_finished(plan, stage.uid),
            )
            for stage in state.graph.topological
        ),
        hooks_owed=tuple(sorted(state.setup.hooks)),
        builds_on=_builds_on(state, properties, wanted),
    )


def _partly_finished(plan: CheckpointPlan, uid: StageUid) -> tuple[int, ...]:
    return () if uid in plan.fully_finished else tuple(bits(plan.finished.get(uid, 0)))


def _effective_kind(state: CoordinatorState, wanted: CheckpointRequest) -> CheckpointKind:
    """A forced full checkpoint (after NO_CLAIM), or a full one asked for, is of the full kind."""
    if wanted.kind is not CheckpointKind.CHECKPOINT:
        return wanted.kind
    if wanted.scope is SnapshotScope.FULL or state.record.force_full:
        return CheckpointKind.FULL_CHECKPOINT
    return CheckpointKind.CHECKPOINT


def _builds_on(
    state: CoordinatorState, properties: CheckpointProperties, wanted: CheckpointRequest
) -> int | None:
    """Return the completed checkpoint whose shared files may be named again, or None."""
    if properties.sharing is not SharingStrategy.FORWARD_BACKWARD:
        return None
    if wanted.scope is SnapshotScope.CONFIGURED and not state.config.incremental:
        return None
    mine = (
        c
        for c in reversed(state.record.completed)
        if c.properties.sharing is not SharingStrategy.NO_SHARING
        and not c.properties.unclaimed
        and not (c.taken_as and c.taken_as.is_savepoint)
        and on_line(c, state.record.line)
        and same_place(c.location.base_uri, state.setup.storage_uri)
    )
    return next((c.checkpoint_id for c in mine), None)


# --- the steps ----------------------------------------------------------------------------------------------


def location_made(state: CoordinatorState, input: LocationMade, now: Now) -> Decision:
    """Go on with the driver-side states."""
    progress = state.progress.get(input.checkpoint_id)
    pending = state.record.pending_of(input.checkpoint_id)
    if progress is None or pending is None or progress.phase is not Phase.LOCATION:
        return Decision(state=state)
    if pending.location != input.location:
        state = state.with_pending(pending.model_copy(update={"location": input.location}))
    if not state.setup.coordinators:
        return to_hooks(state, progress, now)
    after = state.with_progress(replace(progress, phase=Phase.COORDINATORS))
    asked = tuple(sorted(state.setup.coordinators))
    return Decision(state=after).doing(AskCoordinators(input.checkpoint_id, asked))


def to_hooks(state: CoordinatorState, progress: PendingState, now: Now) -> Decision:
    """Call the master hooks, or go on to the stages where there is none."""
    if not state.setup.hooks:
        return to_stages(state, progress)
    after = state.with_progress(replace(progress, phase=Phase.HOOKS))
    return Decision(state=after).doing(CallHooks(progress.checkpoint_id, now.wall))


def hooks_called(state: CoordinatorState, input: HooksCalled) -> Decision:
    """Go on to the stages if every hook has given its result."""
    progress = state.progress.get(input.checkpoint_id)
    pending = state.record.pending_of(input.checkpoint_id)
    if progress is None or pending is None or progress.phase is not Phase.HOOKS or pending.hooks_owed:
        return Decision(state=state)
    return to_stages(state, progress)


def to_stages(state: CoordinatorState, progress: PendingState) -> Decision:
    """Tell the roots of the plan to start."""
    pending = state.record.pending_of(progress.checkpoint_id)
    if pending is None:
        return Decision(state=state)
    after = state.with_progress(replace(progress, phase=Phase.TRIGGERING))
    message = TriggerStages(
        checkpoint_id=progress.checkpoint_id,
        timestamp=pending.triggered_at,
        options=_barrier_options(state, pending),
        attempts=state.tasks.attempts(progress.plan.trigger),
    )
    gone = {uid: m for uid, m in progress.plan.finished.items() if uid in state.setup.coordinators}
    release = (ReleaseFinished(progress.checkpoint_id, state.tasks.attempts(gone)),) if gone else ()
    return Decision(state=after).doing(*release, SendTrigger(message))


def _barrier_options(state: CoordinatorState, pending: PendingRecord) -> BarrierOptions:
    kind, location = pending.properties.kind, pending.location
    if location is None:
        return options_for(kind, state.config)
    target = location.uri if kind.is_savepoint else location.folder
    return options_for(kind, state.config, target=target)
