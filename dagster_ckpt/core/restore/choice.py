"""Choice of what a new attempt starts from: nothing, the previous working directory, or a snapshot.

Two steps, because a snapshot's metadata must be read in between: ``choose_restore_point`` looks only at
durable facts and answers Fresh, Adopt or FromSnapshot; ``restore_of`` checks the metadata that was loaded against
the graph. Nothing is changed before both have agreed. Source: flink-runtime
CheckpointCoordinator#restore…, Checkpoints.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.location import folder_of, same_place
from dagster_ckpt.core.restore.decision import (
    Adopt,
    Fresh,
    FromSnapshot,
    was_restored_by_an_earlier_try,
)
from dagster_ckpt.core.restore.facts import (
    AttemptEnd,
    DirectoryState,
    Origin,
    PreviousAttempt,
    RestoreFacts,
    shape_of,
)
from dagster_ckpt.core.restore.known import KnownSnapshot, find_by_folder_name, find_by_key
from dagster_ckpt.core.restore_point import At, Key, Latest, Nothing, RestorePoint

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
    return _choose(point, facts, graph)


def _choose(point: RestorePoint, facts: RestoreFacts, graph: PipelineGraph) -> Fresh | Adopt | FromSnapshot:
    match point:
        case Latest():
            return _choose_latest(facts, graph)
        case Nothing():
            return Fresh(reason="restore_from is 'none'", next_checkpoint_id=facts.next_checkpoint_id)
        case Key() | At():
            return snapshot_at(point, facts)
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
