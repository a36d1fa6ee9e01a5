"""Everything seen of a pipeline: gathered before its record is read, so that an honest record is never older."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dagster_ckpt.core import paths
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.ids import CheckpointId, PipelineId
from dagster_ckpt.core.model import CheckpointMetadata
from dagster_ckpt.core.restore.lineage import Seen
from dagster_ckpt.core.restore.start_checks import refuse_start
from dagster_ckpt.core.restore.start_facts import HistoryFacts, StartFacts
from dagster_ckpt.errors import Corrupt, NotFound
from dagster_ckpt.ports import CheckpointStorage
from dagster_ckpt.runtime.attempt_setup import AttemptSetup
from dagster_ckpt.runtime.restore_facts import known_history
from dagster_ckpt.runtime.stored import read_metadata


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
    is_alive = record.lease_until is not None and record.lease_until > setup.now().wall
    kept = (*record.completed, *record.savepoints)
    newest = max(kept, key=lambda one: one.checkpoint_id, default=None)
    seen = Seen(
        where=f"the record of pipeline {former!r}",
        lineage=record.lineage,
        epoch=record.epoch,
        checkpoint_id=record.next_id - 1,
        holds=newest is not None,
        running=record.owner if is_alive else "",
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
