"""The second way to restore from the UI: a job whose partition drop-down lists what can be restored.

The first is the link in a checkpoint's metadata. Both end in the same run config of the same ops.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.dagster.jobs.build import job_with
from dagster_ckpt.dagster.names import JOB_TAG, RESTORE_OP, RESTORE_TAG, RestoreMode, restore_job_name
from dagster_ckpt.dagster.reports.asset import checkpoints_partitions


def build_restore_job(
    pipeline: CheckpointedPipeline, epoch_job: dg.JobDefinition, *, resources: Mapping[str, Any]
) -> dg.JobDefinition:
    """Return the job that runs ``epoch_job``'s ops from the checkpoint or savepoint chosen as its partition.

    By its ``mode`` it previews that, has it approved, or tries it, and changes nothing. The choice is mandatory, so the
    pipeline's ordinary job stays without one.
    """
    config: dg.PartitionedConfig[dg.DynamicPartitionsDefinition] = dg.PartitionedConfig(
        partitions_def=checkpoints_partitions(pipeline.name),
        run_config_for_partition_key_fn=lambda key: {
            "ops": {RESTORE_OP: {"config": {"restore_from": key, "mode": RestoreMode.RESTORE.value}}}
        },
        tags_for_partition_key_fn=lambda key: {RESTORE_TAG: key},
    )
    return job_with(
        epoch_job.graph,
        resources,
        name=restore_job_name(pipeline.name),
        description=(
            f"Run `{pipeline.name}` from one of its retained checkpoints or savepoints: choose it as the partition. "
            "Tables go back to where they stood then, and what came later is read again. With `mode: preview`, `gate` "
            "(preview, then a link that approves it) or `dry_run` nothing is changed."
        ),
        config=config,
        executor_def=epoch_job.executor_def,
        tags={**epoch_job.tags, JOB_TAG: RESTORE_OP},
    )
