"""Sinks opened: for an attempt that writes, and for readers of what it has published, in one way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dagster_ckpt.authoring.stages import StageDefinition
from dagster_ckpt.authoring.targets import ParquetTable, SinkTarget
from dagster_ckpt.core.ids import CoordinatorEpoch, PipelineId
from dagster_ckpt.errors import NotFound
from dagster_ckpt.spark.directories import staged_rows
from dagster_ckpt.spark.sink.port import AttemptId, Sink, SinkContext


def no_attempt() -> AttemptId:
    """Return an attempt that every other one fences: what is only read is asked by none."""
    return AttemptId("", CoordinatorEpoch(0))


def target_of(stage: StageDefinition) -> SinkTarget:
    """Return where a stage's rows end. Raises NotFound for a stage that is no sink."""
    if stage.table is None:
        raise NotFound(f"stage {stage.uid!r} writes no table")
    return stage.to or ParquetTable(stage.table.name)


def open_sink(
    stage: StageDefinition,
    pipeline: PipelineId,
    *,
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
            uid=stage.uid,
            previous_uids=stage.previous_uids,
            name=stage.table.name,
            key=stage.table.key,
            is_complete=stage.output_mode == "complete",
            of_project=bool(stage.of_project),
            table_dir=table_dir,
            work_dir=staged_rows(work_dir, pipeline, stage.uid),
            attempt=attempt,
        )
    )
    return sink
