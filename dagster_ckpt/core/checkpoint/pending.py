"""The volatile side of a pending checkpoint: how far its trigger got and which subtasks have acknowledged.

Acknowledgements are bits in a mask plus a linked list, so one more costs the same for ten subtasks as for ten
thousand, and every intermediate state is a value. The durable side is ``record.PendingRecord``.
Source: flink-runtime PendingCheckpoint (PendingCheckpointTest).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from dagster_ckpt.core.checkpoint.record import PendingRecord, PendingStageRecord
from dagster_ckpt.core.checkpoint.tasks import CheckpointPlan, TaskTable
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, ExecutionAttempt, StageUid
from dagster_ckpt.core.messages import AcknowledgeResult, StateHandle, SubtaskAcknowledgement, SubtaskReport
from dagster_ckpt.core.model import SnapshotMetrics

T = TypeVar("T")


def replace_fast(value: T, **changed: Any) -> T:
    """Return a copy of ``value``, a dataclass without slots, with some fields replaced."""
    copy = object.__new__(type(value))
    fields = copy.__dict__
    fields.update(value.__dict__)
    fields.update(changed)
    return copy


class Phase(StrEnum):
    """Phase of a pending checkpoint; only one is before COLLECTING at a time."""

    LOCATION = "location"
    """Its storage location is being made."""
    COORDINATORS = "coordinators"
    """Driver-side states are being collected."""
    HOOKS = "hooks"
    """Master hooks are being called."""
    TRIGGERING = "triggering"
    """The stages are being told."""
    COLLECTING = "collecting"
    """Acknowledgements are awaited."""
    FINALIZING = "finalizing"
    """All have acknowledged; the metadata is being written and stored."""


class AckedSubtask(NamedTuple):
    """One accepted acknowledgement, linked to those before it; made once per subtask, so it must be cheap."""

    subtask: int
    acknowledged_at: float
    handles: tuple[StateHandle, ...]
    metrics: SnapshotMetrics | None
    before: AckedSubtask | None


_FIRST_TRY: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class StageProgress:
    """Acknowledgements of one stage's subtasks."""

    uid: StageUid
    parallelism: int
    epoch: CoordinatorEpoch
    waiting: int
    """Mask of the subtasks that must acknowledge, whether they have or not."""
    acked: int = 0
    finished: int = 0
    """Mask of those that had finished, or were restored as finished: they have no state."""
    operators_finished: int = 0
    """Mask of those whose operators were finished before their snapshot: what they saved is kept."""
    numbers: Mapping[int, int] = field(default_factory=lambda: _FIRST_TRY)
    """Try of each subtask that was not at its first when the checkpoint was triggered."""
    retries: int = 0
    """Tries of the snapshot granted since: acknowledgements of so many later tries count as well."""
    last: AckedSubtask | None = None

    @property
    def is_acknowledged(self) -> bool:
        """True when no subtask is outstanding."""
        return self.acked == self.waiting

    @property
    def everyone(self) -> int:
        """Mask with a bit for every subtask."""
        return (1 << self.parallelism) - 1

    def acks(self) -> Iterator[AckedSubtask]:
        """Yield the accepted acknowledgements, newest first."""
        link = self.last
        while link is not None:
            yield link
            link = link.before

    def judge(self, attempt: ExecutionAttempt) -> AcknowledgeResult:
        """Return the answer to an acknowledgement by ``attempt``: SUCCESS, DUPLICATE or UNKNOWN."""
        subtask = attempt.subtask
        if attempt.epoch != self.epoch or not 0 <= subtask < self.parallelism:
            return AcknowledgeResult.UNKNOWN
        bit = 1 << subtask
        ahead = attempt.number - self.numbers.get(subtask, 0)
        if not self.waiting & bit or not 0 <= ahead <= self.retries:
            return AcknowledgeResult.UNKNOWN
        return AcknowledgeResult.DUPLICATE if self.acked & bit else AcknowledgeResult.SUCCESS

    def acknowledged(self, ack: SubtaskAcknowledgement, now: float) -> StageProgress:
        """Return the progress with one acknowledgement that was judged a SUCCESS."""
        subtask, report = ack.attempt.subtask, ack.report
        bit = 1 << subtask
        ended = bit if report is SubtaskReport.OPERATORS_FINISHED else 0
        return replace_fast(
            self,
            acked=self.acked | bit,
            finished=self.finished | bit if report is SubtaskReport.FINISHED_ON_RESTORE else self.finished,
            operators_finished=self.operators_finished | ended,
            last=AckedSubtask(subtask, now, ack.handles, ack.metrics, self.last),
        )


@dataclass(frozen=True, kw_only=True)
class PendingState:
    """Everything volatile about one pending checkpoint."""

    checkpoint_id: CheckpointId
    phase: Phase
    plan: CheckpointPlan
    stages: Mapping[StageUid, StageProgress]
    """The stages whose part is awaited."""
    deadline: float
    """Monotonic time at which it expires."""
    deadline_at: float
    """The same as stored, to notice when another process moved it."""
    is_savepoint: bool = False
    """Its files are the user's: none of them is shared with a checkpoint."""
    handles: Mapping[StageUid, tuple[StateHandle, ...]] = field(default_factory=dict)
    """Files of the stages that acknowledged as a whole, as far as this process heard them."""
    subtask_metrics: Mapping[StageUid, Mapping[int, SnapshotMetrics]] = field(default_factory=dict)
    """Numbers of their single subtasks, likewise."""

    @property
    def is_triggering(self) -> bool:
        """True until the stages were told."""
        return self.phase in (Phase.LOCATION, Phase.COORDINATORS, Phase.HOOKS, Phase.TRIGGERING)

    def with_stage(self, stage: StageProgress) -> PendingState:
        """Return the progress with one stage's part replaced."""
        return replace_fast(self, stages={**self.stages, stage.uid: stage})

    def outstanding(self, pending: PendingRecord) -> tuple[StageUid, ...]:
        """Return the stages that have not acknowledged, neither as a whole nor with all their subtasks."""
        acked = {s.uid for s in pending.stages if s.snapshot is not None}
        return tuple(uid for uid, s in self.stages.items() if uid not in acked and not s.is_acknowledged)

    def is_fully_acknowledged(self, pending: PendingRecord, coordinators: frozenset[StageUid]) -> bool:
        """True when stages, driver-side states and hooks are all there."""
        if pending.hooks_owed or not coordinators <= pending.coordinators.keys():
            return False
        return not self.outstanding(pending)


def begin_progress(
    *,
    checkpoint_id: CheckpointId,
    plan: CheckpointPlan,
    tasks: TaskTable,
    deadline: float,
    deadline_at: float,
    is_savepoint: bool,
) -> PendingState:
    """Return the progress of a checkpoint just triggered."""
    stages = {
        uid: StageProgress(
            uid=uid,
            parallelism=tasks.stage(uid).parallelism,
            epoch=tasks.epoch,
            waiting=mask,
            finished=plan.finished.get(uid, 0),
            numbers=tasks.stage(uid).numbers,
        )
        for uid, mask in plan.wait.items()
    }
    return PendingState(
        checkpoint_id=checkpoint_id,
        phase=Phase.LOCATION,
        plan=plan,
        stages=stages,
        deadline=deadline,
        deadline_at=deadline_at,
        is_savepoint=is_savepoint,
    )


def resume_progress(pending: PendingRecord, tasks: TaskTable, *, deadline: float) -> PendingState:
    """Return the progress of a checkpoint that another process of the attempt triggered.

    Its subtask acknowledgements, if any, are unknown here; whole stages are in the record.
    """
    parts = {StageUid(s.uid): s for s in pending.stages}
    before = {uid: _finished_mask(s, tasks.stage(uid).everyone) for uid, s in parts.items()}
    wait = {
        uid: everyone if s.keeps_position else everyone & ~before[uid]
        for uid, s in parts.items()
        if (everyone := tasks.stage(uid).everyone) and (s.keeps_position or not s.finished)
    }
    finished = {uid: mask for uid, mask in before.items() if mask}
    fully = frozenset(uid for uid, s in parts.items() if s.finished)
    return PendingState(
        checkpoint_id=CheckpointId(pending.checkpoint_id),
        phase=Phase.COLLECTING,
        plan=CheckpointPlan(trigger={}, wait=wait, finished=finished, fully_finished=fully),
        stages={uid: _resumed(parts[uid], tasks, mask, before[uid]) for uid, mask in wait.items()},
        deadline=deadline,
        deadline_at=pending.deadline_at,
        is_savepoint=pending.properties.kind.is_savepoint,
    )


def _finished_mask(part: PendingStageRecord, everyone: int) -> int:
    return everyone if part.finished else sum(1 << index for index in part.finished_subtasks)


def _resumed(part: PendingStageRecord, tasks: TaskTable, waiting: int, finished: int) -> StageProgress:
    uid = StageUid(part.uid)
    parallelism = tasks.stage(uid).parallelism
    return StageProgress(
        uid=uid,
        parallelism=parallelism,
        epoch=tasks.epoch,
        waiting=waiting,
        acked=waiting if part.snapshot is not None else 0,
        finished=finished,
        numbers=dict.fromkeys(range(parallelism), part.number) if part.number else _FIRST_TRY,
        retries=part.retries,
    )


def caught_up(progress: PendingState, pending: PendingRecord) -> PendingState:
    """Return the progress with what another process stored: stages acknowledged, snapshots retried."""
    stages = dict(progress.stages)
    for part in pending.stages:
        stage = stages.get(StageUid(part.uid))
        if stage is None:
            continue
        if part.snapshot is not None and not stage.is_acknowledged:
            stage = replace(stage, acked=stage.waiting)
        if part.retries != stage.retries:
            stage = replace(stage, retries=part.retries)
        stages[stage.uid] = stage
    return replace(progress, stages=stages)
