"""The coordinator's whole state as a value, and the shape of a decision about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Concatenate, NamedTuple, ParamSpec

from dagster_ckpt.core.checkpoint.pending import PendingState, caught_up, replace_fast, resume_progress
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord, PendingRecord
from dagster_ckpt.core.checkpoint.requests import (
    PeriodicScheduler,
    RequestQueue,
    StopWithSavepoint,
    effective_interval,
    effective_min_pause,
)
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics
from dagster_ckpt.core.checkpoint.tasks import TaskTable, blocking_edge
from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.coordinator.effects import CoordinatorEvent, Effect, Tell
from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId, StageUid

P = ParamSpec("P")


class Now(NamedTuple):
    """The moment of a decision."""

    wall: float
    """Seconds since the Unix epoch, for records people read and for what another process must understand."""
    monotonic: float
    """Seconds that never run backwards, for delays within the process."""


class AckDurability(StrEnum):
    """Durability of acknowledgements: when a stage's reaches the store."""

    PER_STAGE = "per_stage"
    """At once: any process of the run can finish the checkpoint."""
    AT_COMPLETION = "at_completion"
    """With the completion, as in Flink: for a run whose stages are all in one process; saves a write per stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Setup of a coordinator: constant while it lives."""

    graph: PipelineGraph
    config: CheckpointConfig
    storage_uri: str
    """Base URI of checkpoint storage."""
    hooks: frozenset[str] = frozenset()
    """Ids of the master hooks."""
    coordinators: frozenset[StageUid] = frozenset()
    """Stages whose driver-side coordinator must acknowledge."""
    library_version: str = ""
    acks: AckDurability = AckDurability.PER_STAGE

    @property
    def pipeline(self) -> PipelineId:
        """Name of the pipeline."""
        return self.graph.pipeline


@dataclass(frozen=True, kw_only=True)
class CoordinatorState:
    """``record`` is durable; everything else is rebuilt, or lost with the process as in Flink."""

    setup: Setup
    record: CoordinatorRecord
    tasks: TaskTable
    progress: Mapping[CheckpointId, PendingState] = field(default_factory=dict)
    """One per pending checkpoint of the record."""
    queue: RequestQueue = field(default_factory=RequestQueue)
    requests: int = 0
    """Requests made so far in this process."""
    triggering: CheckpointId | None = None
    scheduler: PeriodicScheduler = field(default_factory=PeriodicScheduler)
    is_started: bool = False
    """The run is RUNNING, as far as this process was told."""
    is_activated: bool = False
    """The periodic scheduler was switched on because the run and all its subtasks run."""
    is_shut_down: bool = False
    cleaning: frozenset[CheckpointId] = frozenset()
    """Checkpoints whose files this process is deleting."""
    notifying: Mapping[CheckpointId, float] = field(default_factory=dict)
    """Completed checkpoints of which this process is notifying the stages, and since when (monotonic)."""
    last_completion: float | None = None
    """Monotonic time of the last completion; None: the first periodic checkpoint need not wait."""
    statistics: Mapping[CheckpointId, CheckpointStatistics] = field(default_factory=dict)
    """Of checkpoints that ended in this process, single subtasks included."""
    stop: StopWithSavepoint | None = None
    final_triggered: bool = False
    """The checkpoint at the end of all data was asked for."""

    @property
    def epoch(self) -> CoordinatorEpoch:
        """The attempt this coordinator serves."""
        return self.tasks.epoch

    @property
    def config(self) -> CheckpointConfig:
        """Settings."""
        return self.setup.config

    @property
    def graph(self) -> PipelineGraph:
        """Stages and edges."""
        return self.setup.graph

    @property
    def is_periodic_configured(self) -> bool:
        """True where periodic checkpoints are wanted and possible."""
        return effective_interval(self.config) is not None and blocking_edge(self.graph, self.tasks) is None

    def pause_left(self, now: Now) -> float:
        """Seconds of the minimum pause that are left."""
        if self.last_completion is None:
            return 0.0
        return self.last_completion + effective_min_pause(self.config) - now.monotonic

    def with_progress(self, progress: PendingState) -> CoordinatorState:
        """Return the state with one checkpoint's progress replaced."""
        return replace_fast(self, progress={**self.progress, progress.checkpoint_id: progress})

    def with_record(self, **changes: Any) -> CoordinatorState:
        """Return the state with fields of the record replaced."""
        return replace(self, record=self.record.model_copy(update=changes))

    def with_pending(self, pending: PendingRecord) -> CoordinatorState:
        """Return the state with one pending checkpoint's record replaced."""
        return replace(self, record=self.record.with_pending(pending))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Decision on an input: the next state, the effects to run once it is stored, the answer to the caller.

    ``history`` holds the numbers of checkpoints whose status changed, to be written with the record; the rows of
    ``forgotten`` ones leave the history with it.
    """

    state: CoordinatorState
    effects: tuple[Effect, ...] = ()
    answer: Any = None
    history: tuple[CheckpointStatistics, ...] = ()
    forgotten: tuple[CheckpointId, ...] = ()

    def then(
        self, step: Callable[Concatenate[CoordinatorState, P], Decision], *args: P.args, **kwargs: P.kwargs
    ) -> Decision:
        """Return the decision followed by ``step`` on its state; the later answer wins if there is one."""
        after = step(self.state, *args, **kwargs)
        return Decision(
            state=after.state,
            effects=(*self.effects, *after.effects),
            answer=self.answer if after.answer is None else after.answer,
            history=(*self.history, *after.history),
            forgotten=(*self.forgotten, *after.forgotten),
        )

    def with_state(self, state: CoordinatorState) -> Decision:
        """Return the decision with another state."""
        return replace(self, state=state)

    def with_answer(self, answer: Any) -> Decision:
        """Return the decision with another answer."""
        return replace(self, answer=answer)

    def doing(self, *effects: Effect) -> Decision:
        """Return the decision with more effects after its own."""
        return replace(self, effects=(*self.effects, *effects))

    def telling(self, event: CoordinatorEvent) -> Decision:
        """Return the decision with one more event for the listeners."""
        return self.doing(Tell(event))


def reconciled(state: CoordinatorState, record: CoordinatorRecord, now: Now) -> CoordinatorState:
    """Return the state on a record that another process of the attempt changed.

    Progress of checkpoints that are no longer pending goes; what is new is taken up as far as it is durable.
    Acknowledgements that this process keeps until the completion are not in the other's record: they stand.
    """
    if state.setup.acks is AckDurability.AT_COMPLETION:
        own = {p.checkpoint_id: p for p in state.record.pending}
        kept = tuple(_with_kept_snapshots(p, own.get(p.checkpoint_id)) for p in record.pending)
        record = record.model_copy(update={"pending": kept})
    progress: dict[CheckpointId, PendingState] = {}
    for pending in record.pending:
        number = CheckpointId(pending.checkpoint_id)
        deadline = now.monotonic + pending.deadline_at - now.wall
        known = state.progress.get(number)
        if known is None:
            progress[number] = resume_progress(pending, state.tasks, deadline=deadline)
            continue
        if known.deadline_at != pending.deadline_at:
            known = replace(known, deadline=deadline, deadline_at=pending.deadline_at)
        progress[number] = caught_up(known, pending)
    triggering = state.triggering if state.triggering in progress else None
    last = state.last_completion
    if record.last_completed_at is not None and record.last_completed_at != state.record.last_completed_at:
        last = now.monotonic - max(0.0, now.wall - record.last_completed_at)
    return replace(state, record=record, progress=progress, triggering=triggering, last_completion=last)


def _with_kept_snapshots(stored: PendingRecord, own: PendingRecord | None) -> PendingRecord:
    if own is None:
        return stored
    kept = {part.uid: part for part in own.stages if part.snapshot is not None}
    parts = tuple(
        part.model_copy(
            update={"snapshot": kept[part.uid].snapshot, "acknowledged_at": kept[part.uid].acknowledged_at}
        )
        if part.snapshot is None and part.uid in kept
        else part
        for part in stored.stages
    )
    return stored.model_copy(update={"stages": parts})
