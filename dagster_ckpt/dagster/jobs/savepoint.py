"""The job that takes a savepoint of a pipeline.

Annotations are evaluated: Dagster reads the config class from them.
"""

import time
from collections.abc import Mapping
from typing import Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.files.retention import SavepointRetention
from dagster_ckpt.core.label import Labeled
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.request import CheckpointRequest
from dagster_ckpt.dagster.jobs.build import one_op_job
from dagster_ckpt.dagster.jobs.savepoint_retention import SCHEDULE_LABEL, dispose_expired, expired_savepoints
from dagster_ckpt.dagster.jobs.take import take_snapshot
from dagster_ckpt.dagster.names import SAVEPOINT_OP, SPARK_KEY, savepoint_job_name
from dagster_ckpt.dagster.pipeline_resources import coordinator_of


class SavepointTarget(Labeled, dg.Config):
    """Target and label of a savepoint."""

    target: str = ""
    """URI of the folder to write below; empty: the resource's ``savepoint_dir``."""
    name: str = ""
    note: str = ""
    labels: dict[str, str] = {}  # noqa: RUF012 - a pydantic field, copied per instance

    def request(self, kind: CheckpointKind, request_id: str) -> CheckpointRequest:
        """Return the request for it."""
        return CheckpointRequest(kind=kind, target=self.target, request_id=request_id, **self.label.fields())


class SavepointConfig(SavepointTarget):
    """Config of the savepoint job: target, label, how long it waits, which earlier ones it replaces."""

    wait_for_run: float = 0.0
    """Seconds to wait for the end of a run that is alive; 0: fail at once."""
    keep_last: int = 0
    """With a label ``schedule``: keep this many of its savepoints, remove older ones afterwards; 0: no bound."""
    keep_for: float = 0.0
    """The same by age, in seconds; one goes only when it is outside every bound that is set."""
    keep_hourly: int = 0
    """The same: the newest of each of so many hours."""
    keep_daily: int = 0
    """The same: the newest of each of so many days."""

    @property
    def retention(self) -> SavepointRetention:
        """The bounds."""
        return SavepointRetention(
            keep_last=self.keep_last or None,
            keep_for=self.keep_for or None,
            keep_hourly=self.keep_hourly or None,
            keep_daily=self.keep_daily or None,
        )


def build_savepoint_job(pipeline: CheckpointedPipeline, *, resources: Mapping[str, Any]) -> dg.JobDefinition:
    """Return the job that takes a savepoint: of the run that streams the pipeline, or of the idle pipeline."""

    def savepoint(context: dg.OpExecutionContext, config: SavepointConfig) -> None:
        request = config.request(CheckpointKind.SAVEPOINT, f"savepoint-{context.run_id}")
        take_snapshot(context, pipeline, request, wait_for_run=config.wait_for_run)
        _remove_expired(context, pipeline, config)

    return one_op_job(
        pipeline,
        savepoint,
        resources=resources,
        name=savepoint_job_name(pipeline.name),
        op=SAVEPOINT_OP,
        description=f"Write a self-contained, relocatable snapshot of pipeline `{pipeline.name}`.",
        resource_keys={SPARK_KEY, *pipeline.hook_resource_keys},
    )


def _remove_expired(
    context: dg.OpExecutionContext, pipeline: CheckpointedPipeline, config: SavepointConfig
) -> None:
    """Remove savepoints of the same schedule that are outside its bounds, now that a newer one is complete."""
    schedule = config.labels.get(SCHEDULE_LABEL, "")
    if not schedule:
        return
    resource = coordinator_of(context, pipeline.name)
    expired = expired_savepoints(resource, pipeline, config.retention, schedule=schedule, now=time.time())
    dispose_expired(resource, pipeline, expired, instance=context.instance, tell=context.log.info)
