"""More scenarios of Flink's own tests: partly finished stages, stops, and what restores leave in the numbers."""

from __future__ import annotations

import pytest

from dagster_ckpt.core.request import RunStatus
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness
from tests.coordinator.scenarios import two

# --- tasks that have finished -------------------------------------------------------------------------------


def test_a_process_that_takes_a_checkpoint_up_does_not_wait_for_subtasks_that_had_finished() -> None:
    """CheckpointCoordinatorTest#testCheckpointTriggeredAfterSomeTasksFinishedIfAllowed, over a crash."""
    h = CoordinatorHarness(stages={"a": 3, "b": 2}, edges=[("a", "b")])
    h.finish("a", 1)
    h.finish("b", 0)
    h.finish("b", 1)
    cp = h.checkpoint()
    h.crash()
    h.recover()
    assert h.outstanding(cp) == {"a": [0, 2]}
    h.acknowledge(cp, "a", 0)
    h.acknowledge(cp, "a", 2)
    assert h.completed == [cp]
    saved = {s.uid: s for s in h.metadata(cp).stages}
    assert (saved["a"].finished, saved["a"].finished_subtasks) == (False, (1,))
    assert saved["b"].finished


def test_union_state_of_a_partly_finished_stage_is_torn_in_any_process() -> None:
    """DefaultCheckpointPlanTest#testAbortionIfPartiallyFinishedVertexUsedUnionListState, over a crash."""
    h = CoordinatorHarness(stages={"a": 2}, union_state=["a"])
    h.finish("a", 0)
    cp = h.checkpoint()
    h.crash()
    h.recover()
    h.acknowledge(cp, "a", 1)
    assert h.failures[cp].name == "CHECKPOINT_DECLINED_TASK_CLOSING"
    assert h.failure_counter == 0


def test_who_acknowledges_for_a_whole_stage_does_not_speak_for_subtasks_that_had_finished() -> None:
    """DefaultCheckpointPlanTest#testFulfillFinishedStates: those are marked, however the others are told of."""
    h = CoordinatorHarness(stages={"a": 3}, edges=[])
    h.finish("a", 1)
    cp = h.checkpoint()
    h.acknowledge_stage(cp, "a")
    assert [s.finished_subtasks for s in h.metadata(cp).stages] == [(1,)]
    torn = CoordinatorHarness(stages={"a": 2}, union_state=["a"])
    torn.finish("a", 0)
    cp = torn.checkpoint()
    torn.acknowledge_stage(cp, "a")
    assert torn.failures[cp].name == "CHECKPOINT_DECLINED_TASK_CLOSING"


# --- stop-with-savepoint ------------------------------------------------------------------------------------


def test_the_savepoint_of_a_stop_is_kept_while_the_run_goes_on() -> None:
    """StopWithSavepointTerminationHandlerImplTest#testFailedTerminationHandling: a run that fails now needs it."""
    h = two()
    h.stop_with_savepoint()
    [stop] = h.pending
    h.acknowledge_all(stop)
    with pytest.raises(InvalidRequest, match="the run ends with it and has not ended yet"):
        h.dispose(stop)
    assert h.savepoints == [stop]
    h.finish("a")
    h.finish("b")
    h.close(RunStatus.FINISHED)
    h.next_attempt(restore_from="none").dispose(stop)
    assert h.files("memory://savepoints") == []


def test_the_savepoint_of_a_stop_that_failed_is_free_once_a_checkpoint_has_completed() -> None:
    h = two()
    h.stop_with_savepoint()
    [stop] = h.pending
    h.acknowledge_all(stop)
    h.fail_over()
    with pytest.raises(InvalidRequest, match="is needed"):
        h.dispose(stop)
    h.completed_checkpoint()
    h.dispose(stop)
    assert h.savepoints == []


# --- numbers ------------------------------------------------------------------------------------------------


def test_a_run_that_begins_without_state_was_restored_from_nothing() -> None:
    """DefaultCheckpointStatsTrackerTest#testMetricsRegistration: -1 until the job restores something."""
    h = two()
    h.completed_checkpoint()
    n = h.next_attempt()
    assert n.statistics.restored_id == 1
    fresh = n.next_attempt("run-3", restore_from="none")
    assert (fresh.statistics.restored_id, fresh.statistics.restored_at) == (None, None)
    assert fresh.gauges["lastCheckpointRestoreTimestamp"] == -1
    assert fresh.statistics.counts.restored == 1


def test_stages_that_restart_within_the_attempt_are_restored_as_well() -> None:
    """CheckpointCoordinator#restoreLatestCheckpointedStateToAll: each restore is reported to the statistics."""
    h = two()
    h.fail_over()
    assert (h.statistics.restored_id, h.statistics.counts.restored) == (None, 0)
    h.completed_checkpoint()
    latest = h.completed_checkpoint()
    h.clock.advance(5)
    h.fail_over()
    found = h.statistics
    assert (found.restored_id, found.restored_at, found.counts.restored) == (latest, h.clock.now(), 1)


def test_a_stage_is_summarized_over_its_subtasks() -> None:
    """TaskStateStatsTest#testHandInSubtasks."""
    h = CoordinatorHarness(stages={"a": 3})
    cp = h.checkpoint()
    [stage] = h.statistics.history[0].stages
    assert (stage.acknowledged, stage.latest, stage.latest_ack_at) == (0, None, None)
    assert stage.summary.bytes_full is None
    for index in (2, 0, 1):
        h.clock.advance(1)
        h.acknowledge(cp, "a", index, metrics={"bytes_full": 10 * index, "sync_ms": 5 + index})
        [stage] = h.statistics.history[0].stages
        assert stage.latest is not None
        assert (stage.latest.index, stage.latest_ack_at) == (index, h.clock.now())
    h.acknowledge(cp, "a", 1, metrics={"bytes_full": 1000})
    size, sync = stage.summary.bytes_full, stage.summary.sync_ms
    assert size is not None
    assert sync is not None
    assert (size.count, size.minimum, size.maximum, size.average, size.total) == (3, 0, 20, 10, 30)
    assert (sync.minimum, sync.maximum, stage.metrics.sync_ms) == (5, 7, 7)
    assert stage.metrics.bytes_full == size.total
