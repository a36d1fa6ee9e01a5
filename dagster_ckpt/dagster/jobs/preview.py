"""The job that says what a restore would do, before anybody does it. Nothing of the pipeline is changed.

Annotations are evaluated: Dagster reads the config class from them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.dagster.asset import checkpoints_asset_key, checkpoints_partitions
from dagster_ckpt.dagster.checks.dry_run import resources_for_trial, try_restore
from dagster_ckpt.dagster.jobs.build import one_op_job
from dagster_ckpt.dagster.jobs.epoch import RestoreConfig
from dagster_ckpt.dagster.names import PREVIEW_OP, preview_job_name
from dagster_ckpt.dagster.pipeline_resources import coordinator_of
from dagster_ckpt.dagster.resources import CheckpointCoordinatorResource
from dagster_ckpt.errors import CheckpointError, Unavailable
from dagster_ckpt.operations.catalog import FoundSnapshot, find_snapshot
from dagster_ckpt.operations.preview import RestorePreview, preview_restore


class PreviewConfig(RestoreConfig):
    """Config of a preview: the restore it is about, and how closely to look."""

    try_queries: bool = True
    """Start every stage's query on a copy, with Spark, into a null sink: finds a query that was changed so that it
    cannot go on from the snapshot's state. False: answer at once, from files alone."""

    def options(self) -> RestoreOptions:
        """Return the checked options. Raises InvalidRequest."""
        return self._options({})


def build_preview_job(pipeline: CheckpointedPipeline, *, resources: Mapping[str, Any]) -> dg.JobDefinition:
    """Return the job that previews the restore of the checkpoint or savepoint chosen as its partition.

    The answer is an observation of that partition: stages, replay, tables, refusals and warnings.
    """

    def preview(context: dg.OpExecutionContext, config: PreviewConfig) -> None:
        resource = coordinator_of(context, pipeline.name)
        deployment, options = resource.deployment(), config.options()
        found = preview_restore(
            deployment, options, pipeline.name, graph=pipeline.graph, hooks=pipeline.hook_uids
        )
        if config.try_queries and found.is_possible and not options.fork:
            snapshot = find_snapshot(deployment, options.restore_from, pipeline.name)
            found = with_queries_tried(found, context.resources, pipeline, resource, snapshot)
        for sentence in (*found.refusals, *found.warnings):
            context.log.warning(sentence)
        context.log.info(sentence_of(found))
        partition = context.partition_key if context.has_partition_key else None
        context.log_event(
            dg.AssetObservation(
                checkpoints_asset_key(pipeline.name),
                partition=partition,
                description=sentence_of(found),
                metadata=preview_metadata(found),
            )
        )

    config: dg.PartitionedConfig[dg.DynamicPartitionsDefinition] = dg.PartitionedConfig(
        partitions_def=checkpoints_partitions(pipeline.name),
        run_config_for_partition_key_fn=lambda key: {"ops": {PREVIEW_OP: {"config": {"restore_from": key}}}},
    )
    return one_op_job(
        pipeline,
        preview,
        resources=resources,
        name=preview_job_name(pipeline.name),
        op=PREVIEW_OP,
        description=f"What would restoring `{pipeline.name}` from the partition chosen do? Nothing is changed.",
        config=config,
        resource_keys=resources_for_trial(pipeline),
    )


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
    return (
        f"restoring {preview.snapshot} would bring back {preview.bytes:,} bytes of state in {len(preview.stages)} "
        f"stages, replay {len(preview.replay)} sources and touch {len(preview.tables)} tables"
    )


def preview_metadata(preview: RestorePreview) -> dict[str, Any]:
    """Return a preview as metadata: tables of stages, replay, tables and schemas, and what speaks against it."""
    stages = [
        {
            "stage": s.uid,
            "gets": s.fate.value,
            "batch": _shown(s.batch_id),
            "bytes": s.bytes,
            "files": s.files,
        }
        for s in preview.stages
    ]
    replay = [
        {
            "stage": r.stage,
            "source": r.step.source,
            "units": _shown(r.step.units),
            "batches": _shown(r.batches),
        }
        for r in preview.replay
    ]
    tables = [
        {
            "stage": t.stage,
            "table": t.uri,
            "becomes": t.fate.value,
            "rows_set_aside": t.rows_set_aside,
            "rows_returning": t.rows_returning,
            "buckets_changing": t.buckets_changing,
        }
        for t in preview.tables
    ]
    metadata: dict[str, Any] = {
        "possible": dg.MetadataValue.bool(preview.is_possible),
        "state_bytes": dg.MetadataValue.int(preview.bytes),
        "compared_with": dg.MetadataValue.text(preview.compared_with),
    }
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
    for name, sentences in (("refusals", preview.refusals), ("warnings", preview.warnings)):
        if sentences:
            metadata[name] = dg.MetadataValue.md("\n".join(f"* {sentence}" for sentence in sentences))
    return metadata


def _shown(value: int | None) -> str:
    return "-" if value is None else str(value)
