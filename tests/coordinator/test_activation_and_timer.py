"""Activation (Flink 1.1) and the periodic scheduler (1.2)."""

from __future__ import annotations

from typing import Unpack

import pytest

from dagster_ckpt.core.checkpoint.tasks import StageStatus
from dagster_ckpt.core.graph import Edge
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.messages import CheckpointFailureReason as Reason
from dagster_ckpt.core.request import RunStatus
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness
from dagster_ckpt.testing.coordinator.settings import HarnessOptions
from tests.coordinator.scenarios import two

TWO = {"source": 1, "sink": 1}
EDGE = [("source", "sink")]


def line(**options: Unpack[HarnessOptions]) -> CoordinatorHarness:
    merged: HarnessOptions = {"stages": TWO, "edges": EDGE, **options}
    return two(**merged)


def scheduler(h: CoordinatorHarness) -> bool:
    return h.coordinator.is_scheduling


# --- activation ---------------------------------------------------------------------------------------------


def test_the_timer_starts_only_when_the_last_task_runs() -> None:
    """C001: ExecutionTrackingCheckpointCoordinatorDeActivatorTest#testBasicLifecycle."""
    h = line(interval=1.0, running=False)
    h.report("source", StageStatus.DEPLOYING)
    h.report("sink", StageStatus.DEPLOYING)
    h.run()
    assert not scheduler(h)
    h.report("source", StageStatus.RUNNING)
    assert not scheduler(h)
    h.report("sink", StageStatus.RUNNING)
    assert scheduler(h)


def test_tasks_that_run_before_the_run_does_do_not_start_the_timer() -> None:
    h = line(interval=1.0, running=False)
    h.report("source", StageStatus.RUNNING)
    h.report("sink", StageStatus.RUNNING)
    assert not scheduler(h)
    h.run()
    assert scheduler(h)


def test_a_failed_task_stops_the_timer_once_and_its_new_try_starts_it_once() -> None:
    """C002: ExecutionTrackingCheckpointCoordinatorDeActivatorTest#testTaskFailure."""
    h = line(interval=1.0)
    h.fail_task("sink")
    assert not scheduler(h)
    h.report("sink", StageStatus.DEPLOYING, 0)
    assert not scheduler(h)
    h.report("sink", StageStatus.RUNNING, 0)
    assert scheduler(h)
    planned = h.coordinator.next_periodic
    h.report("source", StageStatus.RUNNING)
    assert h.coordinator.next_periodic == planned


def test_a_finished_task_does_not_stop_the_timer() -> None:
    """ExecutionTrackingCheckpointCoordinatorDeActivatorTest#testJobFinish."""
    h = line(interval=1.0)
    h.finish("source")
    assert scheduler(h)


def test_the_timer_starts_once_the_stages_before_blocking_outputs_have_finished() -> None:
    """DefaultSchedulerTest#testStartCheckpointOnlyAfterVertexWithBlockingEdgeFinished."""
    edges = [
        Edge(upstream=StageUid("source"), downstream=StageUid("map")),
        Edge(upstream=StageUid("map"), downstream=StageUid("sink"), blocking=True),
    ]
    h = CoordinatorHarness(stages={"source": 1, "map": 1, "sink": 1}, edges=edges, interval=10.0)
    h.report("sink", StageStatus.CREATED)
    assert not scheduler(h)
    with pytest.raises(InvalidRequest, match="not configured"):
        h.start_periodic()
    h.trigger("savepoint")
    h.stop_with_savepoint()
    assert h.rejected == [Reason.BLOCKING_OUTPUT_EXIST] * 2
    h.finish("source")
    assert not scheduler(h)
    h.finish("map")
    assert not scheduler(h), "the sink does not run yet"
    h.report("sink", StageStatus.RUNNING)
    assert scheduler(h)
    cp = h.completed_checkpoint()
    assert h.triggered("sink") == [cp]


def test_a_stage_that_starts_again_blocks_again() -> None:
    edge = Edge(upstream=StageUid("source"), downstream=StageUid("sink"), blocking=True)
    h = CoordinatorHarness(stages=TWO, edges=[edge], interval=10.0)
    h.finish("source")
    assert scheduler(h)
    h.report("source", StageStatus.RUNNING)
    assert not scheduler(h)
    h.trigger()
    assert h.rejected == [Reason.BLOCKING_OUTPUT_EXIST]


def test_closing_with_any_status_shuts_the_coordinator_down() -> None:
    """DefaultSchedulerCheckpointCoordinatorTest#testClosingSchedulerShutsDownCheckpointCoordinatorOn…."""
    for status in (RunStatus.FAILED, RunStatus.SUSPENDED, RunStatus.FINISHED, RunStatus.CANCELED):
        h = line(interval=1.0)
        h.checkpoint()
        h.close(status)
        assert not scheduler(h)
        assert h.failures[1] is Reason.CHECKPOINT_COORDINATOR_SHUTDOWN
        h.trigger()
        assert h.rejected == [Reason.CHECKPOINT_COORDINATOR_SHUTDOWN]


# --- the timer ----------------------------------------------------------------------------------------------


def test_periodic_ids_are_consecutive_and_stop_really_stops() -> None:
    """C005: CheckpointCoordinatorTriggeringTest#testPeriodicTriggering."""
    h = CoordinatorHarness(interval=10.0, max_concurrent_checkpoints=100, timeout=1000.0)
    h.advance(55.0)
    first = h.pending
    assert first == list(range(1, len(first) + 1))
    assert len(first) >= 5
    stamps = [m.timestamp for m in h.gateway.triggers]
    assert stamps == sorted(stamps)
    h.stop_periodic()
    assert h.pending == []
    h.advance(100.0)
    assert len(h.gateway.triggers) == len(first)
    h.start_periodic()
    h.advance(100.0)
    assert len(h.gateway.triggers) > len(first)


def test_the_first_fire_lies_between_the_pause_and_the_interval() -> None:
    """CheckpointCoordinatorTest#testTriggeringDelay: uniform in [minPause, interval]."""
    delays = set()
    for seed in range(20):
        h = CoordinatorHarness(interval=10.0, min_pause=0.1, seed=seed)
        delay = (h.coordinator.next_periodic or 0.0) - h.clock.monotonic()
        assert 0.1 <= delay <= 10.0
        delays.add(round(delay, 6))
    assert len(delays) > 10


def test_sources_that_pause_until_the_first_checkpoint_get_it_soon() -> None:
    """pipeline.sources.pause-until-first-checkpoint: uniform in [minPause, 2 minPause]."""
    for seed in range(20):
        h = CoordinatorHarness(
            interval=10.0, min_pause=0.1, pause_sources_until_first_checkpoint=True, seed=seed
        )
        delay = (h.coordinator.next_periodic or 0.0) - h.clock.monotonic()
        assert 0.1 <= delay <= 0.2


def test_the_first_fire_can_be_set_and_later_ones_keep_the_interval() -> None:
    h = CoordinatorHarness(interval=3600.0, min_pause=0.1, initial_delay=20.0)
    assert h.next_periodic == pytest.approx(20.0)
    h.advance(20.0)
    assert (len(h.pending), h.next_periodic) == (1, pytest.approx(3600.0))
    h.stop_periodic()
    h.start_periodic()
    assert h.next_periodic == pytest.approx(0.1)
    with pytest.raises(InvalidRequest, match="initial_delay"):
        CoordinatorHarness(interval=10.0, initial_delay=-1.0)


def test_after_a_restart_of_the_timer_the_first_fire_comes_after_exactly_the_pause() -> None:
    """Flink 2.3: a start after a stop in the same coordinator does not draw again."""
    h = CoordinatorHarness(interval=10.0, min_pause=0.1)
    h.stop_periodic()
    h.start_periodic()
    assert h.coordinator.next_periodic == pytest.approx(h.clock.monotonic() + 0.1)


def test_fires_are_planned_from_the_planned_time_so_they_do_not_drift() -> None:
    """CheckpointCoordinator.ScheduledTrigger: next = previous planned time + interval."""
    h = CoordinatorHarness(interval=10.0, max_concurrent_checkpoints=100)
    planned = h.coordinator.next_periodic
    assert planned is not None
    h.clock.advance(planned - h.clock.monotonic() + 3.0)
    h.coordinator.poll()
    assert h.coordinator.next_periodic == pytest.approx(planned + 10.0)


def test_late_fires_are_caught_up() -> None:
    h = CoordinatorHarness(interval=10.0, max_concurrent_checkpoints=100)
    h.clock.advance(35.0)
    fired = 0
    while (h.coordinator.poll() or 1e18) <= h.clock.monotonic():
        fired += 1
    assert len(h.pending) >= 3


def test_the_interval_is_raised_to_the_pause() -> None:
    """CheckpointCoordinator: an interval below minPause cannot be held."""
    h = CoordinatorHarness(interval=0.012, min_pause=0.05)
    assert (h.coordinator.next_periodic or 0.0) - h.clock.monotonic() == pytest.approx(0.05)


def test_the_second_periodic_checkpoint_waits_for_the_pause_after_the_completion() -> None:
    """C004: CheckpointCoordinatorTriggeringTest#testMinTimeBetweenCheckpointsInterval."""
    h = CoordinatorHarness(interval=0.012, min_pause=0.05)
    h.advance(0.06)
    assert h.pending == [1]
    h.advance(0.03)
    h.acknowledge_all(1)
    completed_at = h.clock.monotonic()
    h.advance(0.049)
    assert h.pending == []
    h.advance(0.06)
    assert h.pending == [2]
    assert Reason.MINIMUM_TIME_BETWEEN_CHECKPOINTS in h.rejected or h.clock.monotonic() >= completed_at + 0.05


def test_a_stopped_timer_refuses_periodic_requests_and_takes_manual_ones() -> None:
    """CheckpointCoordinatorTriggeringTest#testStopPeriodicScheduler."""
    h = CoordinatorHarness(interval=10.0)
    h.stop_periodic()
    h.trigger(periodic=True)
    assert h.rejected == [Reason.PERIODIC_SCHEDULER_SHUTDOWN]
    assert h.pending == []
    assert h.checkpoint() == 1


def test_stopping_the_timer_aborts_what_is_pending_and_queued_savepoints_too() -> None:
    """CheckpointCoordinator#stopCheckpointScheduler: CHECKPOINT_COORDINATOR_SUSPEND."""
    h = CoordinatorHarness(interval=10.0, savepoint_dir="memory://s")
    cp, sp = h.checkpoint(), h.savepoint()
    h.trigger()
    h.stop_periodic()
    assert h.failures == {
        cp: Reason.CHECKPOINT_COORDINATOR_SUSPEND,
        sp: Reason.CHECKPOINT_COORDINATOR_SUSPEND,
    }
    assert h.rejected == [Reason.CHECKPOINT_COORDINATOR_SUSPEND]
    assert h.failure_counter == 0


def test_starting_a_timer_that_runs_stops_it_first() -> None:
    h = CoordinatorHarness(interval=10.0)
    cp = h.checkpoint()
    h.start_periodic()
    assert h.failures[cp] is Reason.CHECKPOINT_COORDINATOR_SUSPEND
    assert scheduler(h)


def test_the_timer_cannot_be_started_after_the_end_or_without_an_interval() -> None:
    h = CoordinatorHarness()
    with pytest.raises(InvalidRequest, match="not configured"):
        h.start_periodic()
    late = CoordinatorHarness(interval=1.0)
    late.close()
    with pytest.raises(InvalidRequest, match="shut down"):
        late.start_periodic()


def test_after_stopping_manual_checkpoints_still_complete() -> None:
    """CheckpointCoordinatorTest#testTriggerCheckpointAfterStopping."""
    h = CoordinatorHarness(interval=10.0)
    h.stop_periodic()
    assert h.completed_checkpoint() in h.completed


def test_a_fire_while_tasks_do_not_run_neither_crashes_the_timer_nor_counts() -> None:
    """CheckpointCoordinatorTest#testPeriodicSchedulingWithInactiveTasks."""
    h = line(interval=10.0, running=False)
    h.start_periodic()
    h.report("sink", StageStatus.DEPLOYING)
    h.start_periodic()
    h.advance(25.0)
    assert Reason.NOT_ALL_REQUIRED_TASKS_RUNNING in h.rejected
    assert h.failure_counter == 0
    assert h.job_failures == []
    h.report("sink", StageStatus.RUNNING)
    h.advance(25.0)
    assert h.pending


# --- backlog ------------------------------------------------------------------------------------------------


def test_no_checkpoint_during_a_backlog_without_checkpoints_and_one_soon_after() -> None:
    """C008: CheckpointIntervalDuringBacklogITCase#testNoCheckpointDuringBacklog."""
    h = line(interval=10.0, interval_during_backlog=0.0)
    h.backlog("source")
    h.advance(100.0)
    assert h.pending == []
    h.backlog()
    h.advance(10.0)
    assert h.pending == [1]


def test_a_longer_interval_during_a_backlog_never_postpones_what_is_planned() -> None:
    """CheckpointIntervalDuringBacklogITCase#testCheckpoint."""
    h = line(interval=10.0, interval_during_backlog=100.0, max_concurrent_checkpoints=100)
    planned = h.coordinator.next_periodic
    h.backlog("source")
    assert h.coordinator.next_periodic == planned
    h.advance(10.0)
    assert h.pending == [1]
    h.advance(50.0)
    assert h.pending == [1]
    h.backlog()
    h.advance(10.0)
    assert h.pending == [1, 2]


def test_finished_stages_are_in_no_backlog() -> None:
    """CheckpointIntervalDuringBacklogITCase#testExcludeFinishedOperatorBacklogStatus."""
    h = line(interval=10.0, interval_during_backlog=0.0)
    h.backlog("source")
    h.finish("source")
    h.advance(30.0)
    assert h.pending == [1]


def test_stages_at_the_end_of_their_data_are_in_no_backlog() -> None:
    """CheckpointIntervalDuringBacklogITCase#testExcludeFinishedOperatorBacklogStatus: it waits for a checkpoint."""
    h = line(interval=10.0, interval_during_backlog=0.0)
    h.backlog("source")
    h.advance(50.0)
    for subtask in range(TWO["source"]):
        assert h.pending == []
        h.end_of_data("source", subtask)
    h.advance(10.0)
    assert h.pending == [1]
    h.backlog("source")
    h.acknowledge_all(1)
    h.advance(10.0)
    assert h.pending == [2]


def test_without_a_backlog_interval_a_backlog_changes_nothing() -> None:
    """CheckpointIntervalDuringBacklogITCase#testDefaultCheckpointIntervalDuringBacklog."""
    h = line(interval=10.0)
    h.backlog("source")
    h.advance(10.0)
    assert h.pending == [1]
