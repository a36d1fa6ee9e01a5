"""The tasks of a scenario: what they go through, their acknowledgements with the files, their declines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from dagster_ckpt.core.checkpoint.failures import FailureDecision
from dagster_ckpt.core.checkpoint.tasks import StageStatus
from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.ids import CheckpointId, ExecutionAttempt, StageUid
from dagster_ckpt.core.messages import (
    AcknowledgeResult,
    CheckpointFailureReason,
    NotifyAborted,
    StageAcknowledgement,
    StateHandle,
    StateScope,
    SubtaskAcknowledgement,
    SubtaskReport,
)
from dagster_ckpt.core.model import CheckpointKind, ObjectRef, SnapshotMetrics, StageSnapshot
from dagster_ckpt.core.paths import exclusive_file
from dagster_ckpt.core.request import (
    CheckpointRequest,
    Queued,
    Rejected,
    RequestOrigin,
    SnapshotScope,
    Triggered,
    TriggerOutcome,
)
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.runtime.files import write_subtask_handles
from dagster_ckpt.testing.coordinator.readings import Readings
from dagster_ckpt.testing.coordinator.settings import RequestFields, TriggerFields
from dagster_ckpt.testing.coordinator.world import Faults, PlayedAttempt, number_of, one_of


class Requests:
    """Checkpoints, savepoints, the stop with one."""

    def __init__(self, played: PlayedAttempt, config: CheckpointConfig, tasks: Tasks) -> None:
        self._played = played
        self._config = config
        self._tasks = tasks

    def trigger(
        self,
        kind: CheckpointKind | str = CheckpointKind.CHECKPOINT,
        *,
        periodic: bool = False,
        scope: SnapshotScope | str = SnapshotScope.CONFIGURED,
        target: str = "",
        **fields: Unpack[RequestFields],
    ) -> TriggerOutcome:
        """Request a checkpoint or savepoint; a savepoint without a target goes to ``memory://savepoints``."""
        kind = one_of(CheckpointKind, kind, "kind")
        if kind.is_savepoint and not target and not self._config.savepoint_dir:
            target = "memory://savepoints"
        origin = RequestOrigin.PERIODIC if periodic else RequestOrigin.MANUAL
        wanted = one_of(SnapshotScope, scope, "scope")
        request = CheckpointRequest(kind=kind, origin=origin, scope=wanted, target=target, **fields)
        return self._played.coordinator.trigger(request)

    def checkpoint(self, **fields: Unpack[TriggerFields]) -> CheckpointId:
        """Trigger a checkpoint and return its id. Raises AssertionError when it is queued or rejected."""
        return self._id_of(self.trigger(**fields))

    def savepoint(self, **fields: Unpack[TriggerFields]) -> CheckpointId:
        """Trigger a savepoint and return its id. Raises AssertionError when it is queued or rejected."""
        return self._id_of(self.trigger(CheckpointKind.SAVEPOINT, **fields))

    def stop_with_savepoint(
        self, *, drain: bool = False, target: str = "", **fields: Unpack[RequestFields]
    ) -> TriggerOutcome:
        """Begin a stop-with-savepoint, to suspend or (``drain``) to terminate; it goes where a savepoint goes."""
        suspend, terminate = CheckpointKind.SYNC_SAVEPOINT_SUSPEND, CheckpointKind.SYNC_SAVEPOINT_TERMINATE
        target = target or ("" if self._config.savepoint_dir else "memory://savepoints")
        request = CheckpointRequest(kind=terminate if drain else suspend, target=target, **fields)
        return self._played.coordinator.stop_with_savepoint(request)

    def completed_checkpoint(self, **fields: Unpack[TriggerFields]) -> CheckpointId:
        """Trigger a checkpoint, acknowledge all of it, return its id."""
        number = self.checkpoint(**fields)
        self._tasks.acknowledge_all(number)
        return number

    def completed_savepoint(self, **fields: Unpack[TriggerFields]) -> CheckpointId:
        """Trigger a savepoint, acknowledge all of it, return its id."""
        number = self.savepoint(**fields)
        self._tasks.acknowledge_all(number)
        return number

    @staticmethod
    def _id_of(outcome: TriggerOutcome) -> CheckpointId:
        match outcome:
            case Triggered(number):
                return number
            case Queued(_, number):
                why = f"it is queued as request {number}, see max_concurrent_checkpoints"
            case Rejected(reason, message):
                why = f"{reason.name}: {message}"
        raise AssertionError(f"not triggered: {why}")


class Tasks:
    """The tasks' side of a checkpoint."""

    def __init__(self, played: PlayedAttempt, faults: Faults, read: Readings) -> None:
        self._played = played
        self._faults = faults
        self._read = read
        self.confirm_aborts = True
        """Tasks confirm at once that they stopped writing for an aborted checkpoint."""
        played.gateway.on_aborted = self._confirm

    @property
    def _coordinator(self) -> CheckpointCoordinator:
        return self._played.coordinator

    @property
    def _graph(self) -> PipelineGraph:
        return self._played.graph

    def attempt(self, stage: str, subtask: int = 0) -> ExecutionAttempt:
        """Return the identity of the current try of a task. Raises NotFound: no such task."""
        self._played.check_task(stage, subtask)
        return self._coordinator.attempt_of(StageUid(stage), subtask)

    # --- acknowledgements -----------------------------------------------------------------------------------

    def private(
        self, checkpoint_id: int, stage: str, name: str = "state", content: bytes = b"private"
    ) -> StateHandle:
        """Write a private file of a checkpoint into its folder; return its handle."""
        self._played.check_task(stage)
        location = self._coordinator.location_of(number_of(checkpoint_id))
        key = exclusive_file(location.folder, StageUid(stage), name)
        location.storage.create(key, content)
        return StateHandle(key, len(content))

    def shared(self, checkpoint_id: int, stage: str, name: str, content: bytes = b"shared") -> StateHandle:
        """Write a shared file as uploaded by a checkpoint (or name it, when it is there); return its handle.

        Raises NotFound for a checkpoint that never was.
        """
        self._played.check_task(stage)
        key = self._played.paths.shared_file(
            StageUid(stage), self._played.check_triggered(checkpoint_id), name
        )
        self._faults.storage.create(key, content)
        return StateHandle(key, len(content), StateScope.SHARED)

    def acknowledge(
        self,
        checkpoint_id: int,
        stage: str,
        subtask: int = 0,
        *,
        handles: Sequence[StateHandle] | StateHandle = (),
        metrics: SnapshotMetrics | Mapping[str, Any] | None = None,
        report: SubtaskReport | str = SubtaskReport.NORMAL,
        attempt: ExecutionAttempt | None = None,
    ) -> AcknowledgeResult:
        """Acknowledge for one subtask; ``attempt`` where it is not the current try; ``metrics`` may be a dict.

        A subtask that the stage does not have is a stranger: UNKNOWN. Raises InvalidRequest for what is none of these.
        """
        return self._coordinator.acknowledge(
            SubtaskAcknowledgement(
                checkpoint_id=number_of(checkpoint_id),
                attempt=self._try_of(attempt, stage, subtask),
                handles=_handles(handles),
                metrics=_metrics(metrics),
                report=one_of(SubtaskReport, report, "report"),
            )
        )

    def acknowledge_stage(
        self,
        checkpoint_id: int,
        stage: str,
        *,
        handles: Sequence[StateHandle] | StateHandle = (),
        attempt: ExecutionAttempt | None = None,
        **snapshot: Any,
    ) -> AcknowledgeResult:
        """Acknowledge for a whole stage; ``snapshot`` are fields of StageSnapshot.

        Its file list is written as a stage does it, unless ``snapshot`` brings one.
        """
        self._played.check_task(stage)
        spec = self._graph.by_uid[StageUid(stage)]
        fields = {"uid": stage, "parallelism": spec.parallelism, **snapshot}
        if strange := sorted(fields.keys() - StageSnapshot.model_fields.keys()):
            raise InvalidRequest(
                f"a stage's snapshot has no {strange[0]}: it has {', '.join(StageSnapshot.model_fields)}"
            )
        files = _handles(handles)
        if files and not {"manifest", "subtask_handles"} & snapshot.keys():
            fields["subtask_handles"] = self._file_list(number_of(checkpoint_id), stage, files)
        return self._coordinator.acknowledge_stage(
            StageAcknowledgement(
                checkpoint_id=number_of(checkpoint_id),
                attempt=self._try_of(attempt, stage, 0),
                snapshot=StageSnapshot(**fields),
                handles=files,
            )
        )

    def _try_of(self, given: ExecutionAttempt | None, stage: str, subtask: int) -> ExecutionAttempt:
        if given is None:
            return self._coordinator.attempt_of(StageUid(stage), subtask)
        if not isinstance(given, ExecutionAttempt):
            raise InvalidRequest(f"attempt is what attempt(stage, subtask) returned, got {given!r}")
        return given

    def _file_list(
        self, number: CheckpointId, stage: str, handles: Sequence[StateHandle]
    ) -> ObjectRef | None:
        if number not in self._read.pending:
            return None
        location = self._coordinator.location_of(number)
        folder = f"{location.folder}/{stage}/list-{len(self._faults.calls.calls)}"
        return write_subtask_handles(location.storage, folder, stage, {0: tuple(handles)})

    def acknowledge_all(self, checkpoint_id: int) -> None:
        """Acknowledge for every subtask that still runs. Raises NotFound for a checkpoint that never was."""
        number = self._played.check_triggered(checkpoint_id)
        for stage in self._graph.topological:
            for subtask in range(stage.parallelism):
                if (
                    number in self._read.pending
                    and self._read.status(stage.uid, subtask) is StageStatus.RUNNING
                ):
                    self.acknowledge(number, stage.uid, subtask)

    def answer_hook(self, checkpoint_id: int, hook: str, state: Any = "state") -> None:
        """Give the result a hook owed."""
        self._coordinator.acknowledge_hook(number_of(checkpoint_id), hook, state)

    def fail_hook(self, checkpoint_id: int, hook: str, error: Exception | None = None) -> None:
        """Let a hook that owes a result fail: its checkpoint fails. Raises InvalidRequest: no such hook."""
        failure = error or RuntimeError(f"hook {hook} failed")
        self._coordinator.fail_hook(number_of(checkpoint_id), hook, failure)

    def decline(
        self,
        checkpoint_id: int,
        stage: str,
        subtask: int = 0,
        *,
        reason: CheckpointFailureReason | str = CheckpointFailureReason.CHECKPOINT_DECLINED,
        message: str = "declined by the test",
        transient: bool = False,
        retries_left: int = 0,
        attempt: ExecutionAttempt | None = None,
    ) -> FailureDecision:
        """Decline for one subtask; anybody may, but for an earlier try of a task."""
        return self._coordinator.decline(
            number_of(checkpoint_id),
            self._try_of(attempt, stage, subtask),
            _reason(reason),
            message,
            transient=transient,
            retries_left=retries_left,
        )

    # --- what they go through -----------------------------------------------------------------------------

    def report(self, stage: str, status: StageStatus | str, subtask: int | None = None) -> None:
        """Report the status of a stage or of one subtask."""
        self._coordinator.report_stage(StageUid(stage), one_of(StageStatus, status, "status"), subtask)

    def fail_task(self, stage: str, subtask: int = 0) -> None:
        """Let a task fail."""
        self.report(stage, StageStatus.FAILED, subtask)

    def finish(self, stage: str, subtask: int | None = None) -> None:
        """Let a stage, or one subtask, finish."""
        self.report(stage, StageStatus.FINISHED, subtask)

    def restart_task(self, stage: str, subtask: int = 0) -> ExecutionAttempt:
        """Deploy and run a new try of a task (one that runs is canceled first); return its identity."""
        if not self._read.status(stage, subtask).is_over:
            self.report(stage, StageStatus.CANCELED, subtask)
        self.report(stage, StageStatus.DEPLOYING, subtask)
        self.report(stage, StageStatus.RUNNING, subtask)
        return self.attempt(stage, subtask)

    def end_of_data(self, stage: str, subtask: int | None = None) -> None:
        """Let a stage, or one subtask, reach the end of its bounded input."""
        self._coordinator.report_end_of_data(StageUid(stage), subtask)

    def confirm_aborted(self, checkpoint_id: int, stage: str) -> None:
        """Let a stage say that it writes nothing more for an aborted checkpoint."""
        self._played.check_task(stage)
        self._coordinator.confirm_aborted(number_of(checkpoint_id), StageUid(stage))

    def _confirm(self, message: NotifyAborted) -> None:
        if self.confirm_aborts and self._played.opened is not None:
            for stage in self._graph.stages:
                self._played.opened.confirm_aborted(message.checkpoint_id, stage.uid)


def _reason(given: CheckpointFailureReason | str) -> CheckpointFailureReason:
    """Return the reason, which may be given by name. Raises InvalidRequest that lists the names."""
    if isinstance(given, CheckpointFailureReason):
        return given
    name = str(given).upper()
    if name in CheckpointFailureReason.__members__:
        return CheckpointFailureReason[name]
    names = ", ".join(CheckpointFailureReason.__members__)
    raise InvalidRequest(f"reason must be one of {names}, got {given!r}")


def _handles(given: Sequence[StateHandle] | StateHandle) -> tuple[StateHandle, ...]:
    handles = (given,) if isinstance(given, StateHandle) else tuple(given)
    if other := [h for h in handles if not isinstance(h, StateHandle)]:
        raise InvalidRequest(f"handles are what private() and shared() return, got {other[0]!r}")
    return handles


def _metrics(given: SnapshotMetrics | Mapping[str, Any] | None) -> SnapshotMetrics | None:
    if given is None or isinstance(given, SnapshotMetrics):
        return given
    if strange := sorted(given.keys() - SnapshotMetrics.model_fields.keys()):
        raise InvalidRequest(f"metrics have no {strange[0]}: {', '.join(SnapshotMetrics.model_fields)}")
    return SnapshotMetrics(**given)
