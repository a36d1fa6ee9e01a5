"""One stage of a streaming run: feeds its barrier handler and its checkpoint state, and performs what they decide.

Used by the barrier loop's thread only; snapshots run in threads of their own and come back through the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

from dagster_ckpt.core.alignment import (
    Announcement,
    ArmTimer,
    BarrierEvent,
    BarrierHandler,
    Block,
    CancelMarker,
    CancelTimer,
    Close,
    Decline,
    Effect,
    ForwardCancel,
    InFlightComplete,
    PullForward,
    TimerFired,
    TriggerSnapshot,
    Unblock,
    handler_for,
)
from dagster_ckpt.core.alignment import Barrier as BarrierArrived
from dagster_ckpt.core.config import CheckpointingMode
from dagster_ckpt.core.ids import CheckpointId, LogPosition, StageUid
from dagster_ckpt.core.messages import BarrierOptions
from dagster_ckpt.core.subtask import Step, SubtaskCheckpoints
from dagster_ckpt.core.subtask_effects import (
    CancelAsyncPart,
    DeclineCheckpoint,
    EmitBarrier,
    EmitCancelMarker,
    FailTask,
    FinishTask,
    SubtaskEffect,
    TakeSnapshot,
    TellAborted,
)
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.spark.channel_entries import Barrier, Cancel, encode_options
from dagster_ckpt.spark.channel_log import ChannelLog, Outdated
from dagster_ckpt.spark.channel_release import Release
from dagster_ckpt.spark.streaming.alignment_facts import AlignmentFacts
from dagster_ckpt.spark.streaming.gate import BatchGate, Hold
from dagster_ckpt.spark.streaming.induced import InducedBarriers, Trigger
from dagster_ckpt.spark.streaming.input_channel import InputChannel
from dagster_ckpt.spark.streaming.positions import CommittedBatches
from dagster_ckpt.spark.streaming.snapshot_job import MAX_RUNNING, SnapshotJob, StageCut

if TYPE_CHECKING:
    from dagster_ckpt.core.config import CheckpointConfig
    from dagster_ckpt.spark.stage_snapshot import StageSnapshotter

MakeJob = Callable[[StageCut, "StageWorker"], SnapshotJob]
DeclineLater = Callable[["StageSnapshotter", DeclineCheckpoint | Decline], None]


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
    subtask: SubtaskCheckpoints = field(default_factory=SubtaskCheckpoints)
    _handler: BarrierHandler | None = None
    _timers: dict[CheckpointId, float] = field(default_factory=dict)
    _facts: dict[CheckpointId, AlignmentFacts] = field(default_factory=dict)
    _jobs: dict[CheckpointId, SnapshotJob] = field(default_factory=dict)
    _held: list[CheckpointId] = field(default_factory=list)
    """Barriers whose release waits for the end of the savepoint that ends the run."""
    _waiting: list[Trigger] = field(default_factory=list)
    """Triggers of such a savepoint that wait for the batch inside the gate."""
    _pinned: dict[CheckpointId, dict[StageUid, LogPosition]] = field(default_factory=dict)
    blocked_since: dict[StageUid, float] = field(default_factory=dict)
    """Inputs that stand on a barrier, and since when."""

    def __post_init__(self) -> None:
        if self.inputs:
            self._handler = handler_for(self.config, self.inputs)

    @property
    def holds(self) -> bool:
        """True where barriers hold the readers (exactly-once)."""
        return self.config.mode is CheckpointingMode.EXACTLY_ONCE

    # --- what comes from outside ------------------------------------------------------------------------------

    def trigger(self, checkpoint_id: CheckpointId, timestamp: float, options: BarrierOptions) -> None:
        """Begin a checkpoint at this stage: the coordinator triggers the roots of the graph directly."""
        if self.induced is not None:
            self.induced.add((checkpoint_id, timestamp, options))
        elif options.kind.is_synchronous:
            self.gate.hold(Hold.SAVEPOINT)
            self._waiting.append((checkpoint_id, timestamp, options))
        else:
            self._begin(checkpoint_id, options, AlignmentFacts(timestamp=timestamp))

    def aborted(self, checkpoint_id: CheckpointId, latest_completed: CheckpointId | None, now: float) -> None:
        """A checkpoint is over without completing."""
        self._waiting = [w for w in self._waiting if w[0] != checkpoint_id]
        if self.induced is not None:
            self.induced.drop(checkpoint_id)
        self._perform(self.subtask.notify_aborted(checkpoint_id, latest_completed), now)
        if not self._waiting and self.subtask.synchronous is None:
            self._let_go()
        if checkpoint_id not in self._jobs:
            self.confirm_aborted(checkpoint_id, self.uid)

    def completed(self, checkpoint_id: CheckpointId, now: float) -> None:
        """A checkpoint is complete."""
        self.gate.open(Hold.FIRST_CHECKPOINT)
        self._perform(self.subtask.notify_complete(checkpoint_id), now)
        for channel in self.inputs.values():
            channel.forget_below(checkpoint_id)

    def job_done(self, checkpoint_id: CheckpointId, now: float) -> None:
        """A snapshot's thread has ended."""
        self._jobs.pop(checkpoint_id, None)
        self._pinned.pop(checkpoint_id, None)
        self._facts.pop(checkpoint_id, None)
        self._perform(self.subtask.async_part_done(checkpoint_id, ()), now)

    def close(self, now: float) -> None:
        """Stop deciding: the attempt ends."""
        self._hear(Close(), now)
        for job in self._jobs.values():
            job.cancelled.set()

    # --- looking ----------------------------------------------------------------------------------------------

    def sweep(self, now: float) -> bool:
        """Look at logs and commits, report what has come; True when something was decided."""
        decided = self._start_waiting()
        committed = self.batches.look()
        for uid, channel in self.inputs.items():
            channel.reach(committed.positions[uid])
            for barrier in channel.look():
                decided |= self._announce(uid, barrier, now)
        for uid, channel in self.inputs.items():
            while (mark := channel.arrived() if self.holds else channel.arrived_or_passed()) is not None:
                decided = True
                if isinstance(mark, Barrier):
                    self._barrier(uid, mark, now)
                elif isinstance(mark, Cancel):
                    self._hear(CancelMarker(channel=uid, checkpoint_id=mark.checkpoint_id), now)
        for number in [n for n, at in self._timers.items() if at <= now]:
            del self._timers[number]
            self._hear(TimerFired(checkpoint_id=number), now)
            decided = True
        return decided

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
            self.induced.let_on()
        return bool(waiting)

    def _begin_all(self, waiting: list[Trigger]) -> None:
        for number, timestamp, options in waiting:
            self._begin(number, options, AlignmentFacts(timestamp=timestamp))

    def _announce(self, uid: StageUid, barrier: Barrier, now: float) -> bool:
        if not (self.holds and self.config.unaligned):
            return False
        self._hear(
            Announcement(
                channel=uid,
                checkpoint_id=barrier.checkpoint_id,
                timestamp=barrier.timestamp,
                options=barrier.options,
            ),
            now,
        )
        return True

    def _barrier(self, uid: StageUid, barrier: Barrier, now: float) -> None:
        if self.subtask.was_aborted(barrier.checkpoint_id):
            # Not every input need bring this barrier: nobody may wait for it.
            self._hear(CancelMarker(channel=uid, checkpoint_id=barrier.checkpoint_id), now)
            self._unblock(uid)
            return
        self._hear(
            BarrierArrived(
                channel=uid,
                checkpoint_id=barrier.checkpoint_id,
                timestamp=barrier.timestamp,
                options=barrier.options,
            ),
            now,
        )

    def _hear(self, event: BarrierEvent, now: float) -> None:
        if self._handler is None:
            return
        turn = self._handler.on(event, now=now)
        self._handler = turn.handler
        for effect in turn.effects:
            self._act(effect, now)

    # --- what the alignment decides ---------------------------------------------------------------------------

    def _act(self, effect: Effect, now: float) -> None:
        match effect:
            case Block(channel):
                self.blocked_since[StageUid(str(channel))] = now
            case Unblock(channel):
                self._unblock(StageUid(str(channel)))
            case TriggerSnapshot():
                self._begin(effect.checkpoint_id, effect.options, AlignmentFacts.of(effect))
            case InFlightComplete():
                self._in_flight_complete(effect)
            case Decline():
                self.decline_later(self.snapshotter, effect)
            case ForwardCancel(checkpoint_id):
                self._append_cancel(checkpoint_id)
            case PullForward(channel):
                self._pull_forward(StageUid(str(channel)), now)
            case ArmTimer():
                self._timers[effect.checkpoint_id] = effect.at
            case CancelTimer(checkpoint_id):
                self._timers.pop(checkpoint_id, None)
            case _:
                assert_never(effect)

    def _unblock(self, uid: StageUid) -> None:
        channel = self.inputs[uid]
        barrier, channel.standing_on = channel.standing_on, None
        self.blocked_since.pop(uid, None)
        number = barrier.checkpoint_id if barrier is not None else self._current()
        if number is None:
            return
        if self.subtask.synchronous is not None and self.subtask.synchronous[0] == number:
            self._held.append(number)
            return
        self.release.through(number)

    def _current(self) -> CheckpointId | None:
        return None if self._handler is None else self._handler.latest_checkpoint_id

    def _pull_forward(self, uid: StageUid, now: float) -> None:
        number = self._current()
        barrier = None if number is None else self.inputs[uid].pulled_forward(number)
        if barrier is not None:
            self._barrier(uid, barrier, now)

    def _in_flight_complete(self, effect: InFlightComplete) -> None:
        job = self._jobs.get(effect.checkpoint_id)
        if job is not None:
            job.barriers_arrived(self._barriers_of(effect.checkpoint_id), effect.alignment * 1e3)

    def _barriers_of(self, checkpoint_id: CheckpointId) -> dict[StageUid, LogPosition]:
        return {
            uid: channel.barriers[checkpoint_id]
            for uid, channel in self.inputs.items()
            if checkpoint_id in channel.barriers
        }

    # --- what the checkpoint's own steps decide -----------------------------------------------------------------

    def _begin(self, checkpoint_id: CheckpointId, options: BarrierOptions, facts: AlignmentFacts) -> None:
        self._facts[checkpoint_id] = facts
        self._perform(self.subtask.checkpoint(checkpoint_id, options), facts.timestamp)

    def _perform(self, step: Step, now: float) -> None:
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

    def _do(self, effect: SubtaskEffect, now: float) -> None:
        match effect:
            case EmitBarrier():
                self._append_barrier(effect)
            case TakeSnapshot():
                self._take_snapshot(effect.checkpoint_id)
            case EmitCancelMarker(checkpoint_id):
                self._append_cancel(checkpoint_id)
            case CancelAsyncPart(checkpoint_id):
                if checkpoint_id in self._jobs:
                    self._jobs[checkpoint_id].cancelled.set()
            case DeclineCheckpoint():
                self.decline_later(self.snapshotter, effect)
            case TellAborted(checkpoint_id):
                self._end_alignment(checkpoint_id, now)
            case FinishTask():
                self.on_finished(self.uid)
            case FailTask():
                self._let_go()
            case _:
                pass  # stored and published by the snapshot's thread and the gateway

    def _append_barrier(self, effect: EmitBarrier) -> None:
        facts = self._facts[effect.checkpoint_id]
        result = self.log.append_barrier(
            effect.checkpoint_id, timestamp=facts.timestamp, options_json=encode_options(effect.options)
        )
        if isinstance(result, Outdated):
            raise CheckpointError(f"the log of {self.uid} has gone on to checkpoint {result.newest}")
        entry = None if result.position is None else self.log.read(result.position)
        if result.position is None or not isinstance(entry, Barrier):
            raise CheckpointError(f"the log of {self.uid} lost the barrier of {effect.checkpoint_id}")
        facts.output = (result.position, entry.batch_id)

    def _take_snapshot(self, checkpoint_id: CheckpointId) -> None:
        facts = self._facts[checkpoint_id]
        if facts.output is None:
            return
        if len(self._jobs) >= MAX_RUNNING:
            raise CheckpointError(
                f"{len(self._jobs)} earlier snapshots of {self.uid} have not ended: checkpoint storage hangs"
            )
        position, batch = facts.output
        cut = StageCut(
            checkpoint_id=checkpoint_id,
            batch_id=batch,
            output_position=position,
            barriers=self._barriers_of(checkpoint_id),
            recording=facts.recording,
            start_delay_ms=facts.start_delay_ms,
            alignment_ms=facts.alignment_ms,
            holds=self.holds,
        )
        self._pinned[checkpoint_id] = {uid: c.position for uid, c in self.inputs.items()}
        self._jobs[checkpoint_id] = job = self.make_job(cut, self)
        self.subtask = self.subtask.sync_part_done(checkpoint_id).state
        job.start()

    def _append_cancel(self, checkpoint_id: CheckpointId) -> None:
        self.log.append_cancel(checkpoint_id)

    def _end_alignment(self, checkpoint_id: CheckpointId, now: float) -> None:
        """Stop waiting for barriers of a checkpoint that is over; its later barriers are passed."""
        if (
            self._current() == checkpoint_id
            and self._handler is not None
            and self._handler.is_checkpoint_pending
        ):
            channel = next(iter(self.inputs))
            self._hear(CancelMarker(channel=channel, checkpoint_id=checkpoint_id), now)

    def _let_go(self) -> None:
        """The savepoint that was to end the run failed: the stage goes on where it held still."""
        for number in self._held:
            self.release.through(number)
        self._held.clear()
        self.gate.open(Hold.SAVEPOINT)

    # --- questions --------------------------------------------------------------------------------------------

    def needed_from(self) -> dict[StageUid, LogPosition]:
        """Return, per input, the first entry this stage may still read or must still store."""
        positions = dict(self.batches.before)
        for pinned in list(self._pinned.values()):
            for uid, position in pinned.items():
                positions[uid] = min(positions.get(uid, position), position)
        return positions
