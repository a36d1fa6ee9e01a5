"""At-least-once: sequences follow Flink's CheckpointBarrierTrackerTest."""

from __future__ import annotations

import pytest

from dagster_ckpt.core.alignment import Unblock
from dagster_ckpt.core.alignment.tracker import MAX_TRACKED
from dagster_ckpt.core.config import CheckpointingMode
from dagster_ckpt.core.messages import CheckpointFailureReason as Reason
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.testing.barriers import AT_LEAST_ONCE, UNALIGNED, BarrierHarness


def tracker(channels: int, **config: object) -> BarrierHarness:
    return BarrierHarness(channels, AT_LEAST_ONCE, mode=CheckpointingMode.AT_LEAST_ONCE, **config)


def test_every_barrier_of_a_single_channel_triggers() -> None:
    """TR#testSingleChannelWithSkippedBarriers."""
    host = tracker(1)
    host.barriers((1, 0), (3, 0), (4, 0), (6, 0), (7, 0), (10, 0))
    assert host.notified == [1, 3, 4, 6, 7, 10]


def test_nothing_is_ever_held() -> None:
    """TR: never blocks."""
    host = tracker(2)
    assert host.barrier(1, 0) == (Unblock(0),)
    host.barriers((2, 0), (1, 1))
    assert host.blocked == set()


def test_a_checkpoint_that_is_jumped_over_is_dropped_when_a_newer_one_completes() -> None:
    """TR#testMultiChannelSkippingCheckpoints."""
    host = tracker(3)
    host.barriers((1, 1), (1, 2), (1, 0), (2, 0), (2, 1), (2, 2), (3, 2), (4, 0), (4, 1), (4, 2))
    assert host.notified == [1, 2, 4]
    assert not host.handler.is_checkpoint_pending


def test_late_barriers_still_complete_a_checkpoint_in_order() -> None:
    """TR#testCompleteCheckpointsOnLateBarriers (C098)."""
    host = tracker(3)
    host.barriers((2, 1), (2, 0), (2, 2), (3, 1), (3, 2), (4, 2), (4, 1), (3, 0), (4, 0))
    host.barriers((5, 1), (5, 0), (5, 2), (6, 1), (6, 0), (7, 1), (7, 2), (8, 2), (8, 1), (9, 1))
    host.barriers((7, 0), (9, 2), (10, 2), (8, 0), (9, 0), (10, 0), (10, 1))
    assert host.notified == [2, 3, 4, 5, 7, 8, 9, 10]
    assert host.blocked == set()


def test_a_single_channel_goes_on_after_cancel_markers() -> None:
    """TR#testSingleChannelAbortCheckpoint."""
    host = tracker(1)
    host.barriers((1, 0), (2, 0))
    host.cancel(4, 0)
    host.barrier(5, 0)
    host.cancel(6, 0)
    assert host.notified == [1, 2, -4, 5, -6]


def test_a_cancel_marker_aborts_once_and_later_barriers_of_it_are_ignored() -> None:
    """TR#testMultiChannelAbortCheckpoint."""
    host = tracker(3)
    host.barriers((1, 1), (1, 2), (1, 0), (2, 0), (2, 2))
    host.cancel(2, 1)
    host.barriers((3, 1), (3, 2), (3, 0))
    host.cancel(4, 1)
    host.barriers((4, 2), (4, 0), (5, 2), (5, 1), (5, 0))
    host.cancel(6, 1)
    host.cancel(6, 2)
    host.barrier(6, 0)
    assert host.notified == [1, -2, 3, -4, 5, -6]
    assert host.forwarded == [2, 4, 6]
    assert not host.handler.is_checkpoint_pending


def test_a_cancel_marker_aborts_every_older_pending_checkpoint_each_once() -> None:
    """TR#testInterleavedCancellationBarriers."""
    host = tracker(3)
    host.barrier(1, 0)
    for number, channel in ((2, 0), (1, 1), (2, 1), (1, 2), (2, 2)):
        host.cancel(number, channel)
    assert host.notified == [-1, -2]
    assert not host.handler.is_checkpoint_pending


def test_a_barrier_may_overtake_the_cancel_marker_of_the_checkpoint_before() -> None:
    """TR#testNextFirstCheckpointBarrierOvertakesCancellationBarrier: alignment of 2 is two seconds."""
    host = tracker(2)
    host.barrier(1, 1)
    host.now += 1
    host.barrier(2, 1)
    host.now += 1
    host.cancel(1, 0)
    host.now += 1
    host.barrier(2, 0)
    assert host.notified == [-1, 2]
    assert host.snapshots[0].alignment == 2


def test_there_is_no_shortcut_for_a_checkpoint_begun_with_more_channels() -> None:
    """TR#testNoFastPathWithChannelFinishedDuringCheckpoints."""
    host = tracker(2)
    host.barrier(1, 0)
    host.end(0)
    assert host.notified == []
    host.barrier(1, 1)
    assert host.notified == [1]
    assert not host.handler.is_checkpoint_pending


def test_there_is_no_shortcut_for_cancelling_one_either() -> None:
    """TR#testNoFastPathWithChannelFinishedDuringCheckpointsCancel."""
    host = tracker(2)
    host.barrier(1, 0)
    host.end(0)
    host.cancel(1, 1)
    assert host.notified == [-1]
    assert not host.handler.is_checkpoint_pending


def test_the_end_of_a_channel_completes_the_newest_it_can_and_drops_the_older() -> None:
    """TR#testTriggerCheckpointsWithEndOfPartition."""
    host = tracker(3)
    host.barriers((1, 0), (1, 1), (2, 0), (2, 1), (3, 0))
    host.end(2)
    assert host.notified == [2]
    assert host.handler.is_checkpoint_pending
    host.barrier(3, 1)
    assert host.notified == [2, 3]


def test_the_end_of_a_channel_only_cleans_up_an_aborted_checkpoint() -> None:
    """TR#testCompleteAndRemoveAbortedCheckpointWithEndOfPartition."""
    host = tracker(3)
    host.cancel(4, 0)
    host.barrier(4, 1)
    host.end(2)
    assert host.notified == [-4]
    assert not host.handler.is_checkpoint_pending


def test_a_checkpoint_is_aborted_after_a_channel_has_ended() -> None:
    """TR#testAbortCheckpointsAfterEndOfPartitionReceived."""
    host = tracker(3)
    host.end(0)
    host.barrier(1, 1)
    host.cancel(1, 2)
    assert host.notified == [-1]
    assert not host.handler.is_checkpoint_pending


def test_the_last_barriers_may_arrive_one_by_one_around_the_end() -> None:
    """TR#testTwoLastBarriersOneByOne: each channel ends behind its barrier."""
    host = tracker(2)
    host.barriers((1, 1), (2, 1))
    host.end(1)
    host.barriers((1, 0), (2, 0))
    assert host.notified == [1, 2]


def test_the_end_of_a_channel_aborts_all_when_checkpoints_after_finish_are_off() -> None:
    """CheckpointBarrierTracker#processEndOfPartition with the feature off."""
    host = tracker(2, checkpoints_after_tasks_finish=False)
    host.barriers((1, 0), (2, 0))
    host.cancel(1, 1)
    host.end(1)
    assert host.notified == [-1, -2]
    assert host.reasons[-1] is Reason.CHECKPOINT_DECLINED_INPUT_END_OF_STREAM


def test_at_most_fifty_checkpoints_are_counted_and_the_oldest_is_dropped() -> None:
    """CheckpointBarrierTracker: MAX_CHECKPOINTS_TO_TRACK."""
    assert MAX_TRACKED == 50
    host = tracker(2)
    host.barriers(*((number, 0) for number in range(1, 52)))
    host.barrier(1, 1)
    assert host.notified == []
    host.barrier(2, 1)
    assert host.notified == [2]


def test_alignment_and_start_delay_are_measured_without_holding_anything() -> None:
    """TR#testMetrics."""
    host = tracker(2)
    host.made[1] = 0.0
    host.now = 4
    host.barrier(1, 0)
    host.now = 9
    host.barrier(1, 1)
    assert (host.snapshots[0].start_delay, host.snapshots[0].alignment) == (4, 5)


def test_an_unaligned_barrier_is_refused() -> None:
    """1.18: unaligned with at-least-once is a state error."""
    with pytest.raises(InvalidRequest, match="reads at least once"):
        tracker(2).barrier(1, 0, UNALIGNED)


def test_nothing_happens_after_close() -> None:
    host = tracker(2)
    host.barrier(1, 0)
    host.close()
    assert host.barrier(1, 1) == ()
