"""What tasks answer in a scenario: acknowledgements with their files, and declines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dagster_ckpt.core.failures import FailureDecision
from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.ids import CheckpointId, ExecutionAttempt, StageUid
from dagster_ckpt.core.messages import (
    StageAcknowledgement,
    StateHandle,
    StateScope,
    SubtaskAcknowledgement,
    SubtaskReport,
)
from dagster_ckpt.core.model import ObjectRef, SnapshotMetrics, StageSnapshot
from dagster_ckpt.core.paths import CheckpointPaths, exclusive_file
from dagster_ckpt.core.reasons import AcknowledgeResult, CheckpointFailureReason
from dagster_ckpt.core.tasks import StageStatus
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.runtime.handles import write_subtask_handles
from dagster_ckpt.testing.harness_events import HarnessEvents
from dagster_ckpt.testing.harness_faults import HarnessFaults
from dagster_ckpt.testing.harness_graph import one_of
from dagster_ckpt.testing.harness_readings import HarnessReadings


class HarnessAnswers(HarnessReadings, HarnessEvents, HarnessFaults):
    """The tasks' side of a checkpoint."""

    graph: PipelineGraph
    paths: CheckpointPaths

    def attempt(self, stage: str, subtask: int = 0) -> ExecutionAttempt:
        """Return the identity of the current try of a task."""
        return self.coordinator.attempt_of(StageUid(stage), subtask)

    # --- acknowledgements -----------------------------------------------------------------------------------

    def private(
        self, checkpoint_id: int, stage: str, name: str = "state", content: bytes = b"private"
    ) -> StateHandle:
        """Write a private file of a checkpoint into its folder; return its handle."""
        self.check_task(stage)
        location = self.coordinator.location_of(CheckpointId(checkpoint_id))
        key = exclusive_file(location.folder, StageUid(stage), name)
        location.storage.create(key, content)
        return StateHandle(key, len(content))

    def shared(self, checkpoint_id: int, stage: str, name: str, content: bytes = b"shared") -> StateHandle:
        """Write a shared file as uploaded by a checkpoint (or name it, when it is there); return its handle."""
        self.check_task(stage)
        key = self.paths.shared_file(StageUid(stage), CheckpointId(checkpoint_id), name)
        self.storage.create(key, content)
        return StateHandle(key, len(content), StateScope.SHARED)

    def acknowledge(
        self,
        checkpoint_id: int,
        stage: str,
        subtask: int = 0,
        *,
        handles: Sequence[StateHandle] = (),
        metrics: SnapshotMetrics | None = None,
        report: SubtaskReport | str = SubtaskReport.NORMAL,
        attempt: ExecutionAttempt | None = None,
    ) -> AcknowledgeResult:
        """Acknowledge for one subtask; ``attempt`` where it is not the current try.

        A subtask that the stage does not have is a stranger: UNKNOWN.
        """
        return self.coordinator.acknowledge(
            SubtaskAcknowledgement(
                checkpoint_id=CheckpointId(checkpoint_id),
                attempt=attempt or self.attempt(stage, subtask),
                handles=tuple(handles),
                metrics=metrics,
                report=one_of(SubtaskReport, report, "report"),
            )
        )

    def acknowledge_stage(
        self,
        checkpoint_id: int,
        stage: str,
        *,
        handles: Sequence[StateHandle] = (),
        attempt: ExecutionAttempt | None = None,
        **snapshot: Any,
    ) -> AcknowledgeResult:
        """Acknowledge for a whole stage; ``snapshot`` are fields of StageSnapshot.

        Its file list is written as a stage does it, unless ``snapshot`` brings one.
        """
        self.check_task(stage)
        spec = self.graph.by_uid[StageUid(stage)]
        fields = {"uid": stage, "parallelism": spec.parallelism, **snapshot}
        if handles and not {"manifest", "subtask_handles"} & snapshot.keys():
            fields["subtask_handles"] = self._file_list(CheckpointId(checkpoint_id), stage, handles)
        return self.coordinator.acknowledge_stage(
            StageAcknowledgement(
                checkpoint_id=CheckpointId(checkpoint_id),
                attempt=attempt or self.attempt(stage),
                snapshot=StageSnapshot(**fields),
                handles=tuple(handles),
            )
        )

    def _file_list(
        self, number: CheckpointId, stage: str, handles: Sequence[StateHandle]
    ) -> ObjectRef | None:
        if number not in self.pending:
            return None
        location = self.coordinator.location_of(number)
        folder = f"{location.folder}/{stage}/list-{len(self.calls.calls)}"
        return write_subtask_handles(location.storage, folder, stage, {0: tuple(handles)})

    def acknowledge_all(self, checkpoint_id: int) -> None:
        """Acknowledge for every subtask that still runs."""
        number = CheckpointId(checkpoint_id)
        for stage in self.graph.topological:
            for subtask in range(stage.parallelism):
                if number in self.pending and self.status(stage.uid, subtask) is StageStatus.RUNNING:
                    self.acknowledge(number, stage.uid, subtask)

    def answer_hook(self, checkpoint_id: int, hook: str, state: Any = "state") -> None:
        """Give the result a hook owed."""
        self.coordinator.acknowledge_hook(CheckpointId(checkpoint_id), hook, state)

    def fail_hook(self, checkpoint_id: int, hook: str, error: Exception | None = None) -> None:
        """Let a hook that owes a result fail: its checkpoint fails."""
        failure = error or RuntimeError(f"hook {hook} failed")
        self.coordinator.fail_hook(CheckpointId(checkpoint_id), hook, failure)

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
        """Decline for one subtask."""
        return self.coordinator.decline(
            CheckpointId(checkpoint_id),
            attempt or self.attempt(stage, subtask),
            _reason(reason),
            message,
            transient=transient,
            retries_left=retries_left,
        )


def _reason(given: CheckpointFailureReason | str) -> CheckpointFailureReason:
    """Return the reason, which may be given by name. Raises InvalidRequest that lists the names."""
    if isinstance(given, CheckpointFailureReason):
        return given
    if given.upper() in CheckpointFailureReason.__members__:
        return CheckpointFailureReason[given.upper()]
    names = ", ".join(CheckpointFailureReason.__members__)
    raise InvalidRequest(f"reason must be one of {names}, got {given!r}")
