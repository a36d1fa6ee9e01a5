"""The job that says what a restore would do, before anybody does it. Nothing is changed, no Spark is started.

Annotations are evaluated: Dagster reads the config class from them.
"""

from typing import Any

import dagster as dg

from dagster_ckpt.assets import checkpoints_asset_key, checkpoints_partitions
from dagster_ckpt.attempt import COORDINATOR_KEY
from dagster_ckpt.jobs import RestoreConfig, clear_errors
from dagster_ckpt.operations.preview import RestorePreview, preview_restore
from dagster_ckpt.pipeline import CheckpointedPipeline
from dagster_ckpt.resources import CheckpointCoordinatorResource

PREVIEW_OP = "preview"


def preview_job_name(pipeline: CheckpointedPipeline) -> str:
    """Return the name of a pipeline's preview job."""
    return f"{pipeline.name}_preview"


def build_preview_job(pipeline: CheckpointedPipeline) -> dg.JobDefinition:
    """Return the job that previews the restore of the checkpoint or savepoint chosen as its partition.

    The answer is an observation of that partition: stages, replay, tables, refusals and warnings.
    """

    @dg.op(
        name=f"{pipeline.name}__{PREVIEW_OP}",
        description=f"Say what restoring pipeline `{pipeline.name}` would do.",
        required_resource_keys={COORDINATOR_KEY},
        out={"done": dg.Out(dg.Nothing)},
    )
    def preview(context: dg.OpExecutionContext, config: RestoreConfig) -> None:
        resource: CheckpointCoordinatorResource = getattr(context.resources, COORDINATOR_KEY)
        with clear_errors():
            found = preview_restore(
                resource.deployment(), config.options(), pipeline.name, graph=pipeline.graph
            )
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
    graph = dg.GraphDefinition(
        name=f"{preview_job_name(pipeline)}__graph",
        node_defs=[preview],
        dependencies={dg.NodeInvocation(preview.name, alias=PREVIEW_OP): {}},
    )
    return graph.to_job(
        name=preview_job_name(pipeline),
        description=f"What would restoring `{pipeline.name}` from the partition chosen do? Nothing is changed.",
        config=config,
        executor_def=dg.in_process_executor,
        tags={"dagster_ckpt/pipeline": pipeline.name},
    )


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
    shown = (("stages", stages), ("replay", replay), ("tables", tables), ("state_kept_otherwise", schemas))
    for name, rows in shown:
        if rows:
            metadata[name] = dg.MetadataValue.table([dg.TableRecord(row) for row in rows])
    for name, sentences in (("refusals", preview.refusals), ("warnings", preview.warnings)):
        if sentences:
            metadata[name] = dg.MetadataValue.md("\n".join(f"* {sentence}" for sentence in sentences))
    return metadata


def _shown(value: int | None) -> str:
    return "-" if value is None else str(value)
