"""Runs on a condition: an epoch when files arrive that the pipeline's sources read; savepoints by a condition of yours.

A savepoint before an upgrade, after so many checkpoints, on a file's arrival.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.model import Labeled
from dagster_ckpt.core.supervision.ownership import Alive
from dagster_ckpt.core.units import counted
from dagster_ckpt.dagster.names import SAVEPOINT_OP, epoch_job_name, savepoint_job_name
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.dagster.sensors.shared import BoundCoordinator, Cursor, read_cursor
from dagster_ckpt.errors import Unavailable

if TYPE_CHECKING:
    from dagster_ckpt.adapters.fsspec_storage import Arrivals


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
        from dagster_ckpt.adapters.fsspec_storage import look_at
        from dagster_ckpt.dagster.runs.turn import owner_of
        from dagster_ckpt.runtime.record_store import RecordStore

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointWanted(Labeled):
    """Answer of a condition when a savepoint is to be taken."""

    request_key: str
    """Names the occasion: one savepoint is taken per key, however often the condition says so."""
    name: str = ""
    note: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    target: str = ""


Condition = Callable[[dg.SensorEvaluationContext, CoordinatorRecord], SavepointWanted | None]


def build_savepoint_sensor(
    pipeline: CheckpointedPipeline,
    when: Condition,
    *,
    coordinator: CheckpointCoordinatorResource,
    name: str = "",
    minimum_interval_seconds: int = 30,
) -> dg.SensorDefinition:
    """Return the sensor that launches the pipeline's savepoint job when ``when`` says so.

    Args:
        pipeline: whose savepoint.
        when: called each tick with the tick's context and the pipeline's record; ``after_checkpoints`` is one.
        coordinator: the resource its runs use.
        name: for a second sensor of the same pipeline.
        minimum_interval_seconds: Dagster evaluates no sensor more often than every 5 s.
    """

    standing = BoundCoordinator(coordinator)

    @dg.sensor(
        name=name or f"{pipeline.name}_savepoint_sensor",
        job_name=savepoint_job_name(pipeline.name),
        description=f"Takes a savepoint of `{pipeline.name}`, running as a stream or at rest, when a condition holds.",
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=dg.DefaultSensorStatus.STOPPED,
    )
    def take_savepoint(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        from dagster_ckpt.dagster.runs.turn import owner_of
        from dagster_ckpt.runtime.record_store import RecordStore

        try:
            record = RecordStore(standing.of(context.instance).store()).record(pipeline.name)
        except Unavailable as error:
            return dg.SkipReason(f"the next tick tries again: {error}")
        if record is None:
            return dg.SkipReason("the pipeline has not run yet: there is nothing to take a savepoint of")
        wanted = when(context, record)
        if wanted is None:
            return dg.SkipReason("the condition does not hold")
        owner = owner_of(record, context.instance, now=time.time())
        if isinstance(owner, Alive) and not owner.streams:
            return dg.SkipReason(f"wanted ({wanted.request_key}); waiting for the end of run {owner.run_id}")
        config = {**wanted.label.fields(), "target": wanted.target}
        return dg.RunRequest(
            run_key=f"{take_savepoint_name}-{wanted.request_key}",
            run_config={"ops": {SAVEPOINT_OP: {"config": config}}},
        )

    take_savepoint_name = take_savepoint.name
    return take_savepoint


def after_checkpoints(count: int) -> Condition:
    """Return the condition: ``count`` checkpoint numbers have been used since the newest savepoint."""

    def condition(_context: dg.SensorEvaluationContext, record: CoordinatorRecord) -> SavepointWanted | None:
        newest = max((c.checkpoint_id for c in record.completed), default=0)
        since = max((s.checkpoint_id for s in record.savepoints), default=0)
        if newest - since < count:
            return None
        return SavepointWanted(
            request_key=f"after-{newest}",
            note=f"{counted(newest - since, 'checkpoint')} since the last savepoint",
        )

    return condition
