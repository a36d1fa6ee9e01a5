"""The jobs of one pipeline, by what they do to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.dagster.jobs.blue_green import build_fork_jobs
from dagster_ckpt.dagster.jobs.dispose import build_dispose_job
from dagster_ckpt.dagster.jobs.epoch import build_epoch_job
from dagster_ckpt.dagster.jobs.launched import build_launched_epoch_job, build_launched_streaming_job
from dagster_ckpt.dagster.jobs.maintain import build_maintain_job
from dagster_ckpt.dagster.jobs.preview import build_preview_job
from dagster_ckpt.dagster.jobs.restore import build_gated_restore_job, build_restore_job
from dagster_ckpt.dagster.jobs.snapshots import build_checkpoint_job, build_savepoint_job, build_stop_job
from dagster_ckpt.dagster.jobs.streaming import build_streaming_job
from dagster_ckpt.dagster.options import PipelineOptions
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineJobs:
    """The jobs of one pipeline."""

    running: tuple[dg.JobDefinition, ...]
    """Those that run the pipeline until they are done or stopped; each is restarted by a sensor of its own."""
    restores: tuple[dg.JobDefinition, ...]
    """Those that run it as well, from a snapshot a person chose."""
    snapshots: tuple[dg.JobDefinition, ...]
    """Those that take a checkpoint or savepoint: of an idle pipeline as its owner."""
    others: tuple[dg.JobDefinition, ...]
    replays: tuple[dg.JobDefinition, ...] = ()
    """Of a fork: it runs it too."""

    @property
    def all(self) -> tuple[dg.JobDefinition, ...]:
        """All of them."""
        return (*self.running, *self.restores, *self.snapshots, *self.replays, *self.others)

    @property
    def owning(self) -> tuple[dg.JobDefinition, ...]:
        """Jobs whose run owns the pipeline while it lasts."""
        return (*self.running, *self.restores, *self.snapshots, *self.replays)


def build_jobs(
    pipeline: CheckpointedPipeline,
    options: PipelineOptions,
    resources: Mapping[str, Any],
    named: CheckpointCoordinatorResource | None,
) -> PipelineJobs:
    """Return the jobs of a pipeline; ``named``: of a fork, the coordinator of the pipeline readers name."""
    of_fork = build_fork_jobs(pipeline, resources=resources, named=named) if pipeline.origins else ()
    epoch, stream = build_running_jobs(pipeline, options, resources=resources)
    return PipelineJobs(
        running=(epoch, stream),
        restores=(
            build_restore_job(pipeline, epoch, resources=resources),
            build_gated_restore_job(pipeline, epoch, resources=resources),
        ),
        snapshots=(
            build_savepoint_job(pipeline, resources=resources),
            build_checkpoint_job(pipeline, resources=resources),
        ),
        others=(
            build_stop_job(pipeline, resources=resources),
            build_preview_job(pipeline, resources=resources),
            build_dispose_job(pipeline, resources=resources),
            build_maintain_job(pipeline, resources=resources),
            *of_fork[:2],
        ),
        replays=of_fork[2:],
    )


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
