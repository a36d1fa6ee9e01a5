"""The checkpoint coordinator of one attempt, as its users see it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import cast

from dagster_ckpt.core import inputs as i
from dagster_ckpt.core.config import CheckpointConfig, RestoreOptions
from dagster_ckpt.core.failures import FailureDecision
from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.ids import CheckpointId, ExecutionAttempt, StageUid
from dagster_ckpt.core.lifecycle import PERIODIC, next_timer, renotified
from dagster_ckpt.core.messages import StageAcknowledgement, SubtaskAcknowledgement
from dagster_ckpt.core.outcomes import (
    CheckpointLocation,
    CheckpointOutcome,
    Completed,
    Failed,
    Pending,
    Queued,
    Rejected,
    Triggered,
    TriggerOutcome,
)
from dagster_ckpt.core.properties import RunStatus
from dagster_ckpt.core.reasons import AcknowledgeResult, CheckpointFailureReason
from dagster_ckpt.core.recovery import DirectoryState, Materialise, RestoreDecision, RestorePurpose
from dagster_ckpt.core.requests import CheckpointRequest, RequestOrigin, SnapshotScope
from dagster_ckpt.core.state import AckDurability
from dagster_ckpt.core.tasks import StageStatus
from dagster_ckpt.errors import Fenced, InvalidRequest, NotFound
from dagster_ckpt.ports import CheckpointStorage, Clock, CoordinatorStore, TaskGateway
from dagster_ckpt.runtime.cleaner import Background, ThreadBackground
from dagster_ckpt.runtime.handles import ReadHandles, no_manifest
from dagster_ckpt.runtime.hooks import (
    MasterHook,
    OperatorCoordinator,
    distinct_coordinators,
    distinct_hooks,
    read_states,
    restore_hooks,
    serialized,
    tell_resets,
)
from dagster_ckpt.runtime.opening import Opening, Ownership, directory_state, open_attempt
from dagster_ckpt.runtime.performing import Listener, trigger_failure
from dagster_ckpt.runtime.views import CoordinatorView
from dagster_ckpt.runtime.workings import Outside, Workings

__all__ = [
    "AckDurability",
    "CheckpointCoordinator",
    "CheckpointLocation",
    "CheckpointOutcome",
    "CheckpointRequest",
    "Completed",
    "Failed",
    "FailureDecision",
    "Pending",
    "Queued",
    "Rejected",
    "RequestOrigin",
    "SnapshotScope",
    "StageStatus",
    "Triggered",
    "TriggerOutcome",
]


class CheckpointCoordinator(CoordinatorView):
    """Decides what becomes of every checkpoint of one attempt; thread-safe and synchronous.

    Once a newer attempt owns the pipeline every method raises Fenced, except acknowledgements: they return UNKNOWN.
    """

    def __init__(self, workings: Workings, restored: RestoreDecision) -> None:
        super().__init__(workings)
        self.restored = restored
        """What the stages start from."""

    @classmethod
    def open(
        cls,
        *,
        graph: PipelineGraph,
        config: CheckpointConfig,
        store: CoordinatorStore,
        storage: CheckpointStorage,
        open_storage: Callable[[str], CheckpointStorage],
        gateway: TaskGateway,
        clock: Clock,
        owner: str,
        restore: RestoreOptions = RestoreOptions(),
        listeners: Sequence[Listener] = (),
        random: Random | None = None,
        hooks: Sequence[MasterHook] = (),
        coordinators: Sequence[OperatorCoordinator] = (),
        read_manifest: ReadHandles = no_manifest,
        background: Background | None = None,
        purpose: RestorePurpose = RestorePurpose.IN_PLACE,
        directory_state: Callable[[str], DirectoryState] = directory_state,
        epochs_below: Callable[[], int] = int,
        library_version: str = "",
        ownership: Ownership = Ownership.ATTACH,
        root: str = "",
        acks: AckDurability = AckDurability.PER_STAGE,
    ) -> CheckpointCoordinator:
        """Attach to the newest epoch when ``owner`` (the Dagster run) holds it, else claim the next and fence the last.

        ``root`` is the first run of a chain of retries: what an earlier try completed beats the restore point. Without
        ``read_manifest``, which names a stage's files, shared files this process did not see are never deleted.
        Raises InvalidRequest, NotFound, Corrupt, Unavailable: nothing was changed, nothing is started.
        """
        outside = Outside(
            graph=graph,
            storage=storage,
            open_storage=open_storage,
            gateway=gateway,
            clock=clock,
            listeners=tuple(listeners),
            random=random or Random(),
            hooks=distinct_hooks(hooks),
            coordinators=distinct_coordinators(coordinators, graph),
            read_manifest=read_manifest,
            background=background or ThreadBackground(),
        )
        opening = Opening(
            setup=outside.setup(config, library_version, acks),
            store=store,
            storage=storage,
            storage_at=outside.storage_at,
            owner=owner,
            root=root or owner,
            restore=restore,
            purpose=purpose,
            directory_state=directory_state,
            epochs_below=epochs_below,
            check=lambda restored: _check_masters(outside, restored, restore),
            ownership=ownership,
        )
        return cls._opened(opening, outside)

    @classmethod
    def _opened(cls, opening: Opening, outside: Outside) -> CheckpointCoordinator:
        opened = open_attempt(opening, outside.now)
        workings = Workings(outside, opened.state, opened.version, opening.store)
        coordinator = cls(workings, opened.restored)
        if opened.claimed is None:
            workings.perform(renotified(opened.state))
            if (
                not coordinator.working_directory
            ):  # whoever claimed the epoch may have died before it restored them
                _restore_masters(outside, opened.restored, opening.restore)
            workings.clean()
            return coordinator
        workings.register_restored(opened.restored)
        workings.perform(opened.claimed.effects)
        _restore_masters(outside, opened.restored, opening.restore)
        workings.clean()
        return coordinator

    # --- the attempt ----------------------------------------------------------------------------------------

    def started(self, working_directory: str) -> None:
        """Record that the stages are restored in ``working_directory``: the run is RUNNING, not clean."""
        self._workings.submit(i.Started(working_directory))

    def report_stage(
        self, uid: StageUid, status: StageStatus, subtask: int | None = None, *, number: int | None = None
    ) -> None:
        """Take the status of a stage, or of one subtask. After one that is over the next begins a new try.

        A stage that is never reported is taken to run. ``number``: which try it is, where the caller counts them.
        """
        self._workings.submit(i.StageReported(uid, status, subtask, number))

    def report_end_of_data(self, uid: StageUid, subtask: int | None = None) -> None:
        """Note that a stage has consumed its bounded input; after the last the final checkpoint is triggered."""
        self._workings.submit(i.EndOfDataReported(uid, subtask))

    def report_backlog(self, stages: Iterable[StageUid]) -> None:
        """Note which stages work off a backlog now."""
        self._workings.submit(i.BacklogReported(frozenset(stages)))

    def fail_over(self, message: str = "") -> None:
        """End everything pending and queued: stages are about to be restarted from the latest checkpoint.

        A stop-with-savepoint that has its savepoint ends as StoppedBadly: its stages will not finish.

        Master hooks get the state it holds; without a checkpoint they are reset. Driver-side coordinators keep
        theirs, and hear which of their subtasks start again. Raises Unavailable, NotFound, Corrupt when that
        checkpoint cannot be read.
        """
        self._workings.submit(i.FailingOver(message))
        outside = self._workings.outside
        latest = self._engine.state.record.completed[-1:]
        number = CheckpointId(latest[0].checkpoint_id) if latest else None
        tell_resets(outside.coordinators.values(), outside.graph, number)
        if not outside.hooks:
            return
        for hook in () if latest else outside.hooks.values():
            hook.reset()
        for entry in latest:
            states = self._workings.metadata_of(entry).master_states
            restore_hooks(
                outside.hooks, CheckpointId(entry.checkpoint_id), states, skip_unmatched=frozenset(states)
            )

    def close(self, status: RunStatus, *, clean: bool) -> None:
        """End the attempt; ``clean``: all queries were stopped at batch boundaries. Again: nothing happens.

        SUSPENDED: the next run continues. FINISHED: the bounded pipeline is really at its end.
        Raises Unavailable when the end could not be stored: call it again; InvalidRequest for RUNNING.
        """
        if status is RunStatus.RUNNING:
            raise InvalidRequest("an attempt ends SUSPENDED, FINISHED, CANCELED or FAILED, not RUNNING")
        if self._engine.state.is_shut_down:
            return
        self._workings.submit(i.Closing(status, clean))
        self._workings.shut_down()

    def renew_lease(self, until: float) -> None:
        """State that the run is alive and reads its mailbox until this time (seconds since the Unix epoch)."""
        self._workings.submit(i.LeaseRenewed(until))

    def mail_taken(self, request_ids: frozenset[str], refused: Mapping[str, str]) -> None:
        """Empty the mailbox of requests that were taken up; ``refused`` says of some why they never can be."""
        self._workings.submit(i.MailTaken(request_ids, refused))

    # --- requests -------------------------------------------------------------------------------------------

    def trigger(self, request: CheckpointRequest) -> TriggerOutcome:
        """Trigger a checkpoint or savepoint, or queue it. Raises InvalidRequest for a savepoint without target."""
        outcome = cast(TriggerOutcome, self._workings.submit(i.RequestCheckpoint(request)))
        return self._after_trigger(outcome)

    def stop_with_savepoint(self, request: CheckpointRequest) -> TriggerOutcome:
        """Stop the timer and take the savepoint that ends the run; how it ends is ``stop_outcome``.

        Raises InvalidRequest where the kind is not synchronous, there is no target, or a stop is underway.
        """
        outcome = cast(TriggerOutcome, self._workings.submit(i.StopRequested(request)))
        return self._after_trigger(outcome)

    def _after_trigger(self, outcome: TriggerOutcome) -> TriggerOutcome:
        """A trigger that broke on the way is a rejection."""
        if not isinstance(outcome, Triggered):
            return outcome
        failed = self._failed(outcome.id)
        return outcome if failed is None else Rejected(failed.reason, failed.message)

    def start_scheduler(self) -> None:
        """Switch the periodic scheduler on. Raises InvalidRequest where it is not configured or after ``close``."""
        self._workings.submit(i.SchedulerStarted(self._workings.draw()))

    def stop_scheduler(self) -> None:
        """Switch it off and abort everything pending and queued; manual requests are still taken."""
        self._workings.submit(i.SchedulerStopped())

    def dispose_savepoint(self, checkpoint_id: CheckpointId) -> None:
        """Forget a savepoint and delete its files. Raises NotFound; InvalidRequest while a restart needs it."""
        if not self._workings.submit(i.SavepointDisposed(checkpoint_id)):
            raise NotFound(f"pipeline {self.pipeline!r} has no savepoint {checkpoint_id}")

    # --- what stages ask ------------------------------------------------------------------------------------

    def rearm_timeout(self, checkpoint_id: CheckpointId) -> None:
        """Let the timeout begin anew (in an epoch run it bounds each stage's part)."""
        self._known_pending(checkpoint_id)
        self._workings.submit(i.TimeoutRearmed(checkpoint_id))

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
            return cast(
                AcknowledgeResult, self._workings.submit(i.CoordinatorAcked(checkpoint_id, uid, state))
            )
        except Fenced:
            return AcknowledgeResult.UNKNOWN

    def _acknowledge(self, event: i.StageAcked | i.SubtaskAcked) -> AcknowledgeResult:
        try:
            return self._workings.acknowledge(event)
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
        return cast(FailureDecision, self._workings.submit(event))

    def confirm_aborted(self, checkpoint_id: CheckpointId, uid: StageUid) -> None:
        """Note that a stage writes nothing more for an aborted checkpoint; its files are deleted after the last."""
        self._workings.submit(i.AbortConfirmed(checkpoint_id, uid))

    def acknowledge_hook(self, checkpoint_id: CheckpointId, hook_id: str, state: object) -> None:
        """Give the result a master hook owed (None: no state). Raises InvalidRequest: no such hook."""
        hook = self._hook(hook_id)
        try:
            text = serialized(hook, state)
        except Exception as error:  # the hook's serializer fails the checkpoint only
            self.fail_hook(checkpoint_id, hook_id, error)
            return
        self._workings.submit(i.HookAcked(checkpoint_id, hook_id, text))

    def fail_hook(self, checkpoint_id: CheckpointId, hook_id: str, error: Exception) -> None:
        """Report that a master hook failed: the checkpoint it owes a result fails.

        Raises InvalidRequest: no such hook.
        """
        self._hook(hook_id)
        message = f"Master hook {hook_id!r} failed: {error}"
        who = i.HookId(hook_id)
        self._workings.submit(i.ParticipantFailed(checkpoint_id, who, trigger_failure(error), message))

    def fail_coordinator(self, checkpoint_id: CheckpointId, uid: StageUid, error: Exception) -> None:
        """Report that a stage's driver-side coordinator failed: the checkpoint it owes its state fails."""
        message = f"The coordinator of stage {uid!r} failed: {error}"
        self._workings.submit(i.ParticipantFailed(checkpoint_id, uid, trigger_failure(error), message))

    def _hook(self, hook_id: str) -> MasterHook:
        hooks = self._workings.outside.hooks
        if hook_id not in hooks:
            there = ", ".join(hooks) or "none"
            raise InvalidRequest(f"there is no master hook {hook_id!r}: those there are: {there}")
        return hooks[hook_id]

    # --- time and questions ---------------------------------------------------------------------------------

    def poll(self) -> float | None:
        """Fire due timers; return the monotonic time of the next, or None."""
        self._workings.refresh()
        if self._workings.submit(i.TimersFired()):
            self._workings.submit(i.RequestCheckpoint(PERIODIC))
        return next_timer(self._engine.state)


def _check_masters(outside: Outside, restored: RestoreDecision, options: RestoreOptions) -> None:
    """Raise where a master hook's state would be lost or cannot be read."""
    if isinstance(restored, Materialise):
        states = restored.metadata.master_states
        read_states(outside.hooks, states, skip_unmatched=_droppable(states, options))


def _droppable(states: Mapping[str, str], options: RestoreOptions) -> frozenset[str]:
    return frozenset(states) if options.allow_non_restored_state else frozenset()


def _restore_masters(outside: Outside, restored: RestoreDecision, options: RestoreOptions) -> None:
    """Give master hooks and driver-side coordinators their state; without a checkpoint they are reset."""
    if not isinstance(restored, Materialise):
        for hook in outside.hooks.values():
            hook.reset()
        for coordinator in outside.coordinators.values():
            coordinator.restore(None, None)
        return
    number = CheckpointId(restored.metadata.checkpoint_id)
    states: Mapping[str, str] = restored.metadata.master_states
    restore_hooks(outside.hooks, number, states, skip_unmatched=_droppable(states, options))
    saved = {match.uid: match.snapshot.coordinator_state for match in restored.stages.matches}
    for uid, coordinator in outside.coordinators.items():
        coordinator.restore(number, saved.get(uid))
