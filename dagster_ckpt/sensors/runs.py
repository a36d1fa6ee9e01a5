"""The newest run of a pipeline, as Dagster knows it."""

from __future__ import annotations

import dagster as dg

from dagster_ckpt.jobs import epoch_job_name
from dagster_ckpt.pipeline import CheckpointedPipeline
from dagster_ckpt.restore_job import restore_job_name
from dagster_ckpt.sensors.common import PIPELINE_TAG
from dagster_ckpt.streaming_job import streaming_job_name

LOOKED_AT = 20
"""So many newest runs are looked at, so that a tick costs the same whatever the history."""


def newest_run(instance: dg.DagsterInstance, pipeline: CheckpointedPipeline) -> dg.RunRecord | None:
    """Return the newest run that runs the pipeline's stages; those that take or remove savepoints are passed over."""
    jobs = {epoch_job_name(pipeline), restore_job_name(pipeline), streaming_job_name(pipeline)}
    wanted = dg.RunsFilter(tags={PIPELINE_TAG: pipeline.name})
    for limit in (1, LOOKED_AT):
        for found in instance.get_run_records(wanted, limit=limit):
            if found.dagster_run.job_name in jobs:
                return found
    return None
