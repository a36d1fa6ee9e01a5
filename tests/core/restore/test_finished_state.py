"""Restoring a snapshot with finished stages into a graph that may have been edited."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagster_ckpt.core.graph import Edge, EdgePattern, PipelineGraph, StageSpec
from dagster_ckpt.core.ids import PipelineId, StageUid
from dagster_ckpt.core.restore.matching import FinishedState, check_finished_states
from dagster_ckpt.errors import InvalidRequest

RUNNING, PARTLY, FULLY = (
    FinishedState.ALL_RUNNING,
    FinishedState.PARTIALLY_FINISHED,
    FinishedState.FULLY_FINISHED,
)
ALL_TO_ALL, POINTWISE = EdgePattern.ALL_TO_ALL, EdgePattern.POINTWISE


def two_stages(pattern: EdgePattern) -> PipelineGraph:
    return PipelineGraph(
        pipeline=PipelineId("p"),
        stages=(StageSpec(uid=StageUid("up")), StageSpec(uid=StageUid("down"))),
        edges=(Edge(upstream=StageUid("up"), downstream=StageUid("down"), pattern=pattern),),
    )


def saved(**states: FinishedState) -> dict[StageUid, list[FinishedState]]:
    return {StageUid(uid): [state] for uid, state in states.items()}


@pytest.mark.parametrize("pattern", list(EdgePattern))
def test_a_running_stage_in_front_of_a_finished_one_is_refused(pattern: EdgePattern) -> None:
    """VertexFinishedStateCheckerTest#testAddingRunningOperatorBeforeFinishedOneFails."""
    with pytest.raises(
        InvalidRequest, match=r"'up' \(all running\) feeds stage 'down', which is fully finished"
    ):
        check_finished_states(two_stages(pattern), saved(down=FULLY))


@pytest.mark.parametrize("pattern", list(EdgePattern))
def test_a_partially_finished_stage_in_front_of_a_finished_one_is_refused(pattern: EdgePattern) -> None:
    """VertexFinishedStateCheckerTest#testAddingPartiallyFinishedOperatorBeforeFinishedOneFails."""
    with pytest.raises(InvalidRequest, match="partially finished"):
        check_finished_states(two_stages(pattern), saved(up=PARTLY, down=FULLY))


@pytest.mark.parametrize("pattern", list(EdgePattern))
def test_a_running_stage_in_front_of_a_partially_finished_one_is_refused(pattern: EdgePattern) -> None:
    """VertexFinishedStateCheckerTest#testAddingAllRunningOperatorBeforePartiallyFinishedOneFails,
    #testAddingAllRunningOperatorBeforePartiallyFinishedOneWithAllToAllFails."""
    with pytest.raises(InvalidRequest, match="give 'down' a new uid"):
        check_finished_states(two_stages(pattern), saved(down=PARTLY))


def test_all_to_all_wants_a_finished_stage_in_front_of_a_partially_finished_one() -> None:
    """VertexFinishedStateCheckerTest#testAddingPartiallyFinishedOperatorBeforePartiallyFinishedOneWithAllToAllFails."""
    with pytest.raises(InvalidRequest, match="partially finished"):
        check_finished_states(two_stages(ALL_TO_ALL), saved(up=PARTLY, down=PARTLY))


def test_of_two_edges_between_the_same_stages_each_must_be_legal() -> None:
    """VertexFinishedStateCheckerTest#testAdding…BeforePartiallyFinishedOneWithPointwiseAndAllToAllFails."""
    both = tuple(
        Edge(upstream=StageUid("up"), downstream=StageUid("down"), pattern=pattern)
        for pattern in (POINTWISE, ALL_TO_ALL)
    )
    with pytest.raises(InvalidRequest, match="partially finished"):
        check_finished_states(replace(two_stages(POINTWISE), edges=both), saved(up=PARTLY, down=PARTLY))


@pytest.mark.parametrize(
    ("pattern", "up", "down"),
    [
        (POINTWISE, PARTLY, PARTLY),
        (POINTWISE, FULLY, PARTLY),
        (ALL_TO_ALL, FULLY, PARTLY),
        (ALL_TO_ALL, FULLY, FULLY),
        (ALL_TO_ALL, FULLY, RUNNING),
        (ALL_TO_ALL, RUNNING, RUNNING),
    ],
)
def test_what_could_have_happened_without_an_edit_is_allowed(
    pattern: EdgePattern, up: FinishedState, down: FinishedState
) -> None:
    check_finished_states(two_stages(pattern), saved(up=up, down=down))


def test_a_chain_that_mixes_finished_and_running_operators_is_refused() -> None:
    """VertexFinishedStateCheckerTest#testRestoringPartiallyFinishedChainsFailsWithUidHash."""
    with pytest.raises(InvalidRequest, match="chains operators that are all running and fully finished"):
        check_finished_states(two_stages(POINTWISE), {StageUid("up"): [FULLY, RUNNING]})


def test_a_new_stage_behind_a_finished_one_is_allowed() -> None:
    check_finished_states(two_stages(ALL_TO_ALL), saved(up=FULLY))
