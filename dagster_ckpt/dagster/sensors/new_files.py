"""An epoch when files arrive that the pipeline's sources read."""

from __future__ import annotations

import time
from collections.abc import Sequence

import dagster as dg

from dagster_ckpt.adapters.arrivals import Arrivals, look_at
from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.supervision.ownership import Alive
from dagster_ckpt.dagster.names import epoch_job_name
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.dagster.runs.lease import owner_of
from dagster_ckpt.dagster.sensors.ticks import BoundCoordinator, Cursor, read_cursor
from dagster_ckpt.errors import Unavailable
from dagster_ckpt.runtime.record_store import RecordStore


class FilesCursor(Cursor):
    """The files for which an epoch was asked last."""

    count: int = 0
    newest: float = 0.0
    digest: str = ""


def build_new_files_sensor(
    pipeline: CheckpointedPipeline,
    paths: Sequence[str],
    *,
    coordinator: CheckpointCoordinatorResource,
) -> dg.SensorDefinition:
    """Return the sensor that launches an epoch when there are new files at ``paths``; switched off until enabled.

    The epoch reads what has arrived, not what the sensor saw. While a run is alive it waits: that one may have begun
    before the files came.
    """
    standing = BoundCoordinator(coordinator)

    @dg.sensor(
        name=f"{pipeline.name}_new_files",
        job_name=epoch_job_name(pipeline.name),
        description=f"Runs an epoch of `{pipeline.name}` when files arrive at {', '.join(paths)}.",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.STOPPED,
    )
    def new_files(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        resource = standing.of(context.instance)
        before = read_cursor(context.cursor, FilesCursor)
        try:
            now = look_at(paths, resource.storage_options)
            record = RecordStore(resource.store()).record(pipeline.name)
        except Unavailable as error:
            return dg.SkipReason(f"the next tick tries again: {error}")
        if not has_new(before, now):
            context.update_cursor(_cursor(now))
            return dg.SkipReason(f"no new file among {now.count}")
        owner = None if record is None else owner_of(record, context.instance, now=time.time())
        if isinstance(owner, Alive):
            return dg.SkipReason(f"new files; waiting for the end of run {owner.run_id}")
        context.update_cursor(_cursor(now))
        return dg.RunRequest(run_key=f"{pipeline.name}-files-{now.digest}")

    return new_files


def has_new(before: FilesCursor, now: Arrivals) -> bool:
    """Return True where a file is new or was written again; files that went away are no news."""
    return now.digest != before.digest and (now.newest > before.newest or now.count > before.count)


def _cursor(now: Arrivals) -> str:
    return FilesCursor(count=now.count, newest=now.newest, digest=now.digest).model_dump_json()
