"""The job that says what a restore would do, before anybody does it. Nothing of the pipeline is changed.

Annotations are evaluated: Dagster reads the config class from them.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.dagster.checks.dry_run import resources_for_trial
from dagster_ckpt.dagster.jobs.build import one_op_job
from dagster_ckpt.dagster.jobs.gate import refuse_backfill
from dagster_ckpt.dagster.jobs.preview_report import preview_metadata, previewed, sentence_of, tried
from dagster_ckpt.dagster.jobs.run_config import RestoreConfig
from dagster_ckpt.dagster.names import PREVIEW_OP, preview_job_name
from dagster_ckpt.dagster.reports.asset import checkpoints_asset_key, checkpoints_partitions
from dagster_ckpt.dagster.resources.pipeline import coordinator_of


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
        refuse_backfill(context)
        resource = coordinator_of(context, pipeline.name)
        options = config.options()
        found = previewed(resource, pipeline, options)
        if config.try_queries:
            found = tried(found, context.resources, pipeline, resource, options)
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
