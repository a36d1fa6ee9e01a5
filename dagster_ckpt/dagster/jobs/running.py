"""The two jobs that run a pipeline's stages, in the run's own process or in a program launched elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.dagster.jobs.epoch import build_epoch_job
from dagster_ckpt.dagster.jobs.launched import build_launched_epoch_job, build_launched_streaming_job
from dagster_ckpt.dagster.jobs.streaming import build_streaming_job
from dagster_ckpt.dagster.options import PipelineOptions


def build_running_jobs(
    pipeline: CheckpointedPipeline, options: PipelineOptions, *, resources: Mapping[str, Any]
) -> tuple[dg.JobDefinition, dg.JobDefinition]:
    """Return the job that runs epochs and the one that runs a stream."""
    common: dict[str, Any] = {"resources": resources, "concurrent_runs": options.concurrent_runs}
    if options.launch is None:
        return (
            build_epoch_job(pipeline, executor=options.executor, **common),
            build_streaming_job(pipeline, report=options.report, executor=options.executor, **common),
        )
    return (
        build_launched_epoch_job(pipeline, options.launch, **common),
        build_launched_streaming_job(pipeline, options.launch, report=options.report, **common),
    )
