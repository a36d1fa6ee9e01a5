"""The jobs of a pipeline: one op per stage, and what frames them.

Annotations are evaluated: Dagster reads config classes from them.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import dagster as dg

from dagster_ckpt.attempt import COORDINATOR_KEY, RESTORE_OP, SPARK_KEY, PipelineAttempt
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.errors import CheckpointError, Fenced, InvalidRequest, NotFound
from dagster_ckpt.leases import wait_for_stream
from dagster_ckpt.pipeline import CheckpointedPipeline
from dagster_ckpt.stages import StageDefinition

COMPLETE_OP = "complete"
_BARRIER = "barrier"


class RestoreConfig(dg.Config):
    """What the run starts from."""

    restore_from: str = "latest"
    """``latest``, ``none``, a key such as ``chk-31`` or ``savepoint-7``, or the path or URI of one."""
    claim_mode: str = "no_claim"
    """``no_claim``, ``claim`` or ``legacy``: who owns the snapshot afterwards."""
    allow_non_restored_state: bool = False
    """Go on although the snapshot holds state of a stage the pipeline no longer has."""
    roll_back_tables: bool = True
    """Set aside rows that tables received after the restore point."""
    fork: bool = False
    """The snapshot is another pipeline's: begin with new query ids and tables of our own."""

    def options(self) -> RestoreOptions:
        """Return the checked options. Raises InvalidRequest."""
        try:
            return RestoreOptions.of(**self.model_dump(include=set(RestoreConfig.model_fields)))
        except InvalidRequest as error:
            raise InvalidRequest(f"Run config of op {RESTORE_OP!r}: {error}") from error


def epoch_job_name(pipeline: CheckpointedPipeline) -> str:
    """Return the name of the job that runs one epoch."""
    return pipeline.name


def build_epoch_job(pipeline: CheckpointedPipeline) -> dg.JobDefinition:
    """Return the job that drains what has arrived, stage by stage, and ends with a checkpoint."""
    nodes: list[dg.OpDefinition] = [_restore_op(pipeline)]
    dependencies: dict[dg.NodeInvocation, dict[str, dg.DependencyDefinition]] = {
        _node(pipeline, RESTORE_OP): {}
    }
    for uid, stage in pipeline.stages.items():
        nodes.append(_stage_op(pipeline, stage))
        dependencies[_node(pipeline, uid)] = _after(dict.fromkeys(pipeline.upstream[uid]) or [RESTORE_OP])
    ends = [uid for uid in pipeline.stages if not pipeline.consumers(uid)]
    nodes.append(_complete_op(pipeline, ends))
    dependencies[_node(pipeline, COMPLETE_OP)] = _after(ends)
    graph = dg.GraphDefinition(
        name=f"{epoch_job_name(pipeline)}__epoch",
        description=pipeline.description,
        node_defs=nodes,
        dependencies=dependencies,
    )
    return graph.to_job(
        name=epoch_job_name(pipeline),
        executor_def=dg.in_process_executor,
        tags={
            "dagster_ckpt/pipeline": pipeline.name,
            # a retried run continues from the latest checkpoint; its first step has to restore it
            "dagster/retry_strategy": "ALL_STEPS",
        },
    )


def _op_name(pipeline: CheckpointedPipeline, name: str) -> str:
    """Return the name of an op's definition: unique in a code location, while its node is called ``name``."""
    return f"{pipeline.name}__{name}"


def _node(pipeline: CheckpointedPipeline, name: str) -> dg.NodeInvocation:
    return dg.NodeInvocation(_op_name(pipeline, name), alias=name)


def _after(names: Iterable[str]) -> dict[str, dg.DependencyDefinition]:
    return {str(name): dg.DependencyDefinition(str(name), _BARRIER) for name in names}


def _restore_op(pipeline: CheckpointedPipeline) -> dg.OpDefinition:
    @dg.op(
        name=_op_name(pipeline, RESTORE_OP),
        description="Take over the pipeline and bring back the state the run starts from.",
        out={_BARRIER: dg.Out(dg.Nothing)},
        required_resource_keys={COORDINATOR_KEY, SPARK_KEY},
    )
    def restore(context: dg.OpExecutionContext, config: RestoreConfig) -> None:
        with clear_errors():
            wait_for_stream(context, pipeline)
            attempt = PipelineAttempt.of(context, pipeline, config.options())
            attempt.restore()

    return restore


def _stage_op(pipeline: CheckpointedPipeline, stage: StageDefinition) -> dg.OpDefinition:
    inputs: list[str] = list(dict.fromkeys(pipeline.upstream[stage.uid])) or [RESTORE_OP]

    @dg.op(
        name=_op_name(pipeline, stage.uid),
        description=stage.description or None,
        ins={str(name): dg.In(dg.Nothing) for name in inputs},
        out={_BARRIER: dg.Out(dg.Nothing)},
        config_schema=stage.config_schema,
        required_resource_keys={COORDINATOR_KEY, SPARK_KEY, *stage.required_resource_keys},
        tags={"dagster/compute_kind": "spark", **stage.tags},
    )
    def run_stage(context: dg.OpExecutionContext) -> None:
        with clear_errors():
            attempt = PipelineAttempt.of(context, pipeline)
            attempt.run_stage(context, stage.uid)

    return run_stage


def _complete_op(pipeline: CheckpointedPipeline, ends: list[Any]) -> dg.OpDefinition:
    @dg.op(
        name=_op_name(pipeline, COMPLETE_OP),
        description="Report the run's checkpoint and leave the working directory in order.",
        ins={str(name): dg.In(dg.Nothing) for name in ends},
        out={"done": dg.Out(dg.Nothing)},
        required_resource_keys={COORDINATOR_KEY, SPARK_KEY},
    )
    def complete(context: dg.OpExecutionContext) -> None:
        with clear_errors():
            attempt = PipelineAttempt.of(context, pipeline)
            attempt.complete(context)

    return complete


@contextmanager
def clear_errors() -> Iterator[None]:
    """Turn the library's errors into step failures that say one clear sentence and are not retried in vain."""
    try:
        yield
    except (InvalidRequest, NotFound, Fenced) as error:
        raise dg.Failure(description=str(error), allow_retries=False) from error
    except CheckpointError as error:
        raise dg.Failure(description=str(error)) from error
