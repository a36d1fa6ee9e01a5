"""Continuation of a stop-with-savepoint when its savepoint or its stages end; failing of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from dagster_ckpt.core.checkpoint.requests import (
    NotStopped,
    SavepointCreated,
    SavepointFailed,
    Stopped,
    StoppedBadly,
    StopWithSavepoint,
)
from dagster_ckpt.core.checkpoint.tasks import StageStatus, TaskTable
from dagster_ckpt.core.coordinator.effects import JobFailed, StopEnded
from dagster_ckpt.core.coordinator.state import CoordinatorState, Decision, Now
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.request import RunStatus


def fail_job(state: CoordinatorState, cause: str) -> Decision:
    """Say that the run must fail, as often as there is cause; the first cause is the one on record."""
    after = state if state.record.job_failure else state.with_record(job_failure=cause)
    return Decision(state=after).telling(JobFailed(cause=cause))


def with_savepoint_result(
    state: CoordinatorState,
    checkpoint_id: CheckpointId | None,
    result: SavepointCreated | SavepointFailed,
    now: Now,
) -> Decision:
    """Tell a stop-with-savepoint what became of its savepoint, if it is this one."""
    stop = state.stop
    if stop is None or stop.checkpoint_id != checkpoint_id or stop.savepoint is not None:
        return Decision(state=state)
    return _resolved(replace(state, stop=stop.with_savepoint(result)), now)


def noting_the_end(state: CoordinatorState, uid: StageUid, status: StageStatus) -> CoordinatorState:
    """Return the state in which a stop in progress knows of a stage that did not finish, should it run again.

    Source: SchedulerBase: a stop waits for the tries that ran when it began.
    """
    stop = state.stop
    is_bad = status.is_over and status is not StageStatus.FINISHED
    if stop is None or stop.outcome is not None or not is_bad:
        return state
    return replace(state, stop=stop.with_bad_end(uid, status))


def with_stages_ended(state: CoordinatorState, now: Now) -> Decision:
    """Tell a stop-with-savepoint how the stages ended, once all have."""
    stop = state.stop
    if stop is None or stop.terminal is not None or stop.outcome is not None:
        return Decision(state=state)
    statuses = _statuses(state.tasks, stop)
    if not all(status.is_over for status in statuses.values()):
        return Decision(state=state)
    return _resolved(replace(state, stop=stop.with_terminal(statuses)), now)


def with_stages_restarting(state: CoordinatorState, now: Now) -> Decision:
    """End a stop-with-savepoint that has its savepoint while its stages restart instead of finishing.

    The run fails over already, so it is not failed a second time; periodic checkpoints are taken again.
    """
    decision = _cut_short(state, StageStatus.CANCELED)
    return decision.with_state(_scheduling_again(decision.state, now)) if decision.effects else decision


def with_run_ended(state: CoordinatorState, status: RunStatus) -> Decision:
    """End a stop-with-savepoint that has its savepoint, as the attempt ends before every stage was heard of.

    Source: StopWithSavepointTest#testExceptionalOperationFutureCompletionOnLeave…: whoever asked hears of it. In a run
    that FINISHED all its stages have.
    """
    is_finished = status is RunStatus.FINISHED
    return _cut_short(state, StageStatus.FINISHED if is_finished else StageStatus.CANCELED)


def _cut_short(state: CoordinatorState, status: StageStatus) -> Decision:
    """End a stop that waits for its stages: those still alive end with ``status``."""
    stop = state.stop
    if stop is None or stop.savepoint is None or stop.outcome is not None:
        return Decision(state=state)
    statuses = _statuses(state.tasks, stop)
    ended = {uid: s if s.is_over else status for uid, s in statuses.items()}
    after = replace(state, stop=stop.with_terminal(ended))
    return Decision(state=after).telling(StopEnded(checkpoint_id=stop.checkpoint_id))


def _statuses(tasks: TaskTable, stop: StopWithSavepoint) -> dict[StageUid, StageStatus]:
    return {uid: stop.ended_badly.get(uid) or worst_status(tasks, uid) for uid in tasks.stages}


def worst_status(tasks: TaskTable, uid: StageUid) -> StageStatus:
    """Return the status of a stage: alive while one subtask is, else FINISHED only if all are."""
    stage = tasks.stage(uid)
    if stage.running:
        return StageStatus.RUNNING
    if not stage.unready:
        return StageStatus.FINISHED
    alive = (s for s in stage.statuses.values() if not s.is_over)
    failed = (s for s in stage.statuses.values() if s is StageStatus.FAILED)
    return next(alive, None) or next(failed, None) or StageStatus.CANCELED


def _resolved(state: CoordinatorState, now: Now) -> Decision:
    stop = state.stop
    outcome = None if stop is None else stop.outcome
    decision = Decision(state=state)
    match outcome:
        case None:
            return decision
        case Stopped():
            pass
        case NotStopped():
            decision = decision.with_state(_scheduling_again(state, now))
        case StoppedBadly(_, message):
            decision = fail_job(state, message)
        case _:
            assert_never(outcome)
    return decision.telling(StopEnded(checkpoint_id=None if stop is None else stop.checkpoint_id))


def _scheduling_again(state: CoordinatorState, now: Now) -> CoordinatorState:
    """The pipeline runs on: periodic checkpoints are taken again, as far as its stages run."""
    may_run = state.is_started and not state.is_shut_down and not state.tasks.has_unready
    if not may_run or not state.is_periodic_configured:
        return state
    scheduler = state.scheduler.started(state.config, now=now.monotonic, draw=0.0)
    return replace(state, scheduler=scheduler, is_activated=True)
