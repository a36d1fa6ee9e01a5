"""Removal of a schedule's savepoints that are outside its bounds."""

from __future__ import annotations

from collections.abc import Callable

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.checkpoint.record import CompletedRecord
from dagster_ckpt.core.files.retention import SavepointRetention
from dagster_ckpt.core.location import same_place
from dagster_ckpt.core.units import counted, size
from dagster_ckpt.dagster.jobs.dispose import forget_partition
from dagster_ckpt.dagster.resources import CheckpointCoordinatorResource
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.operations.care.dispose import Disposed, dispose_savepoint, plan_disposal
from dagster_ckpt.runtime.audit import Operator
from dagster_ckpt.runtime.record_store import RecordStore

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
