"""The barriers a stage writes into its own log, and those of its inputs that it lets its readers pass."""

from __future__ import annotations

from dataclasses import dataclass, field

from dagster_ckpt.core.ids import BatchId, CheckpointId, LogPosition, StageUid
from dagster_ckpt.core.messages import BarrierOptions
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.spark.channel.entries import BarrierEntry, encode_options
from dagster_ckpt.spark.channel.log import ChannelLog, Outdated
from dagster_ckpt.spark.channel.release import Release


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
