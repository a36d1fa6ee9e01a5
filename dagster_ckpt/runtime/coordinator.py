"""The checkpoint coordinator of one attempt, as its users see it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import cast

from dagster_ckpt.core.checkpoint.failures import FailureDecision
from dagster_ckpt.core.checkpoint.line import newest_retained
from dagster_ckpt.core.checkpoint.tables import LeftTables, ShownTables
from dagster_ckpt.core.checkpoint.tasks import StageStatus
from dagster_ckpt.core.coordinator import inputs as i
from dagster_ckpt.core.coordinator.lifecycle import PERIODIC, next_timer, renotified
from dagster_ckpt.core.ids import CheckpointId, ExecutionAttempt, StageUid
from dagster_ckpt.core.messages import (
    AcknowledgeResult,
    CheckpointFailureReason,
    StageAcknowledgement,
    SubtaskAcknowledgement,
)
from dagster_ckpt.core.request import CheckpointRequest, Rejected, RunStatus, Triggered, TriggerOutcome
from dagster_ckpt.core.restore.choice import Restore, RestoreDecision
from dagster_ckpt.core.restore.matching import NonRestoredState
from dagster_ckpt.errors import Fenced, InvalidRequest, NotFound, OutcomeUnknown, Unavailable, first_line
from dagster_ckpt.runtime.attempt_setup import AttemptSetup
from dagster_ckpt.runtime.claim import Opened, open_attempt
from dagster_ckpt.runtime.driver.hooks import (
    MasterHook,
    check_hook_states,
    close_hooks,
    restore_driver,
    restore_hooks,
    resume_hooks,
    serialized,
    tell_resets,
)
from dagster_ckpt.runtime.effects import trigger_failure
from dagster_ckpt.runtime.loop import EventLoop
from dagster_ckpt.runtime.status import CoordinatorView
from dagster_ckpt.runtime.turn import LeaseKeeper

log = logging.getLogger("dagster_ckpt.coordinator")


class CheckpointCoordinator(CoordinatorView):
    """Decides what becomes of every checkpoint of one attempt; thread-safe and synchronous.

    Once a newer attempt owns the pipeline every method raises Fenced, except acknowledgements: they return UNKNOWN.
    """

    def __init__(self, loop: EventLoop, restored: RestoreDecision) -> None:
        super().__init__(loop)
        self._keeper: LeaseKeeper | None = None
        self.restored = restored

    @classmethod
    def open(cls, setup: AttemptSetup) -> CheckpointCoordinator:
        """Attach to the newest epoch when the owner (the Dagster run) holds it, else claim the next and fence the last.

        Raises InvalidRequest, NotFound, Corrupt, Unavailable: nothing was changed, nothing is started.
        """
        try:
            return cls._opened(setup)
        except BaseException:
            close_hooks(setup.hooks.values())
            raise

    @classmethod
    def _opened(cls, setup: AttemptSetup) -> CheckpointCoordinator:

        def check(restored: RestoreDecision) -> None:
            check_hook_states(setup.hooks, restored, setup.restore)
            setup.check_start(restored)

        opened = open_attempt(setup, check)
        loop = EventLoop(setup, opened.state, opened.version)
        coordinator = cls(loop, opened.restored)
        coordinator._keep_lease()
        try:
            coordinator._begin(opened)
        except BaseException:
            coordinator._stop_keeping()
            raise
        return coordinator

    def _begin(self, opened: Opened) -> None:
        """Restore the driver's side of what was claimed or attached to, and repeat what may have been lost."""
        loop, setup = self._loop, self._loop.setup
        if opened.claimed is None:
            loop.perform(renotified(opened.state))
            if self.working_directory:
                self._resume_hooks()
            else:  # whoever claimed the epoch may have died before it restored them
                restore_driver(setup.hooks, setup.coordinators, opened.restored, setup.restore)
        else:
            if isinstance(opened.restored, Restore):
                log.info("Restoring pipeline %s from %s", setup.graph.pipeline, opened.restored.describe())
            loop.register_restored(opened.restored)
            loop.perform(opened.claimed.effects)
            restore_driver(setup.hooks, setup.coordinators, opened.restored, setup.restore)
        loop.clean()

    def _keep_lease(self) -> None:
        lease = self._loop.setup.lease
        if lease is None:
            return
        clock = self._loop.setup.clock

        def renew() -> None:
            self.renew_lease(clock.now() + lease.seconds)
            with suppress(Unavailable, OutcomeUnknown):  # rows leave after the next renewal
                self._engine.forget_history()

        self._keeper = LeaseKeeper(renew, every=lease.renew_every)
        self._keeper.start()

    def _stop_keeping(self) -> None:
        if self._keeper is not None:
            self._keeper.stop()

    # --- the attempt ----------------------------------------------------------------------------------------

    def started(
        self, directory: str, shown: ShownTables | None = None, left: LeftTables | None = None
    ) -> None:
        """Record that the stages are restored in ``directory``: the run is RUNNING, not clean.

        ``shown``: what their tables were brought to; None: they are as they were.
        """
        self._loop.submit(i.Started(directory, shown, left or {}))

    def tables_shown(self, shown: ShownTables) -> None:
        """Let readers of several tables go on to what every one of them shows now."""
        self._loop.note_shown(shown)

    def tables_change(self) -> None:
        """Record that the restore changes tables now: one that was refused before it leaves ``latest`` alone."""
        self._loop.submit(i.TablesChange())

    def notify_again(self) -> None:
        """Tell the stages of the latest completion once more: whoever heard of it may have been another process."""
        self._loop.refresh()
        self._loop.perform(renotified(self._engine.state))
        self._loop.settle_shown()

    def report_stage(
        self,
        uid: StageUid,
        status: StageStatus,
        subtask: int | None = None,
        *,
        keeps_position: bool = False,
    ) -> None:
        """Take the status of a stage, or of one subtask. After one that is over the next begins a new try.

        A stage that is never reported is taken to run. ``keeps_position``: it has FINISHED, and the caller goes on
        acknowledging the position it ended at.
        """
        self._loop.submit(i.StageReported(uid, status, subtask, keeps_position))

    def report_end_of_data(self, uid: StageUid, subtask: int | None = None) -> None:
        """Note that a stage has consumed its bounded input; after the last the final checkpoint is triggered."""
        self._loop.submit(i.EndOfDataReported(uid, subtask))

    def report_backlog(self, stages: Iterable[StageUid]) -> None:
        """Note which stages have a backlog now."""
        self._loop.submit(i.BacklogReported(frozenset(stages)))

    def abandon(self, message: str = "") -> None:
        """End everything pending and queued: a new attempt follows this one, which is still to be closed.

        A stop-with-savepoint that has its savepoint ends as StoppedBadly: its stages will not finish.
        """
        self._loop.submit(i.FailingOver(message))

    def fail_over(self, message: str = "") -> None:
        """Abandon pending checkpoints and requests; the stages are about to be restarted in this attempt.

        Master hooks get the state of the latest checkpoint; without one they are reset. Driver-side coordinators keep
        theirs, and hear which of their subtasks start again. Raises Unavailable, NotFound, Corrupt when that
        checkpoint cannot be read.
        """
        self.abandon(message)
        setup = self._loop.setup
        number, states = self._newest_master_states()
        tell_resets(setup.coordinators.values(), setup.graph, number)
        if number is not None:
            restore_hooks(setup.hooks, number, states, non_restored=NonRestoredState.SKIP)
            self._loop.submit(i.StagesRestored(number))
            return
        for hook in setup.hooks.values():
            hook.reset()

    def _resume_hooks(self) -> None:
        if hooks := self._loop.setup.hooks:
            resume_hooks(hooks, *self._newest_master_states())

    def _newest_master_states(self) -> tuple[CheckpointId | None, Mapping[str, str]]:
        """Return the checkpoint that stages start again from and its hook states, read only where there are hooks."""
        if (entry := newest_retained(self._engine.state.record)) is None:
            return None, {}
        known = self._loop.metadata_of(entry) if self._loop.setup.hooks else None
        return entry.known.checkpoint_id, {} if known is None else known.master_states

    def close(
        self, status: RunStatus, *, clean: bool, keeps_newest: bool = False, cause: object = ""
    ) -> None:
        """End the attempt; ``clean``: all queries were stopped at batch boundaries. Again: nothing happens.

        ``cause``: why it failed, an error or a sentence; its first line goes on record.

        SUSPENDED: the next run continues. FINISHED: bounded input is at its end; ``keeps_newest``: may be run again.
        Raises Unavailable when the end could not be stored: call it again; InvalidRequest for RUNNING.
        """
        if status is RunStatus.RUNNING:
            raise InvalidRequest("an attempt ends SUSPENDED, FINISHED, CANCELED or FAILED, not RUNNING")
        if not self._engine.state.is_shut_down:
            self._stop_keeping()
            self._close(i.Closing(status, clean, keeps_newest=keeps_newest, cause=first_line(cause)))

    def hand_over(self, cause: object = "") -> None:
        """End the attempt, SUSPENDED, and keep the lease: the same run claims the next epoch, or ``release_lease``s."""
        if not self._engine.state.is_shut_down:
            self._close(i.Closing(RunStatus.SUSPENDED, clean=False, hands_over=True, cause=first_line(cause)))

    def _close(self, closing: i.Closing) -> None:
        try:
            self._loop.submit(closing)
        except Fenced:
            self._stop_keeping()
            close_hooks(self._loop.setup.hooks.values())
            raise
        self._loop.shut_down()

    def pass_on(self, until: float) -> None:
        """Leave the attempt to the run's next process, which attaches to it: the lease holds ``until`` it does.

        Nobody follows where another process of the run has ended the attempt meanwhile.
        """
        if self._engine.state.is_shut_down:
            return
        self._stop_keeping()
        self.renew_lease(until)
        record = self._engine.state.record
        if record.status_epoch == record.epoch and record.status is not RunStatus.RUNNING:
            self.renew_lease(None)
        self._loop.shut_down()

    def renew_lease(self, until: float | None) -> None:
        """State that the run is alive until this time (seconds since the Unix epoch); None: that it is not."""
        self._engine.commit(i.LeaseRenewed(until))  # nothing else is done by the way: that could take long

    def release_lease(self) -> None:
        """Let others have the pipeline at once, after ``hand_over``. Raises Fenced; nothing to do after ``close``."""
        self._stop_keeping()
        if self._engine.state.record.lease_until is not None:
            self._engine.commit(i.LeaseRenewed(None))

    def mail_taken(self, request_ids: frozenset[str], refused: Mapping[str, str]) -> None:
        """Empty the mailbox of requests that were taken up; ``refused`` says of some why they never can be."""
        self._loop.submit(i.MailTaken(request_ids, refused))

    # --- requests -------------------------------------------------------------------------------------------

    def trigger(self, request: CheckpointRequest) -> TriggerOutcome:
        """Trigger a checkpoint or savepoint, or queue it. Raises InvalidRequest for a savepoint without target."""
        outcome = cast(TriggerOutcome, self._loop.submit(i.RequestCheckpoint(request)))
        return self._after_trigger(outcome)

    def stop_with_savepoint(self, request: CheckpointRequest) -> TriggerOutcome:
        """Stop the timer and take the savepoint that ends the run; how it ends is ``stop_outcome``.

        Raises InvalidRequest where the kind is not synchronous, there is no target, or a stop is in progress.
        """
        outcome = cast(TriggerOutcome, self._loop.submit(i.StopRequested(request)))
        return self._after_trigger(outcome)

    def _after_trigger(self, outcome: TriggerOutcome) -> TriggerOutcome:
        """A trigger that broke on the way is a rejection."""
        if not isinstance(outcome, Triggered):
            return outcome
        failed = self._failed(outcome.id)
        return outcome if failed is None else Rejected(failed.reason, failed.message)

    def start_scheduler(self) -> None:
        """Switch the periodic scheduler on. Raises InvalidRequest where it is not configured or after ``close``."""
        self._loop.submit(i.SchedulerStarted(self._loop.draw()))

    def stop_scheduler(self) -> None:
        """Switch it off and abort everything pending and queued; manual requests are still taken."""
        self._loop.submit(i.SchedulerStopped())

    def dispose_savepoint(self, checkpoint_id: CheckpointId) -> None:
        """Forget a savepoint and delete its files. Raises NotFound; InvalidRequest while a restart needs it."""
        if not self._loop.submit(i.SavepointDisposed(checkpoint_id)):
            raise NotFound(f"pipeline {self.pipeline!r} has no savepoint {checkpoint_id}")

    # --- what stages ask ------------------------------------------------------------------------------------

    def rearm_timeout(self, checkpoint_id: CheckpointId) -> None:
        """Restart the timeout (in an epoch run it bounds each stage's part)."""
        self._known_pending(checkpoint_id)
        self._loop.submit(i.TimeoutRearmed(checkpoint_id))

    def acknowledge_stage(self, ack: StageAcknowledgement) -> AcknowledgeResult:
        """Take a stage's acknowledgement for all its subtasks. Raises Unavailable when it could not be stored."""
        return self._acknowledge(i.StageAcked(ack))

    def acknowledge(self, ack: SubtaskAcknowledgement) -> AcknowledgeResult:
        """Take one subtask's acknowledgement; lost with the process, as in Flink."""
        return self._acknowledge(i.SubtaskAcked(ack))

    def acknowledge_coordinator(
        self, checkpoint_id: CheckpointId, uid: StageUid, state: str | None
    ) -> AcknowledgeResult:
        """Take the driver-side state of a stage; None: it has none."""
        try:
            return cast(AcknowledgeResult, self._loop.submit(i.CoordinatorAcked(checkpoint_id, uid, state)))
        except Fenced:
            return AcknowledgeResult.UNKNOWN

    def _acknowledge(self, event: i.StageAcked | i.SubtaskAcked) -> AcknowledgeResult:
        try:
            return self._loop.acknowledge(event)
        except Fenced:
            return AcknowledgeResult.UNKNOWN

    def decline(
        self,
        checkpoint_id: CheckpointId,
        attempt: ExecutionAttempt,
        reason: CheckpointFailureReason,
        message: str,
        *,
        transient: bool,
        retries_left: int,
    ) -> FailureDecision:
        """Report that a stage's snapshot failed; answer what the stage does: RETRY_OP, GO_ON or FAIL_RUN."""
        self._known_pending(checkpoint_id)
        event = i.StageDeclined(
            checkpoint_id=checkpoint_id,
            attempt=attempt,
            reason=reason,
            message=message,
            transient=transient,
            retries_left=retries_left,
        )
        return cast(FailureDecision, self._loop.submit(event))

    def confirm_aborted(self, checkpoint_id: CheckpointId, uid: StageUid) -> None:
        """Note that a stage writes nothing more for an aborted checkpoint; its files are deleted after the last."""
        self._loop.submit(i.AbortConfirmed(checkpoint_id, uid))

    def acknowledge_hook(self, checkpoint_id: CheckpointId, hook_id: str, state: object) -> None:
        """Give the result a master hook owed (None: no state). Raises InvalidRequest: no such hook."""
        hook = self._hook(hook_id)
        try:
            text = serialized(hook, state)
        except Exception as error:  # the hook's serializer fails the checkpoint only
            self.fail_hook(checkpoint_id, hook_id, error)
            return
        self._loop.submit(i.HookAcked(checkpoint_id, hook_id, text))

    def fail_hook(self, checkpoint_id: CheckpointId, hook_id: str, error: Exception) -> None:
        """Report that a master hook failed: the checkpoint it owes a result fails.

        Raises InvalidRequest: no such hook.
        """
        self._hook(hook_id)
        message = f"Hook {hook_id!r} failed: {error}"
        who = i.HookId(hook_id)
        self._loop.submit(i.ParticipantFailed(checkpoint_id, who, trigger_failure(error), message))

    def fail_coordinator(self, checkpoint_id: CheckpointId, uid: StageUid, error: Exception) -> None:
        """Report that a stage's driver-side coordinator failed: the checkpoint it owes its state fails."""
        message = f"The coordinator of stage {uid!r} failed: {error}"
        self._loop.submit(i.ParticipantFailed(checkpoint_id, uid, trigger_failure(error), message))

    def _hook(self, hook_id: str) -> MasterHook:
        hooks = self._loop.setup.hooks
        if hook_id not in hooks:
            raise InvalidRequest(
                f"there is no master hook {hook_id!r}: those there are: {', '.join(hooks) or 'none'}"
            )
        return hooks[hook_id]

    # --- time and questions ---------------------------------------------------------------------------------

    def poll(self) -> float | None:
        """Fire due timers; return the monotonic time of the next, or None."""
        self._loop.refresh()
        if self._loop.submit(i.TimersFired()):
            self._loop.submit(i.RequestCheckpoint(PERIODIC))
        return next_timer(self._engine.state)
