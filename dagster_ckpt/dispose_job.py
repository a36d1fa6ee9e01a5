"""The job that removes a savepoint.

Annotations are evaluated: Dagster reads the config class from them.
"""

import dagster as dg

from dagster_ckpt.assets import checkpoints_partitions
from dagster_ckpt.attempt import COORDINATOR_KEY
from dagster_ckpt.jobs import clear_errors
from dagster_ckpt.operations.dispose import Disposed, dispose_savepoint, plan_disposal
from dagster_ckpt.pipeline import CheckpointedPipeline
from dagster_ckpt.resources import CheckpointCoordinatorResource


class DisposeConfig(dg.Config):
    """Which savepoint goes."""

    savepoint: str
    """A key such as ``savepoint-7``, or the path or URI of its folder."""
    dry_run: bool = False
    """Only say what would be removed."""


def dispose_job_name(pipeline: CheckpointedPipeline) -> str:
    """Return the name of a pipeline's dispose job."""
    return f"{pipeline.name}_dispose"


def build_dispose_job(pipeline: CheckpointedPipeline) -> dg.JobDefinition:
    """Return the job that forgets a savepoint and deletes its files; refused while somebody needs it.

    The savepoint is config and not a partition: a drop-down comes with a dialog that launches *all* partitions.
    """

    @dg.op(
        name=f"{pipeline.name}__dispose",
        description=f"Remove a savepoint of pipeline `{pipeline.name}` that nobody needs any more.",
        required_resource_keys={COORDINATOR_KEY},
        out={"done": dg.Out(dg.Nothing)},
    )
    def dispose(context: dg.OpExecutionContext, config: DisposeConfig) -> None:
        resource: CheckpointCoordinatorResource = getattr(context.resources, COORDINATOR_KEY)
        with clear_errors():
            deployment = resource.deployment()
            plan = plan_disposal(deployment, config.savepoint, pipeline.name)
            files = f"{len(plan.keys)} files, {plan.bytes:,} bytes"
            if config.dry_run:
                context.log.info(f"would remove {plan.key} at {plan.location.uri}: {files}")
                return
            done = dispose_savepoint(deployment, plan)
        forget_partition(context.instance, pipeline, done)
        context.log.info(f"removed {done.key} at {done.uri}: {files}")

    graph = dg.GraphDefinition(
        name=f"{dispose_job_name(pipeline)}__graph",
        node_defs=[dispose],
        dependencies={dg.NodeInvocation(dispose.name, alias="dispose"): {}},
    )
    return graph.to_job(
        name=dispose_job_name(pipeline),
        executor_def=dg.in_process_executor,
        tags={"dagster_ckpt/pipeline": pipeline.name},
    )


def forget_partition(
    instance: dg.DagsterInstance, pipeline: CheckpointedPipeline, disposed: Disposed
) -> None:
    """Take a removed savepoint out of the checkpoints asset; its events stay as history."""
    instance.delete_dynamic_partition(checkpoints_partitions(pipeline.name).name or "", disposed.key)
