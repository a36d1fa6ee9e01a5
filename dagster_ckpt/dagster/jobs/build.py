"""Builder of jobs: of one op, and of an epoch; errors as step failures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.units import size
from dagster_ckpt.dagster.console import failure
from dagster_ckpt.dagster.launchpad import quiet_resources
from dagster_ckpt.dagster.names import (
    CONCURRENCY_TAG,
    COORDINATOR_KEY,
    JOB_TAG,
    PIPELINE_TAG,
    RETRY_STRATEGY_TAG,
    epoch_job_name,
    op_name,
)
from dagster_ckpt.dagster.resources.pipeline import coordinator_of
from dagster_ckpt.errors import CheckpointError, Fenced, InvalidRequest, NotFound

BARRIER = "barrier"
"""Output of an op of an epoch's job: ops that come after it wait for that."""


def one_op_job(
    pipeline: CheckpointedPipeline,
    run: Callable[..., None],
    *,
    resources: Mapping[str, Any],
    name: str,
    op: str,
    description: str,
    resource_keys: Iterable[str] = (),
    op_tags: dict[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
    executor: dg.ExecutorDefinition = dg.in_process_executor,
) -> dg.JobDefinition:
    """Return the job ``name`` whose only op calls ``run(context, config)``; the library's errors become clear failures.

    ``run`` is annotated with its config class, evaluated: Dagster reads it. Run configs name the op ``op``.
    ``resources``: the pipeline's own, bound to the job: another pipeline of the location may have others.
    """
    taken = op in pipeline.stages  # by the op of that stage, in the epoch job
    made = dg.op(
        name=f"{name}__{op}" if taken else op_name(pipeline.name, op),
        description=description,
        required_resource_keys={COORDINATOR_KEY, *resource_keys},
        out={"done": dg.Out(dg.Nothing)},
        tags=op_tags,
    )(clear_errors()(run))
    graph = dg.GraphDefinition(
        name=f"{name}__graph", node_defs=[made], dependencies={dg.NodeInvocation(made.name, alias=op): {}}
    )
    return job_with(
        graph,
        resources,
        name=name,
        description=description,
        executor_def=executor,
        # a retried run begins with its only step
        tags={PIPELINE_TAG: pipeline.name, JOB_TAG: op, RETRY_STRATEGY_TAG: "ALL_STEPS", **(tags or {})},
    )


def epoch_job(
    pipeline: CheckpointedPipeline,
    ops: Mapping[str, dg.OpDefinition],
    *,
    resources: Mapping[str, Any],
    description: str,
    executor: dg.ExecutorDefinition = dg.in_process_executor,
    publish_facts: str = "",
) -> dg.JobDefinition:
    """Return the job of a pipeline's epochs; each op by its name in the job, its inputs are the ops it comes after.

    ``publish_facts``: the file that gets the facts of the newest checkpoint when the last op has succeeded; also in the
    job that restores, which has the same ops.
    """
    name = epoch_job_name(pipeline.name)
    last = [*ops][-1]
    hooks = {last: {_publishing_facts(pipeline, publish_facts)}} if publish_facts else {}
    graph = dg.GraphDefinition(
        name=f"{name}__epoch",
        description=pipeline.description,
        node_defs=list(ops.values()),
        dependencies={
            dg.NodeInvocation(op.name, alias=alias, hook_defs=hooks.get(alias)): {
                before: dg.DependencyDefinition(before, BARRIER) for before in op.ins
            }
            for alias, op in ops.items()
        },
    )
    return job_with(
        graph,
        resources,
        name=name,
        description=f"{description} {pipeline.description}".strip(),
        executor_def=executor,
        tags={
            PIPELINE_TAG: pipeline.name,
            JOB_TAG: "epoch",
            CONCURRENCY_TAG: pipeline.name,
            # a retried run continues from the latest checkpoint; its first step has to restore it
            RETRY_STRATEGY_TAG: "ALL_STEPS",
        },
    )


def _publishing_facts(pipeline: CheckpointedPipeline, target: str) -> dg.HookDefinition:
    """Return the hook that writes the facts; what fails there is told, and the run stays what it is."""

    @dg.success_hook(
        name=f"{epoch_job_name(pipeline.name)}__publish_facts", required_resource_keys={COORDINATOR_KEY}
    )
    def publish_facts(context: dg.HookContext) -> None:
        from dagster_ckpt.operations.snapshots.catalog import find_snapshot
        from dagster_ckpt.operations.snapshots.plan_facts import write_facts

        deployment = coordinator_of(context, pipeline.name).deployment()
        try:
            found = find_snapshot(deployment, "latest", pipeline.name)
            written = write_facts(deployment, found, target)
        except CheckpointError as error:
            context.log.warning(f"publish_facts: {target} was not written: {error}")
        else:
            context.log.info(f"facts of {found.key} written to {target} ({size(written)})")

    return publish_facts


def after(names: Iterable[str]) -> dict[str, dg.In]:
    """Return the inputs of an op of an epoch's job that comes after other ops."""
    return {str(name): dg.In(dg.Nothing) for name in names}


def job_with(graph: dg.GraphDefinition, resources: Mapping[str, Any], **settings: Any) -> dg.JobDefinition:
    """Return a job of a graph, bound to the pipeline's own resources.

    Resources that stages and hooks name besides come from the definitions of the location: Dagster adds them to a job
    that lacks some. Given ours when it is made, a job would insist on having all of them at once.
    """
    return graph.to_job(**settings)._copy(
        resource_defs=quiet_resources(resources), _was_explicitly_provided_resources=False
    )


@contextmanager
def clear_errors() -> Iterator[None]:
    """Turn the library's errors into step failures that say one clear sentence and are not retried in vain."""
    try:
        yield
    except (InvalidRequest, NotFound, Fenced) as error:
        raise failure(str(error), error, allow_retries=False) from error
    except CheckpointError as error:
        raise failure(str(error), error) from error
