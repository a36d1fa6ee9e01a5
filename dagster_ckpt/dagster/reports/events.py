"""Turns what the coordinator tells into Dagster events: materializations, partitions, checks, log lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, assert_never

import dagster as dg

from dagster_ckpt.core.coordinator.effects import (
    CheckpointCompleted,
    CheckpointDiscarded,
    CheckpointFailed,
    CheckpointRejected,
    CheckpointSubsumed,
    CheckpointTriggered,
    CoordinatorEvent,
    JobFailed,
    StageAcknowledged,
    StopEnded,
)
from dagster_ckpt.core.messages import CheckpointFailureReason
from dagster_ckpt.core.paths import checkpoint_key
from dagster_ckpt.dagster.launchpad import CodeLocation, restore_link
from dagster_ckpt.dagster.reporting import ReportPolicy, Untold, has_changed
from dagster_ckpt.dagster.reports.asset import (
    UNPUBLISHED,
    checkpoints_asset_key,
    checkpoints_partitions,
    completed_event,
    failed_events,
    failure_sentence,
    partition_key,
    succeeded_evaluation,
    unchanged_event,
)
from dagster_ckpt.dagster.reports.op_log import OpLog, OpOfRun, line_of
from dagster_ckpt.dagster.reports.tables import changed_events, condition_evaluations
from dagster_ckpt.operations.deployment import readers_sentence
from dagster_ckpt.spark.source.positions import LagReader
from dagster_ckpt.spark.stage_report import TableChanged, not_published, recent_checkpoints

if TYPE_CHECKING:
    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
    from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics
    from dagster_ckpt.runtime.coordinator import CheckpointCoordinator


class Followed(Protocol):
    """A run whose checkpoints are told: an epoch's attempt, or a stream."""

    @property
    def coordinator(self) -> CheckpointCoordinator | None:
        """Coordinator of the current attempt."""
        ...

    @property
    def unpublished(self) -> Mapping[str, str]:
        """Tables that do not show the rows of the newest checkpoint, and why."""
        ...


class DagsterEvents:
    """A listener and reporter that writes to whichever op is running now.

    Events that arrive while no op runs (teardown) go to the run's last op context.
    """

    def __init__(
        self,
        of: CheckpointedPipeline,
        *,
        job_name: str,
        restore_op: str,
        ui_base_url: str = "",
        page: str = "",
        report: ReportPolicy | None = None,
    ) -> None:
        self.report = report or ReportPolicy()
        """Which checkpoints are reported."""
        self._of = of
        self._lags = LagReader(pipeline=of)
        self._pipeline = of.name
        self._job_name = job_name
        self._restore_op = restore_op
        self._ui_base_url = ui_base_url
        self.page = page
        """Address of the checkpoint page."""
        self.history: Callable[[], Sequence[CheckpointStatistics]] = tuple
        """Returns the latest checkpoints; asked when one is told."""
        self._op: OpLog | None = None
        self._held: list[TableChanged] | None = None
        self.run: Followed | None = None
        """The run, once there is one."""
        self._readers_name = of.origins[-1].name if of.origins else of.name
        self.serving: Callable[[], str] = lambda: self._readers_name
        """Returns the pipeline whose tables readers find; asked when a table has changed, and a checkpoint is told."""
        self.unpublished: Callable[[], Mapping[str, str]] = dict
        """Returns the tables that do not show the newest checkpoint's rows, and why; asked when one completed."""

    def follow(self, run: Followed) -> None:
        """Show the history and the tables of a run from now on."""
        self.run = run
        self.history = lambda: () if run.coordinator is None else recent_checkpoints(run.coordinator)
        self.unpublished = lambda: run.unpublished

    def attach(self, context: dg.OpExecutionContext) -> None:
        """Write to this op from now on."""
        self.attach_to(OpOfRun(context))

    def attach_to(self, op: OpLog) -> None:
        """Write to this op from now on, wherever it runs."""
        self._op = op

    def info(self, message: str) -> None:
        """Say something an operator may want to read."""
        if self._op is not None:
            self._op.info(message)

    def warn(self, message: str) -> None:
        """Say something an operator should read."""
        if self._op is not None:
            self._op.warn(message)

    def table_changed(self, change: TableChanged) -> None:
        """Materialize the asset of a table that shows other rows now."""
        if self._held is not None:
            self._held.append(change)
        elif self._op is not None:
            location = CodeLocation(self._op.location, self._ui_base_url)
            for told in changed_events(self._of, change, serving=self.serving(), location=location):
                self._op.event(told)

    @contextmanager
    def holding_changes(self) -> Iterator[list[TableChanged]]:
        """Keep changes of tables for the caller, whose results tell of them; after an error they are told at once."""
        held: list[TableChanged] = []
        self._held = held
        try:
            yield held
        except BaseException:
            self._held = None
            for change in held:
                self.table_changed(change)
            raise
        finally:
            self._held = None

    def __call__(self, event: CoordinatorEvent) -> None:
        """Hear one event of the coordinator."""
        self.hear(event, self.unpublished())

    def hear(self, event: CoordinatorEvent, unpublished: Mapping[str, str]) -> None:
        """Hear one event, with the tables that were not published when it was told."""
        match event:
            case CheckpointTriggered() | StageAcknowledged():
                self.info(line_of(event))
            case CheckpointCompleted():
                self.info(line_of(event))
                self._completed(event, unpublished if event.kind.publishes else {})
            case CheckpointFailed():
                self._failed(event)
            case CheckpointRejected():
                self._rejected(event.reason, event.message)
            case CheckpointDiscarded():
                self._discarded(event)
            case CheckpointSubsumed():
                self.info(f"checkpoint {event.checkpoint_id} is subsumed by a newer one")
            case JobFailed():
                self.warn(event.cause)
            case StopEnded():
                self.info("stop-with-savepoint is over")
            case _:
                assert_never(event)

    # --- what each becomes -------------------------------------------------------------------------------------

    def _completed(self, event: CheckpointCompleted, unpublished: Mapping[str, str]) -> None:
        self.add_partition(event)
        is_news = self.report.is_all or event.kind.is_savepoint or has_changed(event.metadata)
        self.tell_completed(event, unpublished, is_news=is_news)
        self.tell_succeeded(event, unpublished)

    def add_partition(self, event: CheckpointCompleted) -> None:
        """Bring the partitions in step with a completion."""
        if self._op is not None:
            name = checkpoints_partitions(self._pipeline).name or ""
            self._op.add_partition(name, partition_key(event.metadata))

    def remove_partition(self, event: CheckpointDiscarded) -> None:
        """Bring the partitions in step with a checkpoint that is no longer retained."""
        if self._op is not None:
            name = checkpoints_partitions(self._pipeline).name or ""
            self._op.remove_partition(name, checkpoint_key(event.checkpoint_id))

    def tell_completed(
        self,
        event: CheckpointCompleted,
        unpublished: Mapping[str, str],
        *,
        is_news: bool = True,
        since: Untold | None = None,
    ) -> None:
        """Materialize the partition of a checkpoint; one that ``is_news`` to nobody is an observation.

        ``since``: what has completed since the last report, this one included.
        """
        op = self._op
        if op is None:
            return
        told = completed_event(
            self._pipeline,
            event.metadata,
            uri=event.uri,
            link=self._link(op, partition_key(event.metadata)),
            late=not_published(unpublished),
            positions=self._lags.read(event.metadata),
            since=since,
            history=self.history(),
            page=self.page,
            readers=self._readers(),
        )
        op.event(told if is_news else unchanged_event(told))

    def _readers(self) -> str:
        """Say whose tables readers find, of a fork and of a pipeline that a fork serves; of others nothing."""
        serving = self.serving()
        if serving == self._readers_name == self._pipeline:
            return ""
        return readers_sentence(self._pipeline, name=self._readers_name, serving=serving)

    def tell_succeeded(self, event: CheckpointCompleted, unpublished: Mapping[str, str]) -> None:
        """Pass the check that the last checkpoint completed, and evaluate those of conditions on its rows."""
        late = {UNPUBLISHED: not_published(unpublished)} if unpublished else {}
        if self._op is not None:
            self._check(
                self._op,
                passed=True,
                metadata={"checkpoint": int(event.checkpoint_id), "consecutive_failures": 0, **late},
            )
            metrics = {stage.uid: stage.metrics for stage in event.metadata.stages}
            for told in condition_evaluations(self._of, metrics, int(event.checkpoint_id)):
                self._op.event(told)

    def observe(self, description: str, metadata: Mapping[str, Any]) -> None:
        """Observe the checkpoints asset as a whole."""
        if self._op is not None:
            key = checkpoints_asset_key(self._pipeline)
            self._op.event(dg.AssetObservation(key, description=description, metadata=metadata))

    def _failed(self, event: CheckpointFailed) -> None:
        self.warn(failure_sentence(event))
        if self._op is not None:
            for reported in failed_events(self._pipeline, event):
                self._op.event(reported)

    def _rejected(self, reason: CheckpointFailureReason, message: str) -> None:
        if reason is CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS:
            return  # as it is set: the next one comes in its time
        self.warn(f"no checkpoint: {message or reason.text} ({reason.name})")
        if self._op is not None and reason.counted:
            self._check(self._op, passed=False, metadata={"reason": reason.name, "message": message})

    def _discarded(self, event: CheckpointDiscarded) -> None:
        self.info(line_of(event))
        self.remove_partition(event)

    def _check(self, op: OpLog, *, passed: bool, metadata: dict[str, str | int]) -> None:
        op.event(succeeded_evaluation(self._pipeline, passed=passed, metadata=metadata))

    def _link(self, op: OpLog, key: str) -> str | None:
        if not op.location:
            return None
        return restore_link(
            job_name=self._job_name,
            location=op.location,
            restore_op=self._restore_op,
            restore_from=key,
            ui_base_url=self._ui_base_url,
        )
