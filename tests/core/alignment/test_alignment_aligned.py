"""Exactly-once, always aligned: one test per rule; names and sequences follow Flink's
AlignedCheckpointsTest."""

from __future__ import annotations

import pytest

from dagster_ckpt.core.alignment import Block, Decline, ForwardCancel, TriggerSnapshot, Unblock, handler_for
from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.messages import Alignment
from dagster_ckpt.core.messages import CheckpointFailureReason as Reason
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.testing.barriers import AT_LEAST_ONCE, UNALIGNED, BarrierHarness


def test_one_channel_is_never_blocked_and_its_alignment_takes_no_time() -> None:
    """AL#testSingleChannelWithBarriers."""
    host = BarrierHarness(1)
    for number in (1, 2, 3):
        host.now += 5
        effects = host.barrier(number, 0)
        assert [type(e) for e in effects] == [TriggerSnapshot, Unblock]
    assert host.notified == [1, 2, 3]
    assert [s.alignment for s in host.snapshots] == [0, 0, 0]


def test_channels_are_blocked_until_the_last_barrier_has_arrived() -> None:
    """AL#testMultiChannelWithBarriers."""
    host = BarrierHarness(3)
    host.barrier(1, 1)
    assert host.blocked == {1}
    host.barrier(1, 2)
    assert host.blocked == {1, 2}
    assert host.notified == []
    host.barrier(1, 0)
    assert host.blocked == set()
    assert host.notified == [1]


def test_the_snapshot_is_triggered_before_any_channel_is_released() -> None:
    """1.18: trigger snapshot, unblock all."""
    host = BarrierHarness(2)
    host.barrier(1, 0)
    effects = host.barrier(1, 1)
    assert [type(e) for e in effects] == [TriggerSnapshot, Unblock, Unblock]
    assert {e.channel for e in effects if isinstance(e, Unblock)} == {0, 1}


def test_checkpoints_may_be_skipped_altogether() -> None:
    """AL#testMultiChannelSkippingCheckpoints: nothing of 3 or 5 is ever seen."""
    host = BarrierHarness(2)
    host.barriers((1, 0), (1, 1), (4, 1), (4, 0), (6, 0), (6, 1))
    assert host.notified == [1, 4, 6]


def test_a_newer_barrier_gives_the_pending_checkpoint_up() -> None:
    """AL#testMultiChannelJumpingOverCheckpoint (C091)."""
    host = BarrierHarness(3)
    host.barriers((2, 0), (2, 1))
    assert host.blocked == {0, 1}
    host.barrier(3, 2)
    assert host.notified == [-2]
    assert host.reasons == [Reason.CHECKPOINT_DECLINED_SUBSUMED]
    assert host.forwarded == [2]
    assert host.blocked == {2}
    host.barriers((3, 0), (3, 1))
    assert host.notified == [-2, 3]


def test_a_jump_declines_forwards_the_cancel_marker_and_only_then_releases() -> None:
    host = BarrierHarness(2)
    host.barrier(1, 0)
    effects = host.barrier(2, 1)
    assert [type(e) for e in effects] == [Decline, ForwardCancel, Unblock, Block]


def test_late_barriers_of_a_checkpoint_that_is_over_are_passed() -> None:
    """AL: id < current, or id = current and no longer pending, is obsolete (the channel is resumed)."""
    host = BarrierHarness(3)
    host.barriers((1, 0), (2, 1))
    assert host.barrier(1, 2) == (Unblock(2),)
    host.barriers((2, 0), (2, 2))
    assert host.barrier(2, 0) == (Unblock(0),)
    assert host.notified == [-1, 2]


def test_a_repeated_barrier_counts_once() -> None:
    host = BarrierHarness(2)
    host.barriers((1, 0), (1, 0))
    assert host.notified == []
    assert host.blocked == {0}


# --- cancel markers -------------------------------------------------------------------------------


def test_a_cancel_marker_on_a_single_channel_aborts_and_later_ones_go_on() -> None:
    """AL#testSingleChannelAbortCheckpoint."""
    host = BarrierHarness(1)
    host.barriers((1, 0), (2, 0))
    host.cancel(4, 0)
    assert host.handler.latest_checkpoint_id == 4
    host.barrier(5, 0)
    host.cancel(6, 0)
    assert host.notified == [1, 2, -4, 5, -6]
    assert host.forwarded == [4, 6]
    assert set(host.reasons) == {Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER}


def test_a_cancel_marker_aborts_the_alignment_and_later_barriers_of_it_are_ignored() -> None:
    """AL#testMultiChannelAbortCheckpoint."""
    host = BarrierHarness(3)
    host.barriers((1, 1), (1, 2), (1, 0), (2, 0), (2, 2))
    host.cancel(2, 1)
    assert host.blocked == set()
    host.barriers((3, 1), (3, 2), (3, 0))
    host.cancel(4, 1)
    host.barriers((4, 2), (4, 0))
    assert host.blocked == set()
    host.barriers((5, 2), (5, 1), (5, 0))
    host.cancel(6, 1)
    host.cancel(6, 2)
    host.barrier(6, 0)
    assert host.notified == [1, -2, 3, -4, 5, -6]
    assert host.blocked == set()


def test_barriers_of_a_cancelled_checkpoint_do_not_disturb_the_next_one() -> None:
    """AL#testAbortOnCanceledBarriers: markers and barriers of 2 arrive mixed with those of 3."""
    host = BarrierHarness(3)
    host.barrier(2, 1)
    host.cancel(2, 0)
    assert host.blocked == set()
    host.barrier(2, 2)
    host.barriers((3, 2), (3, 1))
    assert host.blocked == {1, 2}
    host.cancel(2, 0)
    host.barrier(3, 0)
    assert host.notified == [-2, 3]


def test_a_cancel_marker_of_a_subsumed_checkpoint_is_ignored() -> None:
    """AL#testIgnoreCancelBarrierIfCheckpointSubsumed (C092)."""
    host = BarrierHarness(3)
    host.barriers((3, 1), (3, 0), (5, 2))
    assert host.notified == [-3]
    assert host.cancel(3, 1) == ()
    assert host.blocked == {2}
    host.barriers((5, 0), (5, 1))
    assert host.notified == [-3, 5]


def test_a_cancel_marker_of_a_newer_checkpoint_gives_up_the_pending_one_too() -> None:
    """AL#testMissingCancellationBarriers; here the older one is declined as well, so that nobody waits
    for it."""
    host = BarrierHarness(2)
    host.barrier(1, 0)
    host.cancel(3, 1)
    assert host.blocked == set()
    host.cancel(2, 0)
    host.cancel(3, 0)
    assert host.notified == [-1, -3]
    assert host.reasons == [
        Reason.CHECKPOINT_DECLINED_SUBSUMED,
        Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER,
    ]


# --- end of partition -----------------------------------------------------------------------------


def test_channels_that_ended_before_are_not_waited_for() -> None:
    """AL#testStartAlignmentWithClosedChannels."""
    host = BarrierHarness(4)
    host.end(2)
    host.end(1)
    host.barriers((2, 3), (2, 0), (3, 0), (3, 3))
    assert host.notified == [2, 3]
    host.end(0)
    host.barrier(4, 3)
    assert host.notified == [2, 3, 4]


def test_the_end_of_a_channel_completes_the_alignment() -> None:
    """AL#testTriggerCheckpointsWithEndOfPartition."""
    host = BarrierHarness(3)
    host.barriers((1, 0), (1, 1))
    host.end(2)
    assert host.notified == [1]
    assert host.blocked == set()
    host.barrier(2, 0)
    host.barrier(2, 1)
    assert host.notified == [1, 2]


def test_barrier_and_end_of_one_channel_count_once() -> None:
    """AL#testDeduplicateChannelsWithBothBarrierAndEndOfPartition (C094)."""
    host = BarrierHarness(3)
    host.barriers((2, 0), (2, 1))
    host.end(1)
    assert host.notified == []
    host.barrier(2, 2)
    assert host.notified == [2]


def test_alignment_begins_with_the_channels_that_are_still_open() -> None:
    """AL#testTriggerCheckpointsAfterReceivedEndOfPartition."""
    host = BarrierHarness(3)
    host.barriers((3, 0), (3, 1), (3, 2))
    host.end(0)
    host.barriers((4, 1), (4, 2))
    host.end(1)
    host.barrier(5, 2)
    assert host.notified == [3, 4, 5]


def test_the_end_of_a_channel_aborts_when_checkpoints_after_finish_are_off() -> None:
    """AL#testEndOfStreamWhileCheckpoint."""
    host = BarrierHarness(3, checkpoints_after_tasks_finish=False)
    host.barriers((1, 0), (1, 1), (1, 2), (2, 2), (2, 0))
    host.end(1)
    assert host.notified == [1, -2]
    assert host.reasons == [Reason.CHECKPOINT_DECLINED_INPUT_END_OF_STREAM]
    assert host.blocked == set()
    host.end(2)
    host.end(0)
    assert host.notified == [1, -2]


def test_the_end_of_a_channel_means_nothing_when_no_checkpoint_is_pending() -> None:
    """AL: not applied to closing channels of a non-pending checkpoint."""
    host = BarrierHarness(2)
    assert host.end(0) == ()
    assert not host.handler.is_checkpoint_pending


# --- numbers and refusals -------------------------------------------------------------------------


def test_start_delay_and_alignment_are_measured_from_the_first_barrier() -> None:
    """AL#testMetrics."""
    host = BarrierHarness(3)
    host.made[1] = 0.0
    host.now = 10
    host.barrier(1, 1)
    host.now = 13
    host.barrier(1, 0)
    host.now = 30
    host.barrier(1, 2)
    (snapshot,) = host.snapshots
    assert (snapshot.start_delay, snapshot.alignment) == (10, 20)
    assert snapshot.recording == frozenset()


def test_a_checkpoint_that_never_aligned_leaves_no_alignment_behind() -> None:
    """AL: the alignment of an aborted checkpoint is not counted to the next."""
    host = BarrierHarness(2)
    host.barrier(1, 0)
    host.now = 100
    host.cancel(1, 1)
    host.barriers((2, 0), (2, 1))
    assert host.snapshots[0].alignment == 0


def test_nothing_happens_after_close() -> None:
    host = BarrierHarness(2)
    host.barrier(1, 0)
    host.close()
    assert host.barrier(1, 1) == ()
    assert host.cancel(2, 0) == ()
    assert host.notified == []


def test_an_unaligned_barrier_is_refused_where_unaligned_checkpoints_are_off() -> None:
    with pytest.raises(InvalidRequest, match="unaligned checkpoints are off"):
        BarrierHarness(2).barrier(1, 0, UNALIGNED)


def test_an_at_least_once_barrier_is_refused_by_an_exactly_once_stage() -> None:
    with pytest.raises(InvalidRequest, match="reads exactly once"):
        BarrierHarness(2).barrier(1, 0, AT_LEAST_ONCE)


def test_an_unknown_or_ended_channel_is_refused() -> None:
    host = BarrierHarness(2)
    host.end(1)
    for send in (lambda: host.barrier(1, 7), lambda: host.barrier(1, 1), lambda: host.end(1)):
        with pytest.raises(InvalidRequest, match="not an open input"):
            send()


def test_a_stage_without_inputs_needs_no_handler() -> None:
    with pytest.raises(InvalidRequest, match="triggered directly"):
        handler_for(CheckpointConfig(), [])


def test_forced_aligned_barriers_are_aligned_here() -> None:
    """1.18: edges that cannot carry unaligned data."""
    host = BarrierHarness(2, unaligned=True)
    forced = host.options.__class__(alignment=Alignment.FORCED_ALIGNED)
    host.barrier(1, 0, forced)
    assert host.blocked == {0}
    host.barrier(1, 1, forced)
    assert host.snapshots[0].options.alignment is Alignment.FORCED_ALIGNED
