"""The jobs of a pipeline whose stages run in a program launched elsewhere; named and configured as those that do not.

Annotations are evaluated: Dagster reads config classes from them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.dagster.jobs.build import BARRIER, RunConfig, after, clear_errors, epoch_job, one_op_job
from dagster_ckpt.dagster.jobs.runs import StreamConfig
from dagster_ckpt.dagster.names import (
    CONCURRENCY_TAG,
    COORDINATOR_KEY,
    LAUNCH_OP,
    RESTORE_OP,
    ROOT_RUN_TAG,
    SPARK_KEY,
    STREAM_OP,
    epoch_job_name,
    how_to_stop,
    op_name,
    streaming_job_name,
)
from dagster_ckpt.dagster.options import Context, Launch
from dagster_ckpt.dagster.reporting import ReportPolicy
from dagster_ckpt.dagster.reports.op_log import location_of
from dagster_ckpt.dagster.resources.pipeline import coordinator_of

if TYPE_CHECKING:
    from dagster_ckpt.dagster.jobs.gate import RestoreGate
    from dagster_ckpt.dagster.launched.messages import Heard, Order
    from dagster_ckpt.dagster.runs.turn import Skipped

ENDS_WITHIN = 90.0
"""Seconds in which a program that is terminated takes its last checkpoint."""


class LaunchConfig(dg.Config):
    """Config of the op that launches an epoch."""

    stages: dict[str, Any] = {}  # noqa: RUF012 - a pydantic field, copied per instance
    """Config of single stages by uid, as their ops have it where they run in the process."""


def build_launched_epoch_job(
    pipeline: CheckpointedPipeline,
    launch: Launch,
    *,
    resources: Mapping[str, Any],
    concurrent_runs: str = "",
    publish_facts: str = "",
    report: str = "",
) -> dg.JobDefinition:
    """Return the job whose epochs run in a program launched elsewhere; of a program as it is, until that ends."""
    epoch = "An epoch of `{}` in a program launched elsewhere: what has arrived, ending with a checkpoint."
    whole = "Run the program of `{}` until it ends, with checkpoints over all of its queries."
    return epoch_job(
        pipeline,
        {RESTORE_OP: _restore_op(pipeline), LAUNCH_OP: _launch_op(pipeline, launch, concurrent_runs, report)},
        resources=resources,
        description=(whole if pipeline.program else epoch).format(pipeline.name),
        publish_facts=publish_facts,
    )


def launch_of_program(pipeline: CheckpointedPipeline) -> Launch:
    """Return the launch of a program that starts its queries itself, in a process beside the run."""
    return Launch(
        client=dg.PipesSubprocessClient(termination_timeout_seconds=ENDS_WITHIN),
        arguments={"command": list(pipeline.program)},
    )


def build_launched_streaming_job(
    pipeline: CheckpointedPipeline,
    launch: Launch,
    *,
    resources: Mapping[str, Any],
    concurrent_runs: str = "",
    report: str = "changed",
) -> dg.JobDefinition:
    """Return the job whose stream runs in a program launched elsewhere, until it is stopped."""

    def stream(context: dg.OpExecutionContext, config: StreamConfig) -> None:
        from dagster_ckpt.dagster.jobs.gate import RestoreGate
        from dagster_ckpt.dagster.launched.messages import RunKind
        from dagster_ckpt.running import stage_arguments

        stage_arguments(pipeline, config.stages, None)
        config.strategy()
        ReportPolicy.of(config.report or report)
        gate = RestoreGate(context, pipeline, config)
        if not gate.is_open():
            return
        launched = _Launched(pipeline, launch, context, gate, config, concurrent_runs)
        launched.take(
            work=RunKind.STREAM,
            job_name=streaming_job_name(pipeline.name),
            restore_op=STREAM_OP,
            stage_config=config.stages,
            stream=_stream_settings(config),
            report=config.report or report,
        )

    return one_op_job(
        pipeline,
        stream,
        resources=resources,
        name=streaming_job_name(pipeline.name),
        op=STREAM_OP,
        description=f"Run `{pipeline.name}` as a stream in a program launched elsewhere, until it is stopped.",
        resource_keys={SPARK_KEY, *pipeline.resource_keys},  # of a preview that tries queries
        tags={CONCURRENCY_TAG: pipeline.name},
    )


def launch_tables(
    context: dg.AssetExecutionContext,
    pipeline: CheckpointedPipeline,
    launch: Launch,
    config: Any,
    concurrent_runs: str,
    *,
    hold: frozenset[dg.AssetKey],
) -> list[dg.AssetMaterialization]:
    """Launch an epoch for an op of assets; return their materializations, oldest first."""
    from dagster_ckpt.dagster.jobs.gate import RestoreGate
    from dagster_ckpt.dagster.launched.messages import RunKind
    from dagster_ckpt.dagster.runs.turn import Skipped
    from dagster_ckpt.running import stage_arguments

    op = context.op_execution_context
    with clear_errors():
        stage_arguments(pipeline, config.stages, None)
        gate = RestoreGate(op, pipeline, config)
        if not gate.is_open():
            return []
        launched = _Launched(pipeline, launch, op, gate, config, concurrent_runs, client_context=context)
        heard = launched.take(
            hold=hold,
            work=RunKind.EPOCH,
            job_name=epoch_job_name(pipeline.name),
            restore_op=RESTORE_OP,
            stage_config=config.stages,
        )
    return [] if isinstance(heard, Skipped) else heard.results


# --- the ops ------------------------------------------------------------------------------------------------------


@dataclass
class _OpenGate:
    """Decision of the op ``restore``, for the op ``launch`` of the same process."""

    gate: "RestoreGate"
    config: RunConfig

    def leave(self) -> None:
        """Nothing is open: the program closes its attempt, or the safety net does."""


def _restore_op(pipeline: CheckpointedPipeline) -> dg.OpDefinition:
    @dg.op(
        name=op_name(pipeline.name, RESTORE_OP),
        description="Check what the run starts from; the program launched next brings it back.",
        out={BARRIER: dg.Out(dg.Nothing, is_required=False)},
        required_resource_keys={COORDINATOR_KEY, SPARK_KEY, *pipeline.resource_keys},
    )
    def restore(context: dg.OpExecutionContext, config: RunConfig) -> Iterator[dg.Output[None]]:
        from dagster_ckpt.dagster.jobs.gate import RestoreGate

        with clear_errors():
            config.settings()
            gate = RestoreGate(context, pipeline, config)
            if not gate.is_open():
                return
            key = (pipeline.name, context.run_id)
            coordinator_of(context, pipeline.name).remember(key, _OpenGate(gate, config))
        yield dg.Output(None, BARRIER)

    return restore


def _launch_op(
    pipeline: CheckpointedPipeline, launch: Launch, concurrent_runs: str, report: str
) -> dg.OpDefinition:
    @dg.op(
        name=op_name(pipeline.name, LAUNCH_OP),
        description="Launch the program that runs the stages, and show what it tells.",
        ins=after([RESTORE_OP]),
        out={"done": dg.Out(dg.Nothing)},
        required_resource_keys={COORDINATOR_KEY, *pipeline.resource_keys},
    )
    def launch_program(context: dg.OpExecutionContext, config: LaunchConfig) -> None:
        from dagster_ckpt.dagster.launched.messages import RunKind
        from dagster_ckpt.dagster.runs.turn import Skipped
        from dagster_ckpt.running import stage_arguments

        with clear_errors():
            stage_arguments(pipeline, config.stages, None)
            opened = _opened_gate(context, pipeline)
            launched = _Launched(pipeline, launch, context, opened.gate, opened.config, concurrent_runs)
            heard = launched.take(
                work=RunKind.EPOCH,
                job_name=epoch_job_name(pipeline.name),
                restore_op=RESTORE_OP,
                stage_config=config.stages,
                report=report,
            )
            if not isinstance(heard, Skipped) and heard.metadata:
                context.add_output_metadata(heard.metadata)

    return launch_program


def _opened_gate(context: dg.OpExecutionContext, pipeline: CheckpointedPipeline) -> _OpenGate:
    """Return the decision of the op ``restore``; where that was in another process, look again."""
    from dagster_ckpt.dagster.jobs.gate import RestoreGate

    found = coordinator_of(context, pipeline.name).remembered((pipeline.name, context.run_id))
    if isinstance(found, _OpenGate):
        return found
    ops = context.get_step_execution_context().resolved_run_config.ops
    given: Any = ops[RESTORE_OP].config if RESTORE_OP in ops else None
    config = RunConfig(**(given or {}))
    gate = RestoreGate(context, pipeline, config)
    gate.is_open()
    return _OpenGate(gate, config)


# --- the launch ---------------------------------------------------------------------------------------------------


@dataclass
class _Launched:
    """A run that launches a program in its turn."""

    pipeline: CheckpointedPipeline
    launch: Launch
    context: dg.OpExecutionContext
    gate: "RestoreGate"
    config: RunConfig
    concurrent_runs: str
    client_context: Context | None = None
    """What the client gets, where that is not the op's context."""

    def take(self, *, hold: frozenset[dg.AssetKey] = frozenset(), **more: Any) -> "Heard | Skipped":
        """Wait for the turn, launch the program, and return what was heard of it."""
        from dagster_ckpt.dagster.launched.run import LaunchedRun
        from dagster_ckpt.dagster.runs.turn import OpTurn

        turn = OpTurn.chosen(self.context, self.pipeline, self.concurrent_runs, self.config.concurrent_runs)
        run = LaunchedRun(
            pipeline=self.pipeline,
            launch=self.launch,
            context=self.client_context or self.context,
            op=self.context,
            order=self._order(**more),
        )
        # The program claims the pipeline, by compare-and-set: nothing is claimed here.
        return turn.take(lambda _: run.run(hold=hold))

    def _order(self, **more: Any) -> "Order":
        from dagster_ckpt.dagster.launched.messages import Order

        context, pipeline = self.context, self.pipeline
        resource, tags = coordinator_of(context, pipeline.name), context.run.tags
        operator = self.gate.operator
        return Order(
            pipeline=pipeline.name,
            stages=tuple(pipeline.stages),
            run_id=context.run_id,
            root=tags.get(ROOT_RUN_TAG, context.run_id),
            location=location_of(context.instance, context.run),
            ui_base_url=resource.ui_base_url,
            page=resource.page_of(pipeline.name),
            restore=self.config.options().model_dump(mode="json", exclude_defaults=True),
            settings=self._settings(),
            approved=self.config.approved,
            who=operator.who,
            shown=tuple(operator.shown),
            concurrent_runs=self.config.concurrent_runs or self.concurrent_runs,
            how_to_stop=how_to_stop(pipeline.name),
            **more,
        )

    def _settings(self) -> dict[str, Any]:
        """Return the run's settings; for a program as it is, which has no pipeline of its own, all that count."""
        given = self.config.settings()
        if not self.pipeline.program:
            return given
        whole = coordinator_of(self.context, self.pipeline.name).checkpoint_config(self.pipeline, given)
        return whole.model_dump(mode="json", exclude_unset=True)


def _stream_settings(config: StreamConfig) -> dict[str, Any]:
    """Return the settings that only streams have."""
    ours = set(StreamConfig.model_fields) - set(RunConfig.model_fields) - {"stages", "report"}
    return {name: getattr(config, name) for name in ours}
