"""A preview of a restore as Dagster shows it: a sentence, tables, and every reason it would be refused for."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.units import ago, counted, duration, moment, size
from dagster_ckpt.dagster.checks.dry_run import try_restore
from dagster_ckpt.dagster.reports.metadata import as_text, position_metadata
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.errors import CheckpointError, Unavailable
from dagster_ckpt.operations.restores.preview import RestorePreview, preview_restore
from dagster_ckpt.operations.snapshots.catalog import FoundSnapshot, find_snapshot


def previewed(
    resource: CheckpointCoordinatorResource, pipeline: CheckpointedPipeline, options: RestoreOptions
) -> RestorePreview:
    """Return the preview of a restore, by files. Raises CheckpointError for a snapshot that cannot be opened."""
    return preview_restore(
        resource.deployment(),
        options,
        pipeline.name,
        graph=pipeline.graph,
        hooks=pipeline.hook_uids,
        code=pipeline,
    )


def tried(
    found: RestorePreview,
    resources: Any,
    pipeline: CheckpointedPipeline,
    coordinator: CheckpointCoordinatorResource,
    options: RestoreOptions,
) -> RestorePreview:
    """Return the preview with what starting every query on a copy has shown, where that can be tried."""
    if not found.is_possible or options.fork:
        return found
    snapshot = find_snapshot(coordinator.deployment(), options.restore_from, pipeline.name)
    return with_queries_tried(found, resources, pipeline, coordinator, snapshot)


def with_queries_tried(
    found: RestorePreview,
    resources: Any,
    pipeline: CheckpointedPipeline,
    coordinator: CheckpointCoordinatorResource,
    snapshot: FoundSnapshot,
) -> RestorePreview:
    """Return the preview with what starting every query on a copy of the snapshot has shown.

    Raises Unavailable: it could not be tried.
    """
    try:
        try_restore(resources, pipeline, coordinator, snapshot)
    except Unavailable:
        raise
    except CheckpointError as error:
        return replace(found, refusals=(str(error),))
    return found


def sentence_of(preview: RestorePreview) -> str:
    """Return a preview in one sentence."""
    if not preview.is_possible:
        return f"restoring {preview.snapshot} would be refused: {preview.refusals[0]}"
    age = f", completed {ago(max(0.0, time.time() - preview.completed_at))}," if preview.completed_at else ""
    return (
        f"restoring {preview.snapshot}{age} would bring back {size(preview.bytes)} of state in "
        f"{counted(len(preview.stages), 'stage')}, read {counted(len(preview.replay), 'source')} again and touch "
        f"{counted(len(preview.tables), 'table')}"
    )


def preview_metadata(preview: RestorePreview) -> dict[str, Any]:
    """Return a preview as metadata: tables of stages, replay, tables and schemas, and what speaks against it."""
    stages = [
        {
            "stage": s.uid,
            "gets": s.fate.value,
            "batch": _shown(s.batch_id),
            "size": size(s.bytes),
            "files": s.files,
        }
        for s in preview.stages
    ]
    replay = [
        {
            "stage": r.stage,
            "source": r.step.source,
            "from": r.step.end or "-",
            "back_to": r.step.start or "-",
            "units": r.step.number,
            "batches": _shown(r.batches),
        }
        for r in preview.replay
    ]
    tables = [
        {
            "stage": t.stage,
            "table": t.uri,
            "becomes": t.fate.value,
            "rows_leaving": t.rows_leaving,
            "rows_returning": t.rows_returning,
        }
        for t in preview.tables
    ]
    metadata: dict[str, Any] = {
        "possible": dg.MetadataValue.bool(preview.is_possible),
        "state": dg.MetadataValue.text(size(preview.bytes)),
        "compared_with": dg.MetadataValue.text(preview.compared_with),
    }
    metadata |= _age(preview)
    schemas = [
        {"stage": m.stage, "what": m.what, "saved": m.saved, "now": m.current} for m in preview.schemas
    ]
    hooks = [{"hook": h.uid, "gets": h.fate.value} for h in preview.hooks]
    shown = (
        ("stages", stages),
        ("replay", replay),
        ("tables", tables),
        ("hooks", hooks),
        ("state_schema_changes", schemas),
    )
    for name, rows in shown:
        if rows:
            metadata[name] = dg.MetadataValue.table([dg.TableRecord(row) for row in rows])
    metadata |= position_metadata(preview.positions)
    for name, sentences in (("refusals", preview.refusals), ("warnings", preview.warnings)):
        if sentences:
            metadata[name] = dg.MetadataValue.md(
                "\n".join(f"* {as_text(sentence)}" for sentence in sentences)
            )
    return metadata


def _age(preview: RestorePreview) -> dict[str, Any]:
    """Return when the snapshot was completed, and how far back that is."""
    if not preview.completed_at:
        return {}
    since = max(0.0, time.time() - preview.completed_at)
    return {
        "completed": dg.MetadataValue.text(f"{moment(preview.completed_at)}, {ago(since)}"),
        "goes_back": dg.MetadataValue.text(duration(since)),
    }


def _shown(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
