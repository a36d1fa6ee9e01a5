"""Events of driver-side coordinators around a checkpoint (Flink 1.13; C113)."""

from __future__ import annotations

import pytest

from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.testing.flink.gated import EventGate

ONE, TWO = CheckpointId(1), CheckpointId(2)


def gate() -> EventGate:
    return EventGate(parallelism=2)


def sent(g: EventGate, subtask: int, event: str) -> EventGate:
    after, passes = g.send(subtask, event)
    assert passes, event
    return after


def held(g: EventGate, subtask: int, event: str) -> EventGate:
    after, passes = g.send(subtask, event)
    assert not passes, event
    return after


def closed_for(checkpoint: CheckpointId) -> EventGate:
    return gate().triggered(checkpoint).snapshot_done(checkpoint)


def test_events_before_the_snapshot_is_done_pass() -> None:
    """OperatorCoordinatorHolderTest#eventsBeforeCheckpointFutureCompletionPassThrough."""
    sent(gate().triggered(ONE), 0, "x")


def test_events_after_the_snapshot_is_done_are_held() -> None:
    """OperatorCoordinatorHolderTest#eventsAreBlockedAfterCheckpointFutureCompletes."""
    held(closed_for(ONE), 0, "x")


def test_an_acknowledgement_releases_the_events_of_its_subtask_only() -> None:
    """OperatorCoordinatorHolderTest#acknowledgeCheckpointEventReleasesBlockedEvents,
    #testControlGatewayAtSubtaskGranularity."""
    g = held(held(held(closed_for(ONE), 0, "a"), 1, "b"), 0, "c")
    g, released = g.acknowledged(ONE, 0)
    assert [e.event for e in released] == ["a", "c"]
    sent(g, 0, "d")
    held(g, 1, "e")


@pytest.mark.parametrize("name", ["completed", "aborted"])
def test_the_end_of_the_checkpoint_releases_what_is_held(name: str) -> None:
    """OperatorCoordinatorHolderTest#abortedCheckpointReleasesBlockedEvents."""
    g, released = held(held(closed_for(ONE), 1, "b"), 0, "a").over(ONE)
    assert [e.event for e in released] == ["b", "a"]
    sent(g, 1, f"after {name}")


def test_an_acknowledgement_of_another_checkpoint_releases_nothing() -> None:
    g = held(closed_for(TWO), 0, "a")
    assert g.acknowledged(ONE, 0) == (g, ())


def test_a_snapshot_that_comes_after_the_abort_closes_nothing() -> None:
    """OperatorCoordinatorHolderTest#lateCompleteCheckpointFutureDoesNotBlockEvents."""
    g, _ = gate().triggered(ONE).over(ONE)
    sent(g.snapshot_done(ONE), 0, "x")


def test_a_restore_opens_the_gates() -> None:
    """OperatorCoordinatorHolderTest#restoreOpensGatewayEvents."""
    sent(closed_for(ONE).restored(), 0, "x")


def test_the_checkpoint_waits_for_events_that_were_sent_before() -> None:
    """OperatorCoordinatorHolderTest#checkpointCompletionWaitsForEventFutures."""
    g = sent(gate(), 0, "before").triggered(ONE)
    number_before = g.sent
    g = sent(g, 1, "while")
    assert not g.may_complete(ONE)
    g = g.delivered(number_before)
    assert not g.may_complete(ONE)
    g = g.delivered(g.sent).snapshot_done(ONE)
    assert g.may_complete(ONE)


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_event_that_is_lost_fails_the_checkpoint(when: str) -> None:
    """OperatorCoordinatorHolderTest#testCheckpointFailsIfSendingEventFailedBeforeTrigger, …AfterTrigger."""
    g = gate()
    g = sent(g, 0, "x").triggered(ONE) if when == "before" else sent(g.triggered(ONE), 0, "x")
    g = g.failed(g.sent)
    assert g.must_fail(ONE)
    assert not g.may_complete(ONE)
    g, _ = g.over(ONE)
    assert g.triggered(TWO).may_complete(TWO)


def test_events_sent_after_the_checkpoint_do_not_hold_it() -> None:
    g = closed_for(ONE)
    g, _ = g.acknowledged(ONE, 0)
    assert sent(g, 0, "x").may_complete(ONE)


# --- several checkpoints at once --------------------------------------------------------------------------------


def test_an_event_is_held_behind_the_newest_checkpoint_whose_snapshot_it_follows() -> None:
    """SubtaskGatewayImpl: blocked events by checkpoint; the gate stays closed for the younger one."""
    g = held(closed_for(ONE).triggered(TWO), 0, "between").snapshot_done(TWO)
    g = held(g, 0, "after both")
    g, released = g.acknowledged(ONE, 0)
    assert [e.event for e in released] == ["between"]
    g = held(g, 0, "later")
    g, released = g.acknowledged(TWO, 0)
    assert [e.event for e in released] == ["after both", "later"]
    sent(g, 0, "x")


def test_a_checkpoint_waits_for_events_that_are_held_behind_an_older_one() -> None:
    """OperatorCoordinatorHolder: the coordinator's newer state says that they were sent."""
    g = held(closed_for(ONE), 0, "between")
    g = held(g.triggered(TWO), 1, "while asked")
    g = g.snapshot_done(TWO)
    assert not g.may_complete(TWO)
    for subtask in (0, 1):
        g, _ = g.acknowledged(ONE, subtask)
        assert not g.may_complete(TWO)
        g = g.delivered(g.sent)
    assert g.may_complete(TWO)


@pytest.mark.parametrize("end", ["acknowledged", "over"])
def test_what_waits_behind_a_younger_checkpoint_that_ends_first_waits_behind_the_older(end: str) -> None:
    """SubtaskGatewayImpl#openGatewayAndUnmarkCheckpoint: appended to what the checkpoint before it holds back."""
    g = held(closed_for(ONE), 0, "a").triggered(TWO).snapshot_done(TWO)
    g = held(g, 0, "b")
    g, released = g.acknowledged(TWO, 0) if end == "acknowledged" else g.over(TWO)
    assert released == ()
    g = held(g, 0, "c")
    g, released = g.over(ONE)
    assert [e.event for e in released] == ["a", "b", "c"]
    sent(g, 0, "x")


def test_a_checkpoint_that_is_over_waits_for_nothing_that_is_held() -> None:
    g = held(closed_for(ONE), 0, "a").triggered(TWO)
    g, released = g.over(TWO)
    assert released == ()
    g, _ = g.over(ONE)
    assert g.in_delivery == {1: frozenset()}


def test_there_is_no_gate_for_a_subtask_that_does_not_exist() -> None:
    with pytest.raises(InvalidRequest):
        gate().send(2, "x")
