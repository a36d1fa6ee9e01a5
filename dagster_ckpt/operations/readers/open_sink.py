"""The sinks of a pipeline, opened to be read: its own, and those that serve readers of its name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.checkpoint.tables import ServedTable, ServingRecord
from dagster_ckpt.core.ids import PipelineId, StageUid
from dagster_ckpt.core.paths import same_place
from dagster_ckpt.errors import InvalidRequest, NotFound
from dagster_ckpt.operations.deployment import Deployment
from dagster_ckpt.spark.attempt.sinks import PipelineSinks
from dagster_ckpt.spark.sink import opening
from dagster_ckpt.spark.sink.opening import open_derived, target_of
from dagster_ckpt.spark.sink.port import Sink, SinkCut
from dagster_ckpt.spark.sink.rows import PublishedRows


class Coordinator(Protocol):
    """Settings of a coordinator resource by which tables are found."""

    @property
    def resolved_work_dir(self) -> Path:
        """Folder for running queries."""

    def resolved_table_dir(self, pipeline: CheckpointedPipeline) -> Path:
        """Folder of a pipeline's tables."""

    def deployment(self, pipeline: CheckpointedPipeline | None = None) -> Deployment:
        """Where checkpoints are."""


@dataclass(frozen=True, slots=True)
class ReaderTable:
    """One table as its readers find it."""

    opened: Sink

    @property
    def place(self) -> str:
        """Where it is."""
        return self.opened.place

    def rows(self, cut: SinkCut | None = None) -> PublishedRows:
        """Return its rows as they are now, or of a cut.

        Raises NotFound where it was not made yet, InvalidRequest, Corrupt.
        """
        return self.opened.rows(cut)

    def state(self) -> str:
        """Return a text that is another one after a publish, a roll-back, and what others have written to it."""
        at = self.opened.position()
        seen = None if at is None else (at.lineage, at.head, at.through_batch)
        try:
            version = self.rows().version
        except (NotFound, InvalidRequest):
            version = ""
        return f"{self.place} {seen} {version}"


def tables_of(pipeline: CheckpointedPipeline) -> list[StageUid]:
    """Return the uids of a pipeline's sinks and derived tables."""
    sinks = [uid for uid, stage in pipeline.stages.items() if stage.table is not None]
    return [*sinks, *(table.uid for table in pipeline.derived)]


def table_dir_of(pipeline: CheckpointedPipeline, coordinator: Coordinator | None) -> Path:
    """Return the folder of a pipeline's tables. Raises InvalidRequest where nobody tells it."""
    if coordinator is None and not pipeline.table_dir:
        raise InvalidRequest(
            f"where the tables of pipeline {pipeline.name!r} are, its coordinator resource knows: "
            "load_table(..., coordinator=...)"
        )
    return Path(pipeline.table_dir) if coordinator is None else coordinator.resolved_table_dir(pipeline)


# --- a pipeline's own -----------------------------------------------------------------------------------------


def open_sink(pipeline: CheckpointedPipeline, uid: StageUid, coordinator: Coordinator | None) -> Sink:
    """Return a pipeline's own sink, or derived table, to be read, whoever serves readers: it knows no attempt."""
    table_dir = table_dir_of(pipeline, coordinator)
    work_dir = table_dir if coordinator is None else coordinator.resolved_work_dir
    if uid not in pipeline.stages:
        return open_derived(uid, pipeline.name, table_dir=table_dir, work_dir=work_dir)
    return opening.open_sink(
        pipeline.stages[uid],
        pipeline.name,
        previous_pipelines=pipeline.previous_names,
        table_dir=table_dir,
        work_dir=work_dir,
    )


def pipeline_sinks(pipeline: CheckpointedPipeline, coordinator: Coordinator) -> PipelineSinks:
    """Return a pipeline's sinks, to be asked what a run would be told: they know no attempt."""
    return PipelineSinks(
        pipeline=pipeline,
        table_dir=table_dir_of(pipeline, coordinator),
        work_dir=coordinator.resolved_work_dir,
        attempt_id=opening.no_attempt,
        session=_no_session,
    )


def _no_session() -> Any:
    raise InvalidRequest("no Spark is started to ask sinks")


def own_table(pipeline: CheckpointedPipeline, uid: StageUid, coordinator: Coordinator | None) -> ReaderTable:
    """Return a pipeline's own table, whoever serves readers."""
    return ReaderTable(open_sink(pipeline, uid, coordinator))


# --- those that serve -----------------------------------------------------------------------------------------


def served_as(pipeline: CheckpointedPipeline, uid: StageUid, coordinator: Coordinator) -> ServedTable:
    """Return how readers find a table of a pipeline that is to serve."""
    place = open_sink(pipeline, uid, coordinator).place
    if uid not in pipeline.stages:
        return ServedTable(place=place)
    target = target_of(pipeline.stages[uid])
    return ServedTable(name=str(getattr(target, target.named_by)) if target.named_by else "", place=place)


def served_table(
    pipeline: CheckpointedPipeline, uid: StageUid, coordinator: Coordinator, serving: ServingRecord
) -> ReaderTable:
    """Return the table that readers of ``pipeline``'s find while another pipeline serves its name.

    Raises NotFound where that one has no such table, InvalidRequest where this code leads to another place.
    """
    known = serving.tables.get(str(uid))
    if known is None:
        raise NotFound(
            f"pipeline {serving.pipeline!r} serves the tables of {pipeline.name!r} and has no {uid!r}: it has "
            f"{', '.join(sorted(serving.tables)) or 'none'}. Take it from the code, or swap back"
        )
    name, table_dir = PipelineId(serving.pipeline), Path(serving.table_dir)
    if uid not in pipeline.stages:
        return ReaderTable(
            open_derived(uid, name, table_dir=table_dir, work_dir=coordinator.resolved_work_dir)
        )
    stage = pipeline.stages[uid]
    target = target_of(stage)
    if target.named_by:
        target = replace(target, **{target.named_by: known.name})  # type: ignore[type-var]
    sink = opening.open_sink(
        stage, name, table_dir=table_dir, work_dir=coordinator.resolved_work_dir, target=target
    )
    if not same_place(sink.place, known.place):
        raise InvalidRequest(
            f"table {uid!r} of {pipeline.name!r} is served by pipeline {serving.pipeline!r} from {known.place}, and "
            f"this code leads to {sink.place}: give the sink {uid!r} of {pipeline.name!r} the target that the fork "
            f"has, or load the table of {serving.pipeline!r}"
        )
    return ReaderTable(sink)
