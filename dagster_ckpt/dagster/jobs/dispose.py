"""Removal of savepoints: of one that a person names, and of a schedule's that are outside its bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.checkpoint.record import CompletedRecord
from dagster_ckpt.core.files.retention import SavepointRetention
from dagster_ckpt.core.location import same_place
from dagster_ckpt.core.units import counted, size
from dagster_ckpt.dagster.names import SAVEPOINT_OP, who_of
from dagster_ckpt.dagster.reports.asset import checkpoints_partitions
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.dagster.resources.pipeline import coordinator_of
from dagster_ckpt.errors import CheckpointError, InvalidRequest
from dagster_ckpt.runtime.record_store import Operator

if TYPE_CHECKING:
    from dagster_ckpt.operations.care.clean import Disposed


def dispose(
    context: dg.OpExecutionContext, pipeline: CheckpointedPipeline, savepoint: str, *, is_dry: bool
) -> None:
    """Forget a savepoint and delete its files; refused while somebody needs it. ``is_dry``: only say what would go.

    It is named in the config and not a partition: a drop-down comes with a dialog that launches *all* partitions.
    """
    from dagster_ckpt.operations.care.clean import dispose_savepoint, plan_disposal

    if not savepoint:
        raise InvalidRequest(
            f"Run config of op {SAVEPOINT_OP!r}: action: dispose needs the savepoint, such as savepoint: savepoint-7"
        )
    deployment = coordinator_of(context, pipeline.name).deployment()
    plan = plan_disposal(deployment, savepoint, pipeline.name)
    files = f"{counted(len(plan.keys), 'file')}, {size(plan.bytes)}"
    if is_dry:
        context.log.info(f"would remove {plan.key} at {plan.location.uri}: {files}")
        return
    operator = Operator(who=who_of(context.run.tags), shown=(f"{plan.key} at {plan.location.uri}: {files}",))
    done = dispose_savepoint(deployment, plan, operator=operator, run_id=context.run_id)
    forget_partition(context.instance, pipeline, done)
    context.log.info(f"removed {done.key} at {done.uri}: {files}")


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
    from dagster_ckpt.runtime.record_store import RecordStore

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
    from dagster_ckpt.operations.care.clean import dispose_savepoint, plan_disposal

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
