"""Which data is stored as in flight: UnalignedCheckpointsTest, AlternatingCheckpointsTest."""

from __future__ import annotations

import pytest

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.testing.barriers import SAVEPOINT, UNALIGNED, BarrierHarness


def played(b: BarrierHarness, text: str) -> BarrierHarness:
    """Play ``d<channel>`` (one item, named by its place), ``b<checkpoint>.<channel>``, ``c…`` and ``e<channel>``."""
    for place, word in enumerate(text.split()):
        kind, number = word[0], word[1:]
        match kind:
            case "d":
                b.data(int(number), f"{word}#{place}")
            case "e":
                b.end(int(number))
            case _:
                checkpoint, channel = map(int, number.split("."))
                b.barrier(checkpoint, channel) if kind == "b" else b.cancel(checkpoint, channel)
    return b


def unaligned(channels: int) -> BarrierHarness:
    return BarrierHarness(channels, unaligned=True)


def test_what_is_read_between_the_first_barrier_and_the_own_one_is_in_flight() -> None:
    """UN#testMultiChannelWithBarriers."""
    b = played(unaligned(3), "d0 d2 d0 b1.1 b1.2 d2 d1 d0 b1.0")
    assert b.recorded(1) == {0: ["d0#7"]}
    played(b, "d0 d1 d2 b2.0 b2.1 b2.2 d2 b3.2 d2 b3.0 b3.1")
    assert (b.recorded(2), b.recorded(3)) == ({}, {})
    played(b, "d0 d2 d0 b5.1 d2 d0 d2 d1 b5.2 d1 d0 d2 d1 b5.0")
    assert b.recorded(5) == {2: ["d2#4", "d2#6"], 0: ["d0#5", "d0#10"]}


@pytest.mark.parametrize(
    ("sequence", "checkpoint", "recorded"),
    [
        ("d0 b1.0 b1.1 b1.2 d0 d2 b2.2 b2.0 d0 d2 d1 e2 e1 d0 e0", 2, {1: ["d1#10"]}),
        ("b1.1 d0 b1.0 d1 e2 e0 e1", 1, {0: ["d0#1"]}),
        ("e0 b3.1 d1 d2 e1 b3.2 d2 b4.2 e2", 3, {2: ["d2#3"]}),
        ("e0 b3.1 d1 d2 e1 b3.2 d2 b4.2 e2", 4, {}),
        ("b2.0 b2.2 d0 d1 c2.1", 2, {}),
    ],
    ids=["end of stream", "end of partition", "after an end", "last channel", "canceled"],
)
def test_ends_and_cancel_markers(sequence: str, checkpoint: int, recorded: dict[int, list[str]]) -> None:
    """UN#testEndOfStreamWhileCheckpoint, #testTriggerCheckpointsWithEndOfPartition,
    #testTriggerCheckpointsAfterReceivedEndOfPartition, #testMultiChannelAbortCheckpoint."""
    assert played(unaligned(3), sequence).recorded(checkpoint) == recorded


def test_a_barrier_that_is_pulled_forward_overtakes_data_and_that_is_in_flight() -> None:
    """ALT#testActiveTimeoutAlignmentOnAnnouncement."""
    b = BarrierHarness(2, unaligned=True, aligned_checkpoint_timeout=0.01)
    b.announce(1, 0)
    b.announce(1, 1)
    b.advance(0.011)
    b.barrier(1, 0, overtaking=["x", "y"])
    b.barrier(1, 1, overtaking=["z"])
    assert b.recorded(1) == {0: ["x", "y"], 1: ["z"]}
    assert b.delivered == ["x", "y", "z"]


def test_a_channel_held_for_a_savepoint_is_recorded_for_the_unaligned_checkpoint_that_aborts_it() -> None:
    """ALT#testChannelResetOnNewBarrier."""
    b = unaligned(2)
    b.barrier(1, 0, SAVEPOINT)
    assert b.blocked == {0}
    b.barrier(2, 1)
    assert (b.notified, b.blocked) == ([-1, 2], set())
    b.data(0, "x")
    b.barrier(2, 0)
    assert b.recorded(2) == {0: ["x"]}


def test_a_barrier_made_unaligned_upstream_brings_what_it_overtook() -> None:
    """ALT#testTimeoutAlignmentOnUnalignedCheckpoint."""
    b = BarrierHarness(3, unaligned=True, aligned_checkpoint_timeout=1e6)
    b.barrier(1, 0)
    b.barrier(1, 1, UNALIGNED, overtaking=["x", "y"])
    assert (b.triggered, b.recorded(1)) == ([1], {1: ["x", "y"]})


def test_an_aligned_checkpoint_has_nothing_in_flight_and_a_held_channel_delivers_nothing() -> None:
    b = played(BarrierHarness(2), "d0 b1.0 d1")
    with pytest.raises(InvalidRequest, match="channel 0 is held on its barrier"):
        b.data(0, "x")
    played(b, "b1.1 d0 e1")
    assert b.recorded(1) == {}
    with pytest.raises(InvalidRequest, match="channel 1 is not an open input"):
        b.data(1, "x")


def test_ids_start_at_one() -> None:
    b = BarrierHarness(1)
    for call in (b.barrier, b.announce, b.cancel):
        with pytest.raises(InvalidRequest, match="checkpoint ids start at 1, got 0"):
            call(0, 0)
