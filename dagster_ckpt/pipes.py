"""A program that Dagster launched through Pipes runs the pipeline for the run that launched it. Public name.

The program opens Pipes itself where its platform needs its own loaders and writers (``open_dagster_pipes``), else this
does. What the launching run's config and tags say is in the extras; all that a run in Dagster's process would write to
its event log goes back as messages.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_pipes import DAGSTER_PIPES_CONTEXT_ENV_VAR, PipesContext, open_dagster_pipes

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.supervision.approval import refuse_outdated
from dagster_ckpt.core.supervision.owner import OwnerState
from dagster_ckpt.core.supervision.reporting import REPORT_PAUSE, ReportPolicy
from dagster_ckpt.dagster.jobs.streaming import StreamConfig
from dagster_ckpt.dagster.launched.messages import Ended, RemoteOp
from dagster_ckpt.dagster.launched.order import Order, Work
from dagster_ckpt.dagster.reports.events import DagsterEvents
from dagster_ckpt.dagster.reports.lines import on_stderr
from dagster_ckpt.dagster.reports.metadata import history_metadata
from dagster_ckpt.dagster.reports.stream_events import StreamingEvents, StreamReports
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.dagster.resources.pipeline import serving_now
from dagster_ckpt.dagster.resources.spark import SparkSessionResource
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.program_run import EpochEnd, Host, StreamEnd, epoch_of, stream_of
from dagster_ckpt.runtime.attempt_setup import Admit
from dagster_ckpt.runtime.audit import Operator
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.spark.stage_report import recent_checkpoints
from dagster_ckpt.spark.streaming.watch import ProgressWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
    from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics

__all__ = ["run_launched"]

log = logging.getLogger("dagster_ckpt.run")


def run_launched(
    pipeline: CheckpointedPipeline,
    *,
    coordinator: CheckpointCoordinatorResource,
    spark: SparkSession | SparkSessionResource | None = None,
    resources: Mapping[str, Any] | None = None,
) -> EpochEnd | StreamEnd:
    """Run the pipeline as the Dagster run that launched this program wants: an epoch or a stream, from what it names.

    The run shows what it would show of stages in its own process. SIGTERM and SIGINT end a stream between two batches.

    Args:
        pipeline: what to run; the same code as in the code location.
        coordinator: where checkpoints live, as this machine reaches it: the same store, storage and tables as the code
            location's.
        spark: a session, which is left running, or how one is started; None: the process's, or one of ours.
        resources: what stages and hooks find in ``context.resources``.

    Raises as ``run_epoch`` and ``run_stream``; InvalidRequest where no Dagster run has launched this program.
    """
    with _opened() as pipes:
        order = Order.of(pipes.extras)
        op = RemoteOp(pipes.report_custom_message, location=order.location)
        try:
            _refuse_other(pipeline, order)
            program = _Program(pipeline, order, op)
            where = {"coordinator": coordinator, "spark": spark, "resources": resources}
            end = program.epoch(where) if order.work is Work.EPOCH else program.stream(where)
        except BaseException as error:
            op.failed(error)
            raise
        return end


def is_launched() -> bool:
    """Return True where the environment says that a Dagster run has launched this program."""
    return bool(os.environ.get(DAGSTER_PIPES_CONTEXT_ENV_VAR))


@contextmanager
def _opened() -> Iterator[PipesContext]:
    """Yield the context of Pipes: the one the program has opened, left open, or one of our own."""
    if PipesContext.is_initialized() and not PipesContext.get().is_closed:
        yield PipesContext.get()
        return
    if not is_launched():
        raise InvalidRequest(
            "no Dagster run has launched this program: call run_epoch or run_stream; or, where its platform hands over "
            "Pipes' parameters in a way of its own, open_dagster_pipes(...) first"
        )
    with open_dagster_pipes() as pipes:
        yield pipes


def _refuse_other(pipeline: CheckpointedPipeline, order: Order) -> None:
    if pipeline.name != order.pipeline:
        raise InvalidRequest(
            f"Dagster launched this program to run pipeline {order.pipeline!r}, and it runs {pipeline.name!r}"
        )
    if set(pipeline.stages) != set(order.stages):
        raise InvalidRequest(
            f"pipeline {pipeline.name!r} has the stages {', '.join(pipeline.stages)} in this program and "
            f"{', '.join(order.stages)} in the code location: deploy the same code to both"
        )


@dataclass(frozen=True)
class _Program:
    """One run for the Dagster run that ordered it."""

    pipeline: CheckpointedPipeline
    order: Order
    op: RemoteOp

    def epoch(self, where: Mapping[str, Any]) -> EpochEnd:
        told, seen = self._told(), _Seen()

        def began(
            attempt: Callable[[], CheckpointCoordinator | None], unpublished: Callable[[], Mapping[str, str]]
        ) -> None:
            seen.attempt = attempt
            told.history, told.unpublished = seen.history, unpublished

        host = self._host(told, reporter=told, listeners=[told], tell_tables=told.table_changed, began=began)
        end = epoch_of(host, self.pipeline, **where, **self._wanted())
        self.op.output(history_metadata(seen.history(), page=self.order.page))
        said = "" if end.checkpoint is None else f"the epoch's checkpoint is {end.checkpoint.uri}"
        self.op.ended(seen.ended(skipped=end.skipped, said=said))
        return end

    def stream(self, where: Mapping[str, Any]) -> StreamEnd:
        config = StreamConfig(**self.order.stream)
        told, seen = self._told(), _Seen()
        reports = StreamReports(told, pause=config.progress_interval or REPORT_PAUSE)
        events = StreamingEvents(reports, unpublished=lambda: told.unpublished())  # noqa: PLW0108 - it is set later

        def began(
            attempt: Callable[[], CheckpointCoordinator | None], unpublished: Callable[[], Mapping[str, str]]
        ) -> None:
            seen.attempt = attempt
            told.history, told.unpublished = seen.history, unpublished

        watch = ProgressWatch(
            tell=events.progress, tell_every=config.progress_interval, look_on=events.look_on
        )
        host = self._host(
            told,
            reporter=events,
            listeners=[events],
            tell_tables=events.table_changed,
            began=began,
            watch=watch,
        )
        try:
            with on_stderr():
                end = stream_of(
                    host,
                    self.pipeline,
                    **where,
                    **self._wanted(),
                    strategy=config.strategy(),
                    trigger_interval=config.trigger_interval,
                )
        finally:
            events.close()
        self.op.ended(seen.ended(skipped=end.skipped, said=_said(end), interrupted=end.interrupted))
        return end

    def _told(self) -> DagsterEvents:
        order = self.order
        told = DagsterEvents(
            self.pipeline,
            job_name=order.job_name,
            restore_op=order.restore_op,
            ui_base_url=order.ui_base_url,
            page=order.page,
            report=ReportPolicy.of(order.report) if order.report else None,
        )
        told.attach_to(self.op)
        return told

    def _host(self, told: DagsterEvents, **more: Any) -> Host:
        order = self.order

        def opened(where: CheckpointCoordinatorResource) -> None:
            told.serving = lambda: serving_now(where, self.pipeline)

        return Host(
            run_id=order.run_id,
            root=order.root,
            operator=Operator(who=order.who, shown=order.shown),
            concurrent_runs=order.concurrent_runs,
            how_to_stop=f"stop it with job {order.stop_job}, or terminate it",
            state_of=self._state_of,
            guarding=self._guarding,
            opened=opened,
            **more,
        )

    def _wanted(self) -> dict[str, Any]:
        order = self.order
        return {"restore": order.restore, "settings": order.settings, "stages": order.stage_config}

    def _state_of(self, run_id: str) -> OwnerState:
        return self.order.ended_state if run_id == self.order.ended_run else OwnerState.UNKNOWN

    def _guarding(self, admit: Admit) -> Admit:
        """Return ``admit``, which also refuses a claim on a record that is not as the restore was approved."""
        order = self.order
        if not order.approved:
            return admit

        def guarded(record: CoordinatorRecord) -> None:
            admit(record)
            if record.root != order.root:
                refuse_outdated(order.approved, record, RestoreOptions.of(**order.restore))

        return guarded


@dataclass
class _Seen:
    """The run's coordinator, as soon as there is one."""

    attempt: Callable[[], CheckpointCoordinator | None] = lambda: None

    def history(self) -> Sequence[CheckpointStatistics]:
        coordinator = self.attempt()
        return () if coordinator is None else recent_checkpoints(coordinator)

    def ended(self, **end: Any) -> Ended:
        coordinator = self.attempt()
        if coordinator is None:
            return Ended(**end)
        return Ended(epoch=int(coordinator.epoch), lineage=coordinator.record.lineage, **end)


def _said(end: StreamEnd) -> str:
    if end.savepoint:
        return f"stopped with savepoint {end.savepoint}"
    if end.interrupted:
        return "stopped between two batches"
    if end.skipped:
        return ""
    final = "" if end.checkpoint_id is None else f"; final checkpoint {end.checkpoint_id}"
    return f"all bounded sources are exhausted{final}"
