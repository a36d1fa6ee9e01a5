"""Table of subtasks, with status and try of each; the plan of a checkpoint: who is triggered, awaited, notified.

Kept as bit masks per stage (bit i: subtask i), so that ten thousand subtasks cost as much as ten.
Source: flink-runtime DefaultCheckpointPlanCalculator and DefaultCheckpointPlan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from dagster_ckpt.core.graph import Edge, EdgePattern, PipelineGraph
from dagster_ckpt.core.ids import CoordinatorEpoch, ExecutionAttempt, StageUid
from dagster_ckpt.errors import InvalidRequest, NotFound


class StageStatus(StrEnum):
    """Status of one try of a subtask (Flink: ExecutionState)."""

    CREATED = "created"
    DEPLOYING = "deploying"
    INITIALIZING = "initializing"
    """Restoring its state."""
    RUNNING = "running"
    FINISHED = "finished"
    """Ended by itself: its part is complete and needs no further checkpoint."""
    CANCELED = "canceled"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """True where this try will never run again: the next report is about a new try."""
        return self in (StageStatus.FINISHED, StageStatus.CANCELED, StageStatus.FAILED)


_NO_NUMBERS: Mapping[int, int] = MappingProxyType({})
_NO_STATUSES: Mapping[int, StageStatus] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTasks:
    """The subtasks of one stage. A subtask that was never reported is taken to run."""

    uid: StageUid
    parallelism: int
    finished: int = 0
    """Mask of the FINISHED ones."""
    unready: int = 0
    """Mask of those that reported anything but RUNNING and FINISHED."""
    end_of_data: int = 0
    """Mask of those that run but have consumed all their input (Flink: operators finished)."""
    statuses: Mapping[int, StageStatus] = field(default_factory=lambda: _NO_STATUSES)
    """Last report of each unready subtask."""
    numbers: Mapping[int, int] = field(default_factory=lambda: _NO_NUMBERS)
    """Try of each subtask that is not at its first."""
    keeps_position: bool = False
    """It has finished, and its host stores its last position with every checkpoint; Flink's holds nothing then."""

    @property
    def everyone(self) -> int:
        """Mask with a bit for every subtask."""
        return (1 << self.parallelism) - 1

    @property
    def running(self) -> int:
        """Mask of those that run."""
        return self.everyone & ~self.finished & ~self.unready

    @property
    def unfinished(self) -> int:
        """Mask of those that have not finished."""
        return self.everyone & ~self.finished

    @property
    def reading(self) -> int:
        """Mask of those that run and have not consumed all their input."""
        return self.running & ~self.end_of_data

    def status_of(self, subtask: int) -> StageStatus:
        """Return the status of one subtask."""
        bit = 1 << subtask
        if self.finished & bit:
            return StageStatus.FINISHED
        return self.statuses.get(subtask, StageStatus.RUNNING)

    def number_of(self, subtask: int) -> int:
        """Return which try of the subtask is current."""
        return self.numbers.get(subtask, 0)

    @property
    def giving(self) -> int:
        """Mask of those whose part belongs to a checkpoint that is triggered now."""
        return self.running | (self.finished if self.keeps_position else 0)

    def reported(self, whose: range, status: StageStatus, *, keeps_position: bool = False) -> StageTasks:
        """Return these subtasks after a report about some; after a try that is over, a new one begins."""
        mask = ((1 << len(whose)) - 1) << whose.start
        is_ready = status in (StageStatus.RUNNING, StageStatus.FINISHED)
        statuses = {k: v for k, v in self.statuses.items() if k not in whose}
        if not is_ready:
            statuses |= dict.fromkeys(whose, status)
        begun_again = 0 if status.is_over else mask & self._over()
        return replace(
            self,
            finished=self.finished | mask if status is StageStatus.FINISHED else self.finished & ~mask,
            unready=self.unready & ~mask if is_ready else self.unready | mask,
            end_of_data=self.end_of_data & ~begun_again,
            statuses=statuses,
            numbers=self._numbers_after(begun_again),
            keeps_position=status is StageStatus.FINISHED and (keeps_position or self.keeps_position),
        )

    def _over(self) -> int:
        """Mask of the subtasks whose current try is over."""
        return self.finished | sum(1 << index for index, s in self.statuses.items() if s.is_over)

    def _numbers_after(self, begun_again: int) -> Mapping[int, int]:
        if not begun_again:
            return self.numbers
        return {**self.numbers, **{i: self.number_of(i) + 1 for i in bits(begun_again)}}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTable:
    """All subtasks of the attempt."""

    epoch: CoordinatorEpoch
    stages: Mapping[StageUid, StageTasks] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: PipelineGraph, epoch: CoordinatorEpoch) -> TaskTable:
        """Return a table in which nothing was reported yet."""
        return cls(
            epoch=epoch,
            stages={s.uid: StageTasks(uid=s.uid, parallelism=s.parallelism) for s in graph.stages},
        )

    def stage(self, uid: StageUid) -> StageTasks:
        """Return the subtasks of one stage. Raises NotFound."""
        try:
            return self.stages[uid]
        except KeyError:
            raise NotFound(
                f"there is no stage {uid!r}: the stages are {', '.join(sorted(self.stages))}"
            ) from None

    def reported(
        self, uid: StageUid, status: StageStatus, *, subtask: int | None, keeps_position: bool = False
    ) -> TaskTable:
        """Return the table after a report about one subtask, or about all (``subtask`` None)."""
        tasks = self.stage(uid)
        whose = self._indices(tasks, subtask)
        changed = tasks.reported(whose, status, keeps_position=keeps_position)
        return replace(self, stages={**self.stages, uid: changed})

    def at_end_of_data(self, uid: StageUid, *, subtask: int | None) -> TaskTable:
        """Return the table after a stage's subtasks have consumed all their bounded input."""
        tasks = self.stage(uid)
        mask = tasks.everyone if subtask is None else 1 << next(iter(self._indices(tasks, subtask)))
        return replace(
            self, stages={**self.stages, uid: replace(tasks, end_of_data=tasks.end_of_data | mask)}
        )

    @property
    def has_unready(self) -> bool:
        """True while some subtask deploys, restores, failed or was canceled."""
        return any(tasks.unready for tasks in self.stages.values())

    @property
    def is_at_end(self) -> bool:
        """True when every subtask has consumed all its input or finished (final checkpoint is due)."""
        return all(
            not tasks.everyone & ~(tasks.finished | tasks.end_of_data) for tasks in self.stages.values()
        )

    def attempt(self, uid: StageUid, subtask: int = 0) -> ExecutionAttempt:
        """Return the current try of a subtask."""
        number = self.stage(uid).number_of(subtask)
        return ExecutionAttempt(stage=uid, subtask=subtask, epoch=self.epoch, number=number)

    def attempts(self, masks: Mapping[StageUid, int]) -> tuple[ExecutionAttempt, ...]:
        """Return the current tries of the subtasks in ``masks``, in stage and subtask order."""
        return tuple(self.attempt(uid, index) for uid, mask in masks.items() for index in bits(mask))

    @staticmethod
    def _indices(tasks: StageTasks, subtask: int | None) -> range:
        if subtask is None:
            return range(tasks.parallelism)
        if not 0 <= subtask < tasks.parallelism:
            raise InvalidRequest(
                f"stage {tasks.uid!r} has {tasks.parallelism} subtasks, so no subtask {subtask}"
            )
        return range(subtask, subtask + 1)


def bits(mask: int) -> Iterator[int]:
    """Yield the indices of the set bits, ascending."""
    text = bin(mask)
    top = len(text) - 1
    for position in range(top, 1, -1):
        if text[position] == "1":
            yield top - position


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
