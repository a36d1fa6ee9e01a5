"""Choice of what a new attempt starts from: nothing, the previous working directory, or a snapshot.

Two steps, because a snapshot's metadata must be read in between: ``choose_restore_point`` looks only at
durable facts and answers Fresh, Adopt or FromSnapshot; ``restore_of`` checks the metadata that was loaded against
the graph. Nothing is changed before both have agreed. Source: flink-runtime
CheckpointCoordinator#restore…, Checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import assert_never

from dagster_ckpt.core.config import ClaimMode, RestoreOptions
from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.model import CheckpointMetadata
from dagster_ckpt.core.paths import SnapshotLocation, folder_of, same_place
from dagster_ckpt.core.request import CheckpointProperties
from dagster_ckpt.core.restore.facts import (
    AttemptEnd,
    DirectoryState,
    KnownSnapshot,
    Origin,
    PreviousAttempt,
    RestoreFacts,
    RestorePurpose,
    find_by_folder_name,
    find_by_key,
    shape_of,
)
from dagster_ckpt.core.restore.matching import MatchedStages
from dagster_ckpt.core.restore_point import At, Key, Latest, Nothing, RestorePoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """Start without state."""

    reason: str
    next_checkpoint_id: CheckpointId
    begins_line: bool = False
    """Asked for by a person: what is taken from now on comes from nothing that was there."""


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
    begins_line: bool = False
    """Named by a person, who goes back to it: what is taken from now on comes from it alone."""

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
    begins_line: bool = False
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


# --- choosing -------------------------------------------------------------------------------------


def choose_restore_point(
    options: RestoreOptions, facts: RestoreFacts, graph: PipelineGraph
) -> Fresh | Adopt | FromSnapshot:
    """Return the restore point that ``options.restore_from`` means, given the facts.

    Raises NotFound (naming what exists) for an unknown key.
    """
    point: RestorePoint = options.restore_from
    if was_restored_by_an_earlier_try(facts, point):
        # The pipeline's own progress beats the restore point in its settings (CheckpointCoordinator
        # restoreInitialCheckpointIfPresent): a retried run must not throw away what its first try
        # completed.
        point = Latest()
    match point:
        case Latest():
            return _choose_latest(facts, graph)
        case Nothing():
            reason = "restore_from is 'none'"
            return Fresh(reason=reason, next_checkpoint_id=facts.next_checkpoint_id, begins_line=True)
        case Key() | At():
            return replace(snapshot_at(point, facts), begins_line=True)
    assert_never(point)


def snapshot_at(point: Key | At, facts: RestoreFacts) -> FromSnapshot:
    """Return the snapshot a person names: the pipeline's own, or a stranger's where the place is not one of its own.

    Raises NotFound, naming what exists, for an unknown key or folder name.
    """
    known = (*facts.checkpoints, *facts.savepoints)
    match point:
        case Key():
            return _load(find_by_key(point, known), facts, "chosen by key")
        case At() if point.is_name:
            return _load(find_by_folder_name(point, known), facts, "chosen by name")
        case At(uri):
            mine = next((s for s in known if same_place(s.location.uri, uri)), None)
            if mine is not None:
                return _load(mine, facts, "chosen by its place")
            return FromSnapshot(
                location=folder_of(uri), origin=Origin.OUTSIDE, known=None, reason="chosen by its place"
            )
    assert_never(point)


def _why_adopted(previous: PreviousAttempt) -> str:
    if previous.directory is DirectoryState.LASTING:
        return f"the directories of attempt {previous.epoch} are its queries' own"
    return f"attempt {previous.epoch} ended cleanly and its working directory is intact"


def latest_snapshot(facts: RestoreFacts) -> FromSnapshot | None:
    """Return the snapshot ``latest`` means where no directory is adopted; None: there is nothing to restore."""
    newest = newest_on_line(facts)
    return None if newest is None else _load(newest, facts, "the latest snapshot")


def _choose_latest(facts: RestoreFacts, graph: PipelineGraph) -> Fresh | Adopt | FromSnapshot:
    latest = latest_snapshot(facts)
    obstacle = _obstacle_to_adoption(facts, graph)
    if facts.previous is not None and obstacle is None:
        return Adopt(
            working_directory=facts.previous.working_directory,
            reason=_why_adopted(facts.previous),
            next_checkpoint_id=facts.next_checkpoint_id,
            force_full=latest is not None and latest.is_unclaimed,
        )
    if latest is not None:
        return replace(latest, reason=f"{latest.reason}; {obstacle}")
    return Fresh(
        reason=f"no checkpoint has completed yet; {obstacle}", next_checkpoint_id=facts.next_checkpoint_id
    )


def newest_on_line(facts: RestoreFacts) -> KnownSnapshot | None:
    """Return the snapshot ``latest`` means where no directory is adopted.

    Checkpoints, and savepoints that ended a run (their results were published); a plain savepoint is a
    branch a person asks for by name. Those older than an explicit restore are off the line.
    """
    since = facts.line.since if facts.line is not None else 0
    ended_runs = (s for s in facts.savepoints if s.kind.is_synchronous)
    # max keeps the first of equals: the store's own note beats the list of savepoints.
    on_line = [s for s in (*facts.checkpoints, *ended_runs) if s.epoch >= since]
    newest = max(on_line, key=lambda s: s.checkpoint_id, default=None)
    if newest is None and facts.line is not None:
        return facts.line.base
    return newest


def _obstacle_to_adoption(facts: RestoreFacts, graph: PipelineGraph) -> str | None:
    """Return why the previous attempt's directory cannot be worked on, or None."""
    previous = facts.previous
    if previous is None:
        return "there is no working directory of an earlier attempt"
    before = facts.line is not None and previous.epoch < facts.line.since
    if previous.directory is DirectoryState.LASTING and not before:
        return None
    obstacles = (
        (before, f"attempt {previous.epoch} ran before the restore that was asked for"),
        (previous.ended is not AttemptEnd.CLEAN, f"attempt {previous.epoch} did not end cleanly"),
        (
            previous.directory is not DirectoryState.INTACT,
            f"the working directory of attempt {previous.epoch} is {previous.directory}",
        ),
        (facts.has_driver_state, "hooks and driver-side coordinators can only begin at a checkpoint"),
        (
            previous.shape != shape_of(graph),
            f"the pipeline has changed since attempt {previous.epoch}",
        ),
    )
    return next((why for is_so, why in obstacles if is_so), None)


def _load(snapshot: KnownSnapshot, facts: RestoreFacts, reason: str) -> FromSnapshot:
    in_store = any(s.checkpoint_id == snapshot.checkpoint_id for s in facts.checkpoints)
    return FromSnapshot(
        location=snapshot.location,
        origin=Origin.STORE if in_store else Origin.OUTSIDE,
        known=snapshot,
        reason=reason,
    )
