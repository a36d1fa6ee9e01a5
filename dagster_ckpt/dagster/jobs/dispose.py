"""Removal of savepoints: by a job, and of a schedule's that are outside its bounds.

Annotations are evaluated: Dagster reads the config class from them.
"""

from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.checkpoint.record import CompletedRecord
from dagster_ckpt.core.files.retention import SavepointRetention
from dagster_ckpt.core.location import same_place
from dagster_ckpt.core.units import counted, size
from dagster_ckpt.dagster.jobs.build import one_op_job
from dagster_ckpt.dagster.names import DISPOSE_OP, dispose_job_name, who_of
from dagster_ckpt.dagster.reports.asset import checkpoints_partitions
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.dagster.resources.pipeline import coordinator_of
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.operations.care.dispose import Disposed, dispose_savepoint, plan_disposal
from dagster_ckpt.runtime.audit import Operator
from dagster_ckpt.runtime.record_store import RecordStore


class DisposeConfig(dg.Config):
    """Config of the dispose job: the savepoint to delete."""

    savepoint: str
    """A key such as ``savepoint-7``, or the path or URI of its folder."""
    dry_run: bool = False
    """Only say what would be removed."""


def build_dispose_job(pipeline: CheckpointedPipeline, *, resources: Mapping[str, Any]) -> dg.JobDefinition:
    """Return the job that forgets a savepoint and deletes its files; refused while somebody needs it.

    The savepoint is config and not a partition: a drop-down comes with a dialog that launches *all* partitions.
    """

    def dispose(context: dg.OpExecutionContext, config: DisposeConfig) -> None:
        deployment = coordinator_of(context, pipeline.name).deployment()
        plan = plan_disposal(deployment, config.savepoint, pipeline.name)
        files = f"{counted(len(plan.keys), 'file')}, {size(plan.bytes)}"
        if config.dry_run:
            context.log.info(f"would remove {plan.key} at {plan.location.uri}: {files}")
            return
        operator = Operator(
            who=who_of(context.run.tags), shown=(f"{plan.key} at {plan.location.uri}: {files}",)
        )
        done = dispose_savepoint(deployment, plan, operator=operator, run_id=context.run_id)
        forget_partition(context.instance, pipeline, done)
        context.log.info(f"removed {done.key} at {done.uri}: {files}")

    return one_op_job(
        pipeline,
        dispose,
        resources=resources,
        name=dispose_job_name(pipeline.name),
        op=DISPOSE_OP,
        description=f"Remove a savepoint of pipeline `{pipeline.name}` that nobody needs any more.",
    )


def forget_partition(
    instance: dg.DagsterInstance, pipeline: CheckpointedPipeline, disposed: Disposed
) -> None:
    """Take a removed savepoint out of the checkpoints asset; its events stay as history."""
    instance.delete_dynamic_partition(checkpoints_partitions(pipeline.name).name or "", disposed.key)


SCHEDULE_LABEL = "schedule"
"""Label of a savepoint that a schedule took: only those fall under its bounds."""


def expired_savepoints(
    resource: CheckpointCoordinatorResource,
    pipeline: CheckpointedPipeline,
    retention: SavepointRetention,
    *,
    schedule: str,
    now: float,
) -> tuple[CompletedRecord, ...]:
    """Return the savepoints of one schedule that are outside its bounds, oldest first.

    Only of those where it writes them now: others may be another deployment's, which this one is a copy of.
    """
    record = RecordStore(resource.store()).record(pipeline.name)
    if record is None:
        return ()
    own = [s for s in record.savepoints if s.trigger.labels.get(SCHEDULE_LABEL) == schedule]
    newest = max(own, key=lambda s: s.checkpoint_id, default=None)
    here = [s for s in own if newest and same_place(s.location.base_uri, newest.location.base_uri)]
    return retention.expired(here, now=now)


def dispose_expired(
    resource: CheckpointCoordinatorResource,
    pipeline: CheckpointedPipeline,
    expired: tuple[CompletedRecord, ...],
    *,
    instance: dg.DagsterInstance,
    tell: Callable[[str], None],
) -> list[Disposed]:
    """Remove savepoints that are outside their bounds; one that somebody needs, or that cannot be removed, stays."""
    deployment = resource.deployment()
    gone: list[Disposed] = []
    for entry in expired:
        try:
            plan = plan_disposal(deployment, entry.location.uri, pipeline.name)
            done = dispose_savepoint(
                deployment, plan, operator=Operator(who=f"schedule {entry.trigger.labels[SCHEDULE_LABEL]}")
            )
        except CheckpointError as error:
            tell(f"{entry.known.key} is outside the schedule's bounds and was not removed: {error}")
            continue
        forget_partition(instance, pipeline, done)
        tell(
            f"{done.key} is outside the schedule's bounds: removed {counted(done.files, 'file')}, {size(done.bytes)}"
        )
        gone.append(done)
    return gone
