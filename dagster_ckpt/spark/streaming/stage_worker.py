"""One stage of a streaming run: feeds its alignment and its checkpoint state, and performs what they decide.

Used by the barrier loop's thread only; snapshots run in threads of their own and come back through the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

from dagster_ckpt.core.alignment import Decline, ForwardCancel, InFlightComplete, TriggerSnapshot
from dagster_ckpt.core.ids import BatchId, CheckpointId, LogPosition, StageUid
from dagster_ckpt.core.messages import BarrierOptions, CheckpointFailureReason
from dagster_ckpt.core.subtask.checkpoints import AsyncPart, SubtaskCheckpoints, SubtaskStep
from dagster_ckpt.core.subtask.effects import (
    Acknowledge,
    ArmAlignmentTimer,
    CancelAsyncPart,
    ConfirmLocalCopy,
    DeclineCheckpoint,
    DiscardChannelState,
    DiscardOwnFiles,
    DropLocalCopy,
    EmitBarrier,
    EmitCancelMarker,
    FailTask,
    FinishOperators,
    FinishOutputChannelState,
    FinishTask,
    PrepareBarrier,
    ReportMetrics,
    SubtaskEffect,
    TakeSnapshot,
    TellAborted,
    TellComplete,
    TellSubsumed,
)
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.spark.channel.log import FIRST_POSITION
from dagster_ckpt.spark.snapshot.take import Cut
from dagster_ckpt.spark.streaming.gate import BatchGate, Hold, InducedBarriers, Trigger
from dagster_ckpt.spark.streaming.input_alignment import Aligned, BarrierWriter, InputAlignment, Passed
from dagster_ckpt.spark.streaming.snapshot_job import SnapshotJob, SnapshotJobs, room

if TYPE_CHECKING:
    from dagster_ckpt.core.config import CheckpointConfig
    from dagster_ckpt.spark.channel.entries import Release
    from dagster_ckpt.spark.channel.log import ChannelLog
    from dagster_ckpt.spark.channel.positions import CommittedBatches
    from dagster_ckpt.spark.snapshot.take import StageSnapshotter
    from dagster_ckpt.spark.streaming.input_alignment import InputChannel

log = logging.getLogger("dagster_ckpt.stage")

BATCHES_KEPT = 100
"""Batches that Spark keeps of a query, where nothing else is said: ``minBatchesToRetain``."""

MakeJob = Callable[[Cut, "StageWorker"], SnapshotJob]
DeclineLater = Callable[["StageSnapshotter", DeclineCheckpoint | Decline], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCut:
    """A stage's part of a cut that was chosen without barriers."""

    batch: BatchId | None
    output_position: LogPosition
    """Where its own log is cut."""
    read: Mapping[StageUid, LogPosition]
    """How far it had read each input behind that batch."""
    input_positions: Mapping[StageUid, LogPosition]
    """Where the logs of its inputs are cut."""
    recording: frozenset[StageUid] = frozenset()
    """Inputs with rows in between."""


@dataclass(slots=True)
class _BegunCheckpoint:
    """A checkpoint between its first step and its snapshot."""

    timestamp: float
    trigger: TriggerSnapshot | None
    """None: the coordinator triggered it, nothing was aligned."""
    barrier: tuple[LogPosition, BatchId | None] | None = None
    """The stage's own barrier, once it is in the log."""
    chosen: StageCut | None = None
    """The cut, where no barrier flows."""


@dataclass(kw_only=True)
class StageWorker:
    """The moving part of one stage; everything it needs is given, so that tests can stand in for Spark."""

    uid: StageUid
    config: CheckpointConfig
    log: ChannelLog
    release: Release
    batches: CommittedBatches
    inputs: Mapping[StageUid, InputChannel]
    """Empty for a source."""
    gate: BatchGate
    snapshotter: StageSnapshotter
    make_job: MakeJob
    decline_later: DeclineLater
    confirm_aborted: Callable[[CheckpointId, StageUid], None]
    on_finished: Callable[[StageUid], None]
    induced: InducedBarriers | None = None
    """Of a source that decides itself where barriers fall."""
    batches_kept: int = BATCHES_KEPT
    keeps_rows: bool = False
    """A table shows rows of its batches."""
    begins_at: LogPosition = FIRST_POSITION
    """End of its log when the attempt began: what lies before may be in-flight data that was put back."""
    is_ended: bool = False
    """It has processed all rows of a bounded source, or of inputs that have ended: no row follows its last batch."""
    finished_from: CheckpointId | None = None
    """First checkpoint whose cut lies behind all its rows, and those of all its inputs; so do all later ones."""
    feeders: Sequence[StageWorker] = ()
    subtask: SubtaskCheckpoints = field(default_factory=SubtaskCheckpoints)
    _begun: dict[CheckpointId, _BegunCheckpoint] = field(default_factory=dict)
    _waiting: list[Trigger] = field(default_factory=list)
    """Triggers of the savepoint that ends the run, which wait for the batch inside the gate."""

    def __post_init__(self) -> None:
        self.barriers = BarrierWriter(uid=self.uid, log=self.log, release=self.release)
        self.jobs = SnapshotJobs(uid=self.uid)
        self.alignment = InputAlignment(
            uid=self.uid,
            config=self.config,
            batches=self.batches,
            inputs=self.inputs,
            was_aborted=lambda number: self.subtask.was_aborted(number),  # noqa: PLW0108 - it is replaced
            decided=self._act,
        )

    # --- what comes from outside ------------------------------------------------------------------------------

    def trigger(self, checkpoint_id: CheckpointId, timestamp: float, options: BarrierOptions) -> None:
        """Begin a checkpoint at this stage: the coordinator triggers the roots of the graph directly."""
        if self.induced is not None:
            self.induced.add((checkpoint_id, timestamp, options))
        elif options.kind.is_synchronous:
            self.gate.hold(Hold.SAVEPOINT)
            self._waiting.append((checkpoint_id, timestamp, options))
        else:
            self._begin(checkpoint_id, options, _BegunCheckpoint(timestamp, None))

    def cut_at(
        self, checkpoint_id: CheckpointId, timestamp: float, options: BarrierOptions, chosen: StageCut
    ) -> None:
        """Begin a checkpoint whose cut is chosen: no barrier goes downstream."""
        barrier = (chosen.output_position, chosen.batch)
        self._begin(checkpoint_id, options, _BegunCheckpoint(timestamp, None, barrier, chosen))

    def decline(self, checkpoint_id: CheckpointId, message: str) -> None:
        """Tell the coordinator that the stage cannot take its part."""
        reason = CheckpointFailureReason.CHECKPOINT_DECLINED
        self.decline_later(self.snapshotter, DeclineCheckpoint(checkpoint_id, reason, message))

    def aborted(self, checkpoint_id: CheckpointId, latest_completed: CheckpointId | None, now: float) -> None:
        """A checkpoint is over without completing."""
        self._waiting = [w for w in self._waiting if w[0] != checkpoint_id]
        if self.induced is not None:
            self.induced.drop(checkpoint_id)
        self._perform(self.subtask.notify_aborted(checkpoint_id, latest_completed), now)
        if not self._waiting and self.subtask.synchronous is None:
            self._release_inputs()
        if checkpoint_id not in self.jobs:
            self.confirm_aborted(checkpoint_id, self.uid)

    def completed(self, checkpoint_id: CheckpointId, now: float) -> None:
        """A checkpoint is complete."""
        log.debug("%s: Notify checkpoint %d complete.", self.uid, checkpoint_id)
        self._perform(self.subtask.notify_complete(checkpoint_id), now)

    def job_done(self, checkpoint_id: CheckpointId, now: float) -> None:
        """A snapshot's thread has ended."""
        self.jobs.ended(checkpoint_id)
        self._perform(self.subtask.async_part_done(checkpoint_id, ()), now)

    def close(self, now: float) -> None:
        """Stop deciding: the attempt ends."""
        self.alignment.close(now)
        self.jobs.cancel_all()

    # --- looking ----------------------------------------------------------------------------------------------

    def sweep(self, now: float) -> bool:
        """Look at logs and commits, report what has come; True when something was decided."""
        decided = self._start_waiting()
        return self.alignment.sweep(now) or decided

    def _start_waiting(self) -> bool:
        """Begin the savepoint that ends the run, once no batch is being written behind its barrier."""
        if not self._waiting:
            return self._start_induced()
        if self.gate.inside is not None:
            return False
        waiting, self._waiting = self._waiting, []
        self._begin_all(waiting)
        return True

    def _start_induced(self) -> bool:
        if self.induced is None or self.subtask.synchronous is not None:
            return False
        waiting = self.induced.take()
        if waiting:
            if any(options.kind.is_synchronous for *_, options in waiting):
                self.gate.hold(Hold.SAVEPOINT)
            self._begin_all(waiting)
            self.induced.resume()
        return bool(waiting)

    def _begin_all(self, waiting: list[Trigger]) -> None:
        for number, timestamp, options in waiting:
            self._begin(number, options, _BegunCheckpoint(timestamp, None))

    # --- what the alignment decides ---------------------------------------------------------------------------

    def _act(self, aligned: Aligned, now: float) -> None:
        match aligned:
            case TriggerSnapshot():
                how = "on the first barrier" if aligned.recording else "as all the channels are aligned"
                log.debug("%s: Triggering checkpoint %d %s.", self.uid, aligned.checkpoint_id, how)
                self._begin(
                    aligned.checkpoint_id, aligned.options, _BegunCheckpoint(aligned.timestamp, aligned)
                )
            case InFlightComplete():
                barriers = self.alignment.barriers_of(aligned.checkpoint_id)
                self.jobs.barriers_arrived(aligned.checkpoint_id, barriers, aligned.alignment * 1e3)
            case Decline():
                self.decline_later(self.snapshotter, aligned)
            case ForwardCancel(checkpoint_id):
                self.barriers.cancel(checkpoint_id)
            case Passed(checkpoint_id):
                synchronous = self.subtask.synchronous
                holding = None if synchronous is None else synchronous[0]
                self.barriers.release_through(checkpoint_id, holding=holding)
            case _:
                assert_never(aligned)

    # --- what the checkpoint's own steps decide -----------------------------------------------------------------

    def _begin(self, checkpoint_id: CheckpointId, options: BarrierOptions, begun: _BegunCheckpoint) -> None:
        self._begun[checkpoint_id] = begun
        try:
            self._perform(self.subtask.checkpoint(checkpoint_id, options), begun.timestamp)
        finally:
            del self._begun[checkpoint_id]

    def _perform(self, step: SubtaskStep, now: float) -> None:
        self.subtask = step.state
        failed: CheckpointId | None = None
        for effect in step.effects:
            if failed is not None and isinstance(effect, TakeSnapshot):
                continue
            try:
                self._do(effect, now)
            except (CheckpointError, OSError) as error:
                if not isinstance(effect, (EmitBarrier, TakeSnapshot, EmitCancelMarker)):
                    raise
                failed = effect.checkpoint_id
                self._perform(self.subtask.sync_part_failed(failed, str(error)), now)

    def _do(self, effect: SubtaskEffect, now: float) -> None:  # noqa: PLR0912 - one case per effect
        match effect:
            case EmitBarrier(checkpoint_id, options):
                begun = self._begun[checkpoint_id]
                if begun.chosen is None:
                    begun.barrier = self.barriers.append(
                        checkpoint_id, timestamp=begun.timestamp, options=options
                    )
            case TakeSnapshot(checkpoint_id):
                self._take_snapshot(checkpoint_id, self._begun[checkpoint_id])
            case EmitCancelMarker(checkpoint_id):
                self.barriers.cancel(checkpoint_id)
            case CancelAsyncPart(checkpoint_id):
                self.jobs.cancel(checkpoint_id)
            case DeclineCheckpoint():
                self.decline_later(self.snapshotter, effect)
            case TellComplete(checkpoint_id):
                self.gate.open(Hold.FIRST_CHECKPOINT)
                self.alignment.forget_below(checkpoint_id)
            case TellAborted(checkpoint_id):
                self.alignment.end(checkpoint_id, now)
            case ReportMetrics(checkpoint_id):
                # The numbers went with the late acknowledgement, if there was one: now nothing more is written.
                self.confirm_aborted(checkpoint_id, self.uid)
            case FinishTask():
                self.on_finished(self.uid)
            case FailTask():
                self._release_inputs()
            case Acknowledge():
                pass  # by the snapshot's own thread, which knows the files
            case DiscardOwnFiles():
                pass  # by the coordinator, with the checkpoint's folder, once this stage has confirmed the abort
            case ConfirmLocalCopy() | DropLocalCopy():
                pass  # by the gateway, for all stages at once and also while none runs
            case PrepareBarrier() | FinishOutputChannelState() | ArmAlignmentTimer():
                pass  # a barrier comes behind a committed batch: nothing is buffered in the stage's output
            case DiscardChannelState():
                pass  # what is in flight stays in the inputs' logs and is only read by a snapshot that runs
            case FinishOperators() | TellSubsumed():
                pass  # Spark has no call for either: a watermark moves by data alone, and no operator asks
            case _:
                assert_never(effect)

    def _take_snapshot(self, checkpoint_id: CheckpointId, begun: _BegunCheckpoint) -> None:
        if begun.barrier is None:
            return
        cut = self._cut(checkpoint_id, begun, *begun.barrier)
        log.debug("%s: Starting checkpoint %d behind batch %s.", self.uid, checkpoint_id, cut.batch_id)
        self.jobs.check_room(
            room(self.config.max_concurrent_checkpoints),
            published=self.snapshotter.coordinator.notifying.keys(),
        )
        job = self.make_job(cut, self)
        chosen = begun.chosen
        pinned = {uid: channel.position for uid, channel in self.inputs.items()}
        self.jobs.add(job, pinned if chosen is None else chosen.read)
        if chosen is not None:
            job.barriers_arrived(chosen.input_positions, 0.0)
        self.subtask = self.subtask.sync_part_done(checkpoint_id).state
        job.start()

    def _cut(
        self,
        checkpoint_id: CheckpointId,
        begun: _BegunCheckpoint,
        position: LogPosition,
        batch: BatchId | None,
    ) -> Cut:
        if begun.chosen is not None:
            return Cut(
                checkpoint_id=checkpoint_id,
                batch_id=batch,
                input_positions=begun.chosen.input_positions,
                output_position=position,
                recording=begun.chosen.recording,
                finished=self._is_finished_in(checkpoint_id, batch),
            )
        trigger = begun.trigger
        return Cut(
            checkpoint_id=checkpoint_id,
            batch_id=batch,
            input_positions=self.alignment.barriers_of(checkpoint_id),
            output_position=position,
            recording=frozenset(StageUid(str(uid)) for uid in trigger.recording) if trigger else frozenset(),
            start_delay_ms=trigger.start_delay * 1e3 if trigger else 0.0,
            alignment_ms=(trigger.alignment or 0.0) * 1e3 if trigger else 0.0,
            finished=self._is_finished_in(checkpoint_id, batch),
        )

    def _is_finished_in(self, checkpoint_id: CheckpointId, batch: BatchId | None) -> bool:
        """Judge by the inputs' cuts of the same checkpoint: a restore refuses a running stage before a finished one."""
        is_fed = not all(feeder.has_finished_in(checkpoint_id) for feeder in self.feeders)
        if self.finished_from is None and self.is_ended and not is_fed and batch == self.log.last_batch():
            self.finished_from = checkpoint_id
        return self.has_finished_in(checkpoint_id)

    def _release_inputs(self) -> None:
        """The savepoint that was to end the run failed: the stage goes on where it held still."""
        self.barriers.release_held()
        self.gate.open(Hold.SAVEPOINT)

    # --- questions --------------------------------------------------------------------------------------------

    def has_finished_in(self, checkpoint_id: CheckpointId) -> bool:
        """True where its part of that checkpoint is known to be a finished stage's."""
        return self.finished_from is not None and checkpoint_id >= self.finished_from

    @property
    def most_batches_back(self) -> int:
        """So far behind its newest batch the stage is cut: the rest of what Spark keeps is time to store the cut."""
        return self.batches_kept // 2

    @property
    def blocked_since(self) -> Mapping[StageUid, float]:
        """Inputs that stand on a barrier, and since when."""
        return self.alignment.blocked_since

    def needed_from(self, *, may_be_cut_back: bool = False) -> dict[StageUid, LogPosition]:
        """Return, per input, the first entry this stage may still read or must still store.

        ``may_be_cut_back``: its readers may be behind, so that an instant cut takes it where it stood batches ago;
        what it had not read then belongs to the cut of its input.
        """
        positions = dict(self.batches.before)
        if may_be_cut_back and self.config.cuts_at_once:
            for uid, position in self.batches.positions_back(self.most_batches_back).items():
                positions[uid] = min(position, positions.get(uid, position))
        return self.jobs.needed_from(positions)

    def has_passed(self, checkpoint_id: CheckpointId) -> bool:
        """True when the checkpoint's barriers are behind this stage, and its snapshot is stored."""
        return self.subtask.async_parts.get(checkpoint_id) is AsyncPart.COMPLETED
