"""Failure counter: consecutive failed checkpoints, and whether they fail the run.

Source: flink-runtime CheckpointFailureManager (CheckpointFailureManagerTest). The reasons and which of them
count are in ``reasons``.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from dagster_ckpt.core.messages import CheckpointFailureReason
from dagster_ckpt.core.model import CheckpointKind, Record

UNLIMITED = 2**31 - 1
"""As ``tolerable_failed_checkpoints``: nothing is counted."""


class FailureDecision(StrEnum):
    """Decision about a stage whose part of a checkpoint failed."""

    RETRY_OP = "retry_op"
    """The fault is passing: try the snapshot again, the checkpoint waits."""
    GO_ON = "go_on"
    """The checkpoint is marked failed; the pipeline keeps running, its data untouched."""
    FAIL_RUN = "fail_run"
    """More consecutive checkpoints failed than is tolerable, or the run was to end with this savepoint."""


class FailureScope(StrEnum):
    """Scope of a failure: the checkpoint, or the run."""

    JOB = "job"
    """No stage in particular: a timeout, a store or storage error, anything before the trigger."""
    TASK = "task"
    """A stage of the pipeline."""
    ENDED_TASK = "ended_task"
    """A try of a stage that is over: its end was dealt with, so the run is not failed a second time."""


class FailureCounter(Record):
    """Consecutive counted failures; stored with the coordinator's record, so it survives runs."""

    count: int = 0
    counted: tuple[int, ...] = Field(default=())
    """Checkpoint ids counted since the last success: each counts once."""
    last_succeeded: int = 0

    def failed(
        self,
        reason: CheckpointFailureReason,
        *,
        checkpoint_id: int | None,
        kind: CheckpointKind,
        scope: FailureScope,
        tolerable: int,
    ) -> tuple[FailureCounter, FailureDecision]:
        """Return the counter after a failure and whether the run fails (GO_ON or FAIL_RUN).

        ``checkpoint_id`` None: it failed before it had one.
        """
        is_job_level = scope is FailureScope.JOB or reason.pre_flight
        if is_job_level and kind.is_savepoint:
            return self, FailureDecision.GO_ON
        if not is_job_level and kind.is_synchronous:
            return self, FailureDecision.FAIL_RUN
        counter, verdict = self._count(reason, checkpoint_id, tolerable)
        return counter, FailureDecision.GO_ON if scope is FailureScope.ENDED_TASK else verdict

    def _count(
        self, reason: CheckpointFailureReason, checkpoint_id: int | None, tolerable: int
    ) -> tuple[FailureCounter, FailureDecision]:
        if tolerable == UNLIMITED or not reason.counted:
            return self, FailureDecision.GO_ON
        if checkpoint_id is not None and (
            checkpoint_id <= self.last_succeeded or checkpoint_id in self.counted
        ):
            return self, FailureDecision.GO_ON
        if self.count + 1 > tolerable:
            return self.model_copy(update={"count": 0, "counted": ()}), FailureDecision.FAIL_RUN
        ids = self.counted if checkpoint_id is None else (*self.counted, checkpoint_id)
        return self.model_copy(update={"count": self.count + 1, "counted": ids}), FailureDecision.GO_ON

    def succeeded(self, checkpoint_id: int) -> FailureCounter:
        """Return the counter after a completion; an older one than the last success changes nothing."""
        if checkpoint_id <= self.last_succeeded:
            return self
        return FailureCounter(last_succeeded=checkpoint_id)
