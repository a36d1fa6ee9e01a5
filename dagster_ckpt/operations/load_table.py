"""A sink's published table, loaded for whoever works on with its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.authoring.targets import DeltaTable, ParquetTable, SinkTarget, SqlTable
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId, StageUid
from dagster_ckpt.core.location import same_place
from dagster_ckpt.core.model import StageSnapshot, TableSnapshot
from dagster_ckpt.errors import InvalidRequest, NotFound
from dagster_ckpt.operations.catalog import FoundSnapshot, find_snapshot
from dagster_ckpt.operations.contents import prepared_batches_of, require_stage
from dagster_ckpt.operations.deployment import Deployment
from dagster_ckpt.spark.attempt.derived import DerivedFile, DerivedRows
from dagster_ckpt.spark.directories import staged_rows
from dagster_ckpt.spark.sink.port import AttemptId, Sink, SinkContext, SinkCut
from dagster_ckpt.spark.sink.rows import PublishedRows
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot

__all__ = ["Coordinator", "cut_of", "load_table", "open_sink", "tables_of"]


class Coordinator(Protocol):
    """What of a coordinator resource tables are found with."""

    @property
    def resolved_work_dir(self) -> Path:
        """Folder for running queries."""

    def resolved_table_dir(self, pipeline: CheckpointedPipeline) -> Path:
        """Folder of a pipeline's tables."""

    def deployment(self, pipeline: CheckpointedPipeline | None = None) -> Deployment:
        """Where checkpoints are."""


def load_table(
    table: CheckpointedPipeline | SinkTarget | str | Path,
    sink: str = "",
    *,
    coordinator: Coordinator | None = None,
    as_of: str = "",
) -> PublishedRows:
    """Return the rows that a sink has published, of one state of its table, whatever is published meanwhile.

    ``.to_arrow()``, ``.to_pandas()``, ``.to_polars()``, ``.to_duckdb()`` and ``.to_spark(spark)`` read them.

    Args:
        table: the pipeline; or the table itself, by path, by URI or as the target its sink names.
        sink: of a pipeline, the sink's uid; may be left out where it has one only.
        coordinator: the coordinator resource, which knows where tables and checkpoints are; not needed for a table
            with a place of its own.
        as_of: ``latest``, a key such as ``chk-31`` or ``savepoint-7``, or the path or URI of one: exactly its rows.

    Raises:
        NotFound: nothing was published there yet, or there is no such sink or snapshot.
        InvalidRequest: it cannot be loaded, or not as of a snapshot.
        Corrupt: rows of that snapshot are gone.
    """
    if not isinstance(table, CheckpointedPipeline):
        if sink or as_of:
            raise InvalidRequest(
                f"only of a pipeline's table is known what it showed at a checkpoint: load_table(pipeline, sink, "
                f"coordinator=..., as_of=...), not {table!r}"
            )
        return _at_place(table).rows()
    uid = _sink_of(table, sink)
    if uid not in table.stages:
        return _derived(table, uid, coordinator, as_of)
    opened = open_sink(table, uid, coordinator)
    if not as_of:
        return opened.rows()
    if coordinator is None:
        raise InvalidRequest(
            f"as_of={as_of!r} needs the coordinator resource: load_table(..., coordinator=...)"
        )
    return opened.rows(
        _cut(find_snapshot(coordinator.deployment(table), as_of, table.name), table.name, uid, opened)
    )


def open_sink(pipeline: CheckpointedPipeline, uid: StageUid, coordinator: Coordinator | None) -> Sink:
    """Return a pipeline's sink, to be read: it knows no attempt."""
    stage = pipeline.stages[uid]
    assert stage.table is not None
    table_dir = _table_dir(pipeline, coordinator)
    work_dir = table_dir if coordinator is None else coordinator.resolved_work_dir
    context = SinkContext(
        pipeline=pipeline.name,
        uid=uid,
        name=stage.table.name,
        key=stage.table.key,
        is_complete=stage.output_mode == "complete",
        table_dir=table_dir,
        work_dir=staged_rows(work_dir, pipeline.name, uid),
        attempt=_no_attempt,
    )
    opened: Sink = (stage.to or ParquetTable(stage.table.name)).open(context)
    return opened


def tables_of(pipeline: CheckpointedPipeline) -> list[StageUid]:
    """Return the uids of a pipeline's sinks and derived tables."""
    sinks = [uid for uid, stage in pipeline.stages.items() if stage.table is not None]
    return [*sinks, *(table.uid for table in pipeline.derived)]


def _table_dir(pipeline: CheckpointedPipeline, coordinator: Coordinator | None) -> Path:
    if coordinator is None and not pipeline.table_dir:
        raise InvalidRequest(
            f"where the tables of pipeline {pipeline.name!r} are, its coordinator resource knows: "
            "load_table(..., coordinator=...)"
        )
    return Path(pipeline.table_dir) if coordinator is None else coordinator.resolved_table_dir(pipeline)


def _derived(
    pipeline: CheckpointedPipeline, uid: StageUid, coordinator: Coordinator | None, as_of: str
) -> PublishedRows:
    if as_of:
        raise InvalidRequest(
            f"{uid!r} is computed from other tables, and no snapshot holds its rows: load those as of {as_of!r}"
        )
    return DerivedRows(DerivedFile(_table_dir(pipeline, coordinator) / uid, str(pipeline.name)))


def _sink_of(pipeline: CheckpointedPipeline, sink: str) -> StageUid:
    sinks = tables_of(pipeline)
    if not sink and len(sinks) == 1:
        return sinks[0]
    if sink not in sinks:
        named = f"no sink {sink!r}" if sink else "more than one sink"
        raise NotFound(f"pipeline {pipeline.name!r} has {named}: name one of {', '.join(sinks) or 'none'}")
    return StageUid(sink)


def _at_place(table: SinkTarget | str | Path) -> Sink:
    """Return the sink at a place of its own, which no pipeline has to tell."""
    target = table if isinstance(table, SinkTarget) else _target_at(str(table))
    match target:
        case ParquetTable(name=place) | DeltaTable(uri=place) if not _is_whole(place):
            raise InvalidRequest(
                f"{place!r} is no whole path: give one, or the pipeline and its coordinator resource"
            )
        case SqlTable(table=""):
            raise InvalidRequest("name the table: SqlTable(url, 'orders')")
        case _:
            pass
    context = SinkContext(
        pipeline=PipelineId(""),
        uid=StageUid(""),
        name="",
        key=(),
        is_complete=False,
        table_dir=Path("/"),
        work_dir=Path("/"),
        attempt=_no_attempt,
    )
    opened: Sink = target.open(context)
    return opened


def _target_at(place: str) -> SinkTarget:
    is_delta = "://" in place.removeprefix("file://") or (Path(place) / "_delta_log").is_dir()
    return DeltaTable(place) if is_delta else ParquetTable(place)


def _is_whole(place: str) -> bool:
    return "://" in place or Path(place).is_absolute()


def _cut(found: FoundSnapshot, pipeline: PipelineId, uid: StageUid, sink: Sink) -> SinkCut:
    source = found.stored
    if found.pipeline != pipeline:
        raise InvalidRequest(
            f"{source.describe()} is not one of pipeline {pipeline!r}: load the table of its own one"
        )
    stage = require_stage(source, uid)
    snapshot = stage.table
    if snapshot is None:
        raise InvalidRequest(
            f"{source.describe()} says nothing of the table of {uid!r}: it was written at least once, so no snapshot "
            "tells its rows apart; load the newest ones, without as_of"
        )
    _refuse_another_table(source.describe(), uid, sink, snapshot)
    return cut_of(source, stage, snapshot)


def cut_of(source: StoredSnapshot, stage: StageSnapshot, snapshot: TableSnapshot) -> SinkCut:
    """Return a sink's part of a snapshot. Raises Corrupt, Unavailable."""
    metadata = source.metadata
    return SinkCut(
        snapshot=snapshot,
        batches=prepared_batches_of(source, stage),
        checkpoint_id=CheckpointId(metadata.checkpoint_id),
        lineages=frozenset((metadata.lineage, *metadata.lineages)) - {""},
    )


def _refuse_another_table(what: str, uid: StageUid, sink: Sink, snapshot: TableSnapshot) -> None:
    is_same = snapshot.sink == sink.kind and same_place(snapshot.uri, sink.place)
    if is_same or snapshot.head is None:
        return
    if snapshot.sink != sink.kind or not sink.has_published(snapshot.head):
        raise InvalidRequest(
            f"sink {uid!r} writes {sink.place} now, and the rows of {what} are in {snapshot.uri}: load that table"
        )


def _no_attempt() -> AttemptId:
    """Return an attempt that every other one fences: what is only read is asked by none."""
    return AttemptId("", CoordinatorEpoch(0))
