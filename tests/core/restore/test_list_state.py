"""List and union state, redistributed as Flink does when the number of subtasks changes."""

from __future__ import annotations

import pytest

from dagster_ckpt.authoring.own_objects import redistribute


def lists(name: str, *sizes: int) -> list[dict[str, list[int]]]:
    """Return a list of each subtask; items are numbered through."""
    return [{name: [*range(sum(sizes[:at]), sum(sizes[: at + 1]))]} for at in range(len(sizes))]


@pytest.mark.parametrize(
    ("sizes", "parallelism", "dealt"),
    [
        ((4, 3), 3, [[0, 1, 2], [3, 4], [5, 6]]),
        ((4, 3), 1, [[0, 1, 2, 3, 4, 5, 6]]),
        ((2, 0, 1), 2, [[0, 1], [2]]),
        ((2,), 4, [[0], [1], [], []]),
        ((3, 0, 0), 3, [[0, 1, 2], [], []]),
        ((0, 0), 3, [[], [], []]),
    ],
    ids=["out", "in", "gaps", "fewer items than subtasks", "the same parallelism stays", "nothing"],
)
def test_items_are_dealt_contiguously_in_subtask_order(
    sizes: tuple[int, ...], parallelism: int, dealt: list[list[int]]
) -> None:
    """SAO#testRepartitionSplitDistributeStates (C086).

    At the same parallelism: CheckpointCoordinatorTest#testPartitionableStateRepartitioning.
    """
    assert [one["s"] for one in redistribute(lists("s", *sizes), parallelism=parallelism)] == dealt


def test_extras_of_the_next_state_begin_where_those_of_the_last_ended() -> None:
    """SAO#testReDistributeCombinedPartitionableStates (C086): the load evens out."""
    (one,) = lists("a", 4)
    new = redistribute([one | {"b": one["a"], "c": one["a"]}], parallelism=3)
    assert {name: [len(part[name]) for part in new] for name in "abc"} == {
        "a": [2, 1, 1],
        "b": [1, 2, 1],
        "c": [1, 1, 2],
    }


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5])
def test_union_gives_everything_to_everyone(parallelism: int) -> None:
    """SAO#testRepartitionUnionState, #testPartiallyReported; also with the same parallelism."""
    old = [{"u": [{"of": 0}]}, {}, {"u": [{"of": 2}], "s": []}]
    new = redistribute(old, parallelism=parallelism, union={"u"})
    assert [one["u"] for one in new] == [[{"of": 0}, {"of": 2}]] * parallelism
    new[0]["u"][0]["of"] = 9
    assert all(one["u"][0]["of"] == 0 for one in new[1:]), "nobody sees what another makes of its items"


def test_a_new_stage_without_state_gets_none() -> None:
    """SAO#assigningStateHandlesCanNotBeNull."""
    assert redistribute([], parallelism=3) == ({}, {}, {})
