"""Verification and dry runs on a schedule: the newest savepoint first, then the latest checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.dagster.checks.chosen_snapshot import NEWEST_SAVEPOINT
from dagster_ckpt.dagster.names import JOB_TAG, PIPELINE_TAG, dry_run_job_name, verify_job_name
from dagster_ckpt.dagster.options import PipelineOptions
from dagster_ckpt.dagster.resources import CheckpointCoordinatorResource
from dagster_ckpt.dagster.sensors.ticks import BoundCoordinator
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.runtime.record_store import RecordStore


def build_check_jobs(
    pipeline: CheckpointedPipeline,
    *,
    verified: dg.AssetChecksDefinition,
    restorable: dg.AssetChecksDefinition,
) -> Iterator[UnresolvedAssetJobDefinition]:
    """Yield the jobs that run the checks of a pipeline's snapshots."""
    for name, check, does in (
        (verify_job_name(pipeline.name), verified, "Reads back every file of a snapshot and compares it"),
        (
            dry_run_job_name(pipeline.name),
            restorable,
            "Tries the restore of a snapshot, in a scratch directory",
        ),
    ):
        yield dg.define_asset_job(
            name,
            selection=dg.AssetSelection.checks(*check.check_keys),
            description=f"{does}. Pipeline `{pipeline.name}` is not touched, and may run meanwhile.",
            executor_def=dg.in_process_executor,
            tags={PIPELINE_TAG: pipeline.name, JOB_TAG: name.removeprefix(f"{pipeline.name}_")},
        )


def build_check_schedules(
    pipeline: PipelineId,
    options: PipelineOptions,
    coordinator: CheckpointCoordinatorResource,
    *,
    verified: dg.AssetChecksDefinition,
    restorable: dg.AssetChecksDefinition,
) -> Iterator[dg.ScheduleDefinition]:
    """Yield the schedules that options ask for; switched off until enabled."""
    bound = BoundCoordinator(coordinator)

    def to_verify(instance: dg.DagsterInstance) -> tuple[str, ...]:
        try:
            record = RecordStore(bound.of(instance).store()).record(pipeline)
        except CheckpointError:  # the run says what is wrong
            record = None
        return ("latest",) if record is not None and not record.savepoints else (NEWEST_SAVEPOINT, "latest")

    if options.verify_every:
        yield _schedule(
            verify_job_name(pipeline),
            verified,
            options.verify_every,
            to_verify,
            "the newest savepoint, then the latest checkpoint",
        )
    if options.dry_run_every:
        yield _schedule(
            dry_run_job_name(pipeline),
            restorable,
            options.dry_run_every,
            lambda _: (NEWEST_SAVEPOINT,),
            "the newest savepoint",
        )


def _schedule(
    job: str,
    check: dg.AssetChecksDefinition,
    cron: str,
    wanted: Callable[[dg.DagsterInstance], tuple[str, ...]],
    what: str,
) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=f"{job}_schedule",
        job_name=job,
        cron_schedule=cron,
        description=f"Runs `{job}`: {what}.",
        default_status=dg.DefaultScheduleStatus.STOPPED,
    )
    def run_checks(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest]:
        minute = f"{context.scheduled_execution_time:%Y-%m-%dT%H:%M}"
        return [
            dg.RunRequest(
                run_key=f"{job}-{minute}-{one}",
                run_config={"ops": {check.node_def.name: {"config": {"checkpoint": one}}}},
            )
            for one in wanted(context.instance)
        ]

    return run_checks
