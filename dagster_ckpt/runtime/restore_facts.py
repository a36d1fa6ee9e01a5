"""Facts a restore is decided on, gathered from store, storage and disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from dagster_ckpt.core import paths
from dagster_ckpt.core.chains import OtherChains, kept_chains
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId
from dagster_ckpt.core.location import local_path
from dagster_ckpt.core.restore.choice import choose_restore_point
from dagster_ckpt.core.restore.decision import Adopt, Fresh, RestoreDecision
from dagster_ckpt.core.restore.facts import (
    AttemptEnd,
    PreviousAttempt,
    RestoreFacts,
)
from dagster_ckpt.core.restore.from_snapshot import purpose_for, restore_of
from dagster_ckpt.core.restore.lineage import KnownHistory
from dagster_ckpt.core.restore_point import At, RestorePoint
from dagster_ckpt.errors import Corrupt, NotFound
from dagster_ckpt.ports import CheckpointStorage
from dagster_ckpt.runtime.stored import read_stored_metadata

if TYPE_CHECKING:
    from dagster_ckpt.core.config import RestoreOptions
    from dagster_ckpt.runtime.attempt_setup import AttemptSetup


def known_history(pipeline: PipelineId, record: CoordinatorRecord | None) -> KnownHistory:
    """Return the history as the store has it."""
    if record is None:
        return KnownHistory(pipeline=pipeline, is_recorded=False)
    return KnownHistory(
        pipeline=pipeline,
        is_recorded=True,
        lineage=record.lineage,
        lineages=record.lineages,
        is_rebuilt=record.is_rebuilt,
        epoch=record.epoch,
        next_checkpoint_id=record.next_id,
    )


def facts_of(record: CoordinatorRecord) -> RestoreFacts:
    """Return the record's snapshots as the facts a restore is decided on (working directories left out)."""
    return RestoreFacts(
        pipeline=PipelineId(record.pipeline),
        checkpoints=[entry.known for entry in record.completed],
        savepoints=[entry.known for entry in record.savepoints],
        line=record.line,
        next_checkpoint_id=CheckpointId(record.next_id),
        history=known_history(PipelineId(record.pipeline), record),
    )


def gather_facts(setup: AttemptSetup, record: CoordinatorRecord) -> RestoreFacts:
    """Return the durable facts an attempt's restore is decided on."""
    previous = None
    if record.working_directory:
        previous = PreviousAttempt(
            epoch=CoordinatorEpoch(record.status_epoch),
            working_directory=record.working_directory,
            ended=AttemptEnd.CLEAN if record.clean else AttemptEnd.UNCLEAN,
            directory=setup.directory_state(record.working_directory, record),
            shape=record.shape,
        )
    return replace(
        facts_of(record),
        previous_names=setup.graph.previous_names,
        previous=previous,
        tries_since=CoordinatorEpoch(record.owner_since) if setup.is_try_of(record) else None,
        has_driver_state=bool(setup.hooks or setup.coordinators),
    )


def absolute(point: RestorePoint, open_storage: Callable[[str], CheckpointStorage]) -> RestorePoint:
    """Return a restore point that means the same wherever it is read: a local path as an absolute URI."""
    match point:
        case At(uri) if not point.is_name:
            return At(absolute_uri(uri, open_storage))
        case _:
            return point


def absolute_uri(uri: str, open_storage: Callable[[str], CheckpointStorage]) -> str:
    """Return the URI, a local path as an absolute one: relative to the working directory of this process."""
    return uri if local_path(uri) is None else open_storage(uri).base_uri


def wanted(setup: AttemptSetup) -> RestoreOptions:
    """Return the options the attempt is to start from, a local path as an absolute URI."""
    restore_from = absolute(setup.restore.restore_from, setup.storage_at)
    return setup.restore.model_copy(update={"restore_from": restore_from})


def decide_restore(setup: AttemptSetup, facts: RestoreFacts) -> RestoreDecision:
    """Choose what the attempt starts from, a snapshot's metadata checked.

    Raises NotFound, Corrupt, InvalidRequest; OtherChains where that has other chains than the graph.
    """
    options = wanted(setup)
    choice = choose_restore_point(options, facts, setup.graph)
    if isinstance(choice, Fresh) and not setup.fits_fresh:
        raise OtherChains(None)
    if isinstance(choice, (Fresh, Adopt)):
        return choice
    try:
        storage = setup.storage_at(choice.location.base_uri)
        recorded = choice.known.metadata_checksum if choice.known is not None else ""
        read = read_stored_metadata(storage, choice.location.folder, recorded=recorded)
    except NotFound as error:
        if choice.known is None:
            # As it was named: a storage may spell its base in another way.
            raise NotFound(
                f"{choice.location.uri} is no checkpoint or savepoint: it has no {paths.METADATA_FILE} file "
                "(it was never completed, has been disposed of, or the path is wrong)"
            ) from error
        raise Corrupt(
            f"{choice.known.key} is recorded at {choice.location.uri}, but its metadata is gone: a part of the "
            "checkpoint storage was lost, or the coordinator store was put back to an older copy. "
            "Restore from another snapshot with restore_from"
        ) from error
    kept = kept_chains(setup.graph.authored, read.metadata.chains)
    if kept != setup.graph.chains:
        raise OtherChains(kept)
    restore = restore_of(
        choice,
        read.metadata,
        options=options,
        facts=facts,
        graph=setup.graph,
        config=setup.config,
        purpose=purpose_for(setup.purpose, choice, read.metadata, facts),
        asked=setup.purpose,
    )
    return replace(restore, metadata_checksum=read.checksum)
