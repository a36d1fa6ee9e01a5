"""The coordinator through the attempt's life: stages come and go, the timer runs, the run stops or ends.

Source: flink-runtime ExecutionTrackingCheckpointCoordinatorDeActivator, CheckpointCoordinator's start/stop.
"""

from __future__ import annotations

from dataclasses import replace

from dagster_ckpt.core.checkpoint.line import is_ending_the_run, newest_retained
from dagster_ckpt.core.checkpoint.pending import Phase
from dagster_ckpt.core.checkpoint.record import CleanupRecord, CompletedRecord
from dagster_ckpt.core.checkpoint.requests import StopWithSavepoint
from dagster_ckpt.core.checkpoint.tasks import StageStatus, blocking_edge
from dagster_ckpt.core.coordinator.acknowledgements import finalize_if_complete, writer_ended
from dagster_ckpt.core.coordinator.admission import check_target, known_operation, reject, request
from dagster_ckpt.core.coordinator.completion import abort, abort_all, pointed_to
from dagster_ckpt.core.coordinator.effects import CompleteHooks, SendComplete
from dagster_ckpt.core.coordinator.inputs import (
    BacklogReported,
    Closing,
    EndOfDataReported,
    FailingOver,
    SavepointDisposed,
    SchedulerStarted,
    StageReported,
    Started,
    StopRequested,
    TimeoutRearmed,
)
from dagster_ckpt.core.coordinator.state import CoordinatorState, Decision, Now
from dagster_ckpt.core.coordinator.stopping import (
    noting_the_end,
    with_run_ended,
    with_stages_ended,
    with_stages_restarting,
)
from dagster_ckpt.core.coordinator.triggering import trigger
from dagster_ckpt.core.files.retention import completed_store
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.messages import CheckpointFailureReason
from dagster_ckpt.core.request import CheckpointRequest, RequestOrigin, RunStatus
from dagster_ckpt.core.restore.facts import RestoreLine, shape_of
from dagster_ckpt.errors import InvalidRequest

PERIODIC = CheckpointRequest(origin=RequestOrigin.PERIODIC)
"""What the timer requests."""

# --- activation ---------------------------------------------------------------------------------------------


def started(state: CoordinatorState, input: Started, now: Now, draw: float) -> Decision:
    """Note that the run is RUNNING in its working directory, and make up for a lost "complete"."""
    record = state.record
    after = state.with_record(
        status=RunStatus.RUNNING,
        status_epoch=record.epoch,
        working_directory=input.working_directory,
        started_epoch=record.epoch,
        clean=False,
        before_restore=None,
        shape=shape_of(state.graph, state.setup.hooks),
        chains=state.graph.chains,
        left_tables=dict(input.left_tables),
    )
    begun = replace(after, is_started=True)
    moved = Decision(state=begun) if input.shown is None else pointed_to(begun, input.shown)
    decision = moved.then(sync_activation, now, draw)
    return decision.doing(*renotified(decision.state), *_hooks_renotified(decision.state))


def tables_change(state: CoordinatorState) -> Decision:
    """Make the restore that this attempt was claimed for the one that ``latest`` follows, whatever becomes of it."""
    return Decision(state=state.with_record(before_restore=None))


def _hooks_renotified(state: CoordinatorState) -> tuple[CompleteHooks, ...]:
    """Return the same notice for hooks; of a snapshot that came from elsewhere they have nothing to complete."""
    record = state.record
    ended_runs = (s for s in record.savepoints if s.kind.is_synchronous)
    own = {c.checkpoint_id for c in (*record.completed, *ended_runs) if c.epoch < record.epoch}
    latest = record.latest_completed
    if not state.setup.hooks or latest is None or latest not in own:
        return ()
    return (CompleteHooks(CheckpointId(latest)),)


def renotified(state: CoordinatorState) -> tuple[SendComplete, ...]:
    """Return the notice of the latest completion again: it may have been lost with a process."""
    record = state.record
    latest = record.latest_completed
    if latest is None:
        return ()
    everyone = {uid: tasks.everyone for uid, tasks in state.tasks.stages.items()}
    attempts = state.tasks.attempts(everyone)
    timestamp = record.last_completed_at or 0.0
    return (SendComplete(CheckpointId(latest), timestamp, None, attempts),)


def stage_reported(state: CoordinatorState, input: StageReported, now: Now, draw: float) -> Decision:
    """Take a status: it may switch the timer, end a checkpoint that waits for the stage, or end a stop."""
    tasks = state.tasks.reported(
        input.uid, input.status, subtask=input.subtask, keeps_position=input.keeps_position
    )
    noted = noting_the_end(replace(state, tasks=tasks), input.uid, input.status)
    decision = sync_activation(noted, now, draw)
    if input.status.is_over and not tasks.stage(input.uid).keeps_position:
        decision = decision.then(_ended, input, now)
    return decision.then(with_stages_ended, now).then(_final_checkpoint, now)


def _ended(state: CoordinatorState, input: StageReported, now: Now) -> Decision:
    """End what waits for a try that is over, and cross it off the writers."""
    decision = Decision(state=state)
    reason = (
        CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_CLOSING
        if input.status is StageStatus.FINISHED
        else CheckpointFailureReason.TASK_FAILURE
    )
    for pending in state.record.pending:
        number = CheckpointId(pending.checkpoint_id)
        if _waits_for(state, number, input):
            message = f"Stage {input.uid!r} is {input.status} before it acknowledged."
            decision = decision.then(abort, number, reason, message, now, ended=frozenset({input.uid}))
    for cleanup in state.record.cleanup:
        number = CheckpointId(cleanup.checkpoint_id)
        decision = decision.then(writer_ended, number, input.uid)
    return decision.with_answer(None)


def _waits_for(state: CoordinatorState, number: CheckpointId, input: StageReported) -> bool:
    progress = state.progress.get(number)
    stage = None if progress is None else progress.stages.get(input.uid)
    if stage is None:
        return False
    whose = stage.everyone if input.subtask is None else 1 << input.subtask
    return bool(stage.waiting & ~stage.acked & whose)


def end_of_data(state: CoordinatorState, input: EndOfDataReported, now: Now) -> Decision:
    """Note the end of bounded input; when all have reached it the final checkpoint is triggered at once."""
    tasks = state.tasks.at_end_of_data(input.uid, subtask=input.subtask)
    after = _with_backlog(replace(state, tasks=tasks), state.scheduler.backlog, now)
    return _final_checkpoint(after, now)


def _final_checkpoint(state: CoordinatorState, now: Now) -> Decision:
    if not state.tasks.is_at_end:  # a task that starts again comes to the end again
        return Decision(state=replace(state, final_triggered=False) if state.final_triggered else state)
    wanted = state.is_periodic_configured and state.config.checkpoints_after_tasks_finish
    somebody_waits = any(t.end_of_data & ~t.finished for t in state.tasks.stages.values())
    if not wanted or not somebody_waits or state.final_triggered or not state.is_started:
        return Decision(state=state)
    after = replace(state, final_triggered=True)
    return request(after, CheckpointRequest(note="final checkpoint"), now).with_answer(None)


def sync_activation(state: CoordinatorState, now: Now, draw: float) -> Decision:
    """Switch the timer on when the run and all its subtasks run, off (once) when that ceases to be so."""
    wanted = state.is_started and not state.tasks.has_unready and state.is_periodic_configured
    if wanted == state.is_activated:
        return Decision(state=state)
    flipped = replace(state, is_activated=wanted)
    return (
        scheduler_started(flipped, SchedulerStarted(draw), now) if wanted else scheduler_stopped(flipped, now)
    )


# --- the timer ----------------------------------------------------------------------------------------------


def scheduler_started(state: CoordinatorState, input: SchedulerStarted, now: Now) -> Decision:
    """Switch the timer on; one that is on is stopped first. Raises InvalidRequest where it cannot be."""
    if state.is_shut_down:
        raise InvalidRequest("the coordinator is shut down: its periodic scheduler cannot be started")
    if not state.is_periodic_configured:
        raise InvalidRequest(
            "periodic checkpoints are not configured: set interval, and let stages with blocking outputs finish"
        )
    decision = scheduler_stopped(state, now) if state.scheduler.is_on else Decision(state=state)
    running = decision.state.scheduler.started(state.config, now=now.monotonic, draw=input.draw)
    return decision.with_state(replace(decision.state, scheduler=running))


def scheduler_stopped(state: CoordinatorState, now: Now) -> Decision:
    """Switch the timer off, and abort everything pending and queued, savepoints included."""
    reason = CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND
    off = replace(state, scheduler=state.scheduler.stopped())
    return _drop_everything(off, reason, reason.text, now)


def _drop_everything(
    state: CoordinatorState, reason: CheckpointFailureReason, message: str, now: Now
) -> Decision:
    decision = Decision(state=replace(state, queue=type(state.queue)()))
    for queued in state.queue.waiting:
        decision = decision.then(reject, queued, reason, message, now)
    return decision.then(abort_all, reason, message, now).with_answer(None)


def backlog_reported(state: CoordinatorState, input: BacklogReported, now: Now) -> Decision:
    """Note which stages have a backlog; those that finished or are at the end of their data never do."""
    return Decision(state=_with_backlog(state, input.stages, now))


def _with_backlog(state: CoordinatorState, stages: frozenset[StageUid], now: Now) -> CoordinatorState:
    """Return the state with those of ``stages`` that still read as the ones with a backlog."""
    busy = frozenset(uid for uid in stages if state.tasks.stage(uid).reading)
    if busy == state.scheduler.backlog:
        return state
    return replace(state, scheduler=state.scheduler.with_backlog(busy, state.config, now=now.monotonic))


def timers_fired(state: CoordinatorState, now: Now) -> Decision:
    """Expire what is over its timeout, fire the periodic timer once, finish what another process left complete."""
    decision = Decision(state=state)
    for progress in state.progress.values():
        number = progress.checkpoint_id
        if progress.deadline <= now.monotonic:
            decision = decision.then(_expired, number, now)
        elif progress.phase is Phase.COLLECTING:
            decision = decision.then(finalize_if_complete, number, now)
    return decision.with_answer(None).then(_fire, now)


def _expired(state: CoordinatorState, number: CheckpointId, now: Now) -> Decision:
    pending, progress = state.record.pending_of(number), state.progress[number]
    missing = ", ".join(progress.outstanding(pending)) if pending is not None else ""
    seconds = state.config.timeout
    message = f"The checkpoint did not complete within {seconds:g} s; outstanding: {missing or 'nothing'}."
    return abort(state, number, CheckpointFailureReason.CHECKPOINT_EXPIRED, message, now)


def _fire(state: CoordinatorState, now: Now) -> Decision:
    state = _with_backlog(state, state.scheduler.backlog, now)
    if not state.scheduler.is_due(now.monotonic):
        return Decision(state=state)
    parked = state.scheduler.interval(state.config) is None
    fired = replace(state, scheduler=state.scheduler.fired(state.config))
    return Decision(state=fired, answer=not parked)


def next_timer(state: CoordinatorState) -> float | None:
    """Return the monotonic time of the next timer, or None."""
    times = [p.deadline for p in state.progress.values()]
    if state.scheduler.is_on and state.scheduler.next_at is not None:
        times.append(state.scheduler.next_at)
    return min(times, default=None)


def timeout_rearmed(state: CoordinatorState, input: TimeoutRearmed, now: Now) -> Decision:
    """Restart a pending checkpoint's timeout."""
    pending = state.record.pending_of(input.checkpoint_id)
    progress = state.progress.get(input.checkpoint_id)
    if pending is None or progress is None:
        return Decision(state=state)
    deadline_at = now.wall + state.config.timeout
    changed = replace(progress, deadline=now.monotonic + state.config.timeout, deadline_at=deadline_at)
    after = state.with_pending(pending.model_copy(update={"deadline_at": deadline_at}))
    return Decision(state=after.with_progress(changed))


# --- the ends -----------------------------------------------------------------------------------------------


def failing_over(state: CoordinatorState, input: FailingOver, now: Now) -> Decision:
    """End everything pending and queued, and a stop that waits for its stages: they are about to be restarted."""
    reason = CheckpointFailureReason.JOB_FAILOVER_REGION
    decision = _drop_everything(state, reason, input.message or reason.text, now)
    decision = decision.then(with_stages_restarting, now)
    after = decision.state.with_record(job_failure="")
    return decision.with_state(replace(after, final_triggered=False))


def stages_restored(state: CoordinatorState, number: CheckpointId, now: Now) -> Decision:
    """Note what stages that were restarted within the attempt began from: it counts like any restore."""
    counts = state.record.counts
    counted = counts.model_copy(update={"restored": counts.restored + 1})
    return Decision(state=state.with_record(restored_id=number, restored_at=now.wall, counts=counted))


def stop_requested(state: CoordinatorState, input: StopRequested, now: Now) -> Decision:
    """Stop the timer, abort what is pending, request the savepoint that ends the run.

    Answers TriggerOutcome. Raises InvalidRequest where the kind is not synchronous, there is no target, or a stop is
    in progress.
    """
    wanted = input.request
    known = known_operation(state, wanted.request_id)
    if known is not None:
        return Decision(state=state, answer=known)
    if not wanted.kind.is_synchronous:
        raise InvalidRequest(f"stop-with-savepoint takes a synchronous savepoint, not a {wanted.kind}")
    check_target(state, wanted, "stop-with-savepoint")
    if state.stop is not None and state.stop.outcome is None:
        raise InvalidRequest("a stop-with-savepoint is in progress: wait for its outcome")
    if blocking_edge(state.graph, state.tasks) is not None:
        return _begin_stop(state, wanted, now)
    return scheduler_stopped(state, now).then(_begin_stop, wanted, now)


def _begin_stop(state: CoordinatorState, wanted: CheckpointRequest, now: Now) -> Decision:
    return trigger(replace(state, stop=StopWithSavepoint()), wanted, now)


def closing(state: CoordinatorState, input: Closing, now: Now) -> Decision:
    """End the attempt: abort what is pending, keep or delete what is retained, as the status says.

    What the status does not delete stays known, so that ``latest`` finds it in the next run.
    """
    reason = CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN
    off = replace(state, is_shut_down=True, scheduler=state.scheduler.stopped(), is_activated=False)
    decision = _drop_everything(off, reason, reason.text, now)
    decision = decision.then(with_run_ended, input.status).then(_retained_after, input)
    after = decision.state
    released = tuple(c.model_copy(update={"writers": ()}) for c in after.record.cleanup)
    return decision.with_state(
        after.with_record(
            status=input.status,
            status_epoch=after.record.epoch,
            clean=input.clean and bool(after.record.working_directory),
            job_failure=after.record.job_failure or input.cause,
            cleanup=released,
            lease_until=after.record.lease_until if input.hands_over else None,
            mailbox=after.record.mailbox if input.hands_over else (),
        )
    ).with_answer(None)


def _retained_after(state: CoordinatorState, input: Closing) -> Decision:
    record = state.record
    store = completed_store(state.config, record.completed, shown=record.shown_id)
    discarded = store.shut_down(input.status).discarded
    newest = newest_retained(record) if input.keeps_newest else None
    discarded = tuple(c for c in discarded if c is not newest)
    gone = {c.checkpoint_id for c in discarded}
    kept = tuple(c for c in record.completed if c.checkpoint_id not in gone)
    doomed = tuple(_doomed(c) for c in discarded)
    line = _without_deleted_base(record.line, (*kept, *record.savepoints))
    return Decision(state=state.with_record(completed=kept, cleanup=(*record.cleanup, *doomed), line=line))


def _without_deleted_base(line: RestoreLine | None, kept: tuple[CompletedRecord, ...]) -> RestoreLine | None:
    """Return the line; what it began from is no restore point any more once it was deleted."""
    base = None if line is None else line.base
    if line is None or base is None or not base.properties.discard_subsumed:
        return line
    is_kept = any(c.checkpoint_id == base.checkpoint_id for c in kept)
    return line if is_kept else line.model_copy(update={"base": None})


def _doomed(entry: CompletedRecord) -> CleanupRecord:
    return CleanupRecord(
        checkpoint_id=entry.checkpoint_id,
        location=entry.location,
        complete=True,
        savepoint=entry.kind.is_savepoint,
    )


def savepoint_disposed(state: CoordinatorState, input: SavepointDisposed) -> Decision:
    """Forget a savepoint and have its files deleted; answer whether there was one.

    Raises InvalidRequest while it is what the pipeline would be restored from.
    """
    record, number = state.record, input.checkpoint_id
    found = next((s for s in record.savepoints if s.checkpoint_id == number), None)
    if found is None:
        return Decision(state=state, answer=False)
    needed = newest_retained(record)
    if needed is not None and needed.checkpoint_id == number:
        raise InvalidRequest(
            f"savepoint {number} is needed: the pipeline was restored from it and has completed no checkpoint since"
        )
    if is_ending_the_run(record, found):
        raise InvalidRequest(f"savepoint {number} is needed: the run ends with it and has not ended yet")
    after = state.with_record(
        savepoints=tuple(s for s in record.savepoints if s is not found),
        completed=tuple(c for c in record.completed if c.checkpoint_id != number),
        cleanup=(*record.cleanup, _doomed(found)),
    )
    return Decision(state=after, answer=True)
