"""Sinks opened: for an attempt that writes, and for readers of what it has published, in one way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dagster_ckpt.authoring.stage_settings import derived_target
from dagster_ckpt.authoring.stages import StageDefinition
from dagster_ckpt.authoring.targets import SinkTarget, target_at
from dagster_ckpt.core.ids import CoordinatorEpoch, PipelineId, StageUid
from dagster_ckpt.errors import NotFound
from dagster_ckpt.spark.directories import staged_rows
from dagster_ckpt.spark.sink.port import AttemptId, Sink, SinkContext

NOBODY, NO_SINK = PipelineId(""), StageUid("")
"""Who opens a table that is nobody's."""


def no_attempt() -> AttemptId:
    """Return an attempt that every other one fences: what is only read is asked by none."""
    return AttemptId("", CoordinatorEpoch(0))


def target_of(stage: StageDefinition) -> SinkTarget:
    """Return where a stage's rows end. Raises NotFound for a stage that is no sink."""
    if stage.table is None:
        raise NotFound(f"stage {stage.uid!r} writes no table")
    return stage.target


def open_sink(
    stage: StageDefinition,
    pipeline: PipelineId,
    *,
    previous_pipelines: tuple[PipelineId, ...] = (),
    table_dir: Path,
    work_dir: Path,
    target: SinkTarget | None = None,
    attempt: Callable[[], AttemptId] = no_attempt,
) -> Sink:
    """Return a stage's sink; nothing outside is asked or changed. Raises NotFound for a stage that is no sink.

    ``target``: another one than the stage's own.
    """
    chosen = target or target_of(stage)
    assert stage.table is not None
    sink: Sink = chosen.open(
        SinkContext(
            pipeline=pipeline,
            previous_pipelines=previous_pipelines,
            uid=stage.uid,
            previous_uids=stage.previous_uids,
            name=stage.table.name,
            key=stage.table.key,
            keep_days=stage.table.keep_days,
            is_complete=stage.output_mode == "complete",
            table_dir=table_dir,
            work_dir=staged_rows(work_dir, pipeline, stage.uid),
            former_work_dirs=tuple(
                staged_rows(work_dir, one, uid)
                for one in (pipeline, *previous_pipelines)
                for uid in stage.names
                if (one, uid) != (pipeline, stage.uid)
            ),
            attempt=attempt,
        )
    )
    return sink


def open_derived(
    uid: StageUid,
    pipeline: PipelineId,
    *,
    table_dir: Path,
    work_dir: Path,
    attempt: Callable[[], AttemptId] = no_attempt,
) -> Sink:
    """Return a derived table, as the sink of its rows: each time they are all there are."""
    sink: Sink = derived_target().open(
        SinkContext(
            pipeline=pipeline,
            uid=uid,
            name=uid,
            key=(),
            is_complete=True,
            table_dir=table_dir,
            work_dir=staged_rows(work_dir, pipeline, uid),
            attempt=attempt,
        )
    )
    return sink


def open_target(target: SinkTarget, pipeline: PipelineId = NOBODY, uid: StageUid = NO_SINK) -> Sink:
    """Return a table that its target alone leads to, to be read as a sink of a pipeline does, or as anybody."""
    nowhere = Path("/")
    sink: Sink = target.open(
        SinkContext(
            pipeline=pipeline,
            uid=uid,
            name="",
            key=(),
            is_complete=False,
            table_dir=nowhere,
            work_dir=nowhere,
            attempt=no_attempt,
        )
    )
    return sink


def open_at(place: str, kind: str, pipeline: PipelineId, uid: StageUid) -> Sink | None:
    """Return a sink by its place, to be read; None: that kind takes more than a place to be opened."""
    target = target_at(place, kind)
    return None if target is None else open_target(target, pipeline, uid)
