"""A snapshot's metadata checked against the graph before anything is restored from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dagster_ckpt.core.config import CheckpointConfig, ClaimMode, RestoreOptions
from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch
from dagster_ckpt.core.model import CheckpointMetadata
from dagster_ckpt.core.paths import location_of, same_place
from dagster_ckpt.core.request import CheckpointProperties, restored_properties
from dagster_ckpt.core.restore.choice import (
    Fresh,
    FromSnapshot,
    Restore,
    RestoreDecision,
    snapshot_at,
)
from dagster_ckpt.core.restore.facts import (
    KnownSnapshot,
    Origin,
    RestoreFacts,
    RestoreLine,
    RestorePurpose,
)
from dagster_ckpt.core.restore.matching import match_stages, non_restored_state
from dagster_ckpt.core.restore.start_checks import refuse_start
from dagster_ckpt.core.restore.start_facts import SnapshotFacts, StartFacts
from dagster_ckpt.core.restore_point import At
from dagster_ckpt.errors import CheckpointError


def purpose_for(
    asked: RestorePurpose, load: FromSnapshot, metadata: CheckpointMetadata, facts: RestoreFacts
) -> RestorePurpose:
    """Return whether the loaded snapshot goes on or branches off; a fork is tried again from where it has got to."""
    if facts.is_called(metadata.pipeline):
        return RestorePurpose.IN_PLACE
    base = None if facts.line is None else facts.line.base
    is_beginning = base is not None and same_place(base.location.uri, load.location.uri)
    # A fork's store has its beginning while that is retained; its line has it for longer.
    return RestorePurpose.FORK if load.origin is Origin.STORE or is_beginning else asked


def restore_of(
    load: FromSnapshot,
    metadata: CheckpointMetadata,
    *,
    options: RestoreOptions,
    facts: RestoreFacts,
    graph: PipelineGraph,
    config: CheckpointConfig,
    purpose: RestorePurpose = RestorePurpose.IN_PLACE,
    asked: RestorePurpose = RestorePurpose.IN_PLACE,
) -> Restore:
    """Return how the loaded snapshot becomes the new working directory, once no check refuses it (START_CHECKS).

    ``asked``: the purpose the run was started for. Raises Corrupt where the folder holds another snapshot than the
    record says, InvalidRequest.
    """
    snapshot = SnapshotFacts(
        load=load,
        metadata=metadata,
        options=options,
        facts=facts,
        graph=graph,
        asked=asked,
        purpose=purpose,
    )
    refuse_start(StartFacts(snapshot=snapshot))
    claim_mode, properties = _ownership(load, options, config)
    return Restore(
        metadata=metadata,
        location=load.location if load.known is not None else location_of(load.location.uri, metadata),
        claim_mode=claim_mode,
        origin=load.origin,
        properties=properties,
        stages=match_stages(graph, metadata, non_restored=non_restored_state(options)),
        purpose=purpose,
        drop_in_flight=options.without_channel_state_of == metadata.checkpoint_id,
        reason=load.reason,
        next_checkpoint_id=CheckpointId(max(facts.next_checkpoint_id, metadata.checkpoint_id + 1)),
        begins_line=load.begins_line,
    )


def _ownership(
    load: FromSnapshot, options: RestoreOptions, config: CheckpointConfig
) -> tuple[ClaimMode, CheckpointProperties]:
    if load.origin is Origin.STORE and load.known is not None:
        return ClaimMode.CLAIM, load.known.properties
    return options.claim_mode, restored_properties(options.claim_mode, config)


def line_after(decision: RestoreDecision, facts: RestoreFacts, epoch: CoordinatorEpoch) -> RestoreLine | None:
    """Return the line to record with the claim of ``epoch``: a new one after an explicit restore point."""
    match decision:
        case Fresh(begins_line=True):
            return RestoreLine(since=epoch, base=None)
        case Restore(begins_line=True):
            return RestoreLine(since=epoch, base=as_known(decision, epoch))
        case _:
            return facts.line


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


def planned_restore(
    facts: RestoreFacts, uri: str, metadata: CheckpointMetadata, options: RestoreOptions, graph: PipelineGraph
) -> Restore:
    """Return how the snapshot at ``uri`` would be restored, by what is known of the pipeline and of the snapshot.

    Raises InvalidRequest, Corrupt and NotFound as the restore would.
    """
    facts = replace(facts, previous_names=graph.previous_names)
    load = snapshot_at(At(uri), facts)
    asked = RestorePurpose.FORK if options.fork else RestorePurpose.IN_PLACE
    purpose = purpose_for(asked, load, metadata, facts)
    of = {"purpose": purpose, "asked": asked}
    return restore_of(
        load, metadata, options=options, facts=facts, graph=graph, config=CheckpointConfig(), **of
    )


def restore_refusals(
    facts: RestoreFacts, uri: str, metadata: CheckpointMetadata, options: RestoreOptions, graph: PipelineGraph
) -> Iterator[str]:
    """Yield why it would not be restored."""
    try:
        planned_restore(facts, uri, metadata, options, graph)
    except CheckpointError as error:
        yield str(error)
