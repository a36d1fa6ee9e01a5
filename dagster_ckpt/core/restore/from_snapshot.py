"""A snapshot's metadata checked against the graph before anything is restored from it."""

from __future__ import annotations

from typing import assert_never

from dagster_ckpt.core.config import CheckpointConfig, ClaimMode, RestoreOptions
from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId, StageUid
from dagster_ckpt.core.location import location_of
from dagster_ckpt.core.model import CheckpointMetadata, StageSnapshot
from dagster_ckpt.core.properties import CheckpointProperties, restored_properties
from dagster_ckpt.core.restore.decision import (
    Adopt,
    Fresh,
    FromSnapshot,
    Restore,
    RestoreDecision,
    was_restored_by_an_earlier_try,
)
from dagster_ckpt.core.restore.facts import (
    Origin,
    RestoreFacts,
    RestoreLine,
    RestorePurpose,
)
from dagster_ckpt.core.restore.finished_state import FinishedState, check_finished_states
from dagster_ckpt.core.restore.known import KnownSnapshot
from dagster_ckpt.core.restore.matching import MatchedStages, match_stages, non_restored_state, other_inputs
from dagster_ckpt.core.restore.point import Latest
from dagster_ckpt.errors import Corrupt, InvalidRequest


def purpose_for(
    asked: RestorePurpose, load: FromSnapshot, metadata: CheckpointMetadata, facts: RestoreFacts
) -> RestorePurpose:
    """Return whether the loaded snapshot goes on or branches off; a fork is tried again from where it has got to.

    Raises InvalidRequest where a pipeline is to be the fork of itself.
    """
    if metadata.pipeline != facts.pipeline:
        return (
            RestorePurpose.FORK if load.origin is Origin.STORE else asked
        )  # a fork's store has its beginning
    if asked is RestorePurpose.FORK and not was_restored_by_an_earlier_try(facts):
        raise InvalidRequest(
            f"{load.location.uri} is a snapshot of {facts.pipeline!r} itself: a fork is another pipeline, "
            "declared with pipeline.fork(...). To go back to the snapshot, restore it without fork"
        )
    return RestorePurpose.IN_PLACE


def restore_of(
    load: FromSnapshot,
    metadata: CheckpointMetadata,
    *,
    options: RestoreOptions,
    facts: RestoreFacts,
    graph: PipelineGraph,
    config: CheckpointConfig,
    purpose: RestorePurpose = RestorePurpose.IN_PLACE,
) -> Restore:
    """Return how the loaded snapshot becomes the new working directory.

    Raises Corrupt where the folder holds another snapshot than the record says; InvalidRequest where the
    snapshot belongs to another pipeline, state would be lost unasked, or the graph does not fit.
    """
    _check_identity(load, metadata, facts.pipeline, purpose)
    if purpose is RestorePurpose.IN_PLACE and not options.adopt_history:
        _check_history(load, metadata, facts)
    claim_mode, properties = _ownership(load, metadata, options, config, purpose)
    stages = match_stages(
        graph,
        metadata,
        non_restored=non_restored_state(options),
    )
    for match in stages.matches:
        if why := other_inputs(match):
            raise InvalidRequest(why)
    check_finished_states(graph, _finished_states(stages))
    drop_in_flight = options.without_channel_state_of == metadata.checkpoint_id
    if not drop_in_flight:
        _check_in_flight(stages, metadata)
    return Restore(
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
    load: FromSnapshot, metadata: CheckpointMetadata, pipeline: PipelineId, purpose: RestorePurpose
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


def _check_history(load: FromSnapshot, metadata: CheckpointMetadata, facts: RestoreFacts) -> None:
    """Raise InvalidRequest for a snapshot of another deployment: positions of sinks in it mean nothing here."""
    history = facts.history
    if history is None or not history.lineage or history.owns(metadata.lineage):
        return  # an imported one is in the record, and may be another deployment's all the same
    raise InvalidRequest(
        f"{load.location.uri} is a snapshot of another history ({metadata.lineage}) of a pipeline named "
        f"{facts.pipeline!r} than this one ({history.lineage}), such as another deployment's: rows it holds may be in "
        "these tables already. Start a fork to branch off from it, or set adopt_history to go on from it"
    )


def _ownership(
    load: FromSnapshot,
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


def line_after(
    decision: RestoreDecision, options: RestoreOptions, facts: RestoreFacts, epoch: CoordinatorEpoch
) -> RestoreLine | None:
    """Return the line to record with the claim of ``epoch``: a new one after an explicit restore point."""
    point = options.restore_from
    if point == Latest() or was_restored_by_an_earlier_try(facts, point):
        return facts.line
    match decision:
        case Fresh():
            return RestoreLine(since=epoch, base=None)
        case Adopt():
            return facts.line
        case Restore():
            return RestoreLine(since=epoch, base=as_known(decision, epoch))
    assert_never(decision)


def as_known(decision: Restore, epoch: CoordinatorEpoch) -> KnownSnapshot:
    """Return the restored snapshot as the record keeps it; one from outside enters the store like this."""
    return KnownSnapshot(
        checkpoint_id=CheckpointId(decision.metadata.checkpoint_id),
        kind=decision.metadata.kind,
        location=decision.location,
        properties=decision.properties,
        epoch=epoch,
        metadata_checksum=decision.metadata_checksum,
    )
