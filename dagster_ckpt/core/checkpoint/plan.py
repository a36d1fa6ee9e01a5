"""Checkpoint plan: the subtasks that are triggered, waited for and notified, finished ones considered.

Source: flink-runtime DefaultCheckpointPlanCalculator and DefaultCheckpointPlan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dagster_ckpt.core.checkpoint.tasks import StageTasks, TaskTable, bits
from dagster_ckpt.core.graph import Edge, EdgePattern, PipelineGraph
from dagster_ckpt.core.ids import StageUid


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlan:
    """Bit masks of subtasks per stage; stages with an empty mask are left out."""

    trigger: Mapping[StageUid, int]
    """Roots of what still runs: they get the barrier from the coordinator."""
    wait: Mapping[StageUid, int]
    """Those whose part is awaited, and that are notified when it is over (Flink: tasks to commit to)."""
    finished: Mapping[StageUid, int]
    """Those that had finished when the plan was made: in ``wait`` too only where their host keeps their position."""
    fully_finished: frozenset[StageUid] = frozenset()
    """Stages of which every subtask had finished."""


@dataclass(frozen=True, slots=True)
class NotPossible:
    """No checkpoint can be taken now; ``why`` is one sentence."""

    why: str


def calculate_plan(
    graph: PipelineGraph, tasks: TaskTable, *, after_tasks_finish: bool
) -> CheckpointPlan | NotPossible:
    """Return the plan of a checkpoint triggered now.

    Every subtask must run or have finished; with ``after_tasks_finish`` off none may have finished.
    """
    for stage in tasks.stages.values():
        if stage.unready:
            index = next(bits(stage.unready))
            status = stage.status_of(index)
            return NotPossible(f"Subtask {index} of stage {stage.uid!r} is {status}, not running.")
        if stage.finished and not after_tasks_finish:
            index = next(bits(stage.finished))
            return NotPossible(
                f"Subtask {index} of stage {stage.uid!r} has finished, and checkpoints_after_tasks_finish is off."
            )
    wait = {s.uid: mask for s in graph.topological if (mask := tasks.stage(s.uid).giving)}
    if not wait:
        return NotPossible("Every stage has finished: there is nothing left to take a checkpoint of.")
    trigger = {uid: mask for uid in wait if (mask := _roots(graph, tasks, uid))}
    finished = {s.uid: mask for s in graph.topological if (mask := tasks.stage(s.uid).finished)}
    fully = frozenset(uid for uid, mask in finished.items() if mask == tasks.stage(uid).everyone)
    return CheckpointPlan(trigger=trigger, wait=wait, finished=finished, fully_finished=fully)


def blocking_edge(graph: PipelineGraph, tasks: TaskTable) -> Edge | None:
    """Return an edge with a blocking output, or None: with one, no checkpoint is possible.

    It blocks until the stage before it has finished
    (DefaultSchedulerTest#testStartCheckpointOnlyAfterVertexWithBlockingEdgeFinished).
    """
    blocking = (edge for edge in graph.edges if edge.blocking)
    return next((edge for edge in blocking if tasks.stage(edge.upstream).unfinished), None)


def _roots(graph: PipelineGraph, tasks: TaskTable, uid: StageUid) -> int:
    """Mask of the running subtasks none of whose upstream subtasks runs."""
    stage = tasks.stage(uid)
    roots = stage.running
    for edge in graph.inputs[uid]:
        upstream = tasks.stage(edge.upstream)
        if not upstream.running:
            continue
        if edge.pattern is EdgePattern.ALL_TO_ALL or upstream.running == upstream.everyone:
            return 0
        roots &= ~_fed_by_running(upstream, stage)
    return roots


def _fed_by_running(upstream: StageTasks, downstream: StageTasks) -> int:
    """Mask of the downstream subtasks that a running upstream subtask feeds pointwise."""
    fed = 0
    for index in range(downstream.parallelism):
        start, stop = pointwise_inputs(index, upstream.parallelism, downstream.parallelism)
        if (upstream.running >> start) & ((1 << (stop - start)) - 1):
            fed |= 1 << index
    return fed


def pointwise_inputs(subtask: int, upstream: int, downstream: int) -> tuple[int, int]:
    """Return the half-open range of upstream subtasks that feed ``subtask`` of ``downstream`` ones pointwise."""
    if upstream < downstream:
        start = subtask * upstream // downstream
        return start, start + 1
    return subtask * upstream // downstream, (subtask + 1) * upstream // downstream
