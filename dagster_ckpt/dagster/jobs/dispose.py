"""The job that removes a savepoint.

Annotations are evaluated: Dagster reads the config class from them.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.units import counted, size
from dagster_ckpt.dagster.asset import checkpoints_partitions
from dagster_ckpt.dagster.jobs.build import one_op_job
from dagster_ckpt.dagster.names import DISPOSE_OP, dispose_job_name
from dagster_ckpt.dagster.operator import who_of
from dagster_ckpt.dagster.pipeline_resources import coordinator_of
from dagster_ckpt.operations.care.dispose import Disposed, dispose_savepoint, plan_disposal
from dagster_ckpt.runtime.audit import Operator


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
