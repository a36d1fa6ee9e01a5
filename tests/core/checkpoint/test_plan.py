"""The checkpoint plan (Flink 1.5): whom to trigger, to wait for, to notify."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.core.checkpoint.tasks import (
    CheckpointPlan,
    NotPossible,
    StageStatus,
    TaskTable,
    bits,
    calculate_plan,
    pointwise_inputs,
)
from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.ids import CoordinatorEpoch, StageUid
from dagster_ckpt.testing.coordinator.world import build_graph

Stages = dict[str, int]


def table(graph: PipelineGraph, finished: dict[str, list[int]]) -> TaskTable:
    tasks = TaskTable.of(graph, CoordinatorEpoch(1))
    for uid, indices in finished.items():
        for index in indices:
            tasks = tasks.reported(StageUid(uid), StageStatus.FINISHED, subtask=index)
    return tasks


def plan(stages: Stages, edges: list[tuple[str, ...]], finished: dict[str, list[int]]) -> CheckpointPlan:
    graph = build_graph("p", stages, edges, frozenset())  # type: ignore[arg-type]
    made = calculate_plan(graph, table(graph, finished), after_tasks_finish=True)
    assert isinstance(made, CheckpointPlan), made
    return made


def read(masks: object) -> dict[str, list[int]]:
    return {uid: list(bits(mask)) for uid, mask in masks.items()}  # type: ignore[attr-defined]


def test_with_all_running_the_sources_are_triggered_and_all_are_waited_for() -> None:
    """DefaultCheckpointPlanCalculatorTest#testComputeAllRunningGraph."""
    made = plan({"s": 3, "m": 4, "t": 5}, [("s", "m"), ("m", "t", "pointwise")], {})
    assert read(made.trigger) == {"s": [0, 1, 2]}
    assert read(made.wait) == {"s": [0, 1, 2], "m": [0, 1, 2, 3], "t": [0, 1, 2, 3, 4]}
    assert not made.finished


def test_all_to_all_with_some_sources_finished_triggers_the_rest_of_them_only() -> None:
    """C022: DefaultCheckpointPlanCalculatorTest#testAllToAllEdgeWithSomeSourcesFinished."""
    made = plan({"s": 3, "t": 4}, [("s", "t")], {"s": [0, 1]})
    assert read(made.trigger) == {"s": [2]}
    assert read(made.wait) == {"s": [2], "t": [0, 1, 2, 3]}
    assert read(made.finished) == {"s": [0, 1]}
    assert made.fully_finished == frozenset()


def test_pointwise_with_some_sources_finished_triggers_their_targets() -> None:
    """C023: DefaultCheckpointPlanCalculatorTest#testOneToOneEdgeWithSomeSourcesFinished."""
    made = plan({"s": 4, "t": 4}, [("s", "t", "pointwise")], {"s": [0, 1]})
    assert read(made.trigger) == {"s": [2, 3], "t": [0, 1]}


def test_pointwise_with_sources_and_targets_finished() -> None:
    """DefaultCheckpointPlanCalculatorTest#testOneToOnEdgeWithSomeSourcesAndTargetsFinished."""
    made = plan({"s": 4, "t": 4}, [("s", "t", "pointwise")], {"s": [0, 1], "t": [0]})
    assert read(made.trigger) == {"s": [2, 3], "t": [1]}
    assert read(made.wait) == {"s": [2, 3], "t": [1, 2, 3]}


def test_inputs_that_finished_here_and_there_leave_no_root_behind_them() -> None:
    """DefaultCheckpointPlanCalculatorTest#testComputeWithMultipleInputs, with its numbers."""
    edges: list[tuple[str, ...]] = [("a", "t"), ("b", "t", "pointwise"), ("c", "t", "pointwise")]
    finished = {"a": [0, 1, 2], "b": [0, 2, 3], "c": [2, 4], "t": [2]}
    made = plan({"a": 3, "b": 5, "c": 5, "t": 5}, edges, finished)
    assert read(made.trigger) == {"b": [1, 4], "c": [0, 1, 3]}
    assert read(made.wait) == {"b": [1, 4], "c": [0, 1, 3], "t": [0, 1, 3, 4]}
    assert read(made.finished) == finished
    assert made.fully_finished == {"a"}


def test_roots_are_found_on_every_level() -> None:
    """DefaultCheckpointPlanCalculatorTest#testComputeWithMultipleLevels, with its numbers."""
    edges: list[tuple[str, ...]] = [
        ("a", "c", "pointwise"),
        ("a", "d", "pointwise"),
        ("b", "c"),
        ("b", "d", "pointwise"),
        ("c", "e", "pointwise"),
        ("d", "e"),
    ]
    finished = {"a": [0, 1, 2, 3], "b": list(range(16)), "c": [0, 1]}
    made = plan(dict.fromkeys("abcde", 16), edges, finished)
    assert read(made.trigger) == {"a": list(range(4, 16)), "c": [2, 3], "d": [0, 1, 2, 3]}
    assert made.fully_finished == {"b"}


def test_a_stage_with_several_inputs_is_a_root_only_where_all_of_them_finished() -> None:
    """DefaultCheckpointPlanCalculatorTest#testComputeWithMultipleInputs."""
    stages = {"a": 2, "b": 2, "t": 2}
    edges: list[tuple[str, ...]] = [("a", "t", "pointwise"), ("b", "t", "pointwise")]
    assert "t" not in plan(stages, edges, {"a": [0, 1]}).trigger
    assert read(plan(stages, edges, {"a": [0, 1], "b": [0]}).trigger) == {"b": [1], "t": [0]}


def test_levels_that_finished_one_after_another_move_the_roots_down() -> None:
    """DefaultCheckpointPlanCalculatorTest#testComputeWithMultipleLevels."""
    stages = {"s": 2, "m": 2, "t": 2}
    edges: list[tuple[str, ...]] = [("s", "m"), ("m", "t")]
    made = plan(stages, edges, {"s": [0, 1]})
    assert read(made.trigger) == {"m": [0, 1]}
    assert made.fully_finished == {"s"}
    made = plan(stages, edges, {"s": [0, 1], "m": [0, 1]})
    assert read(made.trigger) == {"t": [0, 1]}


def test_a_task_that_does_not_run_makes_the_plan_impossible() -> None:
    """C025: DefaultCheckpointPlanCalculatorTest#testPlanCalculationWhenOneTaskNotRunning."""
    graph = build_graph("p", {"s": 2}, [], frozenset())
    for status in (StageStatus.CREATED, StageStatus.DEPLOYING, StageStatus.INITIALIZING, StageStatus.FAILED):
        tasks = TaskTable.of(graph, CoordinatorEpoch(1))
        tasks = tasks.reported(StageUid("s"), status, subtask=1)
        made = calculate_plan(graph, tasks, after_tasks_finish=True)
        assert made == NotPossible(f"Subtask 1 of stage 's' is {status}, not running.")


def test_finished_tasks_make_the_plan_impossible_where_the_feature_is_off() -> None:
    """C026: CheckpointCoordinatorTest#testCheckpointAbortsIfTriggerTasksAreFinished."""
    graph = build_graph("p", {"s": 2}, [], frozenset())
    made = calculate_plan(graph, table(graph, {"s": [0]}), after_tasks_finish=False)
    assert isinstance(made, NotPossible)


def test_nothing_is_left_to_checkpoint_when_all_have_finished() -> None:
    graph = build_graph("p", {"s": 1, "t": 1}, [("s", "t")], frozenset())
    made = calculate_plan(graph, table(graph, {"s": [0], "t": [0]}), after_tasks_finish=True)
    assert isinstance(made, NotPossible)


@given(st.integers(1, 12), st.integers(1, 12))
def test_pointwise_inputs_cover_every_upstream_subtask_and_leave_no_downstream_without(
    up: int, down: int
) -> None:
    """Flink: VertexInputInfoComputationUtils."""
    ranges = [range(*pointwise_inputs(i, up, down)) for i in range(down)]
    assert all(len(r) >= 1 for r in ranges)
    assert {u for r in ranges for u in r} == set(range(up))
    sizes = {len(r) for r in ranges}
    assert max(sizes) - min(sizes) <= 1


@given(st.data())
def test_every_running_subtask_is_triggered_or_fed_by_a_running_one(data: st.DataObject) -> None:
    """The barrier reaches every running task: a root, or downstream of one that runs."""
    widths = data.draw(st.tuples(*[st.integers(1, 5)] * 3))
    stages = dict(zip("abc", widths, strict=True))
    patterns = data.draw(st.tuples(*[st.sampled_from(["pointwise", "all_to_all"])] * 2))
    edges: list[tuple[str, ...]] = [("a", "b", patterns[0]), ("b", "c", patterns[1])]
    finished = {u: sorted(data.draw(st.sets(st.integers(0, w - 1)))) for u, w in stages.items()}
    if all(len(finished[u]) == w for u, w in stages.items()):
        return
    made = plan(stages, edges, finished)
    trigger, wait = read(made.trigger), read(made.wait)
    upstream = {"b": ("a", patterns[0]), "c": ("b", patterns[1])}
    for uid, running in wait.items():
        for index in running:
            feeders: set[int] = set()
            if uid in upstream:
                source, pattern = upstream[uid]
                whole = range(stages[source])
                fed = (
                    whole
                    if pattern == "all_to_all"
                    else range(*pointwise_inputs(index, stages[source], stages[uid]))
                )
                feeders = set(fed) & set(wait.get(source, []))
            assert (index in trigger.get(uid, [])) == (not feeders)
