"""A user's hook on a coordinator: its thread, its time limit, its state as text."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.messages import CheckpointFailureReason
from dagster_ckpt.core.metadata_text import MAX_STATE_BYTES, decode_state, encode_state
from dagster_ckpt.core.request import Failed, Pending
from dagster_ckpt.errors import Corrupt, Fenced, InvalidRequest, Unavailable
from dagster_ckpt.runtime.driver.user_hook import UserHook
from dagster_ckpt.testing import CoordinatorHarness
from tests.progress import wait_until


class Cursor:
    """A hook with a state, that remembers its calls."""

    def __init__(self, page: Any = 1) -> None:
        self.page = page
        self.calls: list[tuple[str, Any]] = []

    def trigger(self, checkpoint_id: int, timestamp: float) -> Any:
        self.calls.append(("trigger", checkpoint_id))
        return self.page

    def restore(self, checkpoint_id: int, state: Any) -> None:
        self.calls.append(("restore", state))
        self.page = state

    def reset(self) -> None:
        self.calls.append(("reset", None))

    def complete(self, checkpoint_id: int) -> None:
        self.calls.append(("complete", checkpoint_id))

    def subsumed(self, checkpoint_id: int) -> None:
        self.calls.append(("subsumed", checkpoint_id))

    def aborted(self, checkpoint_id: int) -> None:
        self.calls.append(("aborted", checkpoint_id))

    def close(self) -> None:
        self.calls.append(("close", None))


class Stuck(Cursor):
    """Its next trigger returns only when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def trigger(self, checkpoint_id: int, timestamp: float) -> Any:
        self.go.wait(30)
        return super().trigger(checkpoint_id, timestamp)


def harness(hook: object, *, timeout: float = 30.0, **options: Any) -> CoordinatorHarness:
    user = UserHook("cursor", hook, timeout=timeout)
    h = CoordinatorHarness(hooks=[user], **options)
    user.answer_to(h.coordinator)
    return h


def following(h: CoordinatorHarness, hook: object, **options: Any) -> CoordinatorHarness:
    user = UserHook("cursor", hook, timeout=30.0)
    n = h.next_attempt(hooks=[user], **options)
    user.answer_to(n.coordinator)
    return n


def beside(h: CoordinatorHarness, hook: object) -> CoordinatorHarness:
    """Another process of the same run, with a hook object of its own."""
    hooks = [UserHook("cursor", hook, timeout=30.0)]
    return CoordinatorHarness(world=h.world, owner=h.owner, running=False, hooks=hooks)


def complete(h: CoordinatorHarness) -> CheckpointId:
    number = h.checkpoint()
    wait_until(lambda: not h.coordinator.awaits_hooks(number), "its hooks")
    h.acknowledge(number, "task")
    assert h.metadata(number)
    return number


def triggered(h: CoordinatorHarness) -> CheckpointId:
    """Trigger a checkpoint whose hook may fail before the call returns."""
    number = CheckpointId(h.coordinator.record.next_id)
    h.trigger()
    return number


def failed(h: CoordinatorHarness, number: CheckpointId) -> Failed:
    wait_until(lambda: not isinstance(h.coordinator.status_of(number), Pending), "an outcome")
    outcome = h.coordinator.status_of(number)
    assert isinstance(outcome, Failed), outcome
    return outcome


def test_a_state_is_stored_given_back_and_followed_to_its_end() -> None:
    hook = Cursor({"page": 7, "tokens": ["a", None]})
    h = harness(hook)
    first, second = complete(h), complete(h)
    h.close()
    assert hook.calls == [
        ("reset", None),
        ("trigger", first),
        ("complete", first),
        ("trigger", second),
        ("complete", second),
        ("subsumed", first),
        ("close", None),
    ]
    again = Cursor()
    n = following(h, again)
    n.close()
    # the first completion may have been lost with the process: it is told once more
    assert again.calls == [
        ("restore", {"page": 7, "tokens": ["a", None]}),
        ("complete", second),
        ("close", None),
    ]


def test_a_hook_that_raises_fails_the_checkpoint_by_name_and_not_the_pipeline() -> None:
    class Broken(Cursor):
        def trigger(self, checkpoint_id: int, timestamp: float) -> Any:
            raise ConnectionError("no route to the orders service")

    hook = Broken()
    h = harness(hook, tolerable_failed_checkpoints=0)
    number = triggered(h)
    outcome = failed(h, number)
    assert outcome.reason is CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE
    assert "'cursor'" in outcome.message
    assert "no route to the orders service" in outcome.message
    assert h.coordinator.failure == ""
    h.close()
    assert ("aborted", number) in hook.calls


def test_a_hook_that_hangs_fails_this_checkpoint_and_the_next_and_then_goes_on() -> None:
    hook = Stuck()
    h = harness(hook, timeout=0.2, tolerable_failed_checkpoints=0)
    first = triggered(h)
    outcome = failed(h, first)
    assert "did not answer within 0.2 s (it is in trigger(1))" in outcome.message
    second = triggered(h)
    assert "it is in trigger(1)" in failed(h, second).message
    assert h.coordinator.failure == ""
    hook.go.set()
    assert complete(h) == 3
    h.close()
    assert ("trigger", second) not in hook.calls, "it was given up before its turn came"


def test_the_end_of_an_attempt_does_not_wait_for_a_hook_that_hangs() -> None:
    warned: list[str] = []
    hook = Stuck()
    user = UserHook("cursor", hook, timeout=0.2, warn=warned.append)
    h = CoordinatorHarness(hooks=[user])
    user.answer_to(h.coordinator)
    failed(h, triggered(h))
    h.close()
    assert warned == ["hook 'cursor' was left behind in trigger(1): it does not return"]
    hook.go.set()


def test_a_restore_that_fails_or_hangs_keeps_the_run_from_starting() -> None:
    class Broken(Cursor):
        def restore(self, checkpoint_id: int, state: Any) -> None:
            raise KeyError("page")

    class Hanging(Cursor):
        def restore(self, checkpoint_id: int, state: Any) -> None:
            stop.wait(30)

    stop = threading.Event()
    h = harness(Cursor(5))
    complete(h)
    h.close()
    broken = Broken()
    for hook, why in ((broken, "KeyError: 'page'"), (Hanging(), "did not return within 0.1 s")):
        with pytest.raises(Unavailable, match=rf"hook 'cursor' failed in restore: .*{why}"):
            h.next_attempt(f"run-{why[:3]}", hooks=[UserHook("cursor", hook, timeout=0.1)])
    assert ("close", None) in broken.calls, "what was made is closed"
    stop.set()


def test_another_process_of_the_run_takes_the_state_up() -> None:
    h = harness(Cursor(3))
    complete(h)
    there = Cursor()
    beside(h, there)
    assert there.calls[0] == ("restore", 3)

    class Resumes(Cursor):
        def resume(self, checkpoint_id: int, state: Any) -> None:
            self.calls.append(("resume", state))

    other = Resumes()
    beside(h, other)
    assert other.calls[0] == ("resume", 3)


def test_another_process_of_a_run_that_went_back_takes_up_the_state_it_went_back_to() -> None:
    cursor = Cursor(3)
    h = harness(cursor, num_retained=2)
    first = complete(h)
    cursor.page = 4
    complete(h)  # retained beside it, and of another history from now on
    back = CoordinatorHarness(
        world=h.world,
        owner="run-2",
        restore_from=f"chk-{first}",
        hooks=[UserHook("cursor", Cursor(), timeout=30.0)],
    )
    there = Cursor()
    beside(back, there)
    assert there.calls[0] == ("restore", 3)


def test_a_checkpoint_whose_hook_answers_elsewhere_is_not_completed_without_its_state() -> None:
    """The process that waits for the hook may be another one than the last stage's."""
    hook = Stuck()
    h = harness(hook)
    number = h.checkpoint()
    other = beside(h, Cursor())
    other.acknowledge_stage(number, "task")
    assert isinstance(other.coordinator.status_of(number), Pending)
    hook.go.set()
    wait_until(lambda: not isinstance(h.coordinator.status_of(number), Pending), "an outcome")
    assert h.metadata(number).master_states == {"cursor": encode_state("hook 'cursor'", 1)}


@pytest.mark.parametrize("state", ["text", b"\x00\xff", 3, 2.5, True, ["a", {"b": None}], {"k": [1]}, "", {}])
def test_a_state_comes_back_as_it_is(state: Any) -> None:
    assert decode_state("it", encode_state("it", state)) == state


@pytest.mark.parametrize("state", [{1: "a"}, (1, 2), {"s"}, float("nan"), object(), Cursor()])
def test_a_state_that_would_come_back_otherwise_is_refused_by_name(state: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"the state of hook 'h' .*return bytes, or text"):
        encode_state("hook 'h'", state)


def test_a_state_is_bounded_and_checked() -> None:
    with pytest.raises(InvalidRequest, match=r"write it to a file of your own"):
        encode_state("hook 'h'", "x" * MAX_STATE_BYTES)
    for text in ("", "{}", '{"format_version": 2, "encoding": "json", "value": 1}'):
        with pytest.raises(Corrupt, match="the saved state of hook 'h'"):
            decode_state("hook 'h'", text)


def test_a_state_that_cannot_be_stored_fails_the_checkpoint() -> None:
    h = harness(Cursor((1, 2)))
    assert "would not come back from JSON" in failed(h, triggered(h)).message


def test_a_fenced_attempt_closes_its_hook_too() -> None:
    hook = Cursor()
    h = harness(hook)
    complete(h)
    following(h, Cursor())
    with pytest.raises(Fenced):
        h.close()
    assert hook.calls[-1] == ("close", None)
