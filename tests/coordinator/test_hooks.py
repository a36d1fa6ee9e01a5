"""Master hooks and externally induced sources (Flink 1.14)."""

from __future__ import annotations

import pytest

from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.messages import CheckpointFailureReason as Reason
from dagster_ckpt.core.request import Rejected
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.testing.coordinator.events import (
    Answering,
    RecordingHook,
    RecordingOperatorCoordinator,
)
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness


def test_of_two_hooks_with_one_name_the_first_counts() -> None:
    """CheckpointCoordinatorMasterHooksTest#testDeduplicateOnRegister."""
    first, second = RecordingHook("same"), RecordingHook("same")
    CoordinatorHarness(hooks=[first, second]).checkpoint()
    assert (first.triggered, second.triggered) == ([1], [])


@pytest.mark.parametrize("name", ["", "   ", None])
def test_a_hook_needs_a_name(name: str | None) -> None:
    """CheckpointCoordinatorMasterHooksTest#testNullOrInvalidId."""
    with pytest.raises(InvalidRequest, match="name"):
        CoordinatorHarness(hooks=[RecordingHook(name)])  # type: ignore[arg-type]


def test_without_a_checkpoint_hooks_are_reset() -> None:
    """CheckpointCoordinatorMasterHooksTest#testHookReset."""
    hook = RecordingHook("hook")
    CoordinatorHarness(hooks=[hook])
    assert (hook.resets, hook.restored) == (1, [])


def test_hooks_are_called_before_the_stages_and_their_states_are_stored() -> None:
    """CheckpointCoordinatorMasterHooksTest#testHooksAreCalledOnTrigger."""
    stateful, stateless = RecordingHook("one", "position 7"), RecordingHook("two", None)
    h = CoordinatorHarness(hooks=[stateful, stateless])
    stateful.on_trigger = lambda number: None if h.triggered("task") == [] else pytest.fail("too late")
    cp = h.completed_checkpoint()
    assert (stateful.triggered, stateless.triggered) == ([cp], [cp])
    assert h.metadata(cp).master_states == {"one": "position 7"}


def test_a_result_that_comes_later_is_waited_for() -> None:
    hook = RecordingHook("hook", answering=Answering.LATER)
    h = CoordinatorHarness(hooks=[hook])
    cp = h.checkpoint()
    assert h.triggered("task") == []
    h.answer_hook(cp, "hook", "later")
    h.acknowledge_all(cp)
    assert h.metadata(cp).master_states == {"hook": "later"}


def test_a_result_without_state_counts_and_stores_nothing() -> None:
    """PendingCheckpointTest#testMasterStateWithNullState."""
    hook = RecordingHook("hook", answering=Answering.LATER)
    h = CoordinatorHarness(hooks=[hook])
    cp = h.checkpoint()
    h.answer_hook(cp, "hook", None)
    h.acknowledge_all(cp)
    assert h.metadata(cp).master_states == {}


def test_a_hook_that_fails_fails_the_checkpoint_uncounted() -> None:
    """CheckpointCoordinatorTriggeringTest#testTriggerCheckpointSnapshotMasterHookFailed."""
    hook = RecordingHook("hook", answering=Answering.FAILS)
    h = CoordinatorHarness(hooks=[hook])
    outcome = h.trigger()
    assert isinstance(outcome, Rejected)
    assert outcome.reason is Reason.TRIGGER_CHECKPOINT_FAILURE
    assert (h.failure_counter, h.job_failures, h.triggered("task")) == (0, [], [])


@pytest.mark.parametrize("fails_first", [True, False])
def test_whoever_hears_that_a_checkpoint_is_aborted_was_asked_for_it(fails_first: bool) -> None:
    """CheckpointCoordinator#snapshotMasterState, OperatorCoordinatorCheckpoints: all are asked, whoever fails."""
    failing, hook = RecordingHook("failing", answering=Answering.FAILS), RecordingHook("hook")
    h = CoordinatorHarness(hooks=[failing, hook] if fails_first else [hook, failing])
    h.trigger()
    assert (hook.triggered, hook.aborted_ids) == ([1], [1])
    assert (failing.triggered, failing.aborted_ids) == ([1], [1])

    names = ("a", "b") if fails_first else ("b", "a")
    bad, good = (
        RecordingOperatorCoordinator(names[0], answering=Answering.FAILS),
        RecordingOperatorCoordinator(names[1]),
    )
    h = CoordinatorHarness(stages={"a": 1, "b": 1}, coordinators=[bad, good])
    h.trigger()
    assert (good.asked, good.aborted) == ([1], [1])
    assert (bad.asked, bad.aborted) == ([1], [1])
    assert h.failures == {1: Reason.TRIGGER_CHECKPOINT_FAILURE}


def test_a_state_the_hook_cannot_serialize_fails_the_checkpoint() -> None:
    """CheckpointCoordinatorMasterHooksTest#testSerializationFailsOnTrigger."""
    at_once, later = RecordingHook("at once", 17), RecordingHook("later", answering=Answering.LATER)
    outcome = CoordinatorHarness(hooks=[at_once]).trigger()
    assert isinstance(outcome, Rejected)
    h = CoordinatorHarness(hooks=[later])
    cp = h.checkpoint()
    h.answer_hook(cp, "later", 17)
    assert h.failures == {cp: Reason.TRIGGER_CHECKPOINT_FAILURE}


def test_hooks_get_their_state_back_and_those_without_get_none() -> None:
    """C089: CheckpointCoordinatorMasterHooksTest#testHooksAreCalledOnRestore."""
    h = CoordinatorHarness(hooks=[RecordingHook("old", "mine")])
    cp = h.completed_checkpoint()
    old, new = RecordingHook("old"), RecordingHook("new")
    h.next_attempt(hooks=[old, new])
    assert (old.restored, new.restored) == ([(cp, "mine")], [(cp, None)])
    assert (old.resets, new.resets) == (0, 0)


def test_a_checkpoint_without_any_master_state_calls_no_hook() -> None:
    """A quirk of Flink's MasterHooks#restoreMasterHooks."""
    h = CoordinatorHarness()
    h.completed_checkpoint()
    hook = RecordingHook("hook")
    h.next_attempt(hooks=[hook])
    assert (hook.restored, hook.resets) == ([], 0)


def test_all_states_are_read_before_the_first_hook_is_called() -> None:
    """CheckpointCoordinatorMasterHooksTest#testDeserializationFailsOnRestore."""
    h = CoordinatorHarness(hooks=[RecordingHook("good", "fine"), RecordingHook("bad", "broken")])
    h.completed_checkpoint()
    good, bad = RecordingHook("good"), RecordingHook("bad")
    with pytest.raises(ValueError, match="cannot read"):
        h.next_attempt(hooks=[good, bad])
    assert good.restored == []


def test_state_of_a_hook_that_is_gone_is_dropped_only_on_request() -> None:
    """CheckpointCoordinatorMasterHooksTest#checkUnMatchedStateOnRestore."""
    h = CoordinatorHarness(hooks=[RecordingHook("stays", "s"), RecordingHook("gone", "g")])
    cp = h.completed_checkpoint()
    with pytest.raises(InvalidRequest, match="'gone'"):
        h.next_attempt(hooks=[RecordingHook("stays")])
    stays = RecordingHook("stays")
    h.next_attempt("run-3", hooks=[stays], restore=RestoreOptions(allow_non_restored_state=True))
    assert stays.restored == [(cp, "s")]


def test_hooks_are_closed_with_the_coordinator_and_their_failures_are_theirs() -> None:
    class Stubborn(RecordingHook):
        def close(self) -> None:
            raise RuntimeError("no")

    stubborn, hook = Stubborn("stubborn"), RecordingHook("hook")
    CoordinatorHarness(hooks=[stubborn, hook]).close()
    assert hook.closed == 1


def test_stages_may_acknowledge_while_the_hook_is_called() -> None:
    """C046: CheckpointCoordinatorTest#testExternallyInducedSourceWithOperatorCoordinator."""
    hook = RecordingHook("external")
    h = CoordinatorHarness(hooks=[hook], coordinators=[RecordingOperatorCoordinator("task")])

    def induced(number: CheckpointId) -> None:
        h.acknowledge(number, "task")
        assert h.completed == []

    hook.on_trigger = induced
    cp = h.checkpoint()
    assert h.completed == [cp]
    assert h.completes("task") == [cp]


def test_an_externally_induced_checkpoint_that_cannot_be_finalized_fails_once() -> None:
    """CheckpointCoordinatorTest#testCompleteCheckpointFailureWithExternallyInducedSource."""
    hook = RecordingHook("external")
    h = CoordinatorHarness(hooks=[hook], tolerable_failed_checkpoints=5)
    hook.on_trigger = lambda number: h.acknowledge(number, "task")  # type: ignore[assignment]
    h.fail_next_metadata_write()
    h.trigger()
    assert h.failures == {1: Reason.FINALIZE_CHECKPOINT_FAILURE}
    assert h.pending == []


def test_driver_side_coordinators_get_their_state_back_or_start_empty() -> None:
    """OperatorCoordinator#resetToCheckpoint; without a checkpoint there is none."""
    h = CoordinatorHarness(coordinators=[RecordingOperatorCoordinator("task", "splits 1-3")])
    cp = h.completed_checkpoint()
    again = RecordingOperatorCoordinator("task")
    h.next_attempt(coordinators=[again])
    assert again.restored == [(cp, "splits 1-3")]
    assert h.coordinators["task"].restored == [(None, None)]


def test_a_coordinator_that_fails_later_fails_its_checkpoint() -> None:
    coordinator = RecordingOperatorCoordinator("task", answering=Answering.LATER)
    h = CoordinatorHarness(coordinators=[coordinator])
    cp = h.checkpoint()
    h.coordinator.fail_coordinator(cp, coordinator.uid, RuntimeError("gone"))
    assert h.failures == {cp: Reason.TRIGGER_CHECKPOINT_FAILURE}
    assert coordinator.aborted == [cp]


def test_hooks_are_reset_when_stages_restart_and_there_is_no_checkpoint() -> None:
    """CheckpointCoordinatorTest#testResetCalledInRegionRecovery."""
    hook = RecordingHook("hook")
    h = CoordinatorHarness(hooks=[hook])
    h.coordinator.fail_over()
    assert hook.resets == 2
    h.completed_checkpoint()
    h.coordinator.fail_over()
    assert hook.resets == 2


@pytest.mark.parametrize("late", ["hook", "coordinator"])
def test_whoever_has_answered_can_fail_the_checkpoint_no_more(late: str) -> None:
    """A CompletableFuture completes once: what comes after the result is ignored."""
    h = CoordinatorHarness(
        hooks=[RecordingHook("hook", answering="later")],
        coordinators=[RecordingOperatorCoordinator("task", answering="later")],
    )
    cp = h.checkpoint()
    h.acknowledge_coordinator(cp, "task")
    h.answer_hook(cp, "hook")
    if late == "hook":
        h.fail_hook(cp, "hook")
    else:
        h.fail_coordinator(cp, "task")
    h.acknowledge(cp, "task")
    assert (h.completed, h.failures) == ([cp], {})
