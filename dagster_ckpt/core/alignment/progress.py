"""Progress of an alignment: the current checkpoint, and the channels that have delivered its barrier."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dagster_ckpt.core.alignment.events import Announcement, Barrier, Channel
from dagster_ckpt.core.alignment.options import is_timeoutable
from dagster_ckpt.core.ids import CheckpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignmentCount:
    """The count of one alignment. A channel that ended counts once, whether or not its barrier had come."""

    open_channels: frozenset[Channel]
    current: CheckpointId | None = None
    """Highest checkpoint seen, by barrier, announcement or cancel marker."""
    over: CheckpointId | None = None
    """Highest checkpoint completed or given up."""
    barrier: Barrier | Announcement | None = None
    """First sign of the pending checkpoint."""
    arrived: frozenset[Channel] = frozenset()
    awaited: frozenset[Channel] = frozenset()
    """Channels that were open when the pending checkpoint began."""
    first_arrival: float = 0.0
    timer: CheckpointId | None = None

    @property
    def is_pending(self) -> bool:
        """True while barriers of the current checkpoint are awaited."""
        return self.current is not None and self.current != self.over

    @property
    def is_complete(self) -> bool:
        """True when every awaited channel has delivered."""
        return self.is_pending and self.arrived >= self.awaited

    @property
    def missing(self) -> frozenset[Channel]:
        """Channels whose barrier is still to come."""
        return self.awaited - self.arrived

    def is_obsolete(self, checkpoint_id: CheckpointId) -> bool:
        """Return True for a barrier that comes too late to matter."""
        if self.current is None or checkpoint_id > self.current:
            return False
        return checkpoint_id < self.current or not self.is_pending

    def begin(self, barrier: Barrier | Announcement) -> AlignmentCount:
        """Return the count of a new checkpoint."""
        return replace(
            self,
            current=barrier.checkpoint_id,
            barrier=barrier,
            arrived=frozenset(),
            awaited=self.open_channels,
        )

    def arrive(self, channel: Channel, now: float) -> AlignmentCount:
        """Return the count with one channel more."""
        first = self.first_arrival if self.arrived else now
        return replace(self, arrived=self.arrived | {channel}, first_arrival=first)

    def finish(self) -> AlignmentCount:
        """Return the state after the pending checkpoint is done."""
        return replace(
            self, over=self.current, barrier=None, arrived=frozenset(), awaited=frozenset(), timer=None
        )

    def give_up(self, checkpoint_id: CheckpointId) -> AlignmentCount:
        """Return the state after ``checkpoint_id`` was given up: later barriers of it are obsolete."""
        highest = max(checkpoint_id, self.current or checkpoint_id)
        return replace(
            self,
            current=highest,
            over=max(checkpoint_id, self.over or checkpoint_id),
            barrier=None,
            arrived=frozenset(),
            awaited=frozenset(),
            timer=None,
        )

    def without(self, channel: Channel) -> AlignmentCount:
        """Return the state with ``channel`` closed."""
        return replace(self, open_channels=self.open_channels - {channel})


def deadline(barrier: Barrier | Announcement) -> float | None:
    """Return when the barrier turns unaligned; it counts from its making, so delays upstream count too."""
    if not is_timeoutable(barrier.options) or barrier.options.aligned_timeout_ms is None:
        return None
    return barrier.timestamp + barrier.options.aligned_timeout_ms / 1000
