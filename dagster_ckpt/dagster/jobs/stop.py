"""The job that stops a stream with a savepoint.

Annotations are evaluated: Dagster reads the config class from them.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.dagster.jobs.build import one_op_job
from dagster_ckpt.dagster.jobs.savepoint import SavepointTarget
from dagster_ckpt.dagster.lease import request_from_running_stream
from dagster_ckpt.dagster.names import STOP_OP, savepoint_job_name, stop_job_name
from dagster_ckpt.dagster.pipeline_resources import coordinator_of
from dagster_ckpt.errors import InvalidRequest


class StopConfig(SavepointTarget):
    """Config of stop-with-savepoint: suspend or drain, and the savepoint's target."""

    drain: bool = False
    """Process what the sources have read to the end first (no effect on windows that are still open)."""


def build_stop_job(pipeline: CheckpointedPipeline, *, resources: Mapping[str, Any]) -> dg.JobDefinition:
    """Return the job that stops the pipeline's streaming run with a savepoint."""

    def stop(context: dg.OpExecutionContext, config: StopConfig) -> None:
        suspend, drain = CheckpointKind.SYNC_SAVEPOINT_SUSPEND, CheckpointKind.SYNC_SAVEPOINT_TERMINATE
        request = config.request(drain if config.drain else suspend, f"stop-{context.run_id}")
        resource = coordinator_of(context, pipeline.name)
        taken = request_from_running_stream(
            resource.store(), pipeline, request, open_storage=resource.open_storage
        )
        if taken is None:
            raise InvalidRequest(
                f"no streaming run of pipeline {pipeline.name!r} is alive: there is nothing to stop "
                f"(take a savepoint of the idle pipeline with job {savepoint_job_name(pipeline.name)})"
            )
        context.log.info(f"run {taken.run_id} stopped with savepoint {taken.checkpoint_id}: {taken.uri}")

    return one_op_job(
        pipeline,
        stop,
        resources=resources,
        name=stop_job_name(pipeline.name),
        op=STOP_OP,
        description=f"Stop the stream `{pipeline.name}` with a savepoint: it ends exactly there.",
    )
