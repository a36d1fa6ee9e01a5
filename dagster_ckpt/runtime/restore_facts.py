"""Facts a restore is decided on, gathered from store, storage and disk.

Everything seen of a pipeline is gathered before its record is read, so that an honest record is never older.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster_ckpt.core import paths
from dagster_ckpt.core.chains import OtherChains, kept_chains
from dagster_ckpt.core.checkpoint.lease import holds_lease
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId
from dagster_ckpt.core.model import CheckpointMetadata
from dagster_ckpt.core.paths import local_path
from dagster_ckpt.core.restore.choice import Adopt, Fresh, RestoreDecision, choose_restore_point
from dagster_ckpt.core.restore.facts import AttemptEnd, KnownHistory, PreviousAttempt, RestoreFacts, Seen
from dagster_ckpt.core.restore.from_snapshot import purpose_for, restore_of
from dagster_ckpt.core.restore.start_checks import refuse_start
from dagster_ckpt.core.restore.start_facts import HistoryFacts, StartFacts
from dagster_ckpt.core.restore_point import At, RestorePoint
from dagster_ckpt.errors import Corrupt, NotFound
from dagster_ckpt.ports import CheckpointStorage
from dagster_ckpt.runtime.attempt_setup import AttemptSetup
from dagster_ckpt.runtime.stored import read_metadata, read_stored_metadata

if TYPE_CHECKING:
    from dagster_ckpt.core.config import RestoreOptions


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


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything seen of a pipeline outside its store."""

    seen: Sequence[Seen] = ()
    newest: str = ""
    """Newest snapshot found in the storage, as a restore point."""

    @property
    def epoch(self) -> int:
        """Highest attempt."""
        return max((one.epoch for one in self.seen), default=0)

    @property
    def checkpoint_id(self) -> int:
        """Highest checkpoint id."""
        return max((one.checkpoint_id for one in self.seen), default=0)

    @property
    def lineages(self) -> tuple[str, ...]:
        """Histories that left something, each once."""
        return tuple(dict.fromkeys(one.lineage for one in self.seen if one.lineage))


def look_around(setup: AttemptSetup) -> World:
    """Ask storage, working directory and sinks. Raises Unavailable when one of them does not answer."""
    stored, newest = _in_storage(setup.storage, setup.graph.pipeline)
    for name in setup.graph.previous_names:
        of_record, newest_of_record = _in_record(setup, name)
        of_storage, newest_of_storage = _in_storage(setup.storage, name)
        stored += [*of_record, *of_storage]
        newest = newest or newest_of_record or newest_of_storage
    return World(seen=[*stored, *setup.seen()], newest=newest)


def check_history(setup: AttemptSetup, world: World, record: CoordinatorRecord | None) -> None:
    """Raise InvalidRequest where an attempt would run behind what the world has seen."""
    history = HistoryFacts(
        known=replace(
            known_history(setup.graph.pipeline, record), previous_names=tuple(setup.graph.previous_names)
        ),
        seen=world.seen,
        point=setup.restore.restore_from,
        adopt_history=setup.restore.adopt_history,
        newest=world.newest,
    )
    refuse_start(StartFacts(history=history))


def _in_record(setup: AttemptSetup, former: PipelineId) -> tuple[list[Seen], str]:
    """Return the numbers that the store knows of a name that the pipeline had before."""
    record = setup.records.record(former)
    if record is None:
        return [], ""
    kept = (*record.completed, *record.savepoints)
    newest = max(kept, key=lambda one: one.checkpoint_id, default=None)
    seen = Seen(
        where=f"the record of pipeline {former!r}",
        lineage=record.lineage,
        epoch=record.epoch,
        checkpoint_id=record.next_id - 1,
        holds=newest is not None,
        running=record.owner if holds_lease(record, setup.now().wall) else "",
    )
    return [seen], "" if newest is None else newest.location.uri


def _in_storage(storage: CheckpointStorage, pipeline: PipelineId) -> tuple[list[Seen], str]:
    layout = paths.CheckpointPaths(pipeline)
    numbers: set[CheckpointId] = set()
    complete: set[CheckpointId] = set()
    for found in storage.list(pipeline):
        number = layout.number_of(found.key)
        if number is None:
            continue
        numbers.add(number)
        if found.key.endswith(f"/{paths.METADATA_FILE}"):
            complete.add(number)
    if not numbers:
        return [], ""
    newest = max(complete, default=None)
    metadata = None if newest is None else _metadata(storage, layout.checkpoint(newest))
    seen = Seen(
        where=f"the checkpoint storage {storage.base_uri}",
        lineage=metadata.lineage if metadata is not None else "",
        epoch=metadata.epoch if metadata is not None else 0,
        checkpoint_id=max(numbers),
        holds=bool(complete),
    )
    return [seen], f"{storage.base_uri}/{layout.checkpoint(newest)}" if newest is not None else ""


def _metadata(storage: CheckpointStorage, folder: str) -> CheckpointMetadata | None:
    """Return a snapshot's metadata; None for a damaged one: restoring it tells why."""
    try:
        return read_metadata(storage, folder)
    except (NotFound, Corrupt):
        return None
