"""One attempt of a pipeline as an epoch run: opened, its stages run, its checkpoint reported, left in order.

Nothing of Dagster is in here: ops share one through ``dagster/runs/attempt.py``, plain programs have one of their own.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from dagster_ckpt.core.checkpoint.lease import NEXT_PROCESS, Lease
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.messages import TriggerStages
from dagster_ckpt.core.request import (
    CheckpointOutcome,
    CheckpointRequest,
    Completed,
    Failed,
    Pending,
    RunStatus,
)
from dagster_ckpt.errors import CheckpointError, Declined, Fenced, Unavailable
from dagster_ckpt.runtime.attempt_setup import Ownership
from dagster_ckpt.spark.attempt.attempt import Attempt
from dagster_ckpt.spark.attempt.earlier_attempts import TableCleanUp, mark_ended
from dagster_ckpt.spark.attempt.pipeline_setup import PipelineSetup, StageGateway
from dagster_ckpt.spark.directories import AttemptDirectory
from dagster_ckpt.spark.epoch.drains import AT_ONCE, Drains
from dagster_ckpt.spark.epoch.run import EpochRun, EpochWork, FailRun, RetryStage
from dagster_ckpt.spark.stage_report import not_published

if TYPE_CHECKING:
    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline


class EpochGateway(StageGateway):
    """Stages of an epoch run pass the barrier when it is their turn; what is left to do is publishing."""

    def trigger(self, message: TriggerStages) -> None:
        """Nothing: each op passes the barrier behind its last batch."""


class NotPublished(Unavailable):
    """The run's checkpoint is complete, and tables do not show its rows; the next run tries again."""


class EpochAttempt:
    """Attempt of an epoch run. Opening it claims the pipeline; raises as ``CheckpointCoordinator.open`` does.

    Ops that share a run, each in a process of its own, attach to what the first one claimed. Whoever runs all stages
    claims a new attempt: what owns the pipeline under the same name is an earlier try, which has failed or must stop.
    """

    def __init__(self, setup: PipelineSetup, *, ownership: Ownership = Ownership.ATTACH) -> None:
        self._setup = setup
        self._closed = False
        lease = Lease(reads_mailbox=False)
        self._attempt = Attempt.open(setup, EpochGateway, ownership=ownership, lease=lease)
        self.coordinator = self._attempt.coordinator
        self.tables = self._attempt.tables
        self._drains = Drains(setup.session, setup.reporter, most=AT_ONCE)

    @property
    def pipeline(self) -> CheckpointedPipeline:
        """The pipeline as its author wrote it."""
        return self._setup.pipeline

    @property
    def directory(self) -> AttemptDirectory:
        """The attempt's working directory, restored unless another process of this run has done that."""
        return self._attempt.directory

    def epoch(
        self,
        *,
        request: CheckpointRequest = CheckpointRequest(),
        work: EpochWork = EpochWork.DRAIN,
        has_turn: Callable[[StageUid], bool] = lambda uid: True,
    ) -> EpochRun:
        """Return the run's stages, ready to run; ``has_turn``: the stages that run in this process."""
        return EpochRun(
            pipeline=self._attempt.pipeline,
            coordinator=self.coordinator,
            attempt=self.directory,
            run_id=self._setup.owner,
            drains=self._drains,
            tables=self.tables,
            reporter=self._setup.reporter,
            request=request,
            work=work,
            hooks=self._attempt.hooks,
            arguments_of=self._setup.arguments,
            has_turn=has_turn,
        )

    def run_all(self, *, retries: int, pause: float) -> None:
        """Run all stages, and a stage again where the failure manager decides so; ``pause`` in seconds, doubling.

        Raises RetryStage where ``retries`` were not enough; FailRun, Fenced.
        """
        epoch = self.epoch()
        for stage in self.pipeline.graph.topological:
            for number in itertools.count():
                try:
                    epoch.run_stage(
                        stage.uid, self._setup.arguments(stage.uid), retries_left=max(0, retries - number)
                    )
                    break
                except RetryStage:
                    if number >= retries:
                        raise
                    time.sleep(pause * 2**number)

    def _without_checkpoint(self, epoch: EpochRun, outcome: CheckpointOutcome | None) -> str:
        why = epoch.without_checkpoint
        if isinstance(outcome, Failed):
            why = outcome.message or outcome.reason.text
        if not why:
            return ""
        told = f"this run has no checkpoint, and none of its rows is shown: {why}. The next run goes on from here"
        self._setup.reporter.warn(told)
        return told

    def complete(self, *, tell: Callable[[], object] = lambda: None) -> Completed | None:
        """Run what has not run, ``tell`` of the run's checkpoint, and leave the working directory in order.

        Returns the checkpoint; None where the run has none. Raises NotPublished, FailRun, Unavailable.
        """
        epoch = self.epoch()
        epoch.run_missing()
        number = epoch.checkpoint
        outcome = None if number is None else self.coordinator.status_of(number)
        if isinstance(outcome, Pending):
            raise Unavailable(
                f"checkpoint {number} is not complete though every stage of the run has had its turn, and no row "
                "of the run is published: run the pipeline again, it goes on from its latest checkpoint"
            )
        if self.coordinator.failure:  # of no stage: a trigger, a timeout, the metadata
            raise FailRun(self.coordinator.failure)
        if number is not None and isinstance(outcome, Completed):
            self._publish_here(number)
            epoch.forget_consumed_entries(number)
            self._collect_table_garbage()
        missing = "" if isinstance(outcome, Completed) else self._without_checkpoint(epoch, outcome)
        tell()
        self.close(RunStatus.SUSPENDED, clean=True)
        if missing and not self.coordinator.config.tolerable_failed_checkpoints:
            raise FailRun(missing)
        late = not_published(self.tables.unpublished)
        if late:
            raise NotPublished(
                "the checkpoint is complete and holds all rows, but tables do not show its rows yet, and the next run "
                f"tries again: {late}{self._shown_meanwhile()}"
            )
        return outcome if isinstance(outcome, Completed) else None

    def _shown_meanwhile(self) -> str:
        shown = self.coordinator.record.late_tables
        return f". Meanwhile {shown}" if shown else ""

    def _publish_here(self, number: CheckpointId) -> None:
        """Publish in this process what another one has heard of, or nobody: only who publishes knows what failed."""
        if self._attempt.gateway.notified != number:
            self.coordinator.notify_again()
        if self._attempt.gateway.notified != number:
            self.tables.none_published(f"nobody was told that checkpoint {number} is complete")

    def take_snapshot(self, request: CheckpointRequest) -> Completed:
        """Take a checkpoint or savepoint of the idle pipeline and leave its working directory in order.

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
            raise Declined(f"the {request.kind.noun} failed and nothing of it remains: {why}")
        late = not_published(self.tables.unpublished)
        if late:
            self._setup.reporter.warn(f"the {request.kind.noun} is complete, but {late}")
        return outcome

    @property
    def unpublished(self) -> Mapping[str, str]:
        """Tables that do not show the rows of the newest checkpoint, and why."""
        return self.tables.unpublished

    def _collect_table_garbage(self) -> None:
        """Remove table files no restorable snapshot needs; when one of these cannot be read, nothing goes."""
        try:
            TableCleanUp(
                coordinator=self.coordinator,
                tables=self.tables,
                attempt=self.directory,
                publishing=self._attempt.gateway.publishing,
            ).collect()
        except CheckpointError as error:
            self._setup.reporter.info(f"table files no longer needed are kept for now: {error}")

    # --- the end -----------------------------------------------------------------------------------------------

    def close(self, status: RunStatus, *, clean: bool, cause: object = "") -> None:
        """End the attempt; ``cause``: why it failed. A fenced one has nothing to close."""
        if self._closed:
            return
        self._drains.stop()
        if clean:
            mark_ended(self.coordinator)
        # Not before: a mark that cannot be written leaves an attempt that still renews its lease.
        self._closed = True
        with suppress(Fenced):
            self.coordinator.close(status, clean=clean, cause=cause)

    def pass_on(self) -> None:
        """Leave the attempt to the process of the run's next op. One that was fenced has nothing to pass on."""
        if self._closed:
            return
        self._closed = True
        self._drains.stop()
        with suppress(CheckpointError):
            self.coordinator.pass_on(self._setup.clock.now() + NEXT_PROCESS)

    def close_after_failure(self, cause: object = "") -> None:
        """End an attempt whose run failed or was terminated; its working directory is not continued."""
        with suppress(CheckpointError):
            self.close(RunStatus.FAILED, clean=False, cause=cause)
