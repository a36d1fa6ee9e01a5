"""Statistics (Flink 1.25): counts, history, summary, gauges; here they survive the process."""

from __future__ import annotations

from typing import Unpack

import pytest

from dagster_ckpt.core.checkpoint.statistics import CheckpointStatus, summarize
from dagster_ckpt.core.checkpoint.tasks import StageStatus
from dagster_ckpt.core.ids import PipelineId, StageUid
from dagster_ckpt.core.messages import AcknowledgeResult
from dagster_ckpt.core.model import CheckpointKind, SnapshotMetrics
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness
from dagster_ckpt.testing.coordinator.settings import Settings
from tests.coordinator.scenarios import two


def wide(**settings: Unpack[Settings]) -> CoordinatorHarness:
    tolerant: Settings = {"tolerable_failed_checkpoints": 100, **settings}
    return two(stages={"a": 2, "b": 1}, **tolerant)


def test_counts() -> None:
    """CheckpointStatsCountsTest#testCounts."""
    h = wide(num_retained=10)
    h.completed_checkpoint()
    h.completed_savepoint()
    h.decline(h.checkpoint(), "a")
    h.checkpoint()
    s = h.statistics
    assert (s.counts.total, s.counts.completed, s.counts.failed, s.in_progress) == (4, 2, 1, 1)


def test_a_failure_without_a_checkpoint_counts_as_total_and_failed() -> None:
    """CheckpointStatsCountsTest#testCompleteOrFailWithoutInProgressCheckpoint."""
    h = wide()
    h.finish("a")
    h.finish("b")
    h.trigger()
    assert (h.statistics.counts.total, h.statistics.counts.failed) == (1, 1)


@pytest.mark.parametrize("resumed", [False, True], ids=["one_process", "another_completes_it"])
def test_a_finished_stage_that_keeps_its_position_is_finished_in_plan_and_numbers(resumed: bool) -> None:
    """Spark would read everything again without it (Flink's finished tasks hold nothing): no task acknowledges."""
    h = two(tolerable_failed_checkpoints=0)
    a = StageUid("a")
    h.coordinator.report_stage(a, StageStatus.FINISHED, keeps_position=True)
    cp = h.checkpoint()
    plan = h.plan(cp)
    assert (plan["finished"], plan["trigger"]) == ({"a": [0]}, {"b": [0]})
    h.clock.advance(1.0)
    if resumed:
        h = h.another_process()
    assert h.acknowledge_stage(
        cp, "a", finished=True, offsets={"0": "7"}, metrics=SnapshotMetrics(bytes_full=3)
    ) is (AcknowledgeResult.SUCCESS)
    [row] = h.statistics.history
    of_a = next(stage for stage in row.stages if stage.uid == "a")
    assert (of_a.finished, of_a.acknowledged, of_a.subtasks) == (True, 1, 1)
    assert (of_a.latest_ack_at, of_a.metrics.bytes_full) == (row.triggered_at, 3)
    assert h.outstanding(cp) == {"b": [0]}
    h.acknowledge_stage(cp, "b")
    part = h.metadata(cp).stage("a")
    assert part is not None
    assert (part.finished, part.offsets) == (True, {"0": "7"})


def test_a_position_that_cannot_be_stored_fails_the_run_as_any_part_does() -> None:
    h = two(tolerable_failed_checkpoints=0)
    h.coordinator.report_stage(StageUid("a"), StageStatus.FINISHED, keeps_position=True)
    h.decline(h.checkpoint(), "a")
    assert h.job_failures


def test_every_subtask_has_its_numbers() -> None:
    """PendingCheckpointStatsTest#testReportSubtaskStats."""
    h = wide()
    cp = h.checkpoint()
    h.clock.advance(1.0)
    h.acknowledge(cp, "a", 1, metrics=SnapshotMetrics(sync_ms=2.0, bytes_new=10, bytes_full=100))
    h.clock.advance(1.0)
    [row] = h.statistics.history
    assert (row.status, row.subtasks, row.acknowledged) == (CheckpointStatus.IN_PROGRESS, 3, 1)
    h.acknowledge(cp, "a", 0, metrics=SnapshotMetrics(sync_ms=5.0, bytes_new=1, bytes_full=20))
    h.acknowledge(cp, "b")
    [row] = h.statistics.history
    a = row.stages[0]
    assert [d.index for d in a.details] == [1, 0]
    assert (a.metrics.sync_ms, a.metrics.bytes_new, a.metrics.bytes_full) == (5.0, 11, 120)
    assert (row.status, row.bytes_full, row.bytes_new) == (CheckpointStatus.COMPLETED, 120, 11)
    assert row.duration == pytest.approx(2.0)
    assert row.latest_ack_at == h.clock.now()


def test_finished_subtasks_count_as_acknowledged() -> None:
    h = wide()
    h.finish("a", 0)
    h.checkpoint()
    [row] = h.statistics.history
    assert (row.subtasks, row.acknowledged) == (3, 1)


def test_the_history_is_bounded_newest_first_and_an_entry_is_replaced_when_it_ends() -> None:
    """CheckpointStatsHistoryTest#testCheckpointHistory."""
    h = wide(history_size=3)
    for _ in range(5):
        h.completed_checkpoint()
    assert [r.checkpoint_id for r in h.statistics.history] == [5, 4, 3]
    cp = h.checkpoint()
    assert h.statistics.history[0].status is CheckpointStatus.IN_PROGRESS
    h.decline(cp, "a")
    assert [r.checkpoint_id for r in h.statistics.history] == [6, 5, 4]
    assert h.statistics.history[0].status is CheckpointStatus.FAILED


def test_without_history_the_latest_of_each_kind_and_the_summary_are_kept() -> None:
    """CheckpointStatsHistoryTest#testZeroMaxSizeHistory."""
    h = wide(history_size=0)
    done = h.completed_checkpoint()
    sp = h.completed_savepoint()
    bad = h.checkpoint()
    h.decline(bad, "a")
    s = h.statistics
    assert s.history == ()
    assert s.latest_completed is not None
    assert s.latest_savepoint is not None
    assert s.latest_failed is not None
    latest = (s.latest_completed, s.latest_savepoint, s.latest_failed)
    assert [r.checkpoint_id for r in latest] == [done, sp, bad]
    assert s.summary.duration is not None
    assert s.summary.duration.count == 2


def test_the_latest_is_the_one_with_the_highest_id() -> None:
    h = wide(max_concurrent_checkpoints=5, num_retained=5)
    older, newer = h.savepoint(), h.savepoint()
    h.acknowledge_all(newer)
    h.acknowledge_all(older)
    latest = h.statistics.latest_savepoint
    assert latest is not None
    assert latest.checkpoint_id == newer


def test_a_failure_says_why_and_what_was_missing() -> None:
    """PendingCheckpointStatsTest#testReportFailedCheckpoint."""
    h = wide(timeout=10.0)
    cp = h.checkpoint()
    h.acknowledge(cp, "b")
    h.expire(cp)
    failed = h.statistics.latest_failed
    assert failed is not None
    assert failed.failure_reason == "CHECKPOINT_EXPIRED"
    assert "outstanding: a" in failed.failure_message
    assert failed.ended_at == h.clock.now()


def test_the_fourteen_gauges_at_the_start() -> None:
    """DefaultCheckpointStatsTrackerTest#testMetricsRegistration."""
    assert CoordinatorHarness().gauges == {
        "totalNumberOfCheckpoints": 0,
        "numberOfInProgressCheckpoints": 0,
        "numberOfCompletedCheckpoints": 0,
        "numberOfFailedCheckpoints": 0,
        "lastCheckpointRestoreTimestamp": -1,
        "lastCheckpointSize": -1,
        "lastCheckpointFullSize": -1,
        "lastCheckpointMetadataSize": -1,
        "lastCheckpointDuration": -1,
        "lastCheckpointProcessedData": -1,
        "lastCheckpointPersistedData": -1,
        "lastCheckpointExternalPath": "n/a",
        "lastCompletedCheckpointId": -1,
        "lastCheckpointCompletedTimestamp": -1,
    }


def test_the_gauges_follow_a_completion() -> None:
    """DefaultCheckpointStatsTrackerTest#testMetricsAreUpdated."""
    h = CoordinatorHarness()
    cp = h.checkpoint()
    h.clock.advance(3.0)
    metrics = SnapshotMetrics(bytes_new=5, bytes_full=50, processed_in_flight=2, persisted_in_flight=1)
    h.acknowledge(cp, "task", metrics=metrics)
    g = h.gauges
    assert g["lastCompletedCheckpointId"] == cp
    assert (g["lastCheckpointSize"], g["lastCheckpointFullSize"]) == (5, 50)
    assert (g["lastCheckpointProcessedData"], g["lastCheckpointPersistedData"]) == (2, 1)
    assert g["lastCheckpointDuration"] == pytest.approx(3.0)
    assert g["lastCheckpointExternalPath"] == "memory://checkpoints/pipeline/chk-1"
    assert g["lastCheckpointMetadataSize"] == len(h.storage.read("pipeline/chk-1/_metadata"))
    assert h.next_attempt().gauges["lastCheckpointRestoreTimestamp"] == h.clock.now()


def test_numbers_survive_crashes_and_attempts() -> None:
    """Flink's live in memory and are lost with the JobManager (FLINK-33872)."""
    h = wide(num_retained=1)
    first = h.completed_checkpoint()
    second = h.completed_checkpoint()
    bad = h.checkpoint()
    h.decline(bad, "a", message="disk full")
    before = h.statistics
    h.crash()
    h.recover()
    assert h.statistics.counts == before.counts
    n = h.next_attempt()
    rows = {r.checkpoint_id: r for r in n.statistics.history}
    assert rows[bad].failure_message == "disk full"
    assert rows[second].status is CheckpointStatus.COMPLETED
    assert rows[first].status in (CheckpointStatus.SUBSUMED, CheckpointStatus.DISCARDED)


def test_a_discarded_checkpoint_is_marked() -> None:
    h = wide()
    first = h.completed_checkpoint()
    h.completed_checkpoint()
    row = next(r for r in h.statistics.history if r.checkpoint_id == first)
    assert row.is_discarded
    assert row.duration is not None


def test_a_savepoint_that_was_restored_is_no_subsumed_checkpoint_afterwards() -> None:
    h = wide()
    savepoint = h.checkpoint(kind="savepoint")
    h.acknowledge_all(savepoint)
    n = h.next_attempt(restore_from=f"savepoint-{savepoint}")
    assert [entry.is_kept_for_its_owner for entry in n.coordinator.record.completed] == [True]
    n.completed_checkpoint()
    row = next(r for r in n.statistics.history if r.checkpoint_id == savepoint)
    assert row.status is CheckpointStatus.COMPLETED


def test_thousands_of_subtasks_do_not_swell_the_stored_history() -> None:
    h = CoordinatorHarness(stages={"a": 3000})
    h.completed_checkpoint()
    [stored] = h.store.history(h.graph.pipeline, limit=1)
    assert len(stored.body) < 10_000
    assert len(h.statistics.history[0].stages[0].details) == 3000


@pytest.mark.parametrize(
    ("rows", "days", "left"),
    [
        (10_000, 89, [1, 2, 3, 4, 5, 6]),
        (10_000, 91, [1, 6]),  # 1 is a savepoint
        (2, 0, [1, 5, 6]),
        (2, 91, [1, 6]),
    ],
)
def test_rows_that_are_many_or_old_leave_the_history_and_their_sum_stays(
    rows: int, days: int, left: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_ckpt.runtime.record_store.KEPT_ROWS", rows)
    h = wide(num_retained=1)
    h.completed_savepoint()
    h.decline(h.checkpoint(), "a")
    for _ in range(3):
        h.completed_checkpoint()
    h.clock.advance(days * 24 * 3600.0)
    h.completed_checkpoint()
    counts = h.statistics.counts
    for _ in range(2):
        h.coordinator._engine.forget_history()
    pipeline = PipelineId(h.graph.pipeline)
    assert [row.checkpoint_id for row in h.store.history(pipeline, limit=9)] == left[::-1]
    gone = {1, 2, 3, 4, 5, 6} - set(left)
    sums = h.record.forgotten
    assert (sums.rows, sums.completed, sums.failed) == (len(gone), len(gone - {2}), len(gone & {2}))
    assert {number for number in range(10) if sums.holds(number)} == gone
    assert h.statistics.counts == counts
    h.completed_checkpoint()


def test_summary_has_quantiles_and_leaves_out_what_is_missing() -> None:
    """CompletedCheckpointStatsSummaryTest#testSimpleUpdates, #testQuantiles: values below 0 are ignored."""
    found = summarize([float(n) for n in range(1, 101)] + [None, -1.0])
    assert found is not None
    assert (found.count, found.minimum, found.maximum, found.average) == (100, 1.0, 100.0, 50.5)
    assert found.quantiles[0.5] == pytest.approx(50.5)
    assert found.quantiles[0.99] == pytest.approx(99.99)
    assert found.quantiles[0.999] == 100.0
    assert summarize([]) is None


def test_only_completed_checkpoints_are_summarised() -> None:
    h = wide()
    h.decline(h.checkpoint(), "a")
    assert h.statistics.summary.duration is None


def test_what_kind_it_was_is_in_the_numbers() -> None:
    h = wide()
    h.completed_savepoint(name="nightly")
    [row] = h.statistics.history
    assert (row.kind, row.trigger.name, row.run_id) == (CheckpointKind.SAVEPOINT, "nightly", "run-1")


def test_the_duration_of_a_failure_is_the_time_until_it_failed() -> None:
    """FailedCheckpointStatsTest#testEndToEndDuration."""
    h = wide()
    unanswered = h.checkpoint()
    h.clock.advance(3.0)
    h.decline(unanswered, "a")
    answered = h.checkpoint()
    h.clock.advance(1.0)
    h.acknowledge(answered, "b")
    h.clock.advance(3.0)
    h.decline(answered, "a")
    durations = {r.checkpoint_id: r.duration for r in h.statistics.history}
    assert durations == {unanswered: pytest.approx(3.0), answered: pytest.approx(4.0)}


def test_one_subtask_makes_a_checkpoint_unaligned() -> None:
    """PendingCheckpointStatsTest#testReportSubtaskStats."""
    h = wide()
    cp = h.checkpoint()
    h.acknowledge(cp, "a", 0, metrics=SnapshotMetrics())
    assert not h.statistics.history[0].unaligned
    h.acknowledge(cp, "a", 1, metrics=SnapshotMetrics(unaligned=True))
    h.acknowledge(cp, "b")
    assert h.statistics.history[0].unaligned


def test_a_checkpoint_is_found_by_its_id_as_long_as_it_is_in_the_history_or_the_latest_of_its_kind() -> None:
    """CheckpointStatsHistoryTest#testZeroMaxSizeHistory, #testCheckpointHistory."""
    h = wide(history_size=1, num_retained=3)
    first = h.completed_checkpoint()
    second = h.completed_checkpoint()
    savepoint = h.completed_savepoint()
    found = [h.statistics.checkpoint(number) for number in (first, second, savepoint, 99)]
    assert [row and row.checkpoint_id for row in found] == [None, second, savepoint, None]
