"""The one decision function: ``decide(state, event, now)``; nothing else changes the coordinator's state."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from dagster_ckpt.core import collecting, deleting, finishing, lifecycle, mailbox, requesting, triggering
from dagster_ckpt.core import inputs as i
from dagster_ckpt.core.state import CoordinatorState, Decision, Now


def decide(state: CoordinatorState, event: i.Input, now: Now, *, draw: float = 0.0) -> Decision:
    """Return what follows from ``event``; ``draw`` in [0, 1) places the first fire of the periodic timer.

    Pure: the same arguments give the same decision. Raises InvalidRequest or NotFound for events that mean nothing.
    """
    if isinstance(event, i.SubtaskAcked):
        decision = collecting.subtask_acked(state, event, now)
        if not decision.effects:
            return decision
    else:
        decision = _dispatch(state, event, now, draw)
    decision = decision.then(lambda s: _complete_what_waited(s, event, now))
    if not isinstance(event, (i.RequestCheckpoint, i.StopRequested, i.RequestBroken)):
        return decision
    if decision.answer is None:
        if not isinstance(event, i.RequestBroken):
            decision = decision.then(lambda s: triggering.run_queue(s, now))
        number = state.requests + 1
        if isinstance(event, i.RequestBroken) and event.number is not None:
            number = event.number
        return decision.with_answer(requesting.outcome_of(decision, number))
    return decision


def _complete_what_waited(state: CoordinatorState, event: i.Input, now: Now) -> Decision:
    """A checkpoint may have been acknowledged by all while its trigger was still underway."""
    if isinstance(event, i.TasksTriggered):
        return collecting.finalize_if_complete(state, event.checkpoint_id, now)
    return Decision(state=state)


def _dispatch(state: CoordinatorState, event: i.Input, now: Now, draw: float) -> Decision:
    match event:
        case (
            i.StageAcked()
            | i.StageDeclined()
            | i.AbortConfirmed()
            | i.CoordinatorAcked()
            | i.HookAcked()
            | i.ParticipantFailed()
        ):
            return _from_stages(state, event, now)
        case (
            i.LocationMade()
            | i.HooksCalled()
            | i.TasksTriggered()
            | i.CheckpointBroken()
            | i.QueueDue()
            | i.RequestBroken()
            | i.MetadataWritten()
            | i.CleaningBegan()
            | i.CleaningEnded()
        ):
            return _from_effects(state, event, now)
        case i.SubtaskAcked():
            return collecting.subtask_acked(state, event, now)
        case i.LeaseRenewed():
            return mailbox.lease_renewed(state, event)
        case i.MailTaken():
            return mailbox.mail_taken(state, event)
        case _:
            return _from_users(state, event, now, draw)


def _from_stages(
    state: CoordinatorState,
    event: i.StageAcked
    | i.StageDeclined
    | i.AbortConfirmed
    | i.CoordinatorAcked
    | i.HookAcked
    | i.ParticipantFailed,
    now: Now,
) -> Decision:
    match event:
        case i.StageAcked():
            return collecting.stage_acked(state, event, now)
        case i.StageDeclined():
            return collecting.declined(state, event, now)
        case i.AbortConfirmed():
            return collecting.abort_confirmed(state, event)
        case i.CoordinatorAcked():
            return collecting.coordinator_acked(state, event, now)
        case i.HookAcked():
            return collecting.hook_acked(state, event, now)
        case i.ParticipantFailed():
            return collecting.participant_failed(state, event, now)
    assert_never(event)


def _from_effects(
    state: CoordinatorState,
    event: i.LocationMade
    | i.HooksCalled
    | i.TasksTriggered
    | i.CheckpointBroken
    | i.QueueDue
    | i.RequestBroken
    | i.MetadataWritten
    | i.CleaningBegan
    | i.CleaningEnded,
    now: Now,
) -> Decision:
    match event:
        case i.LocationMade():
            decision = triggering.location_made(state, event, now)
        case i.HooksCalled():
            decision = triggering.hooks_called(state, event)
        case i.TasksTriggered():
            decision = triggering.tasks_triggered(state, event)
        case i.CheckpointBroken():
            decision = finishing.broken(state, event, now)
        case i.QueueDue():
            decision = triggering.run_queue(state, now)
        case i.RequestBroken():
            decision = requesting.request_broken(state, event, now)
        case i.MetadataWritten():
            decision = finishing.complete(state, event, now)
        case i.CleaningBegan(numbers):
            decision = Decision(state=replace(state, cleaning=state.cleaning | numbers))
        case i.CleaningEnded():
            decision = deleting.cleaning_ended(state, event)
        case _:
            assert_never(event)
    return decision


def _from_users(
    state: CoordinatorState,
    event: i.RequestCheckpoint
    | i.StopRequested
    | i.Started
    | i.StageReported
    | i.EndOfDataReported
    | i.BacklogReported
    | i.SchedulerStarted
    | i.SchedulerStopped
    | i.FailingOver
    | i.TimeoutRearmed
    | i.TimersFired
    | i.Closing
    | i.SavepointDisposed,
    now: Now,
    draw: float,
) -> Decision:
    match event:
        case i.RequestCheckpoint():
            decision = requesting.request(state, event, now)
        case i.StopRequested():
            decision = lifecycle.stop_requested(state, event, now)
        case i.Started():
            decision = lifecycle.started(state, event, now, draw)
        case i.StageReported():
            decision = lifecycle.stage_reported(state, event, now, draw)
        case i.EndOfDataReported():
            decision = lifecycle.end_of_data(state, event, now)
        case i.BacklogReported():
            decision = lifecycle.backlog_reported(state, event, now)
        case i.SchedulerStarted():
            decision = lifecycle.scheduler_started(state, event, now)
        case i.SchedulerStopped():
            decision = lifecycle.scheduler_stopped(state, now)
        case i.FailingOver():
            decision = lifecycle.failing_over(state, event, now)
        case i.TimeoutRearmed():
            decision = lifecycle.timeout_rearmed(state, event, now)
        case i.TimersFired():
            decision = lifecycle.timers_fired(state, now)
        case i.Closing():
            decision = lifecycle.closing(state, event, now)
        case i.SavepointDisposed():
            decision = lifecycle.savepoint_disposed(state, event)
        case _:
            assert_never(event)
    return decision
