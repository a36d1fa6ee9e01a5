"""What a new attempt starts from: nothing, the previous attempt's working directory, or a snapshot.

Two steps, because a snapshot's metadata must be read in between: ``choose_restore_point`` looks only at
durable facts and answers Fresh, Adopt or Load; ``materialise`` checks the metadata that was loaded against
the graph. Nothing is changed before both have agreed. Source: flink-runtime
CheckpointCoordinator#restore…, Checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from dagster_ckpt.core.config import CheckpointConfig, ClaimMode, RestoreOptions
from dagster_ckpt.core.finished_state import FinishedState, check_finished_states
from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId, StageUid
from dagster_ckpt.core.matching import MatchedStages, NonRestoredState, match_stages
from dagster_ckpt.core.model import CheckpointMetadata, StageSnapshot
from dagster_ckpt.core.properties import CheckpointProperties, restored_properties
from dagster_ckpt.core.restore_facts import (
    AttemptEnd,
    DirectoryState,
    Origin,
    PreviousAttempt,
    RestoreFacts,
    RestoreLine,
    RestorePurpose,
    shape_of,
)
from dagster_ckpt.core.restore_point import (
    ByFolderName,
    ByKey,
    ByUri,
    KnownSnapshot,
    Latest,
    Nothing,
    RestorePoint,
    SnapshotLocation,
    existing,
    find_by_folder_name,
    find_by_key,
    folder_of,
    location_of,
    parse_restore_point,
    same_place,
)
from dagster_ckpt.errors import Corrupt, InvalidRequest

# --- decisions ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """Start without state."""

    reason: str
    next_checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopt:
    """Work on in the previous attempt's directory: nothing is copied, nothing is read again."""

    working_directory: str
    from_epoch: CoordinatorEpoch
    reason: str
    next_checkpoint_id: CheckpointId
    force_full: bool
    """The next checkpoints must be full, because the restored one is still not claimed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Read the ``_metadata`` at ``location`` and call ``materialise`` with it."""

    location: SnapshotLocation
    origin: Origin
    known: KnownSnapshot | None
    """The coordinator's own note of it; None for a place given by a person."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Materialise:
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

    @property
    def force_full(self) -> bool:
        """The next checkpoints must be full until one completes (NO_CLAIM)."""
        return self.properties.unclaimed

    @property
    def registers_shared_files(self) -> bool:
        """Later checkpoints may build on its shared files, so the registry must know them."""
        return not self.properties.unclaimed


RestoreDecision = Fresh | Adopt | Materialise


# --- choosing -------------------------------------------------------------------------------------


def choose_restore_point(
    options: RestoreOptions, facts: RestoreFacts, graph: PipelineGraph
) -> Fresh | Adopt | Load:
    """Return what ``options.restore_from`` means, given the facts.

    Raises InvalidRequest for text that names nothing, NotFound (naming what exists) for an unknown key.
    """
    point = parse_restore_point(options.restore_from)
    if _was_restored_by_an_earlier_try(facts):
        # The pipeline's own progress beats the restore point in its settings (CheckpointCoordinator
        # restoreInitialCheckpointIfPresent): a retried run must not throw away what its first try
        # completed.
        point = Latest()
    return _choose(point, facts, graph)


def _was_restored_by_an_earlier_try(facts: RestoreFacts) -> bool:
    since, line = facts.tries_since, facts.line
    return since is not None and line is not None and line.since >= since


def _choose(point: RestorePoint, facts: RestoreFacts, graph: PipelineGraph) -> Fresh | Adopt | Load:
    known = (*facts.checkpoints, *facts.savepoints)
    match point:
        case Latest():
            return _choose_latest(facts, graph)
        case Nothing():
            return Fresh(reason="restore_from is 'none'", next_checkpoint_id=facts.next_checkpoint_id)
        case ByKey():
            return _load(find_by_key(point, known), facts, "chosen by key")
        case ByFolderName():
            return _load(find_by_folder_name(point, known), facts, "chosen by name")
        case ByUri(uri):
            mine = next((s for s in known if same_place(s.location.uri, uri)), None)
            if mine is not None:
                return _load(mine, facts, "chosen by its place")
            return Load(
                location=folder_of(uri), origin=Origin.OUTSIDE, known=None, reason="chosen by its place"
            )
    assert_never(point)


def _choose_latest(facts: RestoreFacts, graph: PipelineGraph) -> Fresh | Adopt | Load:
    newest = newest_on_line(facts)
    obstacle = _obstacle_to_adoption(facts, graph)
    if facts.previous is not None and obstacle is None:
        return Adopt(
            working_directory=facts.previous.working_directory,
            from_epoch=facts.previous.epoch,
            reason=f"attempt {facts.previous.epoch} ended cleanly and its working directory is intact",
            next_checkpoint_id=facts.next_checkpoint_id,
            force_full=newest is not None and newest.properties.unclaimed,
        )
    if newest is not None:
        return _load(newest, facts, f"the latest snapshot; {obstacle}")
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
    obstacles = (
        (before, f"attempt {previous.epoch} ran before the restore that was asked for"),
        (previous.ended is not AttemptEnd.CLEAN, f"attempt {previous.epoch} did not end cleanly"),
        (
            previous.directory is not DirectoryState.INTACT,
            f"the working directory of attempt {previous.epoch} is {previous.directory}",
        ),
        (facts.has_driver_state, "driver-side coordinators and master hooks can only begin at a checkpoint"),
        (
            previous.shape != shape_of(graph),
            f"the pipeline has changed since attempt {previous.epoch}",
        ),
    )
    return next((why for is_so, why in obstacles if is_so), None)


def _load(snapshot: KnownSnapshot, facts: RestoreFacts, reason: str) -> Load:
    in_store = any(s.checkpoint_id == snapshot.checkpoint_id for s in facts.checkpoints)
    return Load(
        location=snapshot.location,
        origin=Origin.STORE if in_store else Origin.OUTSIDE,
        known=snapshot,
        reason=reason,
    )


# --- checking what was loaded ---------------------------------------------------------------------


def purpose_for(
    asked: RestorePurpose, load: Load, metadata: CheckpointMetadata, facts: RestoreFacts
) -> RestorePurpose:
    """Return whether the loaded snapshot goes on or branches off; a fork is tried again from where it has got to.

    Raises InvalidRequest where a pipeline is to be the fork of itself.
    """
    if metadata.pipeline != facts.pipeline:
        return (
            RestorePurpose.FORK if load.origin is Origin.STORE else asked
        )  # a fork's store has its beginning
    if asked is RestorePurpose.FORK and not _was_restored_by_an_earlier_try(facts):
        raise InvalidRequest(
            f"{load.location.uri} is a snapshot of {facts.pipeline!r} itself: a fork is another pipeline, "
            "declared with pipeline.fork(...). To go back to the snapshot, restore it without fork"
        )
    return RestorePurpose.IN_PLACE


def materialise(
    load: Load,
    metadata: CheckpointMetadata,
    *,
    options: RestoreOptions,
    facts: RestoreFacts,
    graph: PipelineGraph,
    config: CheckpointConfig,
    purpose: RestorePurpose = RestorePurpose.IN_PLACE,
) -> Materialise:
    """Return how the loaded snapshot becomes the new working directory.

    Raises Corrupt where the folder holds another snapshot than the record says; InvalidRequest where the
    snapshot belongs to another pipeline, state would be lost unasked, or the graph does not fit.
    """
    _check_identity(load, metadata, facts.pipeline, purpose)
    claim_mode, properties = _ownership(load, metadata, options, config, purpose)
    stages = match_stages(
        graph,
        metadata,
        non_restored=NonRestoredState.SKIP if options.allow_non_restored_state else NonRestoredState.REFUSE,
    )
    check_finished_states(graph, _finished_states(stages))
    drop_in_flight = options.without_channel_state_of == metadata.checkpoint_id
    if not drop_in_flight:
        _check_in_flight(stages, metadata)
    return Materialise(
        metadata=metadata,
        location=load.location if load.known is not None else location_of(load.location.uri, metadata),
        claim_mode=claim_mode,
        origin=load.origin,
        properties=properties,
        stages=stages,
        purpose=purpose,
        drop_in_flight=drop_in_flight,
        reason=load.reason,
        next_checkpoint_id=CheckpointId(max(facts.next_checkpoint_id, metadata.checkpoint_id + 1)),
    )


def _check_identity(
    load: Load, metadata: CheckpointMetadata, pipeline: PipelineId, purpose: RestorePurpose
) -> None:
    known = load.known
    if known is not None and known.checkpoint_id != metadata.checkpoint_id:
        raise Corrupt(
            f"{load.location.uri} should hold {known.key}, but its metadata is of snapshot "
            f"{metadata.checkpoint_id}: restore from another one with restore_from"
        )
    if metadata.pipeline != pipeline and purpose is RestorePurpose.IN_PLACE:
        raise InvalidRequest(
            f"{load.location.uri} is a snapshot of pipeline {metadata.pipeline!r}, not of {pipeline!r}: "
            "check the path, or start a fork if you mean to branch off from it"
        )


def _ownership(
    load: Load,
    metadata: CheckpointMetadata,
    options: RestoreOptions,
    config: CheckpointConfig,
    purpose: RestorePurpose,
) -> tuple[ClaimMode, CheckpointProperties]:
    if load.origin is Origin.STORE and load.known is not None:
        return ClaimMode.CLAIM, load.known.properties
    mode = options.claim_mode
    others = purpose is RestorePurpose.FORK and not metadata.kind.is_savepoint
    if others and mode is not ClaimMode.NO_CLAIM:
        raise InvalidRequest(
            f"a fork cannot restore checkpoint {metadata.checkpoint_id} of pipeline "
            f"{metadata.pipeline!r} with claim_mode {mode.value!r}: that pipeline deletes its "
            "checkpoints when they are subsumed. "
            "Use 'no_claim', or fork from a savepoint"
        )
    return mode, restored_properties(mode, config)


def _finished_states(stages: MatchedStages) -> dict[StageUid, list[FinishedState]]:
    return {match.uid: [_finished_state(match.snapshot)] for match in stages.matches}


def _finished_state(snapshot: StageSnapshot) -> FinishedState:
    if snapshot.finished:
        return FinishedState.FULLY_FINISHED
    return FinishedState.PARTIALLY_FINISHED if snapshot.finished_subtasks else FinishedState.ALL_RUNNING


def _check_in_flight(stages: MatchedStages, metadata: CheckpointMetadata) -> None:
    for match in stages.matches:
        if match.snapshot.metrics.persisted_in_flight and match.lost_inputs:
            raise InvalidRequest(
                f"checkpoint {metadata.checkpoint_id} holds in-flight data for stage {match.uid!r} from "
                f"{match.lost_inputs[0]!r}, which no longer feeds it: restore an aligned checkpoint or a "
                f"savepoint, or drop that data with without_channel_state_of = {metadata.checkpoint_id}"
            )


# --- what a restore leaves behind -----------------------------------------------------------------


def line_after(
    decision: RestoreDecision, options: RestoreOptions, facts: RestoreFacts, epoch: CoordinatorEpoch
) -> RestoreLine | None:
    """Return the line to record with the claim of ``epoch``: a new one after an explicit restore point."""
    if _was_restored_by_an_earlier_try(facts) or parse_restore_point(options.restore_from) == Latest():
        return facts.line
    match decision:
        case Fresh():
            return RestoreLine(since=epoch, base=None)
        case Adopt():
            return facts.line
        case Materialise():
            return RestoreLine(since=epoch, base=as_known(decision, epoch))
    assert_never(decision)


def as_known(decision: Materialise, epoch: CoordinatorEpoch) -> KnownSnapshot:
    """Return the restored snapshot as the record keeps it; one from outside enters the store like this."""
    return KnownSnapshot(
        checkpoint_id=CheckpointId(decision.metadata.checkpoint_id),
        kind=decision.metadata.kind,
        location=decision.location,
        properties=decision.properties,
        epoch=epoch,
    )


__all__ = [
    "Adopt",
    "AttemptEnd",
    "DirectoryState",
    "Fresh",
    "KnownSnapshot",
    "Load",
    "Materialise",
    "Origin",
    "PreviousAttempt",
    "RestoreDecision",
    "RestoreFacts",
    "RestoreLine",
    "RestorePurpose",
    "SnapshotLocation",
    "as_known",
    "choose_restore_point",
    "existing",
    "line_after",
    "materialise",
    "newest_on_line",
    "purpose_for",
    "shape_of",
]
