"""The jobs of one pipeline by what they do to it, and their schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.model import SnapshotLabel
from dagster_ckpt.dagster.checks.chosen_snapshot import NEWEST_SAVEPOINT
from dagster_ckpt.dagster.jobs.build import job_with
from dagster_ckpt.dagster.jobs.care import build_care_job
from dagster_ckpt.dagster.jobs.launched import (
    build_launched_epoch_job,
    build_launched_streaming_job,
    launch_of_program,
)
from dagster_ckpt.dagster.jobs.runs import build_epoch_job, build_streaming_job
from dagster_ckpt.dagster.jobs.snapshots import SCHEDULE_LABEL, build_savepoint_job
from dagster_ckpt.dagster.names import (
    CARE_OP,
    CONCURRENCY_TAG,
    JOB_TAG,
    RESTORE_OP,
    RESTORE_TAG,
    SAVEPOINT_OP,
    CareAction,
    RestoreMode,
    care_job_name,
    epoch_job_name,
    restore_job_name,
    savepoint_job_name,
)
from dagster_ckpt.dagster.options import EpochSchedule, PipelineOptions, SavepointSchedule
from dagster_ckpt.dagster.reports.asset import checkpoints_partitions
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.dagster.sensors.shared import BoundCoordinator
from dagster_ckpt.errors import CheckpointError


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


def savepoint_schedule_name(pipeline: CheckpointedPipeline) -> str:
    """Return the name of a pipeline's savepoint schedule."""
    return f"{pipeline.name}_savepoint_schedule"


def build_savepoint_schedule(
    pipeline: CheckpointedPipeline,
    schedule: SavepointSchedule,
    *,
    name: str = "",
) -> dg.ScheduleDefinition:
    """Return the schedule that launches the pipeline's savepoint job; switched off until enabled.

    Args:
        pipeline: whose savepoints.
        schedule: when, where to, and the bounds: a savepoint of this schedule is disposed of after a newer one
            completed, once it is outside every bound that is set. Others are never touched.
        name: for a second schedule of the same pipeline (daily and monthly, say); each has bounds of its own.
    """
    own = name or savepoint_schedule_name(pipeline)

    @dg.schedule(
        name=own,
        job_name=savepoint_job_name(pipeline.name),
        cron_schedule=schedule.cron_schedule,
        execution_timezone=schedule.timezone,
        description=f"Takes a savepoint of `{pipeline.name}`; {_bounds(schedule)}.",
        default_status=dg.DefaultScheduleStatus.STOPPED,
    )
    def take_savepoint(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        minute = f"{context.scheduled_execution_time:%Y-%m-%dT%H:%M}"
        labels = {**schedule.labels, SCHEDULE_LABEL: own}
        label = SnapshotLabel(name=f"{own} {minute}", labels=labels, note=schedule.note)
        config = {
            **label.fields(),
            "target": schedule.target,
            "keep_last": schedule.keep_last or 0,
            "keep_for": 0.0 if schedule.keep_for is None else schedule.keep_for.total_seconds(),
            **({} if schedule.keep_hourly is None else {"keep_hourly": schedule.keep_hourly}),
            **({} if schedule.keep_daily is None else {"keep_daily": schedule.keep_daily}),
            "wait_for_run": schedule.wait_for_run.total_seconds(),
        }
        return dg.RunRequest(
            run_key=f"{own}-{minute}", run_config={"ops": {SAVEPOINT_OP: {"config": config}}}
        )

    return take_savepoint


def _bounds(schedule: SavepointSchedule) -> str:
    kept = [
        *([f"the newest {schedule.keep_last}"] if schedule.keep_last is not None else []),
        *([f"all of the last {schedule.keep_for}"] if schedule.keep_for is not None else []),
        *([f"one of each of {schedule.keep_hourly} hours"] if schedule.keep_hourly is not None else []),
        *([f"one of each of {schedule.keep_daily} days"] if schedule.keep_daily is not None else []),
    ]
    return f"keeps {' and '.join(kept)}" if kept else "keeps all of them"


def build_epoch_schedule(pipeline: CheckpointedPipeline, schedule: EpochSchedule) -> dg.ScheduleDefinition:
    """Return the schedule that launches an epoch; switched off until enabled."""
    name = f"{pipeline.name}_epoch_schedule"

    @dg.schedule(
        name=name,
        job_name=epoch_job_name(pipeline.name),
        cron_schedule=schedule.cron,
        execution_timezone=schedule.timezone,
        description=f"Runs an epoch of `{pipeline.name}`; where another run is alive: {schedule.concurrent_runs}.",
        default_status=dg.DefaultScheduleStatus.STOPPED,
    )
    def run_epoch(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        config = {"concurrent_runs": schedule.concurrent_runs}
        return dg.RunRequest(
            run_key=f"{name}-{context.scheduled_execution_time:%Y-%m-%dT%H:%M}",
            run_config={"ops": {RESTORE_OP: {"config": config}}},
        )

    return run_epoch


def build_check_schedules(
    pipeline: PipelineId, options: PipelineOptions, coordinator: CheckpointCoordinatorResource
) -> Iterator[dg.ScheduleDefinition]:
    """Yield the schedules of checks that options ask for; switched off until enabled."""
    bound = BoundCoordinator(coordinator)

    def to_verify(instance: dg.DagsterInstance) -> tuple[str, ...]:
        from dagster_ckpt.runtime.record_store import RecordStore

        try:
            record = RecordStore(bound.of(instance).store()).record(pipeline)
        except CheckpointError:  # the run says what is wrong
            record = None
        return ("latest",) if record is not None and not record.savepoints else (NEWEST_SAVEPOINT, "latest")

    if options.verify_every:
        yield _schedule(
            f"{pipeline}_verify_schedule",
            care_job_name(pipeline),
            options.verify_every,
            lambda instance: [
                {CARE_OP: {"config": {"action": CareAction.VERIFY.value, "checkpoint": one}}}
                for one in to_verify(instance)
            ],
            does="Reads back every file of the newest savepoint, then of the latest checkpoint",
        )
    if options.dry_run_every:
        tried = {"mode": RestoreMode.DRY_RUN.value, "restore_from": NEWEST_SAVEPOINT}
        yield _schedule(
            f"{pipeline}_dry_run_schedule",
            restore_job_name(pipeline),
            options.dry_run_every,
            lambda _: [{RESTORE_OP: {"config": tried}}],
            does="Tries the restore of the newest savepoint in a scratch directory",
            # it runs beside the pipeline: limits of Dagster's queue that are the pipeline's do not hold it up
            tags={CONCURRENCY_TAG: f"{pipeline}/{RestoreMode.DRY_RUN}"},
        )


def _schedule(
    name: str,
    job: str,
    cron: str,
    wanted: Callable[[dg.DagsterInstance], Sequence[Mapping[str, Any]]],
    *,
    does: str,
    tags: Mapping[str, str] | None = None,
) -> dg.ScheduleDefinition:
    """Return a schedule that launches ``job`` with each config of ops that is ``wanted``."""

    @dg.schedule(
        name=name,
        job_name=job,
        cron_schedule=cron,
        description=f"{does}, with job `{job}`.",
        default_status=dg.DefaultScheduleStatus.STOPPED,
    )
    def run_checks(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest]:
        minute = f"{context.scheduled_execution_time:%Y-%m-%dT%H:%M}"
        return [
            dg.RunRequest(run_key=f"{name}-{minute}-{number}", run_config={"ops": ops}, tags=tags)
            for number, ops in enumerate(wanted(context.instance))
        ]

    return run_checks
