"""Decision of what a new attempt starts from, as values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import assert_never

from dagster_ckpt.core.config import ClaimMode
from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.location import SnapshotLocation, same_place
from dagster_ckpt.core.model import CheckpointMetadata
from dagster_ckpt.core.properties import CheckpointProperties
from dagster_ckpt.core.restore.facts import (
    Origin,
    RestoreFacts,
    RestorePurpose,
)
from dagster_ckpt.core.restore.known import KnownSnapshot
from dagster_ckpt.core.restore.matching import MatchedStages
from dagster_ckpt.core.restore_point import At, Key, Latest, Nothing, RestorePoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """Start without state."""

    reason: str
    next_checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopt:
    """Work on in the previous attempt's directory: nothing is copied, nothing is read again."""

    working_directory: str
    reason: str
    next_checkpoint_id: CheckpointId
    force_full: bool
    """The next checkpoints must be full, because the restored one is still not claimed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FromSnapshot:
    """Read the ``_metadata`` at ``location`` and call ``restore_of`` with it."""

    location: SnapshotLocation
    origin: Origin
    known: KnownSnapshot | None
    """The coordinator's own note of it; None for a place given by a person."""
    reason: str

    @property
    def is_unclaimed(self) -> bool:
        """True where its files are someone else's to delete."""
        return self.known is not None and self.known.properties.unclaimed


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """Build a new working directory from a snapshot."""

    metadata: CheckpointMetadata
    location: SnapshotLocation
    claim_mode: ClaimMode
    """CLAIM also where the snapshot is in the store, because the pipeline owns it."""
    origin: Origin
    properties: CheckpointProperties
    """How the snapshot is treated from now on."""
    stages: MatchedStages
    purpose: RestorePurpose
    drop_in_flight: bool
    """Leave out the in-flight data of channels (``without_channel_state_of``)."""
    reason: str
    next_checkpoint_id: CheckpointId
    metadata_checksum: str = ""
    """Of its ``_metadata`` file, as it was read."""

    def describe(self) -> str:
        """Return the snapshot as Flink's log names it: what it is, of when, and where."""
        kind = "Savepoint" if self.metadata.kind.is_savepoint else "Checkpoint"
        taken = datetime.fromtimestamp(self.metadata.triggered_at, UTC).isoformat(timespec="milliseconds")
        return f"{kind} {self.metadata.checkpoint_id} @ {taken} located at {self.location.uri}"

    @property
    def force_full(self) -> bool:
        """The next checkpoints must be full until one completes (NO_CLAIM)."""
        return self.properties.unclaimed

    @property
    def registers_shared_files(self) -> bool:
        """Later checkpoints may build on its shared files, so the registry must know them."""
        return not self.properties.unclaimed


RestoreDecision = Fresh | Adopt | Restore


def was_restored_by_an_earlier_try(facts: RestoreFacts, point: RestorePoint | None = None) -> bool:
    """Tell whether an earlier try of this run has restored already, so that `latest` means what it restored.

    ``point``: what this try is to begin with, where that is asked. Another one than the earlier try's was not restored
    yet: it is a run of another kind under the same name.
    """
    since, line = facts.tries_since, facts.line
    if since is None or line is None or line.since < since:
        return False
    return point is None or _names(point, line.base)


def _names(point: RestorePoint, base: KnownSnapshot | None) -> bool:
    """Tell whether a restore point may mean this beginning of a line."""
    match point:
        case Latest():
            return True
        case Nothing():
            return base is None
        case Key():
            return base is not None and base.checkpoint_id == point.checkpoint_id
        case At(name) if point.is_name:
            return base is not None and base.location.folder.rpartition("/")[2] == name
        case At(uri):
            return base is not None and same_place(base.location.uri, uri)
    assert_never(point)
