"""Aligned with a way out, and unaligned: sequences follow Flink's AlternatingCheckpointsTest and
UnalignedCheckpointsTest."""

from __future__ import annotations

import pytest

from dagster_ckpt.core.alignment import ArmTimer, PullForward, TimerFired, TriggerSnapshot, Unblock
from dagster_ckpt.core.ids import checkpoint_id
from dagster_ckpt.core.messages import Alignment, BarrierOptions
from dagster_ckpt.core.messages import CheckpointFailureReason as Reason
from dagster_ckpt.testing.barriers import ALIGNED, UNALIGNED, BarrierHarness, timeoutable


def alternating(channels: int, timeout: float = 0.1) -> BarrierHarness:
    return BarrierHarness(channels, timeoutable(timeout), unaligned=True)


def unaligned(channels: int) -> BarrierHarness:
    return BarrierHarness(channels, UNALIGNED, unaligned=True)


def how(host: BarrierHarness) -> list[Alignment]:
    return [snapshot.options.alignment for snapshot in host.snapshots]


# --- announcements and the timer ------------------------------------------------------------------


def test_an_announcement_starts_the_checkpoint() -> None:
    """ALT#testStartNewCheckpointViaAnnouncement."""
    host = alternating(3)
    host.barriers((1, 0))
    host.announce(2, 1)
    assert host.notified == [-1]
    assert host.reasons == [Reason.CHECKPOINT_DECLINED_SUBSUMED]
    assert host.blocked == set()
    assert host.handler.latest_checkpoint_id == 2


def test_the_timer_counts_from_when_the_barrier_was_made() -> None:
    """1.18: max(0, timeout - (now - barrier timestamp)); a delay collected upstream counts."""
    host = alternating(2, timeout=10)
    host.made[1] = 0.0
    host.now = 4
    assert host.announce(1, 0) == (ArmTimer(1, 10),)


def test_a_barrier_that_arrives_without_announcement_arms_the_timer_too() -> None:
    """ALT#testTimeoutAlignmentWhenLocalBarrierFirst."""
    host = alternating(3)
    host.barrier(1, 0)
    host.advance(0.2)
    assert host.notified == [1]
    assert how(host) == [Alignment.UNALIGNED]


def test_on_time_out_announced_barriers_are_pulled_forward_and_the_first_triggers() -> None:
    """ALT#testActiveTimeoutAlignmentOnFirstBarrier."""
    host = alternating(2)
    host.announce(1, 0)
    host.announce(1, 1)
    assert host.advance(0.2) == (PullForward(0), PullForward(1))
    assert host.notified == []
    host.barrier(1, 0)
    assert host.notified == [1]
    assert how(host) == [Alignment.UNALIGNED]
    assert host.snapshots[0].recording == {0, 1}
    assert not host.in_flight
    host.barrier(1, 1)
    assert [done.checkpoint_id for done in host.in_flight] == [1]
    assert host.notified == [1]


def test_a_time_out_while_collecting_triggers_at_once_and_releases_all() -> None:
    """ALT#testAllChannelsUnblockedAfteralignedCheckpointTimeout."""
    host = alternating(3)
    host.announce(1, 1)
    host.barrier(1, 0)
    effects = host.advance(0.2)
    assert [type(e) for e in effects] == [TriggerSnapshot, Unblock, PullForward]
    assert host.blocked == set()
    assert host.snapshots[0].recording == {1, 2}
    host.barriers((1, 1), (1, 2))
    assert host.blocked == set()
    assert host.notified == [1]
    assert len(host.in_flight) == 1


def test_a_barrier_read_after_the_time_out_triggers_without_waiting_for_the_others() -> None:
    """ALT#testTimeoutAlignmentOnFirstBarrier (C095): no timer has fired."""
    host = alternating(2)
    host.announce(1, 0)
    host.announce(1, 1)
    host.now += 0.4
    host.barrier(1, 0)
    assert host.notified == [1]
    assert how(host) == [Alignment.UNALIGNED]
    assert host.pulled == [1]


def test_a_barrier_that_is_late_on_arrival_goes_unaligned() -> None:
    """ALT#testTimeoutAlignmentBeforeFirstBarrier."""
    host = alternating(2)
    host.made[1] = 0.0
    host.now = 0.2
    host.barrier(1, 0)
    assert how(host) == [Alignment.UNALIGNED]
    assert host.snapshots[0].recording == {1}
    assert host.blocked == set()


def test_an_announcement_that_is_late_goes_unaligned() -> None:
    """ALT#testPassiveTimeoutAlignmentOnAnnouncement."""
    host = alternating(2)
    host.announce(1, 0)
    host.now += 0.2
    assert host.announce(1, 1)[:2] == (PullForward(0), PullForward(1))
    host.barrier(1, 1)
    assert how(host) == [Alignment.UNALIGNED]


def test_a_barrier_at_the_very_time_is_not_late_yet() -> None:
    """SingleCheckpointBarrierHandler.Controller#isTimedOut: only past the timeout; at it, the timer switches."""
    host = alternating(3, timeout=0.25)
    host.barrier(1, 0)
    host.advance(0.25, fire=False)
    host.barrier(1, 1)
    assert (host.triggered, host.blocked) == ([], {0, 1})
    host.fire_timer()
    assert how(host) == [Alignment.UNALIGNED]


@pytest.mark.parametrize("late", ["the first announcement", "an announcement", "a barrier"])
def test_a_timer_that_fires_after_the_switch_changes_nothing(late: str) -> None:
    """ALT#testActiveTimeoutBeforeFirstAnnouncementPassiveTimeout, #testActiveTimeoutAfterAnnouncementPassiveTimeout,
    #testActiveTimeoutAfterBarrierPassiveTimeout, #testActiveTimeoutAfterLocalBarrierPassiveTimeout."""
    host = alternating(2, timeout=0.01)
    host.made[1] = 0.0
    if late != "the first announcement":
        host.announce(1, 0)
    host.advance(0.011, fire=False)
    if late == "a barrier":
        host.barrier(1, 0)
    else:
        host.announce(1, 0 if late == "the first announcement" else 1)
    assert host.send(TimerFired(checkpoint_id=checkpoint_id(1))) == ()
    host.barriers((1, 0), (1, 1)) if late != "a barrier" else host.barrier(1, 1)
    assert host.notified == [1]
    assert how(host) == [Alignment.UNALIGNED]
    assert (host.is_pending, host.timer) == (False, None)


def test_the_last_barrier_completes_aligned_even_when_it_is_late() -> None:
    """All have arrived, so there is nothing to shorten."""
    host = alternating(2, timeout=0.1)
    host.barrier(1, 0)
    host.now += 5
    host.barrier(1, 1)
    assert how(host) == [Alignment.ALIGNED]


def test_a_checkpoint_after_one_that_timed_out_is_aligned_again() -> None:
    """ALT#testAlignedAfterTimedOut."""
    host = alternating(1)
    host.announce(1, 0)
    host.advance(0.2)
    host.barrier(1, 0)
    host.announce(2, 0)
    host.barrier(2, 0)
    assert how(host) == [Alignment.UNALIGNED, Alignment.ALIGNED]


def test_a_checkpoint_that_never_times_out_waits_for_all() -> None:
    """ALT#testAlignedNeverTimeoutableCheckpoint."""
    host = alternating(2, timeout=1e9)
    host.barrier(1, 0)
    host.advance(1e6)
    assert host.notified == []
    host.barrier(1, 1)
    assert how(host) == [Alignment.ALIGNED]


@pytest.mark.parametrize("finish", ["last barrier", "abort", "close", "newer checkpoint", "end"])
def test_no_timer_is_left_when_the_checkpoint_is_over(finish: str) -> None:
    """ALT#testNoActiveTimeoutAlignmentAfterLastBarrier, …AfterAbort, …AfterClose."""
    host = alternating(2)
    host.announce(1, 0)
    host.barrier(1, 0)
    assert host.timer == ArmTimer(1, 0.1)
    stale = host.timer
    match finish:
        case "last barrier":
            host.barrier(1, 1)
        case "abort":
            host.cancel(1, 1)
        case "close":
            host.close()
        case "newer checkpoint":
            host.barrier(2, 1, ALIGNED)
        case "end":
            host.end(1)
    assert host.timer is None
    before = list(host.notified)
    host.timer = stale
    assert host.advance(10) == ()
    assert host.notified == before


def test_ends_of_channels_count_after_the_time_out_as_well() -> None:
    """ALT#testTimeoutAlignmentAfterReceivedEndOfPartition."""
    host = alternating(3)
    host.announce(1, 1)
    host.end(0)
    host.advance(0.2)
    host.barrier(1, 1)
    assert host.notified == [1]
    assert host.snapshots[0].recording == {1, 2}
    host.end(2)
    assert len(host.in_flight) == 1
    host.barrier(2, 1)
    assert host.notified == [1, 2]


def test_the_end_of_a_channel_after_the_time_goes_unaligned_before_the_timer_fires() -> None:
    """ALT#testTimeoutAlignmentAfterReceivedEndOfPartition."""
    host = alternating(3)
    host.announce(1, 0)
    host.barrier(1, 0)
    host.advance(0.101, fire=False)
    host.end(1)
    assert (host.triggered, host.blocked, host.timer) == ([1], set(), None)
    assert host.snapshots[0].recording == {2}
    host.end(2)
    assert how(host) == [Alignment.UNALIGNED]
    assert len(host.in_flight) == 1


def test_the_end_of_a_channel_before_any_barrier_does_not_switch() -> None:
    """Only a checkpoint whose first barrier was reached is switched by an end: nothing could be triggered."""
    host = alternating(3)
    host.announce(1, 0)
    host.advance(0.101, fire=False)
    host.end(1)
    assert (host.triggered, host.pulled) == ([], [])
    host.fire_timer()
    assert host.pulled == [0]


def test_a_time_out_triggers_at_once_though_the_channel_that_had_brought_its_barrier_ended() -> None:
    host = alternating(3)
    host.barrier(1, 0)
    host.end(0)
    host.advance(0.2)
    assert (host.triggered, how(host)) == ([1], [Alignment.UNALIGNED])
    assert host.snapshots[0].recording == {1, 2}


# --- unaligned barriers ---------------------------------------------------------------------------


def test_a_barrier_turned_unaligned_upstream_switches_this_stage() -> None:
    """ALT#testSwitchToUnalignedByUpstream (C097)."""
    host = alternating(2, timeout=1e9)
    host.announce(1, 0)
    host.barrier(1, 1, UNALIGNED)
    assert how(host) == [Alignment.UNALIGNED]
    assert host.pulled == [0]
    assert host.timer is None


def test_an_unaligned_barrier_releases_the_channels_that_were_held() -> None:
    """C097: aligning, 1 blocked; an unaligned barrier comes from upstream."""
    host = alternating(3, timeout=1e9)
    host.barrier(1, 0)
    assert host.blocked == {0}
    host.barrier(1, 1, UNALIGNED)
    assert host.blocked == set()
    assert host.snapshots[0].recording == {1, 2}


def test_unaligned_snapshots_on_the_first_barrier_and_ends_with_the_last() -> None:
    """UN#testMultiChannelTrailingInflightData."""
    host = unaligned(3)
    host.barrier(1, 0)
    assert host.notified == [1]
    assert host.snapshots[0].recording == {0, 1, 2}
    host.now += 3
    host.barrier(1, 1)
    assert not host.in_flight
    host.barrier(1, 2)
    assert host.in_flight[0].alignment == 3
    assert host.blocked == set()


def test_a_newer_unaligned_barrier_gives_the_pending_one_up() -> None:
    """UN: barrier 2 on one channel while 1 is still collecting in-flight data."""
    host = unaligned(2)
    host.barriers((1, 0), (2, 1))
    assert host.notified == [1, -1, 2]
    assert host.barrier(1, 1) == (Unblock(1),)
    host.barrier(2, 0)
    assert [done.checkpoint_id for done in host.in_flight] == [2]


def test_a_cancel_marker_before_any_barrier_makes_later_ones_obsolete() -> None:
    """UN#testProcessCancellationBarrierBeforeProcessAndReceiveBarrier."""
    host = unaligned(2)
    host.cancel(1, 0)
    host.barrier(1, 1)
    assert host.notified == [-1]
    host.barrier(2, 0)
    assert host.notified == [-1, 2]


def test_a_cancel_marker_after_the_first_barrier_aborts() -> None:
    """UN#testProcessCancellationBarrierAfterProcessBarrier."""
    host = unaligned(2)
    host.barrier(1, 0)
    host.cancel(1, 1)
    assert host.notified == [1, -1]
    assert not host.handler.is_checkpoint_pending


def test_the_end_of_the_last_channel_completes_the_in_flight_data() -> None:
    """UN#testEndOfStreamWithPendingCheckpoint."""
    host = unaligned(3)
    host.barriers((1, 0), (1, 1))
    host.end(2)
    assert len(host.in_flight) == 1
    assert host.notified == [1]


def test_checkpoints_and_savepoints_alternate() -> None:
    """ALT#testAlternation, #testSavepointHandling, #testCheckpointHandling."""
    host = BarrierHarness(3, ALIGNED, unaligned=True)
    for number in range(1, 21):
        options = UNALIGNED if number % 2 else ALIGNED
        for channel in range(3):
            host.barrier(number, channel, options)
    assert host.notified == list(range(1, 21))
    assert how(host) == [Alignment.UNALIGNED, Alignment.ALIGNED] * 10
    assert host.blocked == set()


def test_an_old_barrier_is_ignored_whatever_its_kind() -> None:
    """ALT#testOutOfOrderBarrier."""
    host = alternating(2)
    host.barrier(2, 0)
    assert host.barrier(1, 1, UNALIGNED) == (Unblock(1),)
    assert host.announce(1, 1) == ()
    assert host.notified == []


def test_a_cancel_marker_aborts_a_checkpoint_known_by_announcement_only() -> None:
    host = alternating(2)
    host.announce(1, 0)
    host.cancel(1, 1)
    assert host.notified == [-1]
    assert host.timer is None
    assert host.barrier(1, 0) == (Unblock(0),)


def test_forced_aligned_barriers_never_time_out() -> None:
    host = alternating(2)
    forced = BarrierOptions(alignment=Alignment.FORCED_ALIGNED, aligned_timeout_ms=100)
    host.barrier(1, 0, forced)
    assert host.timer is None
    host.now += 100
    host.barrier(1, 1, forced)
    assert how(host) == [Alignment.FORCED_ALIGNED]
