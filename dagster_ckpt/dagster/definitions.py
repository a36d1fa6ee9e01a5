"""The one call that turns pipelines into Dagster definitions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.dagster.asset import build_checkpoints_asset
from dagster_ckpt.dagster.checks.age import build_age_check
from dagster_ckpt.dagster.checks.horizon import build_horizon_check
from dagster_ckpt.dagster.checks.restorable import build_restorable_check
from dagster_ckpt.dagster.checks.succeeded import build_succeeded_check
from dagster_ckpt.dagster.checks.verified import build_verified_check
from dagster_ckpt.dagster.jobs.checkpoint import build_checkpoint_job
from dagster_ckpt.dagster.jobs.dispose import build_dispose_job
from dagster_ckpt.dagster.jobs.epoch import build_epoch_job
from dagster_ckpt.dagster.jobs.maintain import build_maintain_job
from dagster_ckpt.dagster.jobs.preview import build_preview_job
from dagster_ckpt.dagster.jobs.restore import build_restore_job
from dagster_ckpt.dagster.jobs.savepoint import build_savepoint_job
from dagster_ckpt.dagster.jobs.stop import build_stop_job
from dagster_ckpt.dagster.jobs.streaming import build_streaming_job
from dagster_ckpt.dagster.names import COORDINATOR_KEY, SPARK_KEY, epoch_job_name
from dagster_ckpt.dagster.options import PipelineOptions, options_of, refuse_unknown
from dagster_ckpt.dagster.pipeline_resources import own_resources
from dagster_ckpt.dagster.resources import CheckpointCoordinatorResource, SparkSessionResource
from dagster_ckpt.dagster.schedules import build_savepoint_schedule
from dagster_ckpt.dagster.sensors.failure_alarm import build_failure_alarm
from dagster_ckpt.dagster.sensors.restart import build_restart_sensor
from dagster_ckpt.dagster.sensors.run_status import build_run_status_sensors
from dagster_ckpt.dagster.sensors.safety_net import build_safety_net_sensor
from dagster_ckpt.dagster.table_assets import build_table_assets
from dagster_ckpt.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineJobs:
    """The jobs of one pipeline."""

    running: tuple[dg.JobDefinition, ...]
    """Those that run the pipeline until they are done or stopped; each is restarted by a sensor of its own."""
    restore: dg.JobDefinition
    """Runs the pipeline as well, from the partition chosen."""
    snapshots: tuple[dg.JobDefinition, ...]
    """Those that take a checkpoint or savepoint: of an idle pipeline as its owner."""
    others: tuple[dg.JobDefinition, ...]

    @property
    def all(self) -> tuple[dg.JobDefinition, ...]:
        """All of them."""
        return (*self.running, self.restore, *self.snapshots, *self.others)

    @property
    def owning(self) -> tuple[dg.JobDefinition, ...]:
        """Those whose run owns the pipeline while it lasts."""
        return (*self.running, self.restore, *self.snapshots)


def build_pipeline_definitions(
    *pipelines: CheckpointedPipeline,
    coordinator: CheckpointCoordinatorResource | None = None,
    spark: SparkSessionResource | None = None,
    options: PipelineOptions | Mapping[str, PipelineOptions] | None = None,
) -> dg.Definitions:
    """Return everything that operates some pipelines from Dagster; merge it with your own definitions.

    Jobs to run, restore, take checkpoints and savepoints, dispose of savepoints; the checkpoints assets and their
    checks; the sensors that look after dead runs, tell people of failures and restart; the savepoint schedules; the
    resources.

    Args:
        pipelines: made by ``@checkpointed_pipeline``; names must differ.
        coordinator: where checkpoints live; default: below Dagster's own storage directory.
        spark: the session of a run; default: local.
        options: how pipelines show and are looked after; of all of them, or by name.

    Raises:
        InvalidRequest: two pipelines of one name, options for none, or settings no checkpoint can be taken with.
    """
    names = [pipeline.name for pipeline in pipelines]
    if len(set(names)) != len(names):
        raise InvalidRequest(f"pipelines need different names, got {names}")
    refuse_unknown(options, names)
    resource = coordinator or CheckpointCoordinatorResource()
    for pipeline in pipelines:
        resource.check_settings(pipeline)
    bound = {COORDINATOR_KEY: resource, SPARK_KEY: spark or SparkSessionResource()}
    jobs = {p.name: _jobs(p, options_of(options, p.name), bound) for p in pipelines}
    return dg.Definitions(
        jobs=[job for of_one in jobs.values() for job in of_one.all],
        assets=[a for p in pipelines for a in _assets(p, options_of(options, p.name))],
        asset_checks=[c for p in pipelines for c in _checks(p, options_of(options, p.name))],
        sensors=[
            s for p in pipelines for s in _sensors(p, options_of(options, p.name), jobs[p.name], resource)
        ],
        schedules=[s for p in pipelines for s in _schedules(p, options_of(options, p.name))],
        resources={k: v for p in pipelines for k, v in own_resources(p.name, bound).items()},
    )


def _jobs(
    pipeline: CheckpointedPipeline, options: PipelineOptions, resources: Mapping[str, Any]
) -> PipelineJobs:
    found = options.concurrent_runs
    epoch = build_epoch_job(pipeline, resources=resources, concurrent_runs=found)
    return PipelineJobs(
        running=(epoch, build_streaming_job(pipeline, resources=resources, concurrent_runs=found)),
        restore=build_restore_job(pipeline, epoch, resources=resources),
        snapshots=(
            build_savepoint_job(pipeline, resources=resources),
            build_checkpoint_job(pipeline, resources=resources),
        ),
        others=(
            build_stop_job(pipeline, resources=resources),
            build_preview_job(pipeline, resources=resources),
            build_dispose_job(pipeline, resources=resources),
            build_maintain_job(pipeline, resources=resources),
        ),
    )


def _assets(pipeline: CheckpointedPipeline, options: PipelineOptions) -> Iterator[dg.AssetSpec]:
    yield from build_table_assets(
        pipeline,
        group_name=options.table_group_name or pipeline.name,
        owners=options.owners,
        tags=options.tags,
    )
    yield build_checkpoints_asset(
        pipeline.name,
        job_name=epoch_job_name(pipeline.name),
        group_name=options.group_name,
        owners=options.owners,
        tags=options.tags,
        freshness_policy=options.freshness_policy,
    )


def _checks(pipeline: CheckpointedPipeline, options: PipelineOptions) -> Iterator[dg.AssetChecksDefinition]:
    yield build_succeeded_check(pipeline.name)
    yield build_age_check(pipeline.name, max_age=options.max_checkpoint_age)
    yield build_verified_check(pipeline.name)
    yield build_restorable_check(pipeline)
    yield build_horizon_check(pipeline)


def _sensors(
    pipeline: CheckpointedPipeline,
    options: PipelineOptions,
    jobs: PipelineJobs,
    coordinator: CheckpointCoordinatorResource,
) -> Iterator[dg.SensorDefinition]:
    yield build_safety_net_sensor(pipeline, coordinator=coordinator)
    yield from build_run_status_sensors(pipeline, jobs=jobs.owning, coordinator=coordinator)
    yield build_failure_alarm(
        pipeline, coordinator=coordinator, policy=options.alarm_policy, notify=options.notify
    )
    if options.restart is not None:
        for job in jobs.running:
            instead_of = [jobs.restore.name] if job.name == epoch_job_name(pipeline.name) else []
            yield build_restart_sensor(
                pipeline,
                coordinator=coordinator,
                policy=options.restart,
                job_name=job.name,
                instead_of=instead_of,
            )


def _schedules(pipeline: CheckpointedPipeline, options: PipelineOptions) -> Iterator[dg.ScheduleDefinition]:
    if options.savepoints is not None:
        yield build_savepoint_schedule(pipeline, options.savepoints)
