"""Maintenance of a pipeline's tables: small files merged, old ones removed, never what a retained snapshot needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.ids import PipelineId, StageUid
from dagster_ckpt.core.location import same_place
from dagster_ckpt.core.model import StageSnapshot, TableSnapshot
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.operations.deployment import Deployment, load_record
from dagster_ckpt.operations.readers.open_sink import Coordinator, open_sink
from dagster_ckpt.operations.snapshots.facts import entries_of
from dagster_ckpt.spark.sink.port import Sink, Upkeep
from dagster_ckpt.spark.sink.positions import as_fork_began
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot, open_snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUpkeep:
    """Upkeep of one table."""

    sink: str
    place: str
    done: tuple[Upkeep, ...] = ()
    problem: str = ""
    """Why nothing, or not all of it, was done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedTable:
    """A sink's part of a retained snapshot."""

    key: str
    source: StoredSnapshot
    stage: StageSnapshot
    table: TableSnapshot
    pipeline: PipelineId
    """Pipeline that retains it."""

    @property
    def began(self) -> str:
        """Fork that began with it; empty: it is the pipeline's own."""
        return self.pipeline if self.source.metadata.pipeline != self.pipeline else ""


def plan_maintenance(pipeline: CheckpointedPipeline, coordinator: Coordinator) -> tuple[TableUpkeep, ...]:
    """Return the upkeep that ``maintain_tables`` would do; nothing is changed. Raises as it does."""
    return _each(pipeline, coordinator, lambda sink, needed: sink.upkeep(needed))


def maintain_tables(pipeline: CheckpointedPipeline, coordinator: Coordinator) -> tuple[TableUpkeep, ...]:
    """Maintain every table of the pipeline, also while it runs; a table that fails does not stop the others.

    Raises Corrupt where a retained snapshot cannot be read (then nothing can be called old), NotFound, Unavailable.
    """
    return _each(pipeline, coordinator, lambda sink, needed: sink.maintain(needed))


def retained_tables(deployment: Deployment) -> Iterator[RetainedTable]:
    """Yield the tables of all retained checkpoints and savepoints of all pipelines: a fork's may be another's.

    Raises Corrupt, Unavailable where one cannot be read.
    """
    for pipeline in deployment.store.pipelines():
        for entry in entries_of(load_record(deployment.store, pipeline)):
            storage = deployment.open_storage(entry.location.base_uri)
            source = open_snapshot(storage, entry.location.folder, recorded=entry.metadata_checksum)
            for stage in source.metadata.stages:
                if stage.table is not None:
                    yield RetainedTable(
                        key=entry.known.key,
                        source=source,
                        stage=stage,
                        table=stage.table,
                        pipeline=pipeline,
                    )


def shown_tables(deployment: Deployment) -> Iterator[TableSnapshot]:
    """Yield the tables that readers of several at one moment find, of all pipelines."""
    for pipeline in deployment.store.pipelines():
        shown = load_record(deployment.store, pipeline).shown
        yield from () if shown is None else (table.as_cut() for table in shown.tables.values())


def _each(
    pipeline: CheckpointedPipeline,
    coordinator: Coordinator,
    act: Callable[[Sink, Sequence[TableSnapshot]], Sequence[Upkeep]],
) -> tuple[TableUpkeep, ...]:
    deployment = coordinator.deployment(pipeline)
    load_record(deployment.store, pipeline.name)  # says what there is
    retained = list(retained_tables(deployment))
    done = []
    for uid, stage in pipeline.stages.items():
        if stage.table is not None:
            sink = open_sink(pipeline, uid, coordinator)
            left = (one for found in retained for one in found.source.metadata.left_tables.values())
            tables = [*(found.table for found in retained), *left, *shown_tables(deployment)]
            needed = [table for table in tables if same_place(table.uri, sink.place)]
            began = (
                found for found in retained if found.began == pipeline.name and found.stage.uid in stage.names
            )
            needed += [as_fork_began(found.table, sink.place) for found in began]
            done.append(_one(uid, sink, needed, act))
    return tuple(done)


def _one(
    uid: StageUid,
    sink: Sink,
    needed: Sequence[TableSnapshot],
    act: Callable[[Sink, Sequence[TableSnapshot]], Sequence[Upkeep]],
) -> TableUpkeep:
    try:
        return TableUpkeep(sink=uid, place=sink.place, done=tuple(act(sink, needed)))
    except CheckpointError as error:
        return TableUpkeep(sink=uid, place=sink.place, problem=str(error))
