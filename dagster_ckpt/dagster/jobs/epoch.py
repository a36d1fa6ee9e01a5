"""The jobs of a pipeline: one op per stage, and what frames them.

Annotations are evaluated: Dagster reads config classes from them.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.authoring.stages import StageDefinition
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.settings import our_name
from dagster_ckpt.core.supervision.concurrent_runs import ConcurrentRuns
from dagster_ckpt.dagster.attempt import PipelineAttempt
from dagster_ckpt.dagster.jobs.build import clear_errors, job_with
from dagster_ckpt.dagster.names import (
    COMPLETE_OP,
    COMPUTE_KIND_TAG,
    CONCURRENCY_TAG,
    COORDINATOR_KEY,
    JOB_TAG,
    PIPELINE_TAG,
    RESTORE_OP,
    RETRY_STRATEGY_TAG,
    SPARK_KEY,
    epoch_job_name,
    op_name,
)
from dagster_ckpt.dagster.turn import Skipped, Turn
from dagster_ckpt.errors import InvalidRequest

_BARRIER = "barrier"


class RestoreConfig(dg.Config):
    """Config of a run: what it starts from."""

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
    adopt_history: bool = False
    """Go on although the coordinator store is behind what storage, working directory or sinks have seen, or these are
    another history's."""
    without_channel_state_of: int | None = None
    """Leave out the in-flight data of exactly this checkpoint."""

    def options(self) -> RestoreOptions:
        """Return the checked options. Raises InvalidRequest."""
        return self._options({})

    def _options(self, further: Mapping[str, Any]) -> RestoreOptions:
        fields = RestoreOptions.model_fields
        given = {name: getattr(self, name) for name in fields if getattr(self, name) != fields[name].default}
        try:
            return RestoreOptions.of(**{**given, **further})
        except InvalidRequest as error:
            raise InvalidRequest(f"Run config of op {RESTORE_OP!r}: {error}") from error


class RunConfig(RestoreConfig):
    """Config of a run: what it starts from, and settings for this run only."""

    concurrent_runs: str = ""
    """``queue``, ``skip`` or ``take_over``, where another run of the pipeline is alive; empty: as the pipeline says."""
    checkpointing: dict[str, Any] = {}  # noqa: RUF012 - a pydantic field, copied per instance
    """Settings that override the pipeline's and the resource's, under our names or Flink's."""

    def options(self) -> RestoreOptions:
        """Return the checked options, those given under Flink's keys as well. Raises InvalidRequest."""
        return self._options({k: v for k, v in self.checkpointing.items() if _is_restore_option(k)})

    def settings(self) -> dict[str, Any]:
        """Return how this run's checkpoints are taken, unchecked."""
        return without_restore_options(self.checkpointing)


def without_restore_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that say how checkpoints are taken, not what the run starts from."""
    return {k: v for k, v in settings.items() if not _is_restore_option(k)}


def _is_restore_option(key: str) -> bool:
    return our_name(key) in RestoreOptions.model_fields


def build_epoch_job(
    pipeline: CheckpointedPipeline, *, resources: Mapping[str, Any], concurrent_runs: str = ""
) -> dg.JobDefinition:
    """Return the job that drains what has arrived, stage by stage, and ends with a checkpoint."""
    nodes: list[dg.OpDefinition] = [_restore_op(pipeline, concurrent_runs)]
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
        name=f"{epoch_job_name(pipeline.name)}__epoch",
        description=pipeline.description,
        node_defs=nodes,
        dependencies=dependencies,
    )
    return job_with(
        graph,
        resources,
        name=epoch_job_name(pipeline.name),
        description=f"An epoch of `{pipeline.name}`: what has arrived, stage by stage, ending with a checkpoint. "
        f"{pipeline.description}".strip(),
        executor_def=dg.in_process_executor,
        tags={
            PIPELINE_TAG: pipeline.name,
            JOB_TAG: "epoch",
            CONCURRENCY_TAG: pipeline.name,
            # a retried run continues from the latest checkpoint; its first step has to restore it
            RETRY_STRATEGY_TAG: "ALL_STEPS",
        },
    )


def _node(pipeline: CheckpointedPipeline, name: str) -> dg.NodeInvocation:
    return dg.NodeInvocation(op_name(pipeline.name, name), alias=name)


def _after(names: Iterable[str]) -> dict[str, dg.DependencyDefinition]:
    return {str(name): dg.DependencyDefinition(str(name), _BARRIER) for name in names}


def _restore_op(pipeline: CheckpointedPipeline, concurrent_runs: str) -> dg.OpDefinition:
    @dg.op(
        name=op_name(pipeline.name, RESTORE_OP),
        description="Take over the pipeline and bring back the state the run starts from.",
        # Without it the other ops are skipped: another run is alive, and this one gives way.
        out={_BARRIER: dg.Out(dg.Nothing, is_required=False)},
        # A pipeline that begins looks at the plans of its stages, to run some of them in one query.
        required_resource_keys={COORDINATOR_KEY, SPARK_KEY, *pipeline.resource_keys},
    )
    def restore(context: dg.OpExecutionContext, config: RunConfig) -> Iterator[dg.Output[None]]:
        with clear_errors():
            turn = Turn.chosen(context, pipeline, concurrent_runs, config.concurrent_runs)
            options, settings = config.options(), config.settings()
            attempt = turn.take(
                lambda admit: PipelineAttempt.of(context, pipeline, options, settings, admit=admit)
            )
            if isinstance(attempt, Skipped):
                return
            attempt.restore()
        yield dg.Output(None, _BARRIER)

    return restore


def _joined(context: dg.OpExecutionContext, pipeline: CheckpointedPipeline) -> PipelineAttempt:
    """Return the attempt of the run; one that re-executes only some of the ops opens it here, in its turn."""
    if PipelineAttempt.is_open(context, pipeline):  # one that was fenced since must say so, and not wait
        return PipelineAttempt.of(context, pipeline)
    attempt = Turn.of(context, pipeline, ConcurrentRuns.QUEUE).take(
        lambda admit: PipelineAttempt.of(context, pipeline, admit=admit)
    )
    assert not isinstance(attempt, Skipped), "who queues is not skipped"
    return attempt


def _stage_op(pipeline: CheckpointedPipeline, stage: StageDefinition) -> dg.OpDefinition:
    inputs: list[str] = list(dict.fromkeys(pipeline.upstream[stage.uid])) or [RESTORE_OP]

    @dg.op(
        name=op_name(pipeline.name, stage.uid),
        description=stage.description or None,
        ins={str(name): dg.In(dg.Nothing) for name in inputs},
        out={_BARRIER: dg.Out(dg.Nothing)},
        config_schema=stage.config_schema,
        required_resource_keys={
            COORDINATOR_KEY,
            SPARK_KEY,
            *pipeline.resource_keys,
        },
        tags={COMPUTE_KIND_TAG: "spark", **stage.tags},
    )
    def run_stage(context: dg.OpExecutionContext) -> None:
        with clear_errors():
            _joined(context, pipeline).run_stage(context, stage.uid)

    return run_stage


def _complete_op(pipeline: CheckpointedPipeline, ends: list[Any]) -> dg.OpDefinition:
    @dg.op(
        name=op_name(pipeline.name, COMPLETE_OP),
        description="Report the run's checkpoint and leave the working directory in order.",
        ins={str(name): dg.In(dg.Nothing) for name in ends},
        out={"done": dg.Out(dg.Nothing)},
        required_resource_keys={COORDINATOR_KEY, SPARK_KEY, *pipeline.resource_keys},
    )
    def complete(context: dg.OpExecutionContext) -> None:
        with clear_errors():
            _joined(context, pipeline).complete(tell=context.add_output_metadata)

    return complete
