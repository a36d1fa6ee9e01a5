"""The request queue (Flink 1.3), as a value."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.core.checkpoint.requests import (
    MAX_QUEUED_REQUESTS,
    Chosen,
    QueuedRequest,
    QueueLoad,
    RequestQueue,
    TooSoon,
    Wait,
)
from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.request import CheckpointRequest, RequestOrigin, properties_for
from dagster_ckpt.errors import InvalidRequest

FREE = QueueLoad(is_triggering=False, pending=0, cleaning=0, notifying=0, max_concurrent=1, pause_left=0.0)
PERIODIC = RequestOrigin.PERIODIC


def queued(
    number: int,
    kind: CheckpointKind = CheckpointKind.CHECKPOINT,
    origin: RequestOrigin = RequestOrigin.MANUAL,
    *,
    at: float = 0.0,
    unaligned: bool = False,
) -> QueuedRequest:
    return QueuedRequest(
        request=CheckpointRequest(kind=kind, origin=origin),
        properties=properties_for(kind, CheckpointConfig(unaligned=unaligned)),
        timestamp=at,
        number=number,
    )


def queue_of(*requests: QueuedRequest) -> RequestQueue:
    queue = RequestQueue()
    for one in requests:
        queue, fallen = queue.add(one)
        assert fallen is None
    return queue


def chosen(queue: RequestQueue, load: QueueLoad = FREE) -> int:
    choice = queue.choose(load)
    assert isinstance(choice, Chosen), choice
    return choice.queued.number


def test_savepoints_go_first() -> None:
    """C011: CheckpointRequestDeciderTest#testSavepointPrioritized."""
    assert chosen(queue_of(queued(1), queued(2, CheckpointKind.SAVEPOINT))) == 2


def test_what_a_user_asked_for_goes_before_the_timer() -> None:
    """C010: CheckpointRequestDeciderTest#testUserSubmittedPrioritized."""
    assert chosen(queue_of(queued(1, origin=PERIODIC), queued(2, at=9.0))) == 2


def test_a_savepoint_that_is_not_forced_still_goes_before_checkpoints() -> None:
    """CheckpointRequestDeciderTest#testNonForcedSavepointPrioritized."""
    assert chosen(queue_of(queued(1), queued(2, CheckpointKind.SAVEPOINT, unaligned=True))) == 2


def test_forced_savepoints_go_before_those_that_are_not() -> None:
    one = queued(1, CheckpointKind.SAVEPOINT, unaligned=True)
    assert chosen(queue_of(one, queued(2, CheckpointKind.SAVEPOINT, at=5.0))) == 2


def test_equals_go_in_the_order_of_their_time_then_of_their_number() -> None:
    assert chosen(queue_of(queued(1, at=2.0), queued(2, at=1.0), queued(3, at=1.0))) == 2


def test_nothing_is_chosen_while_a_trigger_is_in_flight() -> None:
    """At most one trigger is in flight, whatever the maximum of concurrent checkpoints is."""
    load = replace(FREE, is_triggering=True, max_concurrent=5)
    assert queue_of(queued(1, CheckpointKind.SAVEPOINT)).choose(load) == Wait()


def test_too_many_deletions_hold_back_even_forced_requests() -> None:
    """C016: CheckpointRequestDeciderTest#testEnqueueOnTooManyCleaning: strictly more than the maximum."""
    queue = queue_of(queued(1, CheckpointKind.SAVEPOINT))
    assert queue.choose(replace(FREE, cleaning=2)) == Wait()
    assert chosen(queue, replace(FREE, cleaning=1)) == 1


def test_too_many_pending_hold_back_all_but_forced_requests() -> None:
    """CheckpointRequestDeciderTest#testForce, #testEnqueueOnTooManyPending, #testNonForcedEnqueueOnTooManyPending."""
    full = replace(FREE, pending=1)
    assert queue_of(queued(1)).choose(full) == Wait()
    assert queue_of(queued(1, CheckpointKind.SAVEPOINT, unaligned=True)).choose(full) == Wait()
    assert chosen(queue_of(queued(1, CheckpointKind.SAVEPOINT)), full) == 1


def test_commits_that_are_behind_hold_back_all_but_forced_requests() -> None:
    """One may be published beside the next checkpoint; a sink of Flink's commits before its next part."""
    behind = replace(FREE, notifying=2)
    assert queue_of(queued(1)).choose(behind) == Wait()
    assert chosen(queue_of(queued(1)), replace(FREE, notifying=1)) == 1
    assert chosen(queue_of(queued(1)), replace(behind, max_concurrent=2)) == 1
    assert chosen(queue_of(queued(1, CheckpointKind.SAVEPOINT)), behind) == 1


def test_a_periodic_request_within_the_pause_is_dropped_with_the_time_that_is_left() -> None:
    """C014: CheckpointRequestDeciderTest#testCheckpointTiming."""
    one = queued(1, origin=PERIODIC)
    assert queue_of(one).choose(replace(FREE, pause_left=0.7)) == TooSoon(one, 0.7)
    assert chosen(queue_of(queued(1)), replace(FREE, pause_left=0.7)) == 1


def test_savepoints_do_not_wait_for_the_pause() -> None:
    """CheckpointRequestDeciderTest#testSavepointTiming."""
    assert chosen(queue_of(queued(1, CheckpointKind.SAVEPOINT)), replace(FREE, pause_left=99.0)) == 1


def full_queue(origin: RequestOrigin) -> RequestQueue:
    return RequestQueue(tuple(queued(n, origin=origin) for n in range(MAX_QUEUED_REQUESTS)))


def test_a_full_queue_drops_the_last_in_order() -> None:
    """C013: CheckpointRequestDeciderTest#testQueueSizeLimit, #testQueueSizeLimitPriority."""
    newest = queued(5000, origin=PERIODIC, at=1.0)
    queue, fallen = full_queue(PERIODIC).add(newest)
    assert fallen is newest
    queue, fallen = queue.add(queued(5001, CheckpointKind.SAVEPOINT, at=2.0))
    assert fallen is not None
    assert fallen.number == MAX_QUEUED_REQUESTS - 1
    assert queue.waiting[0].number == 5001
    assert len(queue.waiting) == MAX_QUEUED_REQUESTS


def test_what_users_asked_for_is_never_pushed_out() -> None:
    """CheckpointRequestDecider: if the last in order is a user's, the new request fails instead."""
    full = full_queue(RequestOrigin.MANUAL)
    for newest in (queued(5000), queued(5001, CheckpointKind.SAVEPOINT)):
        queue, fallen = full.add(newest)
        assert fallen is newest
        assert queue == full


@given(st.permutations(range(8)))
def test_the_order_does_not_depend_on_the_order_of_arrival(arrival: list[int]) -> None:
    everything = [
        queued(0, CheckpointKind.SAVEPOINT),
        queued(1, CheckpointKind.SAVEPOINT, at=1.0),
        queued(2, CheckpointKind.SAVEPOINT, unaligned=True),
        queued(3),
        queued(4, at=1.0),
        queued(5, origin=PERIODIC),
        queued(6, origin=PERIODIC, at=1.0),
        queued(7, origin=PERIODIC, at=1.0),
    ]
    queue = queue_of(*(everything[n] for n in arrival))
    assert [q.number for q in queue.waiting] == list(range(8))


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": None},
        {"scope": None},
        {"kind": CheckpointKind.SAVEPOINT, "origin": PERIODIC},
        {"target": "memory://somewhere"},
    ],
)
def test_requests_that_mean_nothing_are_refused(fields: dict[str, object]) -> None:
    """CheckpointCoordinatorTriggeringTest#testTriggeringCheckpointsWithNullCheckpointType."""
    with pytest.raises(InvalidRequest):
        CheckpointRequest(**fields)  # type: ignore[arg-type]
