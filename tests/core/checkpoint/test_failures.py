"""The failure manager (Flink 1.12), as a value."""

from __future__ import annotations

from dagster_ckpt.core.checkpoint.failures import UNLIMITED, FailureCounter, FailureDecision, FailureScope
from dagster_ckpt.core.messages import CheckpointFailureReason as Reason
from dagster_ckpt.core.model import CheckpointKind

GO_ON, FAIL = FailureDecision.GO_ON, FailureDecision.FAIL_RUN


class Manager:
    def __init__(self, tolerable: int) -> None:
        self.tolerable = tolerable
        self.counter = FailureCounter()
        self.job_failures = 0

    def fail(
        self,
        reason: Reason,
        number: int | None,
        kind: CheckpointKind = CheckpointKind.CHECKPOINT,
        scope: FailureScope = FailureScope.JOB,
    ) -> FailureDecision:
        self.counter, verdict = self.counter.failed(
            reason, checkpoint_id=number, kind=kind, scope=scope, tolerable=self.tolerable
        )
        self.job_failures += verdict is FAIL
        return verdict

    def succeed(self, number: int) -> None:
        self.counter = self.counter.succeeded(number)


def test_more_consecutive_failures_than_tolerable_fail_the_run_once() -> None:
    """C049: CheckpointFailureManagerTest#testContinuousFailure."""
    m = Manager(2)
    m.fail(Reason.CHECKPOINT_DECLINED, 1)
    m.fail(Reason.CHECKPOINT_DECLINED, 2)
    m.fail(Reason.JOB_FAILOVER_REGION, 3)
    assert m.job_failures == 0
    m.fail(Reason.CHECKPOINT_DECLINED, 4)
    assert m.job_failures == 1
    assert m.counter.count == 0


def test_a_success_in_between_starts_the_count_anew() -> None:
    """C050: CheckpointFailureManagerTest#testBreakContinuousFailure."""
    m = Manager(2)
    m.fail(Reason.IO_EXCEPTION, 1)
    m.fail(Reason.CHECKPOINT_DECLINED, 2)
    m.fail(Reason.JOB_FAILOVER_REGION, 3)
    m.succeed(4)
    m.fail(Reason.CHECKPOINT_EXPIRED, 5)
    assert m.job_failures == 0
    assert m.counter.count == 1


def test_exactly_five_reasons_count() -> None:
    """CheckpointFailureManagerTest#testTotalCountValue: every reason once, tolerance 0."""
    m = Manager(0)
    for reason in Reason:
        m.fail(reason, None)
    assert m.job_failures == 5
    assert {r for r in Reason if r.counted} == {
        Reason.IO_EXCEPTION,
        Reason.CHECKPOINT_ASYNC_EXCEPTION,
        Reason.CHECKPOINT_EXPIRED,
        Reason.CHECKPOINT_DECLINED,
        Reason.FINALIZE_CHECKPOINT_FAILURE,
    }


def test_a_checkpoint_that_fails_many_times_counts_once() -> None:
    """CheckpointFailureManagerTest#testIgnoreOneCheckpointRepeatedlyCountMultiTimes."""
    m = Manager(2)
    for _ in range(5):
        m.fail(Reason.CHECKPOINT_DECLINED, 1)
    assert m.counter.count == 1
    assert m.job_failures == 0


def test_failures_of_checkpoints_before_the_last_success_do_not_count() -> None:
    """C052: CheckpointFailureManagerTest#testIgnoresPastCheckpoints."""
    m = Manager(2)
    m.succeed(2)
    m.fail(Reason.CHECKPOINT_DECLINED, 1)
    assert m.counter.count == 0
    m.fail(Reason.CHECKPOINT_DECLINED, 3)
    m.fail(Reason.CHECKPOINT_DECLINED, 4)
    assert (m.counter.count, m.job_failures) == (2, 0)


def test_a_success_out_of_order_does_not_reset_the_count() -> None:
    m = Manager(5)
    m.succeed(4)
    m.fail(Reason.CHECKPOINT_DECLINED, 5)
    m.succeed(3)
    assert m.counter.count == 1


def test_unlimited_counts_nothing() -> None:
    m = Manager(UNLIMITED)
    for number in range(100):
        m.fail(Reason.CHECKPOINT_DECLINED, number)
    assert (m.counter.count, m.job_failures) == (0, 0)


def test_job_level_failures_of_savepoints_are_ignored() -> None:
    """CheckpointFailureManager#handleJobLevelCheckpointException."""
    m = Manager(0)
    for kind in (CheckpointKind.SAVEPOINT, CheckpointKind.SYNC_SAVEPOINT_SUSPEND):
        assert m.fail(Reason.CHECKPOINT_EXPIRED, 1, kind) is GO_ON


def test_task_level_failures_of_plain_savepoints_count() -> None:
    m = Manager(0)
    assert m.fail(Reason.CHECKPOINT_DECLINED, 1, CheckpointKind.SAVEPOINT, FailureScope.TASK) is FAIL


def test_a_task_that_declines_a_synchronous_savepoint_fails_the_run_whatever_the_reason() -> None:
    """CheckpointCoordinatorTest#jobFailsIfInFlightSynchronousSavepointIsDiscarded."""
    m = Manager(100)
    kind = CheckpointKind.SYNC_SAVEPOINT_TERMINATE
    assert m.fail(Reason.CHECKPOINT_DECLINED_TASK_CLOSING, 1, kind, FailureScope.TASK) is FAIL
    assert m.counter.count == 0


def test_pre_flight_failures_are_job_level_even_when_a_task_reports_them() -> None:
    m = Manager(0)
    kind = CheckpointKind.SAVEPOINT
    assert m.fail(Reason.IO_EXCEPTION, 1, kind, FailureScope.TASK) is GO_ON


def test_a_task_whose_try_is_over_does_not_fail_the_run_a_second_time() -> None:
    m = Manager(0)
    assert m.fail(Reason.CHECKPOINT_DECLINED, 1, scope=FailureScope.ENDED_TASK) is GO_ON
