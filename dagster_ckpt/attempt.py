"""One attempt of a pipeline inside a Dagster run: opens the coordinator, runs stages, reports to the event log."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from dagster_ckpt import __version__
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.outcomes import Completed, Failed
from dagster_ckpt.core.properties import RunStatus
from dagster_ckpt.core.recovery import RestorePurpose
from dagster_ckpt.core.requests import CheckpointRequest
from dagster_ckpt.dagster_events import DagsterEvents
from dagster_ckpt.errors import CheckpointError, Declined, Fenced
from dagster_ckpt.runtime.clock import SystemClock
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.spark.attempt_restore import AttemptRestorer, state_of_directory
from dagster_ckpt.spark.directories import AttemptDirectory
from dagster_ckpt.spark.epoch import EpochRun, EpochWork, FailRun, RetryStage
from dagster_ckpt.spark.gateway import EpochGateway
from dagster_ckpt.spark.manifest_handles import handles_in_manifest
from dagster_ckpt.spark.stage_query import StageArguments
from dagster_ckpt.spark.tables import PipelineTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt.pipeline import CheckpointedPipeline
    from dagster_ckpt.resources import CheckpointCoordinatorResource

COORDINATOR_KEY = "checkpoint_coordinator"
SPARK_KEY = "spark"
RESTORE_OP = "restore"


class PipelineAttempt:
    """What the ops of one run share, per process; made by the first op that needs it.

    Every method is called by one op at a time and writes to that op's event log.
    """

    def __init__(
        self,
        pipeline: CheckpointedPipeline,
        resource: CheckpointCoordinatorResource,
        context: dg.OpExecutionContext,
        restore: RestoreOptions,
    ) -> None:
        self.pipeline = pipeline
        self.run_id = context.run_id
        self._context = context
        self._resource = resource
        self._restore = restore
        self._closed = False
        self.events = DagsterEvents(
            pipeline.name, job_name=pipeline.name, restore_op=RESTORE_OP, ui_base_url=resource.ui_base_url
        )
        self.events.attach(context)
        # An epoch ends with its checkpoint: the timer is for the same pipeline's streams.
        config = resource.checkpoint_config(pipeline).model_copy(update={"interval": None})
        self.tables = PipelineTables(
            pipeline=pipeline,
            table_dir=resource.resolved_table_dir(pipeline),
            mode=config.mode,
            epoch=lambda: self.coordinator.epoch,
        )
        self.gateway = EpochGateway(tables=self.tables, reporter=self.events)
        self.coordinator = CheckpointCoordinator.open(
            graph=pipeline.graph,
            config=config,
            store=resource.store(),
            storage=resource.storage(),
            open_storage=resource.open_storage,
            gateway=self.gateway,
            clock=SystemClock(),
            owner=context.run_id,
            root=context.run.tags.get("dagster/root_run_id", context.run_id),
            restore=restore,
            listeners=[self.events],
            read_manifest=handles_in_manifest,
            purpose=RestorePurpose.FORK if restore.fork else RestorePurpose.IN_PLACE,
            directory_state=partial(state_of_directory, pipeline),
            epochs_below=self.tables.newest_epoch,
            library_version=__version__,
        )

    @classmethod
    def of(
        cls,
        context: dg.OpExecutionContext,
        pipeline: CheckpointedPipeline,
        restore: RestoreOptions | None = None,
    ) -> PipelineAttempt:
        """Return this run's attempt, opening it on first use in this process."""
        resource: CheckpointCoordinatorResource = getattr(context.resources, COORDINATOR_KEY)
        key = (pipeline.name, context.run_id)
        attempt: PipelineAttempt | None = resource.remembered(key)
        if attempt is None:
            attempt = cls(pipeline, resource, context, restore or RestoreOptions())
            resource.remember(key, attempt)
        attempt._context = context
        attempt.events.attach(context)
        return attempt

    # --- what the ops do ---------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Prepare the working directory the run starts from."""
        _ = self.directory

    def run_stage(self, context: dg.OpExecutionContext, uid: StageUid) -> None:
        """Run one stage; a decision of the failure manager becomes a retry of the op or a failure of the run."""
        retries_left = self._resource.snapshot_retries - context.retry_number
        arguments = StageArguments(config=context.op_config or {}, resources=context.resources)
        try:
            self.epoch().run_stage(uid, arguments, retries_left=max(0, retries_left))
        except RetryStage as error:
            pause = self._resource.snapshot_retry_delay * 2**context.retry_number
            raise dg.RetryRequested(
                max_retries=self._resource.snapshot_retries, seconds_to_wait=pause
            ) from error
        except FailRun as error:
            raise dg.Failure(description=str(error), allow_retries=False) from error

    def complete(self, context: dg.OpExecutionContext) -> None:
        """Run what has not run, report the run's checkpoint, and leave the working directory in order."""
        epoch = self.epoch()
        epoch.run_missing()
        if epoch.checkpoint is not None:
            outcome = self.coordinator.status_of(epoch.checkpoint)
            if isinstance(outcome, Completed):
                epoch.forget_consumed_entries(epoch.checkpoint)
                self._collect_table_garbage()
            elif isinstance(outcome, Failed):
                self.events.warn(f"this run has no checkpoint: {outcome.message or outcome.reason.text}")
        self.close(RunStatus.SUSPENDED, clean=True)
        if self.tables.unpublished:
            why = "; ".join(f"{name}: {reason}" for name, reason in self.tables.unpublished.items())
            raise dg.Failure(
                description="the checkpoint is complete and holds all rows, but tables do not show its rows yet, and "
                f"the next run tries again: {why}",
                allow_retries=False,
            )

    def _collect_table_garbage(self) -> None:
        """Remove table files no restorable snapshot needs; when one of these cannot be read, nothing goes."""
        record = self.coordinator.record
        restorable = []
        try:
            for known in (*record.completed, *record.savepoints):
                outcome = self.coordinator.status_of(CheckpointId(known.checkpoint_id))
                if isinstance(outcome, Completed):
                    restorable.append(outcome.metadata)
            self.tables.collect_garbage(self.directory, restorable)
        except CheckpointError as error:
            self.events.info(f"table files no longer needed are kept for now: {error}")

    def savepoint(self, context: dg.OpExecutionContext, request: CheckpointRequest) -> Completed:
        """Take a savepoint of the pipeline as it rests and leave its working directory in order.

        Raises Declined when it failed; the pipeline is as it was.
        """
        epoch = self.epoch(request=request, work=EpochWork.NONE)
        epoch.run_missing()
        number = epoch.checkpoint
        outcome = self.coordinator.status_of(number) if number is not None else None
        self.close(RunStatus.SUSPENDED, clean=True)
        if not isinstance(outcome, Completed):
            why = (
                outcome.message or outcome.reason.text
                if isinstance(outcome, Failed)
                else "it was not triggered"
            )
            raise Declined(f"the savepoint failed and nothing of it remains: {why}")
        return outcome

    def epoch(
        self,
        *,
        request: CheckpointRequest = CheckpointRequest(),
        work: EpochWork = EpochWork.DRAIN,
    ) -> EpochRun:
        """Return the run's stages, ready to run."""
        return EpochRun(
            pipeline=self.pipeline,
            coordinator=self.coordinator,
            attempt=self.directory,
            run_id=self.run_id,
            session=self._session,
            tables=self.tables,
            reporter=self.events,
            request=request,
            work=work,
        )

    # --- working directory -------------------------------------------------------------------------------------

    @cached_property
    def directory(self) -> AttemptDirectory:
        """The attempt's working directory, restored unless another process of this run has done that."""
        recorded = self.coordinator.working_directory
        if recorded:
            directory = AttemptDirectory(Path(recorded))
        else:
            directory = AttemptRestorer(
                pipeline=self.pipeline,
                coordinator=self.coordinator,
                work_dir=self._resource.resolved_work_dir,
                open_storage=self._resource.open_storage,
                tables=self.tables,
                reporter=self.events,
                options=self._restore,
                session=self._session,
            ).restore()
        self.gateway.attempt = directory
        return directory

    def _session(self) -> SparkSession:
        """The Spark session of the op that runs now."""
        session: SparkSession = getattr(self._context.resources, SPARK_KEY).session
        return session

    # --- the end -----------------------------------------------------------------------------------------------

    def close(self, status: RunStatus, *, clean: bool) -> None:
        """End the attempt. A fenced one has nothing to close."""
        if self._closed:
            return
        self._closed = True
        with suppress(Fenced):
            self.coordinator.close(status, clean=clean)

    def close_after_failure(self) -> None:
        """End an attempt whose run failed or was terminated; its working directory is not continued."""
        with suppress(CheckpointError):
            self.close(RunStatus.FAILED, clean=False)
