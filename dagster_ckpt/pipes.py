"""A program that Dagster launched through Pipes runs the pipeline for the run that launched it.

The program opens Pipes itself where its platform needs its own loaders and writers (``open_dagster_pipes``), else this
does. What the launching run's config and tags say is in the extras; all that a run in Dagster's process would write to
its event log goes back as messages.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_pipes import (
    DAGSTER_PIPES_CONTEXT_ENV_VAR,
    PipesContext,
    PipesDefaultContextLoader,
    PipesEnvVarParamsLoader,
    open_dagster_pipes,
)

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.supervision.ownership import OwnerState
from dagster_ckpt.dagster.jobs.runs import StreamConfig
from dagster_ckpt.dagster.launched.messages import EXTRA, Ended, Order, RemoteOp, RunKind
from dagster_ckpt.dagster.reporting import REPORT_PAUSE, ReportPolicy
from dagster_ckpt.dagster.reports.asset import history_metadata
from dagster_ckpt.dagster.reports.events import DagsterEvents, Followed
from dagster_ckpt.dagster.reports.op_log import on_stderr
from dagster_ckpt.dagster.reports.stream_events import StreamingEvents, StreamReports
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.dagster.resources.pipeline import serving_now
from dagster_ckpt.dagster.resources.spark import SparkSessionResource
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.programs import EpochEnd, StreamEnd, host_epoch, host_stream, hosted, turn_of
from dagster_ckpt.running import Host
from dagster_ckpt.runtime.record_store import Operator
from dagster_ckpt.runtime.turn import RunTurn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession


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
        coordinator: the code location's store, storage and tables, as this machine reaches them.
        spark, resources: as in ``run_epoch``.

    Raises as ``run_epoch`` and ``run_stream``; InvalidRequest where no Dagster run has launched this program.
    """
    with _opened() as pipes:
        order = Order.of(pipes.extras)
        op = RemoteOp(pipes.report_custom_message, location=order.location)
        try:
            _refuse_other(pipeline, order)
            program = _Program(pipeline, order, op)
            where = {"coordinator": coordinator, "spark": spark, "resources": resources}
            end = program.epoch(where) if order.work is RunKind.EPOCH else program.stream(where)
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


class LaunchingRun:
    """Dagster run that launched a program which starts its queries itself: what it wants, and what it is told."""

    def __init__(self, order: Order, pipes: PipesContext) -> None:
        self.order = order
        self._pipes = pipes
        self._op = RemoteOp(pipes.report_custom_message, location=order.location)
        pipeline = CheckpointedPipeline(name=PipelineId(order.pipeline), stages={}, upstream={})
        self._told = _events_of(pipeline, order, self._op)
        self.events = StreamingEvents(StreamReports(self._told), unpublished=dict)
        """Listener of the program's coordinators."""
        self._error: BaseException | None = None

    @classmethod
    def of_process(cls, pipeline: str) -> LaunchingRun | None:
        """Return the run that launched this process; None: none has, or it wants something else.

        Raises InvalidRequest: it was launched as another pipeline.
        """
        if not is_launched():
            return None
        with PipesDefaultContextLoader().load_context(
            PipesEnvVarParamsLoader().load_context_params()  # type: ignore[no-untyped-call]
        ) as given:
            if EXTRA not in (given.get("extras") or {}):
                return None
        pipes = open_dagster_pipes()
        found = cls(Order.of(pipes.extras), pipes)
        if found.order.pipeline == pipeline:
            return found
        error = InvalidRequest(
            f"Dagster launched this program as {found.order.pipeline!r}, not as {pipeline!r}"
        )
        found.failed(error)
        found.ended()
        raise error

    @property
    def restore(self) -> RestoreOptions:
        """Restore that the run asks for."""
        return RestoreOptions.of(**self.order.restore)

    @property
    def operator(self) -> Operator:
        """Person who had the run launched, and what they were shown."""
        return Operator(who=self.order.who, shown=self.order.shown)

    def follow(self, attempt: Followed) -> None:
        """Show the history of the program's attempts."""
        self._told.follow(attempt)

    def failed(self, error: BaseException) -> None:
        """Note why the program fails, for ``ended``."""
        self._error = error

    def ended(self) -> None:
        """Say how the program has ended, once."""
        if self._pipes.is_closed:
            return
        self.events.close()
        match self._error:
            case KeyboardInterrupt():
                self._op.ended(_ended(self._told, interrupted=True))
            case None | SystemExit(code=None | 0) if self._told.run is None:
                self._op.ended(_ended(self._told, skipped="the program has started no streaming query"))
            case None | SystemExit(code=None | 0):
                self._op.ended(_ended(self._told, said="the program has ended"))
            case error:
                self._op.failed(error)
        self._pipes.close()


def _events_of(pipeline: CheckpointedPipeline, order: Order, op: RemoteOp) -> DagsterEvents:
    told = DagsterEvents(
        pipeline,
        job_name=order.job_name,
        restore_op=order.restore_op,
        ui_base_url=order.ui_base_url,
        page=order.page,
        report=ReportPolicy.of(order.report) if order.report else None,
    )
    told.attach_to(op)
    return told


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
        told = _events_of(self.pipeline, self.order, self.op)
        with self._hosted(told, told, where) as host:
            end = host_epoch(host, self._turn(host), began=told.follow)
        self.op.output(history_metadata(told.history(), page=self.order.page))
        said = "" if end.checkpoint is None else f"the epoch's checkpoint is {end.checkpoint.uri}"
        self.op.ended(_ended(told, skipped=end.skipped, said=said))
        return end

    def stream(self, where: Mapping[str, Any]) -> StreamEnd:
        config = StreamConfig(**self.order.stream)
        told = _events_of(self.pipeline, self.order, self.op)
        reports = StreamReports(told, pause=config.progress_interval or REPORT_PAUSE)
        events = StreamingEvents(reports, unpublished=lambda: told.unpublished())  # noqa: PLW0108 - it is set later
        try:
            with on_stderr(), self._hosted(told, events, where) as host:
                end = host_stream(
                    host,
                    self._turn(host),
                    began=told.follow,
                    watch=config.watch(events),
                    **config.of_service(),
                )
        finally:
            events.close()
        self.op.ended(_ended(told, skipped=end.skipped, said=_said(end), interrupted=end.interrupted))
        return end

    def _hosted(
        self, told: DagsterEvents, events: DagsterEvents | StreamingEvents, where: Mapping[str, Any]
    ) -> AbstractContextManager[Host]:
        order = self.order

        def opened_as(coordinator: CheckpointCoordinatorResource) -> None:
            told.serving = lambda: serving_now(coordinator, self.pipeline)

        return hosted(
            self.pipeline,
            **where,
            restore=order.restore,
            settings=order.settings,
            stages=order.stage_config,
            run_id=order.run_id,
            root=order.root,
            approved=order.approved,
            operator=Operator(who=order.who, shown=order.shown),
            reporter=events,
            listeners=[events],
            tell_tables=events.table_changed,
            opened_as=opened_as,
        )

    def _turn(self, host: Host) -> RunTurn:
        order = self.order
        return turn_of(
            host,
            concurrent_runs=order.concurrent_runs,
            how_to_stop=order.how_to_stop,
            state_of=self._state_of,
        )

    def _state_of(self, run_id: str) -> OwnerState:
        return self.order.ended_state if run_id == self.order.ended_run else OwnerState.UNKNOWN


def _ended(told: DagsterEvents, **end: Any) -> Ended:
    coordinator = None if told.run is None else told.run.coordinator
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
