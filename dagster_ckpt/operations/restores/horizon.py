"""For how long each retained snapshot can still be restored: what it is pinned to, asked where it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.checkpoint.record import CompletedRecord, CoordinatorRecord
from dagster_ckpt.core.restore.horizon import Horizon, Pin, horizon_of
from dagster_ckpt.core.units import counted
from dagster_ckpt.errors import CheckpointError, Corrupt, NotFound, OutcomeUnknown, Unavailable
from dagster_ckpt.operations.deployment import Deployment, change_record, load_record
from dagster_ckpt.operations.readers.load_table import cut_of
from dagster_ckpt.operations.readers.open_sink import Coordinator, open_sink
from dagster_ckpt.operations.snapshots.contents import missing_files
from dagster_ckpt.operations.snapshots.facts import entries_of
from dagster_ckpt.runtime.record_store import RecordChange
from dagster_ckpt.spark.sink.port import Sink
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot, open_snapshot
from dagster_ckpt.spark.source.pins import SourcePins

_FROM_BACKUP = "Bring it back from a backup, or restore another one"


def restorability(
    pipeline: CheckpointedPipeline, coordinator: Coordinator, *, now: float
) -> tuple[Horizon, ...]:
    """Return for how long each retained checkpoint and savepoint can be restored, newest first.

    The record notes what is gone and when that was seen first: lists and the page tell it without the code. Looked at
    are its files in storage, the rows of its sinks and what its sources would read again: files, and topics where the
    source says where they are (``reads``). Raises NotFound, Corrupt for the record, Unavailable.
    """
    deployment = coordinator.deployment(pipeline)
    entries = entries_of(load_record(deployment.store, pipeline.name))
    sinks = {
        str(name): open_sink(pipeline, uid, coordinator)
        for uid, stage in pipeline.stages.items()
        for name in (*stage.previous_uids, uid)
        if stage.table is not None and (name == uid or name not in pipeline.stages)
    }
    sources = SourcePins(pipeline)
    newest_first = sorted(entries, key=lambda entry: entry.checkpoint_id, reverse=True)
    found = {
        entry.location.uri: horizon_of(
            entry.known.key, tuple(_pins(deployment, entry, sinks, sources, pipeline)), now=now
        )
        for entry in newest_first
    }
    since = _noted(deployment, pipeline, found, now)
    return tuple(replace(horizon, lost_since=since.get(uri)) for uri, horizon in found.items())


def _noted(
    deployment: Deployment, pipeline: CheckpointedPipeline, found: Mapping[str, Horizon], now: float
) -> Mapping[str, float]:
    """Note what is gone in the record; return by place since when each lost snapshot is known to be."""

    def judged(entry: CompletedRecord) -> CompletedRecord:
        horizon = found.get(entry.location.uri)
        lost = entry.lost if horizon is None else "".join(pin.what for pin in horizon.lost[:1])
        since = (entry.lost_since or now) if lost else None
        return entry.model_copy(update={"lost": lost, "lost_since": since})

    def change(record: CoordinatorRecord) -> RecordChange[Mapping[str, float]]:
        after = record.model_copy(
            update={
                "completed": tuple(map(judged, record.completed)),
                "savepoints": tuple(map(judged, record.savepoints)),
            }
        )
        since = {one.location.uri: one.lost_since for one in entries_of(after) if one.lost_since is not None}
        return RecordChange(answer=since, record=None if after == record else after)

    with suppress(Unavailable, OutcomeUnknown):  # who may only read is told all the same
        return change_record(deployment.store, pipeline.name, change)
    return {uri: now for uri, horizon in found.items() if horizon.lost}


def _pins(
    deployment: Deployment,
    entry: CompletedRecord,
    sinks: dict[str, Sink],
    sources: SourcePins,
    pipeline: CheckpointedPipeline,
) -> Iterator[Pin]:
    storage = deployment.open_storage(entry.location.base_uri)
    try:
        source = open_snapshot(storage, entry.location.folder, recorded=entry.metadata_checksum)
        missing = missing_files(source)
    except (NotFound, Corrupt) as error:
        yield Pin(what=f"{entry.location.uri} ({error})", is_there=False, advice=_FROM_BACKUP)
        return
    for sentence in missing[:1]:
        name = f"{counted(len(missing), 'file')} of {entry.location.uri}, first {sentence}"
        yield Pin(what=name, is_there=False, advice=_FROM_BACKUP)
    yield from _of_tables(source, sinks, pipeline)
    yield from sources.of(source)


def _of_tables(
    source: StoredSnapshot, sinks: dict[str, Sink], pipeline: CheckpointedPipeline
) -> Iterator[Pin]:
    for stage in source.metadata.stages:
        sink = sinks.get(stage.uid)
        if stage.table is None or sink is None:
            continue  # a sink that was removed: the restore says what becomes of its table
        try:
            place = "" if pipeline.is_called(source.metadata.pipeline) else sink.place
            yield from sink.pins(cut_of(source, stage, stage.table, fork=place))
        except CheckpointError as error:
            yield Pin(what=f"rows of sink {stage.uid} in {sink.place}", is_there=False, advice=str(error))
