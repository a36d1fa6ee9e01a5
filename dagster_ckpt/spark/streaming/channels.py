"""Channel logs of a running stage: what lies ahead in its inputs', and its own barriers, appended and canceled."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

from dagster_ckpt.core.ids import BatchId, CheckpointId, LogPosition, StageUid
from dagster_ckpt.core.messages import BarrierOptions
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.spark.channel.entries import BarrierEntry, CancelEntry, DataEntry, EndEntry, encode_options
from dagster_ckpt.spark.channel.log import ChannelLog, Outdated
from dagster_ckpt.spark.channel.positions import Release

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
