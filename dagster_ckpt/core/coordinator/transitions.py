"""The one decision function: ``decide(state, input, now)``; nothing else changes the coordinator's state."""

from __future__ import annotations

from typing import assert_never

from dagster_ckpt.core.coordinator import (
    acknowledgements,
    admission,
    completion,
    deletions,
    lifecycle,
    triggering,
)
from dagster_ckpt.core.coordinator import inputs as i
from dagster_ckpt.core.coordinator.state import CoordinatorState, Decision, Now


def decide(  # noqa: PLR0911, PLR0912 - one flat dispatch table
    state: CoordinatorState, input: i.Input, now: Now, *, draw: float = 0.0
) -> Decision:
    """Return the decision about ``input``; ``draw`` in [0, 1) places the first fire of the periodic timer.

    Pure: the same arguments give the same decision. Raises InvalidRequest or NotFound for inputs that mean nothing.
    """
    match input:
        # from users
        case i.RequestCheckpoint(request):
            return triggering.trigger(state, request, now)
        case i.StopRequested():
            return lifecycle.stop_requested(state, input, now)
        case i.Started():
            return lifecycle.started(state, input, now, draw)
        case i.TablesChange():
            return lifecycle.tables_change(state)
        case i.StageReported():
            return lifecycle.stage_reported(state, input, now, draw)
        case i.EndOfDataReported():
            return lifecycle.end_of_data(state, input, now)
        case i.BacklogReported():
            return lifecycle.backlog_reported(state, input, now)
        case i.SchedulerStarted():
            return lifecycle.scheduler_started(state, input, now)
        case i.SchedulerStopped():
            return lifecycle.scheduler_stopped(state, now)
        case i.FailingOver():
            return lifecycle.failing_over(state, input, now)
        case i.StagesRestored(number):
            return lifecycle.stages_restored(state, number, now)
        case i.TimeoutRearmed():
            return lifecycle.timeout_rearmed(state, input, now)
        case i.TimersFired():
            return lifecycle.timers_fired(state, now)
        case i.Closing():
            return lifecycle.closing(state, input, now)
        case i.SavepointDisposed():
            return lifecycle.savepoint_disposed(state, input)
        case i.LeaseRenewed():
            return admission.lease_renewed(state, input)
        case i.HistoryOutdated():
            return admission.history_outdated(state, input)
        case i.MailTaken():
            return admission.mail_taken(state, input)
        # from stages
        case i.StageAcked():
            return acknowledgements.stage_acked(state, input, now)
        case i.SubtaskAcked():
            return acknowledgements.subtask_acked(state, input, now)
        case i.StageDeclined():
            return acknowledgements.declined(state, input, now)
        case i.AbortConfirmed():
            return acknowledgements.abort_confirmed(state, input)
        case i.CoordinatorAcked():
            return acknowledgements.coordinator_acked(state, input, now)
        case i.HookAcked():
            return acknowledgements.hook_acked(state, input, now)
        case i.ParticipantFailed():
            return acknowledgements.participant_failed(state, input, now)
        # from effects
        case i.LocationMade():
            return triggering.location_made(state, input, now)
        case i.HooksCalled():
            return triggering.hooks_called(state, input)
        case i.TasksTriggered():
            return acknowledgements.tasks_triggered(state, input, now)
        case i.CheckpointBroken():
            return completion.broken(state, input, now)
        case i.QueueDue():
            return triggering.run_queue(state, now)
        case i.RequestBroken():
            return admission.request_broken(state, input, now)
        case i.MetadataWritten():
            return completion.complete(state, input, now)
        case i.StagesNotified(number):
            return completion.stages_notified(state, number)
        case i.TablesShown(shown):
            return completion.tables_shown(state, shown)
        case i.CleaningBegan():
            return deletions.cleaning_began(state, input)
        case i.CleaningEnded():
            return deletions.cleaning_ended(state, input)
        case _:
            assert_never(input)
