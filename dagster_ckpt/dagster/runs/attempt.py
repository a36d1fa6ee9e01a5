"""One attempt of a pipeline inside a Dagster run: opens the coordinator, runs stages, reports to the event log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.request import CheckpointRequest, Completed
from dagster_ckpt.dagster.console import failure
from dagster_ckpt.dagster.names import RESTORE_OP, ROOT_RUN_TAG, epoch_job_name
from dagster_ckpt.dagster.reports.asset import history_metadata
from dagster_ckpt.dagster.reports.events import DagsterEvents
from dagster_ckpt.dagster.resources.pipeline import coordinator_of, resources_of, serving_now, spark_of
from dagster_ckpt.running import Host
from dagster_ckpt.runtime.attempt_setup import Admit, Ownership, admit_anyone
from dagster_ckpt.spark.attempt.own_objects import StageArguments
from dagster_ckpt.spark.epoch.attempt import NotPublished
from dagster_ckpt.spark.epoch.run import FailRun, RetryStage
from dagster_ckpt.spark.stage_report import recent_checkpoints

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline


class PipelineAttempt:
    """Attempt that the ops of one run share, per process; made by the first op that needs it.

    Every method is called by one op at a time and writes to that op's event log.
    """

    def __init__(
        self,
        context: dg.OpExecutionContext,
        pipeline: CheckpointedPipeline,
        *,
        admit: Admit = admit_anyone,
        ownership: Ownership = Ownership.ATTACH,
        arguments: Callable[[StageUid], StageArguments] | None = None,
        **of_host: Any,
    ) -> None:
        self._resource = coordinator_of(context, pipeline.name)
        self.pipeline = pipeline
        self._context = context
        self._goes_on = has_other_steps(context)
        self._failure: BaseException | None = None
        self.events = told_by(
            context, pipeline, job_name=epoch_job_name(pipeline.name), restore_op=RESTORE_OP
        )
        self._host = host_of(
            context,
            pipeline,
            spark=self._session,
            reporter=self.events,
            listeners=[self.events],
            tell_tables=self.events.table_changed,
            arguments=arguments or self._arguments_of,
            **of_host,
        )
        self._epoch = self._host.epoch(admit, ownership=ownership)
        self.coordinator = self._epoch.coordinator
        self.events.follow(self._epoch)

    @staticmethod
    def is_open(context: dg.OpExecutionContext, pipeline: CheckpointedPipeline) -> bool:
        """Return True where this process has opened the run's attempt."""
        return coordinator_of(context, pipeline.name).remembered((pipeline.name, context.run_id)) is not None

    @classmethod
    def of(
        cls,
        context: dg.OpExecutionContext,
        pipeline: CheckpointedPipeline,
        **opened_with: Any,
    ) -> PipelineAttempt:
        """Return this run's attempt, opening it on first use in this process. Raises Occupied where ``admit`` does.

        ``opened_with``: ``admit``, ``ownership``, ``arguments`` of stages where their ops do not have them, and more as
        ``Host`` has it.
        """
        resource = coordinator_of(context, pipeline.name)
        key = (pipeline.name, context.run_id)
        attempt: PipelineAttempt | None = resource.remembered(key)
        if attempt is None:
            attempt = cls(context, pipeline, **opened_with)
            resource.remember(key, attempt)
        attempt._context = context
        attempt.events.attach(context)
        return attempt

    # --- what the ops do ---------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Prepare the working directory the run starts from."""
        with self._failing():
            _ = self._epoch.directory

    def run_stage(self, context: dg.OpExecutionContext, uid: StageUid) -> None:
        """Run one stage; a decision of the failure manager becomes a retry of the op or a failure of the run."""
        retries_left = self._resource.snapshot_retries - context.retry_number
        arguments = StageArguments(
            config=context.op_config or {}, resources=resources_of(context, self.pipeline.name)
        )
        try:
            with self._failing():
                epoch = self._epoch.epoch(has_turn=_runs_here(context))
                epoch.run_stage(uid, arguments, retries_left=max(0, retries_left))
        except RetryStage as error:
            self._failure = None
            pause = self._resource.snapshot_retry_delay * 2**context.retry_number
            raise dg.RetryRequested(
                max_retries=self._resource.snapshot_retries, seconds_to_wait=pause
            ) from error
        except FailRun as error:
            raise failure(str(error), error, allow_retries=False) from error

    def run_all(self) -> None:
        """Run all stages in one op, which repeats a stage itself where the failure manager decides so."""
        try:
            with self._failing():
                self._host.run_all(self._epoch)
        except RetryStage as error:
            raise failure(str(error), error) from error
        except FailRun as error:
            raise failure(str(error), error, allow_retries=False) from error

    def complete(self, *, tell: Callable[[Mapping[str, Any]], object]) -> None:
        """Run what has not run, report the run's checkpoint, and leave the working directory in order."""
        try:
            with self._failing():
                self._epoch.complete(tell=lambda: tell(self._history()))
        except (NotPublished, FailRun) as error:
            raise failure(str(error), error, allow_retries=False) from error

    def _history(self) -> Mapping[str, Any]:
        return history_metadata(recent_checkpoints(self.coordinator), page=self.events.page)

    def take_snapshot(self, request: CheckpointRequest) -> Completed:
        """Take a checkpoint or savepoint of the idle pipeline. Raises Declined when it failed."""
        return self._epoch.take_snapshot(request)

    def _arguments_of(self, uid: StageUid) -> StageArguments:
        """Return the arguments of any stage as its op has them: in a chain it runs when it is another op's turn."""
        ops = self._context.get_step_execution_context().resolved_run_config.ops
        config: Any = ops[uid].config if uid in ops else None
        return StageArguments(config=config or {}, resources=resources_of(self._context, self.pipeline.name))

    def _session(self) -> SparkSession:
        """The Spark session of the op that runs now."""
        return spark_of(self._context, self.pipeline.name).session

    # --- the end -----------------------------------------------------------------------------------------------

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._failure = error
            raise

    def leave(self) -> None:
        """End an attempt whose run failed or was terminated; pass it on where the run has a process for each op.

        The working directory of one that ended so is not continued.
        """
        if self._goes_on and self._failure is None:
            self._epoch.pass_on()
        else:
            self._epoch.close_after_failure(self._failure or "")


def host_of(context: dg.OpExecutionContext, pipeline: CheckpointedPipeline, **more: Any) -> Host:
    """Return the host of a run's op; ``more`` as ``Host`` has it."""
    return Host(
        pipeline=pipeline,
        places=coordinator_of(context, pipeline.name),
        run_id=context.run_id,
        root=context.run.tags.get(ROOT_RUN_TAG, context.run_id),
        resources=resources_of(context, pipeline.name),
        **more,
    )


def told_by(context: dg.OpExecutionContext, pipeline: CheckpointedPipeline, **of_run: Any) -> DagsterEvents:
    """Return the events of a run, written to this op first; ``of_run`` as ``DagsterEvents`` has it."""
    resource = coordinator_of(context, pipeline.name)
    told = DagsterEvents(
        pipeline, ui_base_url=resource.ui_base_url, page=resource.page_of(pipeline.name), **of_run
    )
    told.attach(context)
    told.serving = lambda: serving_now(resource, pipeline)
    return told


def has_other_steps(context: dg.OpExecutionContext) -> bool:
    """Return True where this process executes some of the run's steps only: other processes execute the others."""
    plan = context.get_step_execution_context().execution_plan
    of_run = context.run.step_keys_to_execute or plan.step_dict_by_key
    return set(plan.step_keys_to_execute) < set(of_run)


def _runs_here(context: dg.OpExecutionContext) -> Callable[[StageUid], bool]:
    """Return whether a stage's op runs in this process: an executor may give each a process of its own."""
    keys = context.get_step_execution_context().execution_plan.step_keys_to_execute
    ops = {key.split(".")[-1] for key in keys}
    return lambda uid: uid in ops
