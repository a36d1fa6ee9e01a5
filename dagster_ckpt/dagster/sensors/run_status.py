"""Run-status mirror: what Dagster says of a run reaches the coordinator, seconds after the run has ended.

A run that ends in order tells the coordinator itself, and while it is RUNNING its own timer triggers checkpoints (a
sensor could do neither: Dagster evaluates one every five seconds at best, and it skips all that was before its first
tick). This is for the others: killed, crashed, canceled before they could clean up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.dagster.sensors.safety_net import Resolution, Supervisor
from dagster_ckpt.dagster.sensors.ticks import BoundCoordinator
from dagster_ckpt.errors import Unavailable

_ENDS = {"failed": dg.DagsterRunStatus.FAILURE, "canceled": dg.DagsterRunStatus.CANCELED}

_WAS = {"failed": "failed", "canceled": "was canceled"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrored:
    """A pipeline whose runs are mirrored, and the way to its store."""

    pipeline: CheckpointedPipeline
    standing: BoundCoordinator


def build_run_status_sensors(
    pipeline: CheckpointedPipeline,
    *,
    jobs: Sequence[dg.JobDefinition],
    coordinator: CheckpointCoordinatorResource,
) -> list[dg.RunStatusSensorDefinition]:
    """Return one sensor per way a run can end without a word; ``jobs`` are those whose run owns the pipeline."""
    found = Mirrored(pipeline=pipeline, standing=BoundCoordinator(coordinator))
    owners = {job.name: found for job in jobs}
    return [_sensor(pipeline.name, name, status, owners, list(jobs)) for name, status in _ENDS.items()]


def shared_run_status_sensors(
    prefix: str, owners: Mapping[str, Mirrored]
) -> list[dg.RunStatusSensorDefinition]:
    """Return the same sensors for all pipelines of a code location; ``owners``: by job, and more may be added."""
    return [_sensor(prefix, name, status, owners, None) for name, status in _ENDS.items()]


def _sensor(
    prefix: str,
    name: str,
    status: dg.DagsterRunStatus,
    owners: Mapping[str, Mirrored],
    jobs: Sequence[dg.JobDefinition] | None,
) -> dg.RunStatusSensorDefinition:
    @dg.run_status_sensor(
        name=f"{prefix}_run_{name}",
        description=f"Settles the attempt of a pipeline's run that {_WAS[name]} without saying so itself.",
        run_status=status,
        monitored_jobs=jobs,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    def mirror(context: dg.RunStatusSensorContext) -> dg.SkipReason | None:
        found = owners.get(context.dagster_run.job_name)
        if found is None:  # of all jobs of the location
            return dg.SkipReason(f"{context.dagster_run.job_name} is no job of a pipeline")
        care = Supervisor(
            pipeline=found.pipeline,
            resource=found.standing.of(context.instance),
            instance=context.instance,
            location=None,
        )
        try:
            seen = care.observe()
            told = Resolution("the pipeline has not run yet") if seen is None else care.resolve(seen)
        except Unavailable as error:
            return dg.SkipReason(f"left to the safety net: {error}")
        for event in told.events:
            context.instance.report_runless_asset_event(event)
        return None if told.events else dg.SkipReason(told.summary)

    return mirror
