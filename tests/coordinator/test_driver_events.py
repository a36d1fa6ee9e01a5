"""Events of a stage's driver-side coordinator around a checkpoint, through the real checkpoint coordinator.

Mirrors OperatorCoordinatorHolderTest, where the checkpoint coordinator and the tasks are played by hand.
"""

from __future__ import annotations

import pytest

from dagster_ckpt.core.messages import AcknowledgeResult, CheckpointFailureReason
from dagster_ckpt.core.request import Rejected
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.testing.coordinator.events import Answering, RecordingOperatorCoordinator
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness


def harness(answering: Answering = Answering.LATER) -> CoordinatorHarness:
    return CoordinatorHarness(
        stages={"source": 2}, coordinators=[RecordingOperatorCoordinator("source", answering=answering)]
    )


def test_events_sent_while_the_snapshot_is_made_pass() -> None:
    """OperatorCoordinatorHolderTest#eventsBeforeCheckpointFutureCompletionPassThrough."""
    h = harness()
    h.checkpoint()
    h.send_event("source", "a")
    assert h.received("source") == ["a"]


def test_events_after_the_snapshot_wait_for_their_subtask_to_acknowledge() -> None:
    """#eventsAreBlockedAfterCheckpointFutureCompletes, #testControlGatewayAtSubtaskGranularity."""
    h = harness()
    cp = h.checkpoint()
    h.acknowledge_coordinator(cp, "source")
    h.send_event("source", "a", 0)
    h.send_event("source", "b", 1)
    assert (h.received("source", 0), h.received("source", 1)) == ([], [])
    h.acknowledge(cp, "source", 0)
    assert (h.received("source", 0), h.received("source", 1)) == (["a"], [])
    h.send_event("source", "c", 0)
    assert h.received("source", 0) == ["a", "c"]
    h.acknowledge(cp, "source", 1)
    assert h.received("source", 1) == ["b"]
    assert h.completed == [cp]


def test_a_stage_that_acknowledges_as_a_whole_opens_the_gates_of_all_its_subtasks() -> None:
    h = CoordinatorHarness(
        stages={"source": 2, "sink": 1},
        edges=[("source", "sink")],
        coordinators=[RecordingOperatorCoordinator("source")],
    )
    cp = h.checkpoint()
    h.send_event("source", "a", 0)
    h.send_event("source", "b", 1)
    h.acknowledge_stage(cp, "source")
    assert (h.received("source", 0), h.received("source", 1)) == (["a"], ["b"])
    assert h.pending == [cp]


@pytest.mark.parametrize("end", ["abort", "expire"])
def test_an_aborted_checkpoint_releases_what_is_held(end: str) -> None:
    """#abortedCheckpointReleasesBlockedEvents."""
    h = harness(Answering.AT_ONCE)
    cp = h.checkpoint()
    h.send_event("source", "a", 1)
    assert h.received("source", 1) == []
    if end == "abort":
        h.decline(cp, "source")
    else:
        h.expire(cp)
    assert h.received("source", 1) == ["a"]


def test_a_savepoint_beside_a_checkpoint_holds_its_own_events_back() -> None:
    """SubtaskGatewayImpl: an event goes to its subtask behind the newest checkpoint whose state it is not in."""
    h = harness(Answering.AT_ONCE)
    cp = h.checkpoint()
    h.send_event("source", "in the savepoint", 0)
    sp = h.savepoint()
    assert h.triggered("source", 0) == [cp], "the savepoint's state says that the event was sent"
    h.acknowledge(cp, "source", 0)
    assert (h.received("source", 0), h.triggered("source", 0)) == (["in the savepoint"], [cp, sp])
    h.send_event("source", "in neither", 0)
    h.acknowledge(cp, "source", 1)
    assert h.completed == [cp]
    assert h.received("source", 0) == ["in the savepoint"]
    h.acknowledge(sp, "source", 0)
    assert h.received("source", 0) == ["in the savepoint", "in neither"]
    h.acknowledge(sp, "source", 1)
    assert h.savepoints == [sp]


@pytest.mark.parametrize("end", ["completes", "aborts"])
def test_events_arrive_in_order_over_checkpoints(end: str) -> None:
    """#takeCheckpointAfterSuccessfulCheckpoint, #takeCheckpointAfterAbortedCheckpoint."""
    h = harness(Answering.AT_ONCE)
    h.send_event("source", "0")
    cp = h.checkpoint()
    h.send_event("source", "1")
    if end == "completes":
        h.acknowledge_all(cp)
    else:
        h.decline(cp, "source")
    h.send_event("source", "2")
    cp = h.checkpoint()
    h.send_event("source", "3")
    assert h.received("source") == ["0", "1", "2"]
    h.acknowledge_all(cp)
    assert h.received("source") == ["0", "1", "2", "3"]


@pytest.mark.parametrize("finished", [(0,), (0, 1)])
def test_no_event_waits_for_a_subtask_that_had_finished(finished: tuple[int, ...]) -> None:
    """It acknowledges nothing, and of a plain savepoint that completes nobody is told."""
    driver = RecordingOperatorCoordinator("source", answering=Answering.AT_ONCE)
    h = CoordinatorHarness(stages={"source": 2, "sink": 1}, edges=[("source", "sink")], coordinators=[driver])
    for subtask in finished:
        h.finish("source", subtask)
    h.completed_savepoint()
    for subtask in (0, 1):
        h.send_event("source", "x", subtask)
        assert h.received("source", subtask) == ["x"]
    cp = h.checkpoint()
    h.send_event("source", "y", 0)
    assert h.received("source", 0) == ["x", "y"]
    h.acknowledge_all(cp)
    assert h.completed == [cp]


def test_a_snapshot_that_comes_after_the_abort_holds_nothing() -> None:
    """#lateCompleteCheckpointFutureDoesNotBlockEvents."""
    h = harness()
    cp = h.checkpoint()
    h.expire(cp)
    assert h.acknowledge_coordinator(cp, "source") is AcknowledgeResult.DISCARDED
    h.send_event("source", "a")
    assert h.received("source") == ["a"]


def test_the_checkpoint_waits_for_the_events_sent_before_it() -> None:
    """#checkpointCompletionWaitsForEventFutures."""
    h = harness()
    h.confirm_events = False
    h.send_event("source", "before")
    cp = h.checkpoint()
    h.send_event("source", "while", 1)
    h.acknowledge_coordinator(cp, "source")
    assert h.triggered("source") == [], "the tasks are triggered after the coordinator has its state"
    h.confirm_event()
    assert h.triggered("source") == []
    h.confirm_event()
    assert h.triggered("source") == [cp]
    h.acknowledge_all(cp)
    assert h.completed == [cp]


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_event_that_is_lost_fails_the_checkpoint_and_the_task_that_should_have_it(when: str) -> None:
    """#testCheckpointFailsIfSendingEventFailedBeforeTrigger, #…AfterTrigger; SubtaskGatewayImpl fails the task."""
    h = harness(Answering.AT_ONCE if when == "before" else Answering.LATER)
    h.confirm_events = False
    if when == "before":
        h.send_event("source", "x")
    cp = h.checkpoint()
    if when == "after":
        h.send_event("source", "x")
    h.lose_event()
    assert h.failures[cp] is CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE
    assert h.received("source") == []
    assert (h.status("source", 0), h.status("source", 1)) == ("failed", "running")
    h.confirm_events = True
    h.restart_task("source")
    again = h.checkpoint()
    h.acknowledge_coordinator(again, "source")
    h.acknowledge_all(again)
    assert h.completed == [again]


def test_no_checkpoint_completes_over_an_event_that_its_task_never_got() -> None:
    """The coordinator's state says that the task has it: a checkpoint of both would lose it for good."""
    h = harness(Answering.AT_ONCE)
    h.confirm_events = False
    h.send_event("source", "split")
    h.lose_event()
    refused = h.trigger()
    assert isinstance(refused, Rejected)
    assert refused.reason is CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING
    h.send_event("source", "to a task that failed already")
    h.lose_event()
    assert h.status("source") == "failed"


def test_a_coordinator_hears_which_subtasks_start_again_and_from_where() -> None:
    """OperatorCoordinator#subtaskReset: what a subtask was sent since then is the coordinator's to send again."""
    h = harness(Answering.AT_ONCE)
    driver = h.coordinators["source"]
    h.fail_over()
    assert driver.resets == [(None, 0), (None, 1)]
    cp = h.completed_checkpoint()
    h.checkpoint()
    h.send_event("source", "held", 1)
    h.fail_over()
    assert driver.resets[2:] == [(cp, 0), (cp, 1)]
    assert (h.received("source", 1), h.pending) == (["held"], [])


def test_a_restart_opens_the_gates_and_forgets_what_was_held() -> None:
    """#restoreOpensGatewayEvents."""
    h = harness(Answering.AT_ONCE)
    first = h.completed_checkpoint()
    h.checkpoint()
    h.send_event("source", "held")
    newer = h.next_attempt(coordinators=[RecordingOperatorCoordinator("source")])
    newer.send_event("source", "after")
    assert newer.received("source") == ["after"]
    assert newer.coordinators["source"].restored == [(first, "splits")]


def test_an_event_for_a_subtask_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        harness().send_event("source", "x", 2)
