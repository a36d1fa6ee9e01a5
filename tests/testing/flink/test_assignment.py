"""Dealing saved state out to another number of subtasks."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.testing.flink.key_groups import (
    KeyedHandle,
    KeyGroupRange,
    SubtaskMapper,
    assign_channel_state,
    assign_keyed,
    default_max_parallelism,
    key_group_of,
    old_subtasks,
    partition,
    subtask_of,
)

# --- key groups -----------------------------------------------------------------------------------


@given(max_parallelism=st.integers(1, 300), data=st.data())
def test_every_key_group_has_exactly_one_owner(max_parallelism: int, data: st.DataObject) -> None:
    """CheckpointCoordinatorTest#testCreateKeyGroupPartitions."""
    parallelism = data.draw(st.integers(1, max_parallelism))
    ranges = partition(parallelism=parallelism, max_parallelism=max_parallelism)
    owners = {group: i for i, mine in enumerate(ranges) for group in range(mine.start, mine.end + 1)}
    assert sorted(owners) == list(range(max_parallelism))
    assert sum(len(mine) for mine in ranges) == max_parallelism
    for group, owner in owners.items():
        assert subtask_of(group, parallelism=parallelism, max_parallelism=max_parallelism) == owner
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


@pytest.mark.parametrize(
    ("parallelism", "derived"),
    [(1, 128), (85, 128), (86, 256), (128, 256), (171, 256), (172, 512), (30_000, 32_768), (32_768, 32_768)],
)
def test_the_derived_maximum_is_a_power_of_two_with_room_to_grow(parallelism: int, derived: int) -> None:
    assert default_max_parallelism(parallelism) == derived


@pytest.mark.parametrize("parallelism", [0, -1, 32_769])
def test_no_maximum_is_derived_where_none_can_hold(parallelism: int) -> None:
    with pytest.raises(InvalidRequest, match=f"parallelism must be from 1 to 32768, got {parallelism}"):
        default_max_parallelism(parallelism)


@pytest.mark.parametrize(("start", "end"), [(0, 0), (1, 2), (42, 42), (0, 32_767), (32_766, 32_767)])
def test_a_range_knows_its_key_groups(start: int, end: int) -> None:
    """KeyGroupRangeTest#testKeyGroupRangeBasics."""
    mine = KeyGroupRange(start, end)
    assert list(mine) == [*range(start, end + 1)]
    assert len(mine) == end - start + 1
    assert start in mine
    assert end in mine
    assert start - 1 not in mine
    assert end + 1 not in mine


@pytest.mark.parametrize(("start", "end"), [(-3, 2), (3, 1)])
def test_a_range_that_holds_nothing_or_begins_below_zero_is_refused(start: int, end: int) -> None:
    """KeyGroupRangeTest#testKeyGroupRangeBasics."""
    with pytest.raises(InvalidRequest, match=f"got {start} to {end}"):
        KeyGroupRange(start, end)


def test_more_subtasks_than_key_groups_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"parallelism 5 must be .* at most the max_parallelism 4"):
        partition(parallelism=5, max_parallelism=4)


@given(st.integers(-(2**31), 2**31 - 1))
def test_every_hash_has_a_key_group(key_hash: int) -> None:
    assert 0 <= key_group_of(key_hash, 128) < 128
    assert key_group_of(key_hash, 128) == key_group_of(key_hash, 128)


@pytest.mark.parametrize(("word", "hashed"), [(0, 0x2362F9DE), (0x87654321, (1 << 32) - 0xF55B516B)])
def test_hashes_are_spread_by_murmur3(word: int, hashed: int) -> None:
    """Published test vectors of MurmurHash3_x86_32 with seed 0; the second is negative as a signed word."""
    assert key_group_of(word, 1 << 15) == hashed % (1 << 15)


def test_consecutive_hashes_are_spread() -> None:
    used = Counter(key_group_of(i, 128) for i in range(12_800))
    assert len(used) == 128
    assert max(used.values()) < 200


def handles(parallelism: int, max_parallelism: int) -> list[list[KeyedHandle[int]]]:
    ranges = partition(parallelism=parallelism, max_parallelism=max_parallelism)
    return [[KeyedHandle(mine, i)] for i, mine in enumerate(ranges)]


def test_the_same_parallelism_keeps_each_handle_where_it_was() -> None:
    old = handles(4, 16)
    assert assign_keyed(old, parallelism=4, max_parallelism=16) == tuple(map(tuple, old))


@given(max_parallelism=st.integers(1, 200), data=st.data())
def test_rescaling_gives_every_key_group_to_its_new_owner_once(
    max_parallelism: int, data: st.DataObject
) -> None:
    """CheckpointCoordinatorRestoringTest#testRestoreLatestCheckpointedStateScaleIn, …ScaleOut (C077)."""
    before, after = (data.draw(st.integers(1, max_parallelism)) for _ in range(2))
    old = handles(before, max_parallelism)
    owner = {g: h[0].state for h in old for g in range(h[0].range.start, h[0].range.end + 1)}
    new = assign_keyed(old, parallelism=after, max_parallelism=max_parallelism)
    ranges = partition(parallelism=after, max_parallelism=max_parallelism)
    for mine, assigned in zip(ranges, new, strict=True):
        groups = [(g, h.state) for h in assigned for g in range(h.range.start, h.range.end + 1)]
        assert sorted(groups) == [(g, owner[g]) for g in range(mine.start, mine.end + 1)]


def test_ranges_clip() -> None:
    assert KeyGroupRange(0, 5).clip(KeyGroupRange(4, 9)) == KeyGroupRange(4, 5)
    assert KeyGroupRange(0, 3).clip(KeyGroupRange(4, 9)) is None


# --- in-flight data -------------------------------------------------------------------------------


@pytest.mark.parametrize("mapper", list(SubtaskMapper))
def test_without_rescaling_each_subtask_reads_its_own(mapper: SubtaskMapper) -> None:
    """SAO#testChannelStateAssignmentNoRescale, #testChannelStateAssignmentStability."""
    shares = assign_channel_state([["x"], ["y"], ["z"]], mapper, parallelism=3)
    assert [[(s.state, s.old_subtask, s.readers) for s in mine] for mine in shares] == [
        [("x", 0, 1)],
        [("y", 1, 1)],
        [("z", 2, 1)],
    ]


@pytest.mark.parametrize(
    ("mapper", "old", "new", "expected"),
    [
        (SubtaskMapper.ROUND_ROBIN, 3, 2, [(0, 2), (1,)]),
        (SubtaskMapper.ROUND_ROBIN, 2, 3, [(0,), (1,), ()]),
        (SubtaskMapper.FIRST, 3, 2, [(0, 1, 2), ()]),
        (SubtaskMapper.FULL, 2, 3, [(0, 1)] * 3),
        (SubtaskMapper.RANGE, 3, 2, [(0, 1), (1, 2)]),
        (SubtaskMapper.RANGE, 2, 3, [(0,), (0, 1), (1,)]),
        (SubtaskMapper.RANGE, 2, 4, [(0,), (0,), (1,), (1,)]),
        (SubtaskMapper.RANGE, 3, 4, [(0,), (0, 1), (1, 2), (2,)]),
        (SubtaskMapper.ROUND_ROBIN, 10, 4, [(0, 4, 8), (1, 5, 9), (2, 6), (3, 7)]),
        (SubtaskMapper.ROUND_ROBIN, 3, 3, [(0,), (1,), (2,)]),
        (SubtaskMapper.RANGE, 3, 3, [(0,), (1,), (2,)]),
        (SubtaskMapper.FULL, 3, 3, [(0, 1, 2)] * 3),
        (SubtaskMapper.FIRST, 3, 3, [(0, 1, 2), (), ()]),
        (SubtaskMapper.UNSUPPORTED, 3, 3, [(0,), (1,), (2,)]),
    ],
)
def test_rescaled_edges_map_old_subtasks_to_new_ones(
    mapper: SubtaskMapper, old: int, new: int, expected: list[tuple[int, ...]]
) -> None:
    """SAO#testChannelStateAssignmentUpscaling, #testChannelStateAssignmentDownscaling;
    MappingBasedRepartitionerTest, #testBroadcastRedistributeOnNoScale among them."""
    assert [old_subtasks(mapper, i, old_parallelism=old, new_parallelism=new) for i in range(new)] == expected


def test_a_pointwise_edge_with_in_flight_data_cannot_be_rescaled() -> None:
    with pytest.raises(InvalidRequest, match="in-flight data of a pointwise edge cannot go from 3 to 2"):
        assign_channel_state([["x"], [], []], SubtaskMapper.UNSUPPORTED, parallelism=2)


def test_a_pointwise_edge_without_in_flight_data_may_be_rescaled() -> None:
    """SAO#testMixedExchangesForwardAndHashNoStateOnForward."""
    empty: list[list[str]] = [[], [], []]
    assert assign_channel_state(empty, SubtaskMapper.UNSUPPORTED, parallelism=2) == ((), ())


def test_data_read_by_several_is_marked_for_filtering() -> None:
    shares = assign_channel_state([["x"], ["y"], ["z"]], SubtaskMapper.RANGE, parallelism=2)
    assert [[(s.state, s.readers) for s in mine] for mine in shares] == [
        [("x", 1), ("y", 2)],
        [("y", 2), ("z", 1)],
    ]


@given(
    old=st.lists(st.lists(st.integers(), max_size=3), min_size=1, max_size=12),
    new=st.integers(1, 12),
    mapper=st.sampled_from([m for m in SubtaskMapper if m is not SubtaskMapper.UNSUPPORTED]),
)
def test_no_in_flight_data_is_lost_and_each_piece_knows_its_readers(
    old: list[list[int]], new: int, mapper: SubtaskMapper
) -> None:
    shares = assign_channel_state(old, mapper, parallelism=new)
    read = Counter(share.old_subtask for mine in shares for share in mine)
    for index, pieces in enumerate(old):
        if pieces:
            assert read[index] >= len(pieces)
            readers = {s.readers for mine in shares for s in mine if s.old_subtask == index}
            assert readers == {read[index] // len(pieces)}
    if mapper in (SubtaskMapper.ROUND_ROBIN, SubtaskMapper.FIRST):
        assert all(share.readers == 1 for mine in shares for share in mine)
