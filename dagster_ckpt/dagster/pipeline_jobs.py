"""The jobs of one pipeline, by what they do to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.dagster.jobs.build import job_with
from dagster_ckpt.dagster.jobs.care import build_care_job
from dagster_ckpt.dagster.jobs.epoch import build_epoch_job
from dagster_ckpt.dagster.jobs.launched import (
    build_launched_epoch_job,
    build_launched_streaming_job,
    launch_of_program,
)
from dagster_ckpt.dagster.jobs.snapshots import build_savepoint_job
from dagster_ckpt.dagster.jobs.streaming import build_streaming_job
from dagster_ckpt.dagster.names import (
    JOB_TAG,
    RESTORE_OP,
    RESTORE_TAG,
    CareAction,
    RestoreMode,
    restore_job_name,
)
from dagster_ckpt.dagster.options import PipelineOptions
from dagster_ckpt.dagster.reports.asset import checkpoints_partitions
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource


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


_NOT_OF_PROGRAMS = (CareAction.MAINTAIN,)
"""The tables of a program that starts its queries itself are Spark's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineJobs:
    """The five jobs of one pipeline; of a program that starts its queries itself four."""

    running: tuple[dg.JobDefinition, ...]
    """Those that run the pipeline until they are done or stopped; each is restarted by a sensor of its own."""
    restore: dg.JobDefinition
    """It runs it as well, from a snapshot a person chose."""
    savepoint: dg.JobDefinition
    """It takes a checkpoint or savepoint: of an idle pipeline as its owner."""
    care: dg.JobDefinition
    """It looks after tables and snapshots; of a fork it runs it too, for a replay."""

    @property
    def all(self) -> tuple[dg.JobDefinition, ...]:
        """All of them; their runs may own the pipeline while they last."""
        return (*self.running, self.restore, self.savepoint, self.care)


def build_jobs(
    pipeline: CheckpointedPipeline,
    options: PipelineOptions,
    resources: Mapping[str, Any],
    named: CheckpointCoordinatorResource | None,
) -> PipelineJobs:
    """Return the jobs of a pipeline; ``named``: of a fork, the coordinator of the pipeline readers name."""
    running = build_running_jobs(pipeline, options, resources=resources)
    epoch = running[0]
    refused = (*options.refused_actions, *(_NOT_OF_PROGRAMS if pipeline.program else ()))
    return PipelineJobs(
        running=running,
        restore=build_restore_job(pipeline, epoch, resources=resources),
        savepoint=build_savepoint_job(pipeline, resources=resources, refused=refused),
        care=build_care_job(pipeline, resources=resources, named=named, refused=refused),
    )


def build_running_jobs(
    pipeline: CheckpointedPipeline, options: PipelineOptions, *, resources: Mapping[str, Any]
) -> tuple[dg.JobDefinition, ...]:
    """Return the job that runs epochs and the one that runs a stream; a program is as it is, and has one."""
    common: dict[str, Any] = {"resources": resources, "concurrent_runs": options.concurrent_runs}
    if pipeline.program:
        launch = options.launch or launch_of_program(pipeline)
        common.update(report=options.report, publish_facts=options.publish_facts)
        return (build_launched_epoch_job(pipeline, launch, **common),)
    if options.launch is None:
        return (
            build_epoch_job(
                pipeline, executor=options.executor, publish_facts=options.publish_facts, **common
            ),
            build_streaming_job(pipeline, report=options.report, executor=options.executor, **common),
        )
    return (
        build_launched_epoch_job(pipeline, options.launch, publish_facts=options.publish_facts, **common),
        build_launched_streaming_job(pipeline, options.launch, report=options.report, **common),
    )
