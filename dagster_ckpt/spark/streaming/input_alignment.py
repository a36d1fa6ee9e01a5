"""The inputs of one stage: their channel logs, and what arrives in them, fed to the barrier handler."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

from dagster_ckpt.core.alignment import (
    AlignmentEffect,
    Announcement,
    ArmTimer,
    Barrier,
    BarrierEvent,
    BarrierHandler,
    Block,
    CancelMarker,
    CancelTimer,
    Close,
    Decline,
    ForwardCancel,
    InFlightComplete,
    PullForward,
    TimerFired,
    TriggerSnapshot,
    Unblock,
    handler_for,
)
from dagster_ckpt.core.config import CheckpointConfig, CheckpointingMode
from dagster_ckpt.core.ids import BatchId, CheckpointId, LogPosition, StageUid
from dagster_ckpt.core.messages import BarrierOptions
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.spark.channel.entries import (
    BarrierEntry,
    CancelEntry,
    DataEntry,
    EndEntry,
    Release,
    encode_options,
)
from dagster_ckpt.spark.channel.log import ChannelLog, Outdated
from dagster_ckpt.spark.channel.positions import CommittedBatches

Mark: TypeAlias = BarrierEntry | CancelEntry | EndEntry


@dataclass(slots=True, kw_only=True)
class InputChannel:
    """Looks at every entry of the upstream log once; used by one thread."""

    upstream: StageUid
    log: ChannelLog
    position: LogPosition
    """Where the reader stands after its newest committed batch."""
    ignored_through: CheckpointId
    """Barriers up to this one belong to checkpoints that were over before this attempt began."""
    looked_to: LogPosition = field(init=False)
    rows: deque[LogPosition] = field(default_factory=deque)
    """Entries with rows that the reader has not passed."""
    marks: deque[tuple[LogPosition, Mark]] = field(default_factory=deque)
    """Barriers, cancel markers and ends that were not delivered yet."""
    barriers: dict[CheckpointId, LogPosition] = field(default_factory=dict)
    """Where the barriers lie that were seen."""
    standing_on: BarrierEntry | None = None
    """The barrier the reader was reported to stand on and was not released from."""

    def __post_init__(self) -> None:
        self.looked_to = self.position

    def look(self) -> list[BarrierEntry]:
        """Take up the entries written since; return the barriers among them."""
        seen: list[BarrierEntry] = []
        for position, entry in self.log.entries(self.looked_to):
            self.looked_to = LogPosition(position + 1)
            match entry:
                case DataEntry():
                    if entry.files:
                        self.rows.append(position)
                case BarrierEntry():
                    if entry.checkpoint_id > self.ignored_through:
                        self.barriers[entry.checkpoint_id] = position
                        self.marks.append((position, entry))
                        seen.append(entry)
                case CancelEntry() | EndEntry():
                    self.marks.append((position, entry))
                case _:
                    assert_never(entry)
        return seen

    def reach(self, position: LogPosition) -> None:
        """Note where the reader stands now."""
        self.position = max(position, self.position)
        while self.rows and self.rows[0] < self.position:
            self.rows.popleft()

    def arrived(self) -> Mark | None:
        """Return the next mark that no row lies before, once; nothing while the reader stands on a barrier.

        The reader itself may be some entries behind: what has no rows changes no state, so it needs no batch.
        """
        if self.standing_on is not None:
            return None
        mark = self.arrived_or_passed()
        if isinstance(mark, BarrierEntry):
            self.standing_on = mark
        return mark

    def arrived_or_passed(self) -> Mark | None:
        """Return the next mark that no row lies before, once: the view of a reader that no barrier holds."""
        if not self.marks or (self.rows and self.rows[0] < self.marks[0][0]):
            return None
        return self.marks.popleft()[1]

    def pulled_forward(self, checkpoint_id: CheckpointId) -> BarrierEntry | None:
        """Return the barrier of ``checkpoint_id`` ahead of the rows before it, once."""
        for index, (_, mark) in enumerate(self.marks):
            if isinstance(mark, BarrierEntry) and mark.checkpoint_id == checkpoint_id:
                del self.marks[index]
                return mark
        return None

    def forget_below(self, checkpoint_id: CheckpointId) -> None:
        """Drop what is known of barriers of older checkpoints."""
        for number in [n for n in self.barriers if n < checkpoint_id]:
            del self.barriers[number]

    @property
    def backlog(self) -> int:
        """Log entries with rows that wait for the reader."""
        return len(self.rows)


def newest_barrier(log: ChannelLog) -> CheckpointId:
    """Return the newest barrier in a log; 0: there is none."""
    barriers = (e.checkpoint_id for _, e in log.entries(log.start) if isinstance(e, BarrierEntry))
    return max(barriers, default=CheckpointId(0))


def release_earlier(release: Release, mode: CheckpointingMode, over: Iterable[CheckpointId]) -> None:
    """Let readers pass the barriers that are in the logs: those checkpoints are over, completed or not."""
    match mode:
        case CheckpointingMode.AT_LEAST_ONCE:
            release.everything()
        case CheckpointingMode.EXACTLY_ONCE:
            release.reset(max(over, default=CheckpointId(0)))
        case _:
            assert_never(mode)


@dataclass(kw_only=True)
class BarrierWriter:
    """Appends, cancels, releases; used by the barrier loop's thread only."""

    uid: StageUid
    log: ChannelLog
    release: Release
    _held: list[CheckpointId] = field(default_factory=list)
    """Barriers whose release waits for the end of the savepoint that ends the run."""

    def append(
        self, checkpoint_id: CheckpointId, *, timestamp: float, options: BarrierOptions
    ) -> tuple[LogPosition, BatchId | None]:
        """Put the barrier behind the last batch; return where it lies and that batch. Raises CheckpointError."""
        result = self.log.append_barrier(
            checkpoint_id, timestamp=timestamp, options_json=encode_options(options)
        )
        if isinstance(result, Outdated):
            raise CheckpointError(f"the log of {self.uid} has gone on to checkpoint {result.newest}")
        entry = None if result.position is None else self.log.read(result.position)
        if result.position is None or not isinstance(entry, BarrierEntry):
            raise CheckpointError(f"the log of {self.uid} lost the barrier of {checkpoint_id}")
        return result.position, entry.batch_id

    def cancel(self, checkpoint_id: CheckpointId) -> None:
        """Put a cancel marker into the log instead of a barrier."""
        self.log.append_cancel(checkpoint_id)

    def release_through(self, checkpoint_id: CheckpointId, *, holding: CheckpointId | None) -> None:
        """Let the readers pass this barrier, unless it is that of ``holding``, the savepoint that ends the run."""
        if checkpoint_id == holding:
            self._held.append(checkpoint_id)
        else:
            self.release.through(checkpoint_id)

    def release_held(self) -> None:
        """Let them pass the barriers that were held: the savepoint that was to end the run failed."""
        for number in self._held:
            self.release.through(number)
        self._held.clear()


log = logging.getLogger("dagster_ckpt.stage")


@dataclass(frozen=True, slots=True)
class Passed:
    """The readers need not stand on this checkpoint's barrier any longer."""

    checkpoint_id: CheckpointId


Aligned: TypeAlias = TriggerSnapshot | InFlightComplete | Decline | ForwardCancel | Passed
"""What the alignment asks of the rest of the stage."""


@dataclass(kw_only=True)
class InputAlignment:
    """Looks, blocks, arms timers; used by the barrier loop's thread only."""

    uid: StageUid
    config: CheckpointConfig
    batches: CommittedBatches
    inputs: Mapping[StageUid, InputChannel]
    """Empty for a source: nothing is ever aligned."""
    was_aborted: Callable[[CheckpointId], bool]
    decided: Callable[[Aligned, float], None]
    """Called with what was decided, and when."""
    blocked_since: dict[StageUid, float] = field(default_factory=dict)
    """Inputs that stand on a barrier, and since when."""
    _handler: BarrierHandler | None = None
    _timers: dict[CheckpointId, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.inputs:
            self._handler = handler_for(self.config, self.inputs)

    @property
    def holds(self) -> bool:
        """True where barriers hold the readers (exactly-once)."""
        return self.config.mode is CheckpointingMode.EXACTLY_ONCE

    def barriers_of(self, checkpoint_id: CheckpointId) -> dict[StageUid, LogPosition]:
        """Return where a checkpoint's barrier lies in each input it has arrived in."""
        return {
            uid: channel.barriers[checkpoint_id]
            for uid, channel in self.inputs.items()
            if checkpoint_id in channel.barriers
        }

    def sweep(self, now: float) -> bool:
        """Look at logs and commits, report what has come; True when something was decided."""
        decided = False
        committed = self.batches.look()
        for uid, channel in self.inputs.items():
            channel.reach(committed.positions[uid])
            for barrier in channel.look():
                decided |= self._announce(uid, barrier, now)
        for uid, channel in self.inputs.items():
            while (mark := channel.arrived() if self.holds else channel.arrived_or_passed()) is not None:
                decided = True
                self._arrived(uid, mark, now)
        for number in [n for n, at in self._timers.items() if at <= now]:
            del self._timers[number]
            self._hear(TimerFired(checkpoint_id=number), now)
            decided = True
        return decided

    def end(self, checkpoint_id: CheckpointId, now: float) -> None:
        """Stop waiting for barriers of a checkpoint that is over; its later barriers are passed."""
        handler = self._handler
        if handler is not None and self._current() == checkpoint_id and handler.is_checkpoint_pending:
            self._hear(CancelMarker(channel=next(iter(self.inputs)), checkpoint_id=checkpoint_id), now)

    def forget_below(self, checkpoint_id: CheckpointId) -> None:
        """Drop what is known of barriers of older checkpoints."""
        for channel in self.inputs.values():
            channel.forget_below(checkpoint_id)

    def close(self, now: float) -> None:
        """Stop deciding: the attempt ends."""
        self._hear(Close(), now)

    # --- what the handler hears -----------------------------------------------------------------------------------

    def _announce(self, uid: StageUid, barrier: BarrierEntry, now: float) -> bool:
        if not (self.holds and self.config.unaligned):
            return False
        log.debug(
            "%s: Received barrier announcement from channel %s @ %d.", self.uid, uid, barrier.checkpoint_id
        )
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

    def _arrived(self, uid: StageUid, mark: Mark, now: float) -> None:
        match mark:
            case BarrierEntry():
                self._barrier(uid, mark, now)
            case CancelEntry():
                self._hear(CancelMarker(channel=uid, checkpoint_id=mark.checkpoint_id), now)
            case EndEntry():
                pass  # a bounded source passes barriers on after its end
            case _:
                assert_never(mark)

    def _barrier(self, uid: StageUid, barrier: BarrierEntry, now: float) -> None:
        if self.was_aborted(barrier.checkpoint_id):
            # Not every input need bring this barrier: nobody may wait for it.
            self._hear(CancelMarker(channel=uid, checkpoint_id=barrier.checkpoint_id), now)
            self._unblock(uid, now)
            return
        log.debug("%s: Received barrier from channel %s @ %d.", self.uid, uid, barrier.checkpoint_id)
        self._hear(
            Barrier(
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

    # --- what it decides ------------------------------------------------------------------------------------------

    def _act(self, effect: AlignmentEffect, now: float) -> None:
        match effect:
            case Block(channel):
                self.blocked_since[StageUid(str(channel))] = now
            case Unblock(channel):
                self._unblock(StageUid(str(channel)), now)
            case PullForward(channel):
                self._pull_forward(StageUid(str(channel)), now)
            case ArmTimer():
                self._timers[effect.checkpoint_id] = effect.at
            case CancelTimer(checkpoint_id):
                self._timers.pop(checkpoint_id, None)
            case TriggerSnapshot() | InFlightComplete() | Decline() | ForwardCancel():
                self.decided(effect, now)
            case _:
                assert_never(effect)

    def _unblock(self, uid: StageUid, now: float) -> None:
        channel = self.inputs[uid]
        barrier, channel.standing_on = channel.standing_on, None
        self.blocked_since.pop(uid, None)
        number = barrier.checkpoint_id if barrier is not None else self._current()
        if number is not None:
            self.decided(Passed(number), now)

    def _current(self) -> CheckpointId | None:
        return None if self._handler is None else self._handler.latest_checkpoint_id

    def _pull_forward(self, uid: StageUid, now: float) -> None:
        number = self._current()
        barrier = None if number is None else self.inputs[uid].pulled_forward(number)
        if barrier is not None:
            self._barrier(uid, barrier, now)
